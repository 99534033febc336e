"""What is worth a look: work that nobody needs, and keys that nobody makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from fastnet.errors import nearest_name
from fastnet.explain.items import Item, name_op
from fastnet.explain.keys import Key, Life
from fastnet.explain.schedules import Schedules
from fastnet.explain.subject import Subject

__all__ = ["Finding", "find_unneeded", "list_findings"]

_MANY_TRACES = 8

# by a key and the op that writes it: its value, and the next one under that key
Written = dict[tuple[str, int], tuple[Life, Life | None]]


@dataclass(frozen=True)
class Finding:
    """Something that is worth a look.

    Attributes:
        kind: "unneeded_op", "unneeded_postprocessing", "unread_output", "copied_for_nothing",
            "cut_for_nothing", "joined_uncut", "not_made", "deleted_output", "traced_often" or
            "several_steps".
        text: What it is and what to do about it.
        places: The places of the ops it is about; of postprocessing ops if the kind says so.
        keys: The keys it is about.
    """

    kind: str
    text: str
    places: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def find_unneeded(
    subject: Subject, ops: list[Item], postprocessing: list[Item]
) -> tuple[frozenset[int], frozenset[int]]:
    """Find the ops without which what is wanted back would be the same.

    An op is needed if it does more than write; or if something of what it writes is wanted back, or
    read by an op that is needed, before it is overwritten.

    Args:
        subject: The network and its opening.
        ops: The ops in force.
        postprocessing: The postprocessing ops in force.

    Returns:
        The places of the ops, and of the postprocessing ops, that are not needed.
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
    """List what is worth a look.

    Args:
        subject: The network and its opening.
        ops: The ops in force.
        left_out: The ops and postprocessing ops that are not in force.
        postprocessing: The postprocessing ops in force.
        keys: The keys.
        unneeded: What `find_unneeded` found.
        schedules: What changes with the epoch.

    Returns:
        The findings, the gravest first.
    """
    by_name = {key.name: key for key in keys}
    written = _by_writer(keys)
    return [
        *_not_made(subject, ops, left_out, postprocessing, by_name),
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
    """Find what each op writes, and what takes its place."""
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
                    f"The key '{name}' is wanted back, but {deleter} deletes what was made. Keep "
                    "it, or leave it out of desired_output_keys.",
                    keys=(name,),
                )
            continue
        if name in keys and keys[name].taken:
            continue  # the batch's own comes back with the rest of the batch
        text = f"The key '{name}' is wanted back, but nothing that is in force makes it"
        near = nearest_name(name, [*made, *keys])
        if name in elsewhere:
            text += f": {elsewhere[name].name} would, but {elsewhere[name].reason}"
        text += f". Did you mean '{near}'?" if near is not None else "."
        yield Finding("not_made", f"{text} It comes back only if the batch has it.", keys=(name,))


def _several_steps(subject: Subject, ops: list[Item]) -> Iterator[Finding]:
    """Find models that are updated several times in a step: by most that was not meant."""
    by_model: dict[str, list[Item]] = {}
    for item in ops:
        if item.updates and not item.inside:
            for model in item.models:
                by_model.setdefault(model, []).append(item)
    for model, updates in by_model.items():
        # what is put off torch adds up, and steps once
        merged = [item for item in updates if item.deferred] if subject.framework == "torch" else []
        count = len(updates) - max(len(merged) - 1, 0)
        if count < 2:
            continue
        places = [item.place for item in updates if item.place is not None]
        text = (
            f"The optimizer of model '{model}' takes {count} steps in a step of the network: "
            f"{_some_ops(places)} update it, one after the other. If one step by all of their "
            "losses is meant, add the losses up with a LambdaOp, and have one UpdateOp"
        )
        if subject.framework == "torch":
            text += "; or put them all off, with defer=True, and their gradients are added up"
        yield Finding("several_steps", f"{text}.", tuple(places))


def _traced_often(schedules: Schedules) -> Iterator[Finding]:
    count = sum(change.traces for change in schedules.changes)
    if count > _MANY_TRACES:
        names = sorted({schedule.name for schedule in schedules.schedulers})
        yield Finding(
            "traced_often",
            f"In {count} of the first {schedules.last_epoch} epochs TensorFlow traces anew, as "
            f"there were no such ops or optimizers before: look at {', '.join(names)}. Make each "
            "op once, and let schedulers give the same ones again.",
        )


def _unneeded_ops(
    subject: Subject, ops: list[Item], written: Written, unneeded: frozenset[int]
) -> Iterator[Finding]:
    for place in sorted(unneeded):
        item = ops[place]
        fates = [_fate(ops, key, written[key, place], unneeded) for key in item.outputs]
        text = f"Nothing needs {name_op(item)}: {'; '.join(fates)}."
        if item.models and subject.mode == "train":
            text += (
                " In mode 'train' it may still change what its model keeps of batches, such as "
                "running averages."
            )
        if subject.framework == "tf":
            text += " A static step leaves it out if it has no effects of its own."
        yield Finding("unneeded_op", text, (place,), item.outputs)


def _fate(
    ops: list[Item], key: str, written: tuple[Life, Life | None], unneeded: frozenset[int]
) -> str:
    """Return why one output of an op is of no use."""
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
            f"Nothing needs postprocessing {name_op(item)}: what it writes is neither read by "
            "postprocessing that is needed nor wanted back.",
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
            f"It is copied to {subject.device}{back} for nothing."
            if subject.framework == "torch" and subject.device != "cpu"
            else f"On a GPU it would be copied to the device{back} for nothing."
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
                f"{key.cut_by} cuts '{key.name}' into pieces, but no op reads the batch's own.",
                keys=(key.name,),
            )


def _joined_uncut(keys: list[Key]) -> Iterator[Finding]:
    for key in keys:
        if key.joined_by is not None and key.cut_by is None and not key.writers and key.taken:
            yield Finding(
                "joined_uncut",
                f"{key.joined_by} joins '{key.name}', which no slicer cuts and no op makes: it "
                "gets the batch's own as often as there are minibatches.",
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
                f"Of what {name_op(item)} writes, {'; '.join(fates)}.",
                (item.place,),
                tuple(idle),
            )


def _is_idle(life: Life, unneeded: frozenset[int], ops: list[Item]) -> bool:
    useful = [p for p in life.readers if p not in unneeded and not ops[p].deletes]
    return not useful and life.end not in ("returned", "unknown")
