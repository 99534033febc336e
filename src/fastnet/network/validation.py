"""Validation of what users pass to a network, with the error texts for it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from fastnet._resolve import Spec
from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.precision import Precision, read_precision
from fastnet.errors import (
    advise_on_batch,
    describe_op,
    misspelled_name,
    nearest_name,
    note_failure,
    shorten,
)
from fastnet.op.checks import describe_wrong_item
from fastnet.op.meta_op import MetaOp
from fastnet.op.numpyop.numpyop import NumpyOp
from fastnet.op.op import Op
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.schedule import get_current_items
from fastnet.types import (
    Model,
    is_given,
    is_numpy_op,
    is_scheduler,
    is_slicer,
    is_tensor_op,
)
from fastnet.util import to_list
from fastnet.util.formatting import format_ds_ids, format_modes
from fastnet.util.names import MODES
from fastnet.util.warnings import warn


def check_items(ops: list[Any], postprocessing: list[Any], slicers: list[Any]) -> None:
    """Check that a network can run its ops, postprocessing ops and slicers."""
    checked: set[FunctionType] = set()
    for index, op in _each_value(ops):
        if not is_tensor_op(op):
            raise _wrong_item(op, index, "op", "a TensorOp")
        _check_op(op, index, checked)
    for index, op in _each_value(postprocessing):
        if is_tensor_op(op) and not is_numpy_op(op):
            raise AssertionError(
                f"{describe_op(op, index)} is an op, and not a postprocessing op, which is a "
                "NumpyOp. Pass all ops as one list: Network([op, op, ...], pops)."
            )
        if not is_numpy_op(op):
            raise _wrong_item(op, index, "postprocessing op", "a NumpyOp")
        _check_op(op, index, checked)
        if hasattr(op, "filter_fn") or hasattr(op, "collate_fn"):
            action = "drops samples" if hasattr(op, "filter_fn") else "makes batches"
            raise ValueError(
                f"{describe_op(op, index)} {action}, which postprocessing cannot do: the network's "
                "results are already made. Use it in the data pipeline."
            )
    for index, slicer in _each_value(slicers):
        if not is_slicer(slicer):
            raise _wrong_item(slicer, index, "slicer", "a Slicer")


def find_position(op: Any, *lists: list[Any]) -> int | None:
    """Return the index of an op, or of the scheduler that has it, in the list that holds it."""
    return next((index for ops in lists for index, value in _each_value(ops) if value is op), None)


def _each_value(items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each item, or each value of a scheduler, with the index in the list."""
    for index, item in enumerate(items):
        for value in item.get_all_values() if is_scheduler(item) else [item]:
            if is_given(value):
                yield index, value


def _check_op(op: Any, index: int, checked: set[FunctionType]) -> None:
    """Check the keys of an op, and, once per function, that its forward takes data and state."""
    try:
        if isinstance(op, Op):
            op.check_keys()
        for inner_index, inner in enumerate(op.inner_ops() if isinstance(op, MetaOp) else ()):
            _check_op(inner, inner_index, checked)
    except Exception as error:
        note_failure(error, op, index, ())
        raise
    forward: Any = getattr(op, "forward", None)
    function = getattr(forward, "__func__", forward)
    if not isinstance(function, FunctionType) or function in checked:
        return
    checked.add(function)
    if function in (TensorOp.forward, NumpyOp.forward):
        _warn_of_missing_forward(op, index)
    signature = inspect.signature(forward, follow_wrapped=False)
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"{describe_op(op, index)} defines forward{signature}, but a network calls "
            "forward(data, state). Define it as `def forward(self, data, state):`."
        ) from None


def _warn_of_missing_forward(op: Any, index: int) -> None:
    """Warn of an op of the program that does not define forward."""
    defined = [name for cls in type(op).__mro__ for name in vars(cls) if not _is_library(cls)]
    if defined and not {"bind", "forward_batch"}.intersection(defined):
        near = misspelled_name("forward", defined)
        advice = f"Rename '{near}'." if near else "Define `def forward(self, data, state):`."
        described = describe_op(op, index)
        warn(f"{described} does not define forward, so it returns its input unchanged. {advice}")


def _is_library(cls: type) -> bool:
    return cls is object or cls.__module__.partition(".")[0] in ("fastnet", "fastestimator")


def _wrong_item(item: Any, index: int, noun: str, needed: str) -> AssertionError:
    """Return the error for an item that is not an op, a postprocessing op or a slicer."""
    return AssertionError(f"The network's {noun} {index} is {describe_wrong_item(item, needed)}")


