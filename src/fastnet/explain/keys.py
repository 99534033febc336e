"""What becomes of each key in a step: who writes it, who reads it, and where it dies."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fastnet._execute import Plan
from fastnet.explain.items import Item
from fastnet.explain.subject import Subject

__all__ = ["Key", "Life", "find_keys"]

Flow = tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class Life:
    """One value of a key, from where it comes from to where it is dropped.

    Attributes:
        writer: The place of the op that writes it, or None if it is the batch's.
        readers: The places of the ops that read it.
        end: "dropped" after its last reader, "overwritten" by another value, "deleted" by a
            Delete, "returned", or "unknown" where the kernel refuses the ops.
        after: The place of the op that it does not outlive; None if it is returned.
    """

    writer: int | None
    readers: tuple[int, ...]
    end: str
    after: int | None


@dataclass(frozen=True)
class Key:
    """What there is to say of a key.

    Attributes:
        name: The key.
        taken: Whether the batch must have it.
        to_device: Whether the batch's value goes to the device.
        lives: Its values among the ops, in order.
        cut_by: The class of the slicer that cuts it, or None.
        joined_by: The class of the slicer that joins it, or None.
        returned: Whether the ops hand it over.
        because: Why they do: "desired", "postprocessing" reads it, or "default" if no keys were
            asked for; None if they do not.
        read_after: The places of the postprocessing ops that read it.
        written_after: The places of those that write it.
        result: Where the result has it from: "ops", "postprocessing" or "batch", which is then its
            own value, untouched; None if it is not in the result.
    """

    name: str
    taken: bool
    to_device: bool
    lives: tuple[Life, ...]
    cut_by: str | None
    joined_by: str | None
    returned: bool
    because: str | None
    read_after: tuple[int, ...]
    written_after: tuple[int, ...]
    result: str | None

    @property
    def writers(self) -> tuple[int, ...]:
        """The places of the ops that write it."""
        return tuple(life.writer for life in self.lives if life.writer is not None)

    @property
    def readers(self) -> tuple[int, ...]:
        """The places of the ops that read it."""
        return tuple(dict.fromkeys(place for life in self.lives for place in life.readers))


def find_keys(
    subject: Subject, ops: list[Item], postprocessing: list[Item], slicers: list[Item]
) -> list[Key]:
    """Follow each key through a step.

    Args:
        subject: The network and its opening.
        ops: The ops in force.
        postprocessing: The postprocessing ops in force.
        slicers: The slicers in force.

    Returns:
        The keys: first those of the batch, then the others as they are written.
    """
    plan = subject.plan
    cut_by = {key: item.name for item in slicers for key in item.inputs}
    joined_by = {key: item.name for item in slicers for key in item.outputs}
    lives = _live(_flow_of(plan, ops), ops, known=plan is not None)
    taken: set[str]
    if plan is None:
        to_device = {key for key, values in lives.items() if values[0].writer is None}
        taken, returned = to_device | set(cut_by), set()
    else:
        resolution = plan.resolution
        to_device = resolution.device_inputs.names()
        # without the slicers where they made the opening fail
        taken = resolution.inputs.names() | set(cut_by)
        returned = {key for key in lives if key in resolution.returned}
    after = [key for item in postprocessing for key in (*item.inputs, *item.outputs)]
    names = dict.fromkeys([*sorted(taken), *lives, *joined_by, *after])
    read_first = _read_first(postprocessing)
    read_after, written_after, results = _afterwards(postprocessing)
    keys = []
    for name in names:
        own = tuple(lives.get(name, ()))
        comes_back = name in returned and any(life.end == "returned" for life in own)
        before = "ops" if comes_back else "batch" if name in taken else None
        keys.append(
            Key(
                name=name,
                taken=name in taken,
                to_device=name in to_device,
                lives=own,
                cut_by=cut_by.get(name),
                joined_by=joined_by.get(name),
                returned=comes_back,
                because=_because(name, subject, read_first) if comes_back else None,
                read_after=tuple(read_after.get(name, ())),
                written_after=tuple(written_after.get(name, ())),
                result=results.get(name, before),
            )
        )
    return keys


def _flow_of(plan: Plan | None, ops: list[Item]) -> Flow:
    if plan is not None:
        return plan.flow
    return tuple((item.inputs, item.outputs, ()) for item in ops)


def _live(flow: Flow, ops: list[Item], known: bool) -> dict[str, list[Life]]:
    """Follow values through the ops, by what the kernel says that it drops after each."""
    lives: dict[str, list[Life]] = {}
    current: dict[str, tuple[int | None, list[int]]] = {}

    def end(key: str, how: str, place: int | None) -> None:
        writer, readers = current.pop(key)
        lives.setdefault(key, []).append(Life(writer, tuple(readers), how, place))

    for place, ((inputs, outputs, dead), item) in enumerate(zip(flow, ops, strict=False)):
        for key in dict.fromkeys(inputs):
            lives.setdefault(key, [])
            current.setdefault(key, (None, []))[1].append(place)
        for key in dict.fromkeys(outputs):
            if key in current:
                end(key, "overwritten", place)
            lives.setdefault(key, [])
            current[key] = (place, [])
        for key in dead:
            if key in current:
                end(key, "deleted" if item.deletes else "dropped", place)
    for key in list(current):
        end(key, "returned" if known else "unknown", None)
    return lives


def _afterwards(
    postprocessing: list[Item],
) -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, str | None]]:
    """Say of each key which postprocessing reads and writes it, and what that leaves in the end."""
    read, written = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    results: dict[str, str | None] = {}
    for place, item in enumerate(postprocessing):
        for key in dict.fromkeys(item.inputs):
            read[key].append(place)
            if item.deletes:
                results[key] = None
        for key in dict.fromkeys(item.outputs):
            written[key].append(place)
            results[key] = "postprocessing"
    return read, written, results


def _read_first(postprocessing: list[Item]) -> set[str]:
    """List what postprocessing reads that it has not written before."""
    read: set[str] = set()
    written: set[str] = set()
    for item in postprocessing:
        read.update(key for key in item.inputs if key not in written)
        written.update(item.outputs)
    return read


def _because(key: str, subject: Subject, read_first: set[str]) -> str:
    if key in subject.desired:
        return "desired"
    return "postprocessing" if key in read_first else "default"
