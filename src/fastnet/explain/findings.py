"""Findings: likely mistakes in a network, and work whose result nothing uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest
from typing import Any

from fastnet.errors import nearest_name
from fastnet.explain.items import Item, format_op
from fastnet.explain.keys import Key, Lifetime
from fastnet.explain.schedules import Schedule
from fastnet.explain.subject import Subject
from fastnet.types import Model

__all__ = ["Finding", "find_unneeded", "list_findings"]


@dataclass(frozen=True)
class Finding:
    """A likely mistake in a network, or work whose result nothing uses.

    Attributes:
        kind: "unwritten_output", "unwritten_key", "no_update", "no_optimizer", "several_steps",
            "traced_often", "unneeded_op", "unneeded_postprocessing" or "never_sliced".
        text: The description, and what to do about it.
        indices: The indices of the active ops it is about; of postprocessing ops for
            "unneeded_postprocessing".
        keys: The keys it is about.
    """

    kind: str
    text: str
    indices: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def find_unneeded(
    subject: Subject, ops: list[Item], postprocessing: list[Item]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the indices of the ops, and of the postprocessing ops, that the result does not need.

    An op is needed if it has effects besides its outputs, or if an output is returned, or read by
    an op that is needed, before it is overwritten.
    """
    steps = [("ops", item) for item in ops] + [("postprocessing", item) for item in postprocessing]
    needed = set(subject.desired)
    if subject.returns_all:
        needed.update(key for _, item in steps for key in item.outputs)
    unneeded: dict[str, set[int]] = {"ops": set(), "postprocessing": set()}
    for part, item in reversed(steps):
        if item.deletes:
            needed.difference_update(item.inputs)
        elif item.has_effects or needed.intersection(item.outputs):
            needed.difference_update(item.outputs)
            needed.update(item.inputs)
        else:
            assert item.index is not None
            unneeded[part].add(item.index)
    return frozenset(unneeded["ops"]), frozenset(unneeded["postprocessing"])


def list_findings(
    subject: Subject,
    ops: list[Item],
    inactive: list[Item],
    postprocessing: list[Item],
    keys: list[Key],
    unneeded: tuple[frozenset[int], frozenset[int]],
    schedules: list[Schedule],
    optimizers: dict[str, tuple[Model, Any]],
) -> list[Finding]:
    """Return the findings, the most serious first."""
    return [
        *_unwritten_outputs(subject, ops, inactive, postprocessing, keys),
        *_unwritten_keys(ops, inactive, keys),
        *_no_update(subject, ops, inactive, optimizers),
        *_no_optimizer(subject, ops, optimizers),
        *_several_steps(subject, ops),
        *_traced_often(subject, schedules),
        *_unneeded_ops(subject, ops, keys, unneeded[0]),
        *_unneeded_postprocessing(postprocessing, unneeded[1]),
        *_never_sliced(keys),
    ]


def _unwritten_outputs(
    subject: Subject,
    ops: list[Item],
    inactive: list[Item],
    postprocessing: list[Item],
    keys: list[Key],
) -> Iterator[Finding]:
    """Find desired keys that the result does not have."""
    by_name = {key.name: key for key in keys}
    active = [*ops, *postprocessing]
    written = dict.fromkeys(key for item in active for key in item.outputs)
    for name in sorted(subject.desired):
        key = by_name.get(name)
        text = f"The key '{name}' is in desired_output_keys, but "
        if name not in written and (key is None or not key.required):
            text += "no active op writes it"
            writer = _find_writer(name, inactive)
            near = nearest_name(name, [*written, *by_name])
            if writer is not None:
                text += f": {writer.name} would, but {writer.reason}"
            text += f". Did you mean '{near}'?" if near is not None else "."
            text += " The result has it only if the batch does."
        elif key is not None and key.lifetimes and key.writers and key.result in (None, "batch"):
            deleters = [item.name for item in active if item.deletes and name in item.inputs]
            text += f"{' and '.join(dict.fromkeys(deleters)) or 'an op'} deletes the value that an "
            text += "op writes. Keep it, or leave it out of desired_output_keys."
        else:
            continue
        yield Finding("unwritten_output", text, keys=(name,))


