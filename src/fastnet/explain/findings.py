"""Findings about a network: ops and keys that nothing needs, missing keys, missing updates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.errors import nearest_name
from fastnet.explain.items import Item, name_op
from fastnet.explain.keys import Key, Life
from fastnet.explain.schedules import Schedules
from fastnet.explain.subject import Subject

__all__ = ["Finding", "find_unneeded", "list_findings"]

_MANY_TRACES = 8

# By key and writing op: the value written, and the next value of that key.
Written = dict[tuple[str, int], tuple[Life, Life | None]]


@dataclass(frozen=True)
class Finding:
    """A part of a network that is likely a mistake or costs time for nothing.

    Attributes:
        kind: "not_made", "deleted_output", "misspelled_key", "never_updated", "several_steps",
            "traced_often", "unneeded_op", "unneeded_postprocessing", "copied_for_nothing",
            "cut_for_nothing", "joined_uncut" or "unread_output".
        text: The description, and what to do about it.
        places: The indices of the ops it is about; of postprocessing ops if the kind says so.
        keys: The keys it is about.
    """

    kind: str
    text: str
    places: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def find_unneeded(
    subject: Subject, ops: list[Item], postprocessing: list[Item]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the indices of the ops, and of the postprocessing ops, that the result does not need.

    An op is needed if it has effects besides its outputs, or if an output is returned, or read by
    an op that is needed, before it is overwritten.
    """
    steps = [("ops", item) for item in ops] + [("after", item) for item in postprocessing]
    wanted = set(subject.desired)
    if subject.wants_all:
        wanted.update(key for _, item in steps for key in item.outputs)
    unneeded: dict[str, set[int]] = {"ops": set(), "after": set()}
    for part, item in reversed(steps):
        if item.deletes:
            wanted.difference_update(item.inputs)
        elif item.acts or wanted.intersection(item.outputs):
            wanted.difference_update(item.outputs)
            wanted.update(item.inputs)
        else:
            assert item.place is not None
            unneeded[part].add(item.place)
    return frozenset(unneeded["ops"]), frozenset(unneeded["after"])


def list_findings(
    subject: Subject,
    ops: list[Item],
    left_out: list[Item],
    postprocessing: list[Item],
    keys: list[Key],
    unneeded: tuple[frozenset[int], frozenset[int]],
    schedules: Schedules,
) -> list[Finding]:
    """Return the findings, the most serious first."""
    by_name = {key.name: key for key in keys}
    written = _by_writer(keys)
    return [
        *_not_made(subject, ops, left_out, postprocessing, by_name),
        *_misspelled(ops, keys),
        *_never_updated(subject, ops, left_out),
        *_several_steps(subject, ops),
        *_traced_often(schedules),
        *_unneeded_ops(subject, ops, written, unneeded[0]),
        *_unneeded_postprocessing(postprocessing, unneeded[1]),
        *_copied_for_nothing(subject, ops, keys, unneeded[0]),
        *_cut_for_nothing(keys),
        *_joined_uncut(keys),
        *_unread_outputs(ops, written, unneeded[0]),
    ]


def _by_writer(keys: list[Key]) -> Written:
    """Return the value that each op writes under each key, and the value that replaces it."""
    written: Written = {}
    for key in keys:
        for life, following in zip_longest(key.lives, key.lives[1:]):
            if life.writer is not None:
                written[key.name, life.writer] = life, following
    return written


def _not_made(
    subject: Subject,
    ops: list[Item],
    left_out: list[Item],
    postprocessing: list[Item],
    keys: dict[str, Key],
) -> Iterator[Finding]:
    made = dict.fromkeys(key for item in (*ops, *postprocessing) for key in item.outputs)
    elsewhere = {key: item for item in reversed(left_out) for key in item.outputs}
    deleters = {
        key: item.name
        for item in reversed((*postprocessing, *ops))
        if item.deletes
        for key in item.inputs
    }
    for name in sorted(subject.desired):
        if name in made:
            if keys[name].result in (None, "batch") and keys[name].lives:
                deleter = f"a {deleters[name]}" if name in deleters else "something"
                yield Finding(
                    "deleted_output",
                    f"The key '{name}' is in desired_output_keys, but {deleter} deletes what an "
                    "op writes there. Keep it, or leave it out of desired_output_keys.",
                    keys=(name,),
                )
            continue
        if name in keys and keys[name].taken:
            continue  # The batch's value is returned with the rest of the batch.
        text = f"The key '{name}' is in desired_output_keys, but no active op writes it"
        near = nearest_name(name, [*made, *keys])
        if name in elsewhere:
            text += f": {elsewhere[name].name} would, but {elsewhere[name].reason}"
        text += f". Did you mean '{near}'?" if near is not None else "."
        yield Finding("not_made", f"{text} The result has it only if the batch does.", keys=(name,))


