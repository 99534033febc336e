"""What can be known to be wrong when a network is made, and the words for it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastnet.backend.facts import fact, name_of
from fastnet.backend.precision import Precision, read_precision
from fastnet.errors import describe_op, shown
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

__all__ = [
    "agree_on_precision",
    "check_dataset",
    "check_epoch",
    "check_items",
    "check_mode",
    "check_names",
    "desired_keys",
    "not_data",
]

_MODES = ("train", "eval", "test", "infer")


def check_items(ops: list[Any], postprocessing: list[Any], slicers: list[Any]) -> None:
    """Refuse what cannot run in a network.

    Args:
        ops: Its ops, and schedulers of ops.
        postprocessing: Its postprocessing ops, and schedulers of them.
        slicers: Its slicers, and schedulers of them.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer.
        ValueError: If a postprocessing op would drop or make batches, or an op has other keys than
            it reads and writes.
    """
    for items, fits, noun, needs, attributes in (
        (ops, is_tensor_op, "op", "a TensorOp", OP_ATTRIBUTES),
        (
            postprocessing,
            is_numpy_op,
            "postprocessing op",
            "a NumpyOp",
            (*OP_ATTRIBUTES, "forward_batch"),
        ),
        (slicers, is_slicer, "slicer", "a Slicer", SLICER_ATTRIBUTES),
    ):
        for position, item in enumerate(items):
            for value in item.get_all_values() if is_scheduler(item) else (item,):
                if not is_given(value):
                    continue
                if not fits(value):
                    raise AssertionError(_not_fit(value, position, noun, needs, attributes))
                if noun != "slicer":
                    check_keys([value])
    for position, op in enumerate(get_current_items(postprocessing)):
        if isinstance(op, RemoveIf) or hasattr(op, "filter_fn"):
            raise ValueError(
                f"{describe_op(op, position)} drops samples, which postprocessing cannot do: "
                "the network's results are already made. Filter in the data pipeline."
            )
        if isinstance(op, Batch) or hasattr(op, "collate_fn"):
            raise ValueError(
                f"{describe_op(op, position)} makes batches, but postprocessing gets batches. "
                "Leave it out, or use it in the data pipeline."
            )


def _not_fit(item: Any, position: int, noun: str, needs: str, attributes: Sequence[str]) -> str:
    if isinstance(item, type):
        return (
            f"The network's {noun} {position} is the class {item.__name__}, which is no {noun}. "
            f"Pass an instance: {item.__name__}(...)."
        )
    text = f"The network's {noun} {position} is {type(item).__name__}, which is no {noun}"
    lacking = missing_attributes(item, attributes)
    if not lacking:
        return f"{text} but one on numpy arrays. Pass it as postprocessing (`pops`)."
    if len(lacking) < len(attributes):
        text += f": it lacks {lacking}"
    return f"{text}. Pass {needs}, or an object with the same attributes."


def not_data(data: object) -> TypeError:
    """Word the error of something that `transform` cannot take.

    Args:
        data: What it was given.

    Returns:
        The error, for the caller to raise.
    """
    return TypeError(
        "transform takes a batch (a dict of values by key), an iterable of batches, or something "
        f"that is entered to give one, not {type(data).__name__}."
    )


def agree_on_precision(models: list[Model]) -> Precision:
    """Find out what precision models compute in.

    Args:
        models: The models of a network.

    Returns:
        Their `mixed_precision`.

    Raises:
        ValueError: If it is not the same for all, or is none.
    """
    precisions: dict[Precision, list[str]] = {}
    for model in models:
        precision = read_precision(fact(model, "mixed_precision", False))
        precisions.setdefault(precision, []).append(name_of(model))
    full = precisions.pop(False, [])
    if full and precisions:
        mixed = [name for names in precisions.values() for name in names]
        raise ValueError(
            f"The models {mixed} have mixed precision and {full} have not, "
            "but the models of a network must agree. Build all of them with the same "
            "mixed_precision."
        )
    if len(precisions) > 1:
        raise ValueError(
            f"The models of a network must agree on their mixed_precision, but it is "
            f"{' and '.join(f'{one!r} of {names}' for one, names in precisions.items())}. Build "
            "all of them with the same."
        )
    return next(iter(precisions), False)


def check_names(models: list[Model]) -> None:
    """Refuse models that files could not tell apart.

    Args:
        models: The models of a network.

    Raises:
        AssertionError: If two have one name, case aside.
    """
    names: dict[str, str] = {}
    for name in map(name_of, models):
        other = names.pop(name.lower(), None)
        names[name.lower()] = name
        if other == name:
            raise AssertionError(
                f"Two models are called '{name}', so that their files would be the same. Pass "
                "fastnet.build another model_name for one of them."
            )
        if other is not None:
            raise AssertionError(
                f"Two models are called '{other}' and '{name}', which are one name on a file "
                "system that takes upper and lower case as the same. Pass fastnet.build a "
                "model_name for each."
            )


def check_mode(mode: Any) -> None:
    """Refuse what is no mode.

    Args:
        mode: What an opening was given.

    Raises:
        ValueError: If there is no such mode.
    """
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(
            f"A network runs in one of the modes {list(_MODES)}, not in {shown(mode)}."
        )


def check_epoch(epoch: Any, first: int = 1) -> int:
    """Read the number of an epoch.

    Args:
        epoch: What an opening was given.
        first: The least number that an epoch may have.

    Returns:
        The epoch.

    Raises:
        TypeError: If it is no whole number.
        ValueError: If it is less than `first`.
    """
    number = epoch if type(epoch) is int else _as_int(epoch)
    if number is None:
        raise TypeError(
            f"An epoch is a whole number from {first} up, not {shown(epoch)} of type "
            f"{type(epoch).__name__}."
        )
    if number < first:
        raise ValueError(f"An epoch is a whole number from {first} up, not {number}.")
    return number


def _as_int(value: object) -> int | None:
    """Return an integer of any type, such as numpy's, as an int, and None for any other value."""
    # numpy 1 accepts its bools as indices.
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_dataset(ds_id: Any) -> None:
    """Refuse what is no id of a dataset.

    Args:
        ds_id: What an opening was given.

    Raises:
        TypeError: If it is neither a string nor None.
    """
    if ds_id is not None and not isinstance(ds_id, str):
        raise TypeError(
            'The ds_id of an opening is one string, "" for data without an id, or None for the ops '
            f"of every id, not {shown(ds_id)} of type {type(ds_id).__name__}."
        )


def desired_keys(keys: Any) -> frozenset[str]:
    """Read which keys are wanted back.

    Args:
        keys: A key, a collection of keys, or None.

    Returns:
        The keys; none for all outputs.

    Raises:
        TypeError: If one is no string.
    """
    desired = frozenset([keys] if isinstance(keys, str) else keys or ())
    for key in desired:
        if not isinstance(key, str):
            raise TypeError(
                f"desired_output_keys holds {shown(key)} of type {type(key).__name__}, but keys "
                "are strings."
            )
    return desired