def _find_writer(key: str, items: list[Item]) -> Item | None:
    """Return the first item that makes a key from others."""
    return next((item for item in items if key in item.outputs and key not in item.inputs), None)


def _unwritten_keys(ops: list[Item], inactive: list[Item], keys: list[Key]) -> Iterator[Finding]:
    """Find keys that no active op writes, but an inactive op or one of a similar key does."""
    inactive_outputs = {key for item in inactive for key in item.outputs}
    candidates = [key for key in keys if not key.required and key.writers]
    for key in keys:
        if not (key.required and key.lifetimes and key.lifetimes[0].writer is None):
            continue
        reader = key.lifetimes[0].readers[0]
        start = f"No earlier op writes the key '{key.name}', which {format_op(ops[reader])} reads"
        end = "the batch must have it."
        writer = _find_writer(key.name, inactive) if key.name in inactive_outputs else None
        if writer is not None and not key.writers:
            text = f"{start}: {writer.name} would, but {writer.reason}. So {end}"
            yield Finding("unwritten_key", text, (reader,), (key.name,))
            continue
        earlier = {one.name: one for one in candidates if one.writers[0] < reader}
        for near in get_close_matches(key.name, earlier, cutoff=0.75):
            if _is_misspelling(key.name, earlier[near]):
                index = earlier[near].writers[0]
                text = f"{start}. Did you mean '{near}', which {format_op(ops[index])} writes? "
                text += f"Otherwise {end}"
                yield Finding("unwritten_key", text, (reader, index), (key.name, near))
                break


def _is_misspelling(name: str, written: Key) -> bool:
    """Return whether a key similar to a written one is likely a mistake, unlike "x1" for "x2"."""
    if re.sub(r"\D", "", name) != re.sub(r"\D", "", written.name):
        return False
    # Two keys that differ in one letter, such as "fake_a" and "fake_b", may both be intended.
    same_letters = sorted(name.lower()) == sorted(written.name.lower())
    return not written.readers or same_letters or len(name) != len(written.name)


def _no_update(
    subject: Subject,
    ops: list[Item],
    inactive: list[Item],
    optimizers: dict[str, tuple[Model, Any]],
) -> Iterator[Finding]:
    """Find a training network without an update, although its models have optimizers."""
    # An op that holds a model and writes nothing may update it by `update_model`.
    updates = [op for op in (*ops, *inactive) if op.updates or (op.has_effects and op.models)]
    if subject.mode != "train" or updates:
        return
    names = sorted(name for name, (_, optimizer) in optimizers.items() if optimizer is not None)
    if names:
        yield Finding(
            "no_update",
            f"No op updates the models {names} in mode 'train', although they have optimizers. "
            'Add an UpdateOp(model, "loss") for each of them.',
        )


def _no_optimizer(
    subject: Subject, ops: list[Item], optimizers: dict[str, tuple[Model, Any]]
) -> Iterator[Finding]:
    """Find trainable parameters that no optimizer updates."""
    if subject.mode != "train" or not any(op.updates for op in ops):
        return
    for name, (model, optimizer) in optimizers.items():
        missing = (
            []
            if isinstance(optimizer, Exception)
            else _parameters_without_optimizer(model, optimizer)
        )
        if missing:
            listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            yield Finding(
                "no_optimizer",
                f"{len(missing)} trainable parameters of model '{name}' are not in an optimizer: "
                f"{listed}. Give them to its optimizer, or freeze them, which also saves the time "
                "for their gradients.",
            )


def _parameters_without_optimizer(model: Any, optimizer: Any) -> list[str]:
    if hasattr(model, "named_parameters"):  # torch
        groups = getattr(optimizer, "param_groups", ())
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        return [
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in owned
        ]
    # A Keras optimizer takes all trainable variables, in the first update.
    if optimizer is not None or not getattr(model, "built", False):
        return []
    return [variable.name for variable in model.trainable_variables]