def _misspelled(ops: list[Item], keys: list[Key]) -> Iterator[Finding]:
    """Find keys that ops read from the batch, but that are close to a key of an earlier op."""
    by_op = [key for key in keys if not key.taken and key.writers]
    for key in keys:
        if not (key.taken and key.lives and key.lives[0].writer is None):
            continue
        reader = key.lives[0].readers[0]
        earlier = {one.name: one for one in by_op if one.writers[0] < reader}
        for near in get_close_matches(key.name, earlier, cutoff=0.75):
            if _is_misspelling(key.name, earlier[near]):
                writer = earlier[near].writers[0]
                yield Finding(
                    "misspelled_key",
                    f"No earlier op writes the key '{key.name}', which {name_op(ops[reader])} "
                    f"reads. Did you mean '{near}', which {name_op(ops[writer])} writes? "
                    "Otherwise, the batch must have it.",
                    (reader, writer),
                    (key.name, near),
                )
                break


def _is_misspelling(name: str, written: Key) -> bool:
    """Return whether a key similar to a written one is likely a mistake, unlike "x1" for "x2"."""
    if re.sub(r"\D", "", name) != re.sub(r"\D", "", written.name):
        return False
    # Two keys that differ in one letter, such as "fake_a" and "fake_b", may both be intended.
    same_letters = sorted(name.lower()) == sorted(written.name.lower())
    return not written.readers or same_letters or len(name) != len(written.name)


def _never_updated(subject: Subject, ops: list[Item], left_out: list[Item]) -> Iterator[Finding]:
    """Find a training network that no op updates, although its models have optimizers."""
    # A user's op that holds a model and writes nothing may update it by `update_model`.
    updates = [op for op in (*ops, *left_out) if op.updates or (op.acts and op.models)]
    if subject.mode != "train" or updates:
        return
    active = {name for op in ops for name in op.models}
    models = [model for model in subject.models if get_metadata(model, "optimizer") is not None]
    trained = sorted(active.intersection(map(name_of, models)))
    if trained:
        yield Finding(
            "never_updated",
            f"No op updates the models {trained} in mode 'train', although they have optimizers. "
            'Add an UpdateOp(model, "loss") for each of them.',
        )


def _several_steps(subject: Subject, ops: list[Item]) -> Iterator[Finding]:
    """Find models that are updated several times in a step, which is often not intended."""
    by_model: dict[str, list[Item]] = {}
    for item in ops:
        if item.updates and not item.inside:
            for model in item.models:
                by_model.setdefault(model, []).append(item)
    for model, updates in by_model.items():
        # In torch, deferred updates accumulate their gradients and step the optimizer once.
        merged = [item for item in updates if item.deferred] if subject.framework == "torch" else []
        count = len(updates) - max(len(merged) - 1, 0)
        if count < 2:
            continue
        places = [item.place for item in updates if item.place is not None]
        text = (
            f"The optimizer of model '{model}' takes {count} steps in a step of the network, "
            f"because {_some_ops(places)} update it. For a single step on all of their losses, add "
            "the losses with a LambdaOp and use one UpdateOp"
        )
        if subject.framework == "torch":
            text += ", or set defer=True on all of them to accumulate their gradients"
        yield Finding("several_steps", f"{text}.", tuple(places))


def _traced_often(schedules: Schedules) -> Iterator[Finding]:
    count = sum(change.traces for change in schedules.changes)
    if count > _MANY_TRACES:
        names = sorted({schedule.name for schedule in schedules.schedulers})
        yield Finding(
            "traced_often",
            f"TensorFlow traces again in {count} of the first {schedules.last_epoch} epochs, "
            f"because {', '.join(names)} gives new ops or optimizers. Create each op once, and let "
            "schedulers return the same objects.",
        )


