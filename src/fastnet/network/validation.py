"""Validation of what users pass to a network, with the error texts for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from fastnet._resolve import Spec
from fastnet.backend.facts import fact, name_of
from fastnet.backend.precision import Precision, read_precision
from fastnet.errors import advise_on_batch, advise_on_op, describe_op, nearest_name, shown
from fastnet.op.checks import check_keys
from fastnet.op.numpyop import Batch, RemoveIf
from fastnet.schedule import get_current_items
from fastnet.types import (
    OP_ATTRIBUTES,
    SLICER_ATTRIBUTES,
    Model,
    is_given,
    is_numpy_op,
    is_scheduler,
    is_slicer,
    is_tensor_op,
    missing_attributes,
)
from fastnet.util.names import told_ds_ids, told_modes
from fastnet.util.numbers import whole_number

__all__ = [
    "agree_on_precision",
    "check_dataset",
    "check_epoch",
    "check_items",
    "check_mode",
    "check_names",
    "desired_keys",
    "find_inactive_writer",
    "not_data",
]

_MODES = ("train", "eval", "test", "infer")
_NUMPY_OP_ATTRIBUTES = (*OP_ATTRIBUTES, "forward_batch")


# -------------------------------------------------------------------- ops, slicers and models


def check_items(ops: list[Any], postprocessing: list[Any], slicers: list[Any]) -> None:
    """Check that a network can run its ops, postprocessing ops and slicers."""
    checked: set[FunctionType] = set()
    for items, fits, noun, needed, attributes in (
        (ops, is_tensor_op, "op", "a TensorOp", OP_ATTRIBUTES),
        (postprocessing, is_numpy_op, "postprocessing op", "a NumpyOp", _NUMPY_OP_ATTRIBUTES),
        (slicers, is_slicer, "slicer", "a Slicer", SLICER_ATTRIBUTES),
    ):
        for index, item in enumerate(items):
            for value in _values_of(item):
                if not fits(value):
                    raise _wrong_item(value, index, noun, needed, attributes)
                if noun != "slicer":
                    _check_forward(value, index, checked)
                    check_keys([value])
    for index, op in enumerate(get_current_items(postprocessing)):
        if isinstance(op, RemoveIf) or hasattr(op, "filter_fn"):
            raise ValueError(
                f"{describe_op(op, index)} drops samples, which postprocessing cannot do: "
                "the network's results are already made. Filter in the data pipeline."
            )
        if isinstance(op, Batch) or hasattr(op, "collate_fn"):
            raise ValueError(
                f"{describe_op(op, index)} makes batches, but postprocessing gets batches. "
                "Leave it out, or use it in the data pipeline."
            )


def _values_of(item: Any) -> list[Any]:
    """Return an item, or all items of a scheduler."""
    if not is_scheduler(item):
        return [item] if is_given(item) else []
    return [value for value in item.get_all_values() if is_given(value)]


def _check_forward(op: Any, index: int, checked: set[FunctionType]) -> None:
    """Check that `forward` takes data and state, once for each Python function."""
    forward = op.forward
    function = getattr(forward, "__func__", forward)
    if not isinstance(function, FunctionType) or function in checked:
        return
    checked.add(function)
    signature = inspect.signature(forward, follow_wrapped=False)
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"{describe_op(op, index)} defines forward{signature}, but a network calls "
            "forward(data, state). Define it as `def forward(self, data, state):`."
        ) from None


def _wrong_item(
    item: Any, index: int, noun: str, needed: str, attributes: tuple[str, ...]
) -> AssertionError:
    """Return the error for an item that is not an op, a postprocessing op or a slicer."""
    subject, name = f"The network's {noun} {index} is", type(item).__name__
    if isinstance(item, type):
        return AssertionError(
            f"{subject} the class {item.__name__}, not {needed}. Pass an instance: "
            f"{item.__name__}(...)."
        )
    lacking = missing_attributes(item, attributes)
    bases = {base.__name__ for base in type(item).__mro__}
    if "mode" in lacking and bases & {"Op", "Slicer"}:
        return AssertionError(
            f"{subject} {name}, whose __init__ does not call super().__init__(...), which sets its "
            "keys and modes. Call it first."
        )
    advice = advise_on_op(item) if noun == "op" else None
    if advice is None:
        lacks = f" (it lacks {lacking})" if len(lacking) < len(attributes) else ""
        advice = f"Pass {needed}, or an object with the same attributes{lacks}."
    return AssertionError(f"{subject} {name}, not {needed}. {advice}")


def not_data(data: object) -> TypeError:
    """Return the error for something that `transform` cannot take."""
    return TypeError(
        "transform takes a batch (a dict of values by key), an iterable of batches, or a pipeline "
        f"that is called and entered to give one, not {type(data).__name__}.{advise_on_batch(data)}"
    )


def agree_on_precision(models: list[Model]) -> Precision:
    """Return the `mixed_precision` of the models, which must agree."""
    precisions: dict[Precision, list[str]] = {}
    for model in models:
        precision = read_precision(fact(model, "mixed_precision", False))
        precisions.setdefault(precision, []).append(name_of(model))
    if len(precisions) > 1:
        found = " and ".join(f"{one!r} for {names}" for one, names in precisions.items())
        raise ValueError(
            f"The models of a network must agree on their mixed_precision, but it is {found}. "
            "Build all of them with the same mixed_precision."
        )
    return next(iter(precisions), False)


def check_names(models: list[Model]) -> None:
    """Check that no two models have the same name, for which they would share a file."""
    names: dict[str, str] = {}
    for name in map(name_of, models):
        other = names.get(name.lower())
        if other is not None:
            raise AssertionError(
                f"Two models are called '{other}' and '{name}', so that their files would be the "
                "same where case is ignored. Pass fastnet.build another model_name for one of them."
            )
        names[name.lower()] = name


# -------------------------------------------------------------------- arguments of an entry


def check_mode(mode: Any) -> None:
    """Check that a mode exists."""
    if isinstance(mode, str) and mode in _MODES:
        return
    near = nearest_name(mode, _MODES) if isinstance(mode, str) else None
    suggestion = "" if near is None else f" Did you mean {near!r}?"
    raise ValueError(
        f"A network runs in one of the modes {list(_MODES)}, not in {shown(mode)}.{suggestion}"
    )


def check_epoch(epoch: Any, first: int = 1) -> int:
    """Return an epoch as an int, after checking that it is at least `first`."""
    number = epoch if type(epoch) is int else whole_number(epoch)
    if number is None:
        raise TypeError(
            f"An epoch is an integer of at least {first}, not {shown(epoch)} of type "
            f"{type(epoch).__name__}."
        )
    if number < first:
        raise ValueError(f"An epoch is an integer of at least {first}, not {number}.")
    return number


def check_dataset(ds_id: Any) -> None:
    """Check that a dataset id is a string or None."""
    if ds_id is not None and not isinstance(ds_id, str):
        raise TypeError(
            'ds_id is a string, "" for data without an id, or None to run the ops of every id, not '
            f"{shown(ds_id)} of type {type(ds_id).__name__}."
        )


def desired_keys(keys: Any) -> frozenset[str]:
    """Return desired output keys as a set; an empty set stands for all outputs."""
    desired = frozenset([keys] if isinstance(keys, str) else keys or ())
    for key in desired:
        if not isinstance(key, str):
            raise TypeError(
                f"desired_output_keys holds {shown(key)} of type {type(key).__name__}, but keys "
                "are strings."
            )
    return desired


def find_inactive_writer(
    items: Iterable[Any], active: Iterable[Any], mode: str, ds_id: str | None
) -> Callable[[str], str | None]:
    """Return a function that says which inactive op writes a key, and why it is inactive."""

    def find(key: str) -> str | None:
        for item in items:
            for op in _values_of(item):
                if key in (getattr(op, "outputs", None) or ()) and all(op is not a for a in active):
                    return f"{describe_op(op)} writes it, but {why_inactive(op, item)}."
        return None

    def why_inactive(op: Any, item: Any) -> str:
        spec = Spec(op)
        if not spec.runs_in(mode, None):
            return f"{told_modes(op.mode)}, and the network was entered in mode {mode!r}"
        if not spec.runs_in(mode, ds_id):
            return f"{told_ds_ids(op.ds_id)}, and the network was entered with ds_id {ds_id!r}"
        return f"{type(item).__name__} does not select it in this epoch"

    return find
