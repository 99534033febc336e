"""Findings: likely mistakes in a network, and ops whose results are not used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastnet.backend.model_metadata import every_optimizer_of
from fastnet.errors import misspelled_name, nearest_name
from fastnet.explain.items import Item
from fastnet.explain.keys import Key
from fastnet.types import Model


@dataclass(frozen=True)
class Finding:
    """A likely mistake in a network, or an op whose results are not used.

    Attributes:
        kind: "unwritten_output" (a desired key that the result does not have), "unwritten_key",
            "no_update" (models that no op updates), "no_optimizer" (parameters that no optimizer
            updates), "unneeded_op", "unneeded_postprocessing", "unwatched" (a gradient with respect
            to a value that no Watch has read) or "first_order" (a loss that depends on a gradient
            that is a constant to it, which may be meant). A key is an
            "unwritten_key" if it is read after a Delete; or if no active op writes it, and it is
            the loss of an update, an inactive op writes it, or an op writes a similar key that no
            op reads. Every other key is assumed to be in the batch.
        text: The description, and what to do about it.
        indices: The indices of the active ops it is about; of postprocessing ops for
            "unneeded_postprocessing".
        keys: The keys it is about.
    """

    kind: str
    text: str
    indices: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def mark_unneeded(
    desired: Collection[str] | None, ops: list[Item], postprocessing: list[Item]
) -> None:
    """Mark the items that the result does not need.

    An op is needed if it has effects besides its outputs, or if an output is returned, or read by
    an op that is needed, before it is overwritten. `desired` is None if all outputs are returned.
    """
    if desired is None:
        needed = {key for item in [*ops, *postprocessing] for key in item.outputs}
    else:
        needed = set(desired)
    for items in (postprocessing, ops):
        for index, item in reversed([*enumerate(items)]):
            if item.deletes:
                needed.difference_update(item.inputs)
            elif item.has_effects or needed.intersection(item.outputs):
                needed.difference_update(item.outputs)
                needed.update(item.inputs)
            else:
                items[index] = replace(item, unneeded=True)


def list_findings(
    mode: str,
    desired: Collection[str],
    ops: list[Item],
    postprocessing: list[Item],
    inactive: Mapping[str, Sequence[Item]],
    keys: list[Key],
    optimizers: Mapping[str, tuple[Model, Any]],
    untrained: Iterable[str] = (),
) -> list[Finding]:
    """Return the findings, the most serious first.

    `untrained` describes parameters that ops hold, and that no optimizer updates.
    """
    absent = [*inactive["ops"], *inactive["postprocessing"]]
    findings = [
        *_unwritten_outputs(desired, [*ops, *postprocessing], absent, keys),
        *_unwritten_keys(ops, postprocessing, absent, keys),
    ]
    if mode == "train":
        # An update may be for other epochs or datasets, but not for other modes.
        updates = [item for item in (*ops, *absent) if _is_update(item)]
        updates = [item for item in updates if not item.modes or mode in item.modes]
        updated = {name for item in updates for name in item.models}
        findings += _no_update(optimizers, updated)
        findings += _updates_of_other_datasets(ops, absent)
        if updated:
            findings += _no_optimizer(optimizers)
        findings += [Finding("no_optimizer", text) for text in untrained]
    findings += _unneeded_ops(ops, keys)
    for index, item in enumerate(postprocessing):
        if item.unneeded:
            text = f"Postprocessing op {index}, {item.format()}, is not needed."
            findings.append(Finding("unneeded_postprocessing", text, (index,), item.outputs))
    return [*findings, *_unwatched(ops), *_first_order(ops)]


def _unwritten_outputs(
    desired: Collection[str], active: list[Item], inactive: list[Item], keys: list[Key]
) -> Iterator[Finding]:
    """Find desired keys that the result does not have."""
    by_name = {key.name: key for key in keys}
    written = dict.fromkeys(key for item in active for key in item.outputs)
    for name in sorted(desired):
        key = by_name.get(name)
        text = f"The key '{name}' is in desired_output_keys, but "
        if name not in written and (key is None or not key.required):
            near = nearest_name(name, [*written, *by_name])
            text += f"no active op writes it{_describe_inactive_writer(name, inactive)}."
            text += f" Did you mean '{near}'?" if near is not None else ""
            text += " The result has it only if the batch does."
        elif key is not None and key.writers and key.result in (None, "batch"):
            if key.lifetimes[-1].end == "unknown":
                continue
            text += "the value that an op writes is deleted. Keep it, or do not ask for it."
        else:
            continue
        yield Finding("unwritten_output", text, keys=(name,))


def _is_update(item: Item) -> bool:
    """Return whether an item updates models; EMA and LRSchedule compute no gradients."""
    return item.has_effects and item.takes_gradients


def _describe_inactive_writer(key: str, inactive: list[Item]) -> str:
    """Describe the first inactive op that makes a key from other keys, or return ""."""
    for item in inactive:
        if key in item.outputs and key not in item.inputs:
            return f": {item.name} would, but {item.reason}"
    return ""


def _unwritten_keys(
    ops: list[Item], postprocessing: list[Item], inactive: list[Item], keys: list[Key]
) -> Iterator[Finding]:
    """Find keys that no active op writes and that the batch is unlikely to have; see `Finding`."""
    read = [key for key in keys if key.readers or key.postprocessing_readers]
    unread = {key.name: key for key in keys if key.writers and key not in read}
    posts = [f"postprocessing op {item.index}, {item.format()}" for item in postprocessing]
    for key in read:
        for life in key.lifetimes[1:]:
            if life.writer is None:
                reader = life.readers[0]
                text = f"Op {reader}, {ops[reader].format()} reads the deleted key '{key.name}'."
                yield Finding("unwritten_key", text, (reader,), (key.name,))
        later = [posts[index] for index in key.postprocessing_readers]
        if key.required and later and key.lifetimes and key.lifetimes[-1].end == "deleted":
            text = f"The key '{key.name}' is deleted before {later[0]} reads it."
            yield Finding("unwritten_key", text, keys=(key.name,))
        if not key.required or key.writers:
            continue
        first = key.readers[:1]
        where = [f"op {index}, {ops[index].format()}" for index in first] or later
        text = f"No op writes the key '{key.name}', which {where[0]} reads"
        writer = _describe_inactive_writer(key.name, inactive)
        near = None if writer else misspelled_name(key.name, unread)
        index = len(ops) if near is None else unread[near].writers[0]
        if near is not None and all(index < reader for reader in first):
            text += f". Did you mean '{near}', which op {index}, {ops[index].format()} writes?"
            text += " Otherwise the batch must have it."
            yield Finding("unwritten_key", text, (*first, index), (key.name, near))
        elif writer or any(_is_update(ops[reader]) and not ops[reader].ops for reader in first):
            text += writer or ". An update needs a loss that an op computes"
            yield Finding("unwritten_key", f"{text}.", first, (key.name,))


def _no_update(
    optimizers: Mapping[str, tuple[Model, Any]], updated: Collection[str]
) -> Iterator[Finding]:
    """Find models with an optimizer that no op updates, or trainable ones if no op updates any."""
    stepped = [optimizer for name, (_, optimizer) in optimizers.items() if name in updated]
    names = []
    for name in sorted(optimizers):
        model, optimizer = optimizers[name]
        if name in updated or (optimizer is None and updated):
            continue
        # A Keras model that is not built has no variables yet.
        is_unbuilt = not getattr(model, "built", True)
        if is_unbuilt or _parameters_without_optimizer(model, optimizer, stepped):
            names.append(name)
    if names:
        yield Finding(
            "no_update",
            f"No op of this network updates the models {names} in mode 'train'. To train them in "
            'it, build each with an optimizer_fn and add an UpdateOp(model, "loss"). For '
            'inference, use mode "infer".',
        )


def _updates_of_other_datasets(ops: list[Item], absent: list[Item]) -> Iterator[Finding]:
    """Find models whose only updates are for other datasets."""
    active = {name for item in ops if _is_update(item) for name in item.models}
    for item in absent:
        names = sorted(set(item.models) - active)
        if item.is_of_other_data and _is_update(item) and names:
            yield Finding(
                "no_update", f"The models {names} are not updated: {item.name} {item.reason}."
            )


def _no_optimizer(optimizers: Mapping[str, tuple[Model, Any]]) -> Iterator[Finding]:
    """Find trainable parameters that no optimizer updates, not even of another model or epoch."""
    all_optimizers = []
    for model, _ in optimizers.values():
        all_optimizers += every_optimizer_of(model)
    for name, (model, optimizer) in optimizers.items():
        missing = _parameters_without_optimizer(model, optimizer, all_optimizers)
        if missing:
            listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            yield Finding(
                "no_optimizer",
                f"No optimizer updates these trainable parameters of model '{name}': {listed}. "
                "Pass them to an optimizer, or freeze them, which also saves the time for their "
                "gradients.",
            )


def _parameters_without_optimizer(
    model: Model, optimizer: Any, optimizers: Sequence[Any]
) -> list[str]:
    """Return the names of the trainable parameters that none of the optimizers updates."""
    if isinstance(optimizer, Exception):
        return []
    if hasattr(model, "named_parameters"):  # torch
        optimized = {
            id(parameter)
            for optimizer in optimizers
            for group in getattr(optimizer, "param_groups", ())
            for parameter in group["params"]
        }
        return [
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in optimized
        ]
    # A Keras optimizer takes all trainable variables, in the first update.
    is_used = any(optimizer is used for used in optimizers)
    if is_used or not getattr(model, "built", False):
        return []
    return [variable.name for variable in model.trainable_variables]


def _unwatched(ops: list[Item]) -> Iterator[Finding]:
    """Find gradients with respect to values of the batch that no Watch has read."""
    written: set[str] = set()
    for index, item in enumerate(ops):
        for op in _flatten(item):
            for key in op.differentiated_inputs:
                if key not in written:
                    yield Finding(
                        "unwatched",
                        f"Op {index}, {item.format()}, computes a gradient with respect to '{key}' "
                        "of the batch, which is not tracked unless the batch's tensor requires "
                        f"gradients. Put Watch('{key}') in front of the ops that read it.",
                        (index,),
                        (key,),
                    )
            written.update(op.outputs)


def _first_order(ops: list[Item]) -> Iterator[Finding]:
    """Find losses that depend on gradients that are constants to them."""
    sources: dict[str, tuple[int, str]] = {}  # The gradient that each key depends on.
    for index, item in enumerate(ops):
        for op in _flatten(item):
            for loss in op.losses:
                if loss in sources:
                    first, key = sources[loss]
                    yield Finding(
                        "first_order",
                        f"The loss '{loss}' of op {index}, {item.format()}, depends on '{key}', "
                        f"which op {first}, {ops[first].format()} writes as a constant. That is "
                        "right if it is not to be differentiated, as in an adversarial example. "
                        "For a gradient penalty pass higher_order=True to the GradientOp.",
                        (first, index),
                        (key, loss),
                    )
            source = next((sources[key] for key in op.inputs if key in sources), None)
            for key in op.outputs:
                key_source = (index, key) if op.is_first_order else source
                if key_source is not None:
                    sources[key] = key_source
                else:
                    sources.pop(key, None)


def _flatten(item: Item) -> Iterator[Item]:
    """Yield an item, or the innermost ops of a meta op."""
    if not item.ops:
        yield item
    for op in item.ops:
        yield from _flatten(op)


def _unneeded_ops(ops: list[Item], keys: list[Key]) -> Iterator[Finding]:
    readers: dict[tuple[str, int | None], list[str]] = {}
    for key in keys:
        for life in key.lifetimes:
            names = [f"op {index}" for index in life.readers if not ops[index].deletes]
            if life.end == "returned":
                names += [f"postprocessing op {index}" for index in key.postprocessing_readers]
            readers[key.name, life.writer] = names
    for index, item in enumerate(ops):
        if not item.unneeded:
            continue
        reasons = []
        for output in item.outputs:
            names = readers[output, index]
            if names:
                are = "is" if len(names) == 1 else "are"
                reasons.append(
                    f"'{output}' is read only by {', '.join(names)}, which {are} not needed either"
                )
            else:
                reasons.append(f"'{output}' is neither read nor returned")
        text = f"Op {index}, {item.format()}, is not needed: {'; '.join(reasons)}."
        if item.models:
            text += " In mode 'train' it may still update buffers, such as running averages."
        yield Finding("unneeded_op", text, (index,), item.outputs)