def _unneeded_ops(
    subject: Subject, ops: list[Item], written: Written, unneeded: frozenset[int]
) -> Iterator[Finding]:
    for place in sorted(unneeded):
        item = ops[place]
        fates = [_fate(ops, key, written[key, place], unneeded) for key in item.outputs]
        text = f"Nothing needs {name_op(item)}: {'; '.join(fates)}."
        if item.models and subject.mode == "train":
            text += " In mode 'train' it may still update buffers, such as running averages."
        if subject.framework == "tf":
            text += " A static step leaves it out if it has no effects of its own."
        yield Finding("unneeded_op", text, (place,), item.outputs)


def _fate(
    ops: list[Item], key: str, written: tuple[Life, Life | None], unneeded: frozenset[int]
) -> str:
    """Return why an output of an op is not used."""
    life, following = written
    readers = [place for place in life.readers if not ops[place].deletes]
    if any(place not in unneeded for place in readers):
        return f"'{key}' is read"
    if readers:
        more = "which nothing needs either"
        return f"'{key}' is read only by {_some_ops(readers)}, {more}"
    if life.readers:
        return f"'{key}' is deleted before it is read"
    if following is not None and following.writer is not None:
        return f"'{key}' is overwritten by op {following.writer} before it is read"
    if life.end == "returned":
        return f"'{key}' comes back for postprocessing that nothing needs"
    return f"'{key}' is neither read nor wanted back"


def _some_ops(places: Iterable[int]) -> str:
    listed = sorted(places)
    if len(listed) == 1:
        return f"op {listed[0]}"
    return f"ops {', '.join(map(str, listed[:-1]))} and {listed[-1]}"


def _unneeded_postprocessing(
    postprocessing: list[Item], unneeded: frozenset[int]
) -> Iterator[Finding]:
    for place in sorted(unneeded):
        item = postprocessing[place]
        yield Finding(
            "unneeded_postprocessing",
            f"Nothing needs postprocessing {name_op(item)}: its outputs are neither returned nor "
            "read by postprocessing that is needed.",
            (place,),
            item.outputs,
        )


def _copied_for_nothing(
    subject: Subject, ops: list[Item], keys: list[Key], unneeded: frozenset[int]
) -> Iterator[Finding]:
    for key in keys:
        own = [life for life in key.lives if life.writer is None]
        readers = [place for life in own for place in life.readers]
        if not key.to_device or not readers:
            continue
        if any(place not in unneeded and not ops[place].deletes for place in readers):
            continue
        why = "which nothing needs" if any(p in unneeded for p in readers) else "which deletes it"
        back = " and back" if any(life.end == "returned" for life in own) else ""
        costs = (
            f"It is copied to {subject.device}{back} unnecessarily."
            if subject.framework == "torch" and subject.device != "cpu"
            else f"On a GPU it would be copied to the device{back} unnecessarily."
        )
        yield Finding(
            "copied_for_nothing",
            f"The batch's '{key.name}' is read only by {_some_ops(set(readers))}, {why}. {costs}",
            tuple(sorted(set(readers))),
            (key.name,),
        )


def _cut_for_nothing(keys: list[Key]) -> Iterator[Finding]:
    for key in keys:
        if key.cut_by is not None and not key.to_device:
            yield Finding(
                "cut_for_nothing",
                f"{key.cut_by} slices '{key.name}', but no op reads it from the batch.",
                keys=(key.name,),
            )


def _joined_uncut(keys: list[Key]) -> Iterator[Finding]:
    for key in keys:
        if key.joined_by is not None and key.cut_by is None and not key.writers and key.taken:
            yield Finding(
                "joined_uncut",
                f"{key.joined_by} un-slices '{key.name}', which no slicer slices and no op writes. "
                "The result repeats the batch's value once per minibatch.",
                keys=(key.name,),
            )


def _unread_outputs(
    ops: list[Item], written: Written, unneeded: frozenset[int]
) -> Iterator[Finding]:
    for item in ops:
        assert item.place is not None
        if item.place in unneeded:
            continue
        idle = [
            name
            for name in dict.fromkeys(item.outputs)
            if _is_idle(written[name, item.place][0], unneeded, ops)
        ]
        if idle:
            fates = [_fate(ops, name, written[name, item.place], unneeded) for name in idle]
            yield Finding(
                "unread_output",
                f"Not all outputs of {name_op(item)} are used: {'; '.join(fates)}.",
                (item.place,),
                tuple(idle),
            )


def _is_idle(life: Life, unneeded: frozenset[int], ops: list[Item]) -> bool:
    useful = [p for p in life.readers if p not in unneeded and not ops[p].deletes]
    return not useful and life.end not in ("returned", "unknown")
