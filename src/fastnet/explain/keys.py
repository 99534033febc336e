"""The lifetime of each key in a step: who writes it, who reads it, and when it is dropped."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fastnet._execute import KernelPlan
from fastnet.explain.items import Item


@dataclass(frozen=True)
class Lifetime:
    """One value of a key, from its producer until it is dropped.

    Attributes:
        writer: The index of the op that writes it, or None for the batch's value.
        readers: The indices of the ops that read it.
        end: "dropped" after its last reader, "overwritten" by another value, "deleted" by a
            Delete, "returned", or "unknown" where the kernel rejects the ops.
        last_op: The index of the op it is dropped after; None if it is returned.
    """

    writer: int | None
    readers: tuple[int, ...]
    end: str
    last_op: int | None


@dataclass(frozen=True)
class Key:
    """A key of a step.

    Attributes:
        name: The key.
        required: Whether the batch must have it.
        to_device: Whether the batch's value is moved to the device.
        lifetimes: Its values among the ops, in order.
        sliced_by: The class of the slicer that slices it, or None.
        unsliced_by: The class of the slicer that unslices it, or None.
        returned: Whether the ops return it, to postprocessing or to the caller.
        postprocessing_readers: The indices of the postprocessing ops that read it.
        postprocessing_writers: The indices of the postprocessing ops that write it.
        result: Where its value in the result comes from: "ops", "postprocessing", or "batch" for
            the batch's own; None if the result does not have it.
    """

    name: str
    required: bool
    to_device: bool
    lifetimes: tuple[Lifetime, ...]
    sliced_by: str | None
    unsliced_by: str | None
    returned: bool
    postprocessing_readers: tuple[int, ...]
    postprocessing_writers: tuple[int, ...]
    result: str | None

    @property
    def writers(self) -> tuple[int, ...]:
        """The indices of the ops that write it."""
        return tuple(life.writer for life in self.lifetimes if life.writer is not None)

    @property
    def readers(self) -> tuple[int, ...]:
        """The indices of the ops that read it."""
        return tuple(dict.fromkeys(index for life in self.lifetimes for index in life.readers))


def find_keys(
    plan: KernelPlan | None, ops: list[Item], postprocessing: list[Item], slicers: list[Item]
) -> list[Key]:
    """Return the keys of a step: first those of the batch, then the others as they are written."""
    sliced_by = {key: item.name for item in slicers for key in item.inputs}
    unsliced_by = {key: item.name for item in slicers for key in item.outputs}
    lifetimes = _find_lifetimes(plan, ops)
    if plan is None:
        to_device = {key for key, lives in lifetimes.items() if lives[0].writer is None}
        required, returned = to_device | set(sliced_by), set[str]()
    else:
        to_device = plan.resolution.device_inputs.names()
        required = plan.resolution.inputs.names() | set(sliced_by)
        returned = {key for key, lives in lifetimes.items() if lives[-1].end == "returned"}
        returned &= plan.resolution.returned.names()
    results: dict[str, str | None] = {
        **dict.fromkeys(required, "batch"),
        **dict.fromkeys(returned, "ops"),
    }
    readers, writers = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for index, item in enumerate(postprocessing):
        for key in dict.fromkeys(item.inputs):
            readers[key].append(index)
            if item.deletes:
                results[key] = None
        for key in dict.fromkeys(item.outputs):
            writers[key].append(index)
            results[key] = "postprocessing"
    names = dict.fromkeys([*sorted(required), *lifetimes, *unsliced_by, *readers, *writers])
    return [
        Key(
            name=name,
            required=name in required,
            to_device=name in to_device,
            lifetimes=tuple(lifetimes.get(name, ())),
            sliced_by=sliced_by.get(name),
            unsliced_by=unsliced_by.get(name),
            returned=name in returned,
            postprocessing_readers=tuple(readers.get(name, ())),
            postprocessing_writers=tuple(writers.get(name, ())),
            result=results.get(name),
        )
        for name in names
    ]


def _find_lifetimes(plan: KernelPlan | None, ops: list[Item]) -> dict[str, list[Lifetime]]:
    """Follow values through the ops, by the keys that the kernel drops after each op."""
    flow = [(item.inputs, item.outputs, ()) for item in ops] if plan is None else plan.flow
    lifetimes: dict[str, list[Lifetime]] = {}
    current: dict[str, tuple[int | None, list[int]]] = {}

    def end(key: str, how: str, index: int | None) -> None:
        writer, readers = current.pop(key)
        lifetimes[key].append(Lifetime(writer, tuple(readers), how, index))

    for index, ((inputs, outputs, dropped), item) in enumerate(zip(flow, ops, strict=False)):
        for key in dict.fromkeys(inputs):
            lifetimes.setdefault(key, [])
            current.setdefault(key, (None, []))[1].append(index)
        for key in dict.fromkeys(outputs):
            if key in current:
                end(key, "overwritten", index)
            lifetimes.setdefault(key, [])
            current[key] = (index, [])
        for key in dropped:
            if key in current:
                end(key, "deleted" if item.deletes else "dropped", index)
    for key in list(current):
        end(key, "unknown" if plan is None else "returned", None)
    return lifetimes