def check_request(
    mode: Any, epoch: Any, ds_id: Any, desired_output_keys: Any, first_epoch: int = 1
) -> tuple[int, frozenset[str]]:
    """Validate the arguments that a network is entered with; return the epoch and desired keys."""
    if not isinstance(mode, str) or mode not in MODES:
        if isinstance(mode, str):
            near = nearest_name(mode, MODES)
            advice = f" Did you mean {near!r}?" if near else ""
        else:
            advice = ' Run a batch by `network.transform(batch, "train")`, or by `run_step(batch)`.'
        raise ValueError(
            f"A network runs in one of the modes {list(MODES)}, not in {shorten(mode)}.{advice}"
        )
    number = _as_int(epoch)
    if number is None or number < first_epoch:
        error_type = TypeError if number is None else ValueError
        raise error_type(
            f"An epoch is an integer of at least {first_epoch}, not {shorten(epoch)} of type "
            f"{type(epoch).__name__}."
        )
    if ds_id is not None and not isinstance(ds_id, str):
        raise TypeError(
            'ds_id is a string, "" for data without an id, or None to run the ops of every id, not '
            f"{shorten(ds_id)} of type {type(ds_id).__name__}."
        )
    keys = () if desired_output_keys is None else desired_output_keys
    is_single_key = isinstance(keys, str) or not isinstance(keys, Iterable)
    desired = frozenset([keys] if is_single_key else keys)
    for key in desired:
        if not isinstance(key, str):
            raise TypeError(
                f"desired_output_keys holds {shorten(key)} of type {type(key).__name__}, but keys "
                "are strings."
            )
    return number, desired


def _as_int(value: Any) -> int | None:
    """Return an integer of any type, such as a 0-d tensor, as an int, and None for other values."""
    if isinstance(value, (bool, np.bool_)):  # numpy 1 accepts its bools as indices.
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_batches(data: Any, caller: str) -> None:
    """Check that an object is an iterable of batches, or a pipeline, and not a single dict."""
    if isinstance(data, Mapping):
        raise TypeError(
            f"{caller} takes an iterable of batches, such as a DataLoader of dicts, but got a "
            f"single {type(data).__name__} with the keys {list(data)}. Put a single batch into a "
            "list, and split the arrays of a dataset with `DataLoader(torch.utils.data."
            "StackDataset(**data), 32)` or `tf.data.Dataset.from_tensor_slices(data).batch(32)`."
        )
    if isinstance(data, str) or not (hasattr(data, "__iter__") or callable(data)):
        raise TypeError(
            "Pass an iterable of batches, each a dict of values by key, or a pipeline that is "
            f"called and entered to give one, not {type(data).__name__}.{advise_on_batch(data)}"
        )


def collect_models(ops: Any) -> list[Model]:
    """List the models of ops, and of scheduled ops, each once and in the order of the ops."""
    models: dict[int, Model] = {}
    for op in get_current_items(to_list(ops)):
        if not isinstance(op, type):
            models.update((id(model), model) for model in as_tensor_op(op).get_fe_models())
    return list(models.values())


def agree_on_precision(models: list[Model]) -> Precision:
    """Return the `mixed_precision` of the models, which must agree."""
    precisions: dict[str, Precision] = {
        name_of(model): read_precision(get_metadata(model, "mixed_precision", False))
        for model in models
    }
    # In Keras True is float16 on every device.
    kinds = {
        "float16" if precision is True and framework_of(model) == "tf" else precision
        for model, precision in zip(models, precisions.values(), strict=True)
    }
    if len(kinds) > 1:
        raise ValueError(
            "The models of a network must agree on their mixed_precision, but they have "
            f"{precisions}. Build all of them with the same mixed_precision; a Keras model that "
            "was made before has the precision of the policy it was made under."
        )
    return next(iter(precisions.values()), False)


def check_names(models: list[Model]) -> None:
    """Check that no two models have the same name, for which they would share a file."""
    names: dict[str, str] = {}
    for name in map(name_of, models):
        if name.lower() in names:
            raise AssertionError(
                f"The model names '{names[name.lower()]}' and '{name}' are the same where case is "
                "ignored, so the models would share a file. Pass another model_name to "
                "fastnet.build."
            )
        names[name.lower()] = name


def warn_of_misspelled(desired: Iterable[str], items: Sequence[Any]) -> None:
    """Warn of desired keys that no item has, but that are close to a key that one writes."""
    ops = get_current_items(items)
    written = {key for op in ops for key in to_list(op.outputs)}
    known = written.union(*[to_list(op.inputs) for op in ops])
    for key in sorted(set(desired) - known):
        near = misspelled_name(key, sorted(written - set(desired)))
        if near is not None:
            warn(
                f"No op writes '{key}' of desired_output_keys, so the result has it only if the "
                f"batch does. Did you mean '{near}'?"
            )


def describe_inactive_writer(
    items: Sequence[Any], active: Iterable[Any], mode: str, ds_id: str | None, key: str
) -> str | None:
    """Say which inactive op writes a key, and why it is inactive."""
    for index, op in _each_value(items):
        if key not in (getattr(op, "outputs", None) or ()) or any(
            op is active_op for active_op in active
        ):
            continue
        spec = Spec(op)
        if not spec.runs_in(mode, None):
            reason = f"{format_modes(op.mode)}, and the network was entered in mode {mode!r}"
        elif not spec.runs_in(mode, ds_id):
            reason = f"{format_ds_ids(op.ds_id)}, and the network was entered with ds_id {ds_id!r}"
        else:
            reason = f"{type(items[index]).__name__} does not select it in this epoch"
        return f"{describe_op(op)} writes it, but {reason}."
    return None
