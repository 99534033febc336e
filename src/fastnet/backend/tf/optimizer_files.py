"""The state of Keras optimizers, in files of arrays that execute nothing when they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.tf._keras_internals import loss_scale_variables
from fastnet.backend.tf.claims import require_claims_of_npz
from fastnet.backend.tf.keras_version import is_keras3
from fastnet.backend.tf.optimizers import (
    has_schedule,
    inner_optimizer,
    number_of,
    set_weight_decay,
    weight_decay_of,
)
from fastnet.backend.tf.setup import prepare_optimizer

__all__ = [
    "array_of",
    "complaint_about",
    "facts_of",
    "kept_optimizer",
    "load_state",
    "read_states",
    "variables_of",
    "write_states",
]

_FACTS = "facts"
_SCHEDULED = "scheduled"
_CURRENT = "current"


def write_states(optimizer: Any, scheduled: Sequence[Any], path: str) -> None:
    """Write the state of the optimizer in force, and those of the others.

    Args:
        optimizer: The optimizer in force.
        scheduled: All optimizers that the model's scheduler chooses from; one for no scheduler.
        path: The file, which ends with ``.npz``.
    """
    facts = facts_of(optimizer)
    arrays = {str(place): array_of(each) for place, each in enumerate(variables_of(optimizer))}
    if len(scheduled) > 1 and any(one is optimizer for one in scheduled):
        facts[_SCHEDULED] = [_CURRENT if one is optimizer else facts_of(one) for one in scheduled]
        for number, one in enumerate(scheduled):
            if one is not optimizer:
                for place, each in enumerate(variables_of(one)):
                    arrays[f"{number}/{place}"] = array_of(each)
    arrays[_FACTS] = np.array(json.dumps(facts))
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_states(
    optimizer: Any, scheduled: Sequence[Any], model: Any, path: str
) -> list[tuple[Any, dict[str, Any]]]:
    """Read the states of optimizers, and check that they fit.

    Args:
        optimizer: The optimizer in force, which takes what was in force.
        scheduled: All optimizers that the model's scheduler chooses from; each takes its own, if
            the file is of a scheduler too.
        model: The model that they update.
        path: The file.

    Returns:
        Each optimizer that the file has a state for, with that state, for `load_state`.

    Raises:
        ValueError: If the file is damaged, or of other optimizers.
    """
    try:
        require_claims_of_npz(path)
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(str(file[_FACTS]))
            kinds = facts.pop(_SCHEDULED, [])
            states = [_take(facts, file, "")]
            numbered = [
                states[0] if each == _CURRENT else _take(each, file, f"{number}/")
                for number, each in enumerate(kinds)
            ]
    except Exception as error:  # a damaged file raises errors of many types
        raise ValueError(
            f"The optimizer file '{path}' is damaged, or was not written by fastnet: it cannot be "
            f"read ({error!r}). Save it anew with save_model(model, save_dir, save_optimizer=True)."
        ) from error
    optimizers = [optimizer]
    complaint = None
    if numbered and len(scheduled) > 1:
        optimizers, states = list(scheduled), numbered
        if len(optimizers) != len(states):
            complaint = (
                f"it is of a schedule of {len(states)} optimizers, where the model's has "
                f"{len(optimizers)}"
            )
    found = list(zip(optimizers, states, strict=False))
    for one, state in found:
        prepare_optimizer(one, model)
        optimizer = optimizer if complaint else one
        complaint = complaint or complaint_about(state, one)
    if complaint:
        raise ValueError(
            f"The optimizer file '{path}' is not of the model's optimizer, {_kind(optimizer)}: "
            f"{complaint}. Leave load_optimizer out, or give the model the optimizer that was "
            "saved."
        )
    return found


def facts_of(optimizer: Any) -> dict[str, Any]:
    """Return what an optimizer has besides its variables.

    Args:
        optimizer: The optimizer.

    Returns:
        Its kind, its learning rate if no schedule decides that, and its weight decay, None for
        none.
    """
    inner = inner_optimizer(optimizer)
    return {
        "optimizer": _kind(optimizer),
        "learning_rate": None if has_schedule(inner) else number_of(inner.learning_rate),
        "weight_decay": weight_decay_of(inner),
    }


def complaint_about(state: dict[str, Any], optimizer: Any) -> str | None:
    """Return why a state is not that of an optimizer.

    Args:
        state: What `facts_of` gave, with the arrays of the variables as "values".
        optimizer: The optimizer, with its variables made.

    Returns:
        What is wrong, to stand behind the file's name; None if nothing is.
    """
    if state.get("optimizer") != _kind(optimizer):
        return f"it is of {state.get('optimizer')}"
    variables = variables_of(optimizer)
    shapes, saved = [tuple(each.shape) for each in variables], [v.shape for v in state["values"]]
    if saved != shapes:
        return f"it has arrays of the shapes {saved} where the model's are {shapes}"
    for place, (value, variable) in enumerate(zip(state["values"], variables, strict=True)):
        wanted = tf.as_dtype(variable.dtype)
        if value.dtype.kind not in (
            "f" if wanted.is_floating else "iu" if wanted.is_integer else "b"
        ):
            return f"its array {place} is of {value.dtype} where the model's is {wanted.name}"
        if not value.ndim and (not np.isfinite(value) or value < 0):
            # how many steps, a rate, the scale of a loss
            return f"its array {place} is {value}"
    for name in ("learning_rate", "weight_decay"):
        if name not in state:
            return f"it lacks the {name}"
        value = state[name]
        own = facts_of(optimizer)[name]
        if (value is None) != (own is None) or (value is not None and not _is_sane(value, own)):
            return f"its {name} is {value!r}, where the model's is {own!r}"
    return None


def load_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Restore the state of an optimizer.

    Args:
        optimizer: The optimizer.
        state: What `complaint_about` had nothing against.
    """
    for variable, value in zip(variables_of(optimizer), state["values"], strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    inner = inner_optimizer(optimizer)
    if state["learning_rate"] is not None:
        inner.learning_rate = state["learning_rate"]
    if state["weight_decay"] is not None:
        set_weight_decay(inner, state["weight_decay"])


@contextmanager
def kept_optimizer(optimizer: Any) -> Iterator[None]:
    """Restore the state of an optimizer if something fails meanwhile.

    Args:
        optimizer: The optimizer, with its variables made.
    """
    values = [np.array(each.numpy()) for each in variables_of(optimizer)]
    before = {**facts_of(optimizer), "values": values}
    try:
        yield
    except BaseException:
        load_state(optimizer, before)
        raise


def variables_of(optimizer: Any) -> list[Any]:
    """List the variables of an optimizer, and of the scale of its losses.

    Args:
        optimizer: The optimizer.
    """
    variables = optimizer.variables
    own = variables() if callable(variables) else variables
    return [*own, *loss_scale_variables(optimizer)]


def array_of(variable: Any) -> np.ndarray[Any, Any]:
    """Return the value of a variable in a type that numpy can write, float32 for bfloat16.

    Args:
        variable: The variable.
    """
    array: np.ndarray[Any, Any] = np.asarray(variable.numpy())
    # numpy itself has no bfloat16, and could only pickle it
    return array.astype("float32") if array.dtype.kind == "V" else array


def _take(facts: Any, file: Any, prefix: str) -> dict[str, Any]:
    """Read what a file has of one optimizer."""
    own = [name.removeprefix(prefix) for name in file.files if name.startswith(prefix)]
    count = sum(name.isdecimal() for name in own)
    return {**facts, "values": [file[f"{prefix}{place}"] for place in range(count)]}


def _is_sane(value: Any, own: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # a program may have its reasons, but then its own optimizer has them too
    return math.isfinite(value) and (value >= 0 or own < 0)


def _kind(optimizer: Any) -> str:
    """Name what decides how many variables an optimizer has, and in which order."""
    cls = type(inner_optimizer(optimizer))
    age = "Keras 3's" if is_keras3(optimizer) else "Keras 2's"
    return f"{age} {'legacy ' if '.legacy.' in cls.__module__ else ''}{cls.__name__}"