def _several_steps(subject: Subject, ops: list[Item]) -> Iterator[Finding]:
    """Find models that are updated several times in a step, which is often not intended."""
    by_model: dict[str, list[Item]] = {}
    for item in ops:
        if item.updates and not item.ops:
            for model in item.models:
                by_model.setdefault(model, []).append(item)
    for model, updates in by_model.items():
        # In torch, deferred updates accumulate their gradients and step the optimizer once.
        merged = [item for item in updates if item.deferred] if subject.framework == "torch" else []
        count = len(updates) - max(len(merged) - 1, 0)
        if count < 2:
            continue
        indices = [item.index for item in updates if item.index is not None]
        text = (
            f"The optimizer of model '{model}' takes {count} steps in a step of the network, "
            f"because {_format_ops(indices)} update it. For a single step on all of their losses, "
            "add the losses with a LambdaOp and use one UpdateOp"
        )
        if subject.framework == "torch":
            text += ", or set defer=True on all of them to accumulate their gradients"
        yield Finding("several_steps", f"{text}.", tuple(indices))


def _traced_often(subject: Subject, schedules: list[Schedule]) -> Iterator[Finding]:
    for schedule in schedules:
        if subject.framework == "tf" and schedule.creates:
            yield Finding(
                "traced_often",
                f"TensorFlow traces again whenever the network is entered: the {schedule.name} of "
                f"{schedule.where} returns another object in each call. Create the objects once.",
            )


def _unneeded_ops(
    subject: Subject, ops: list[Item], keys: list[Key], unneeded: frozenset[int]
) -> Iterator[Finding]:
    # By key and writing op: the value written, and the next value of that key.
    written = {
        (key.name, life.writer): (life, following)
        for key in keys
        for life, following in zip_longest(key.lifetimes, key.lifetimes[1:])
    }
    for index in sorted(unneeded):
        item = ops[index]
        reasons = [_why_unused(ops, key, *written[key, index]) for key in item.outputs]
        text = f"Nothing needs {format_op(item)}: {'; '.join(reasons)}."
        if item.models and subject.mode == "train":
            text += " In mode 'train' it may still update buffers, such as running averages."
        if subject.framework == "tf":
            text += " A graph leaves it out if it has no effects of its own."
        yield Finding("unneeded_op", text, (index,), item.outputs)


def _why_unused(ops: list[Item], key: str, value: Lifetime, following: Lifetime | None) -> str:
    readers = [index for index in value.readers if not ops[index].deletes]
    if readers:
        return f"'{key}' is read only by {_format_ops(readers)}, which nothing needs either"
    if value.readers:
        return f"'{key}' is deleted before it is read"
    if following is not None and following.writer is not None:
        return f"'{key}' is overwritten by op {following.writer} before it is read"
    if value.end == "returned":
        return f"'{key}' is returned for postprocessing that nothing needs"
    return f"'{key}' is neither read nor returned"


def _format_ops(indices: Iterable[int]) -> str:
    listed = sorted(indices)
    if len(listed) == 1:
        return f"op {listed[0]}"
    return f"ops {', '.join(map(str, listed[:-1]))} and {listed[-1]}"


def _unneeded_postprocessing(
    postprocessing: list[Item], unneeded: frozenset[int]
) -> Iterator[Finding]:
    for index in sorted(unneeded):
        item = postprocessing[index]
        yield Finding(
            "unneeded_postprocessing",
            f"Nothing needs postprocessing {format_op(item)}: its outputs are neither returned nor "
            "read by postprocessing that is needed.",
            (index,),
            item.outputs,
        )


def _never_sliced(keys: list[Key]) -> Iterator[Finding]:
    for key in keys:
        if key.unsliced_by and not key.sliced_by and not key.writers and key.required:
            yield Finding(
                "never_sliced",
                f"{key.unsliced_by} un-slices '{key.name}', which no slicer slices and no op "
                "writes. The result repeats the batch's value once per minibatch.",
                keys=(key.name,),
            )
