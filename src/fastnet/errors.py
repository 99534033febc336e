"""Errors of a network, and the words they are told in.

The classes that programs may catch, and the texts that several modules share; what only one module
refuses is worded there. Each text names the op, the key, what was there instead, and what to do
about it.
"""

from __future__ import annotations

import difflib
import functools
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "MissingKeyError",
    "RankError",
    "UnknownNameError",
    "WrongOptimizerError",
    "add_note",
    "describe_op",
    "missing_key",
    "nearest_name",
    "not_a_batch",
    "not_a_sequence",
    "op_name",
    "other_keys",
    "shown",
    "sliced_not_unsliced",
    "unwritten_key",
    "wrong_count",
]


class MissingKeyError(KeyError):
    """A key that an op, a slicer or a postprocessing op reads is not there.

    Unlike a plain ``KeyError`` its text is shown as written, not as a quoted literal.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RankError(RuntimeError):
    """Another one of the processes that train together has failed, or does not fit this one."""


class UnknownNameError(KeyError, ValueError):
    """A name is none of those there are: a failed look-up, and a bad value."""

    __str__ = MissingKeyError.__str__


class WrongOptimizerError(ValueError, AssertionError):
    """An optimizer is none, or one of another framework: FastEstimator raises either for it."""


def op_name(op: object) -> str:
    """Name an op by its class and, of one that calls a function, by that function.

    Args:
        op: An op, or anything else that stands where an op is expected.

    Returns:
        For example ``"ModelOp"``, or ``"LambdaOp[standardise]"`` for an op that has the function
        `standardise` as its `fn`. A lambda has no name to tell.
    """
    name = type(op).__name__
    # read past whatever an op of somebody's own does when it is asked
    function = getattr(op, "__dict__", {}).get("fn")
    while isinstance(function, functools.partial):
        function = function.func
    if not callable(function):
        return name
    called = getattr(function, "__name__", type(function).__name__)
    return f"{name}[{called}]" if isinstance(called, str) and called.isidentifier() else name


def describe_op(op: object, position: int | None = None) -> str:
    """Name an op the way every error text does.

    Args:
        op: An op, or anything else that stands where an op is expected.
        position: Its place among the ops in force, counted from 0; None where it has none.

    Returns:
        For example ``"ModelOp (op 2, inputs ['x'], outputs ['y'])"``.
    """
    facts = [] if position is None else [f"op {position}"]
    for attribute in ("inputs", "outputs"):
        keys = getattr(op, attribute, None)
        if keys:
            facts.append(f"{attribute} {list(keys)}")
    name = type(op).__name__
    return f"{name} ({', '.join(facts)})" if facts else name


class _Brief(reprlib.Repr):
    """Shows values in a line: of tensors and arrays what they are, of anything else its repr."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 8
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = 100

    def repr1(self, x: Any, level: int) -> str:
        try:
            described = None if isinstance(x, type) else _tensor_text(x)
        except Exception:
            described = None
        return super().repr1(x, level) if described is None else described

    def repr_instance(self, x: Any, level: int) -> str:
        return " ".join(super().repr_instance(x, level).split())


_brief = _Brief()


def shown(value: object) -> str:
    """Show a value that somebody has given in an error.

    Args:
        value: The value.

    Returns:
        Its repr, cut where it is long. For a tensor or an array with axes, also in a container, its
        class, shape, dtype and, if torch keeps one of it, device, but none of its numbers.

    >>> import numpy as np
    >>> shown(0.5), shown([np.ones((2, 3)), "x"])
    ('0.5', "[<ndarray of shape (2, 3), float64>, 'x']")
    """
    return _brief.repr(value)


def _tensor_text(value: Any) -> str | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    try:
        lengths = tuple(shape)
    except ValueError:
        # TensorFlow does not know the number of axes
        return f"<{type(value).__name__} of any shape, {getattr(dtype, 'name', dtype)}>"
    if not lengths:
        return None
    device = getattr(value, "device", None)
    where = f", {device}" if hasattr(device, "type") else ""
    return (
        f"<{type(value).__name__} of shape {lengths}, "
        f"{str(getattr(dtype, 'name', dtype)).removeprefix('torch.')}{where}>"
    )


GRADIENT_ADVICE = (
    "Put a Watch in front of the op that computes one from the other, and see that it reads what "
    "the Watch writes."
)
"""What to do where a value has no gradient by another one."""


def nearest_name(name: str, candidates: Iterable[Any]) -> str | None:
    """Find the candidate that a mistyped name most likely meant.

    Args:
        name: The name that was not found.
        candidates: The names there are; anything that is not a string is passed over.

    Returns:
        The nearest of them, or None where nothing comes near.

    >>> nearest_name("y_perd", ["x", "y", "y_pred"])
    'y_pred'
    """
    names = [candidate for candidate in candidates if isinstance(candidate, str)]
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return matches[0]
    same = [candidate for candidate in names if candidate.lower() == name.lower()]
    return same[0] if same else None


def missing_key(
    reader: object,
    key: str,
    available: Iterable[Any],
    position: int | None = None,
    deleted_by: str | None = None,
    verb: str = "reads",
    elsewhere: str | None = None,
) -> MissingKeyError:
    """Word the error of a key that is read but not there.

    Args:
        reader: The op or slicer that reads the key.
        key: The key.
        available: The keys that are there.
        position: The reader's place among the ops in force, counted from 0.
        deleted_by: The op that deleted the key earlier in the step, described, if one did.
        verb: What the reader does with the key.
        elsewhere: A sentence on what would write the key, but not in this opening, if there is
            such.

    Returns:
        The error, for the caller to raise.
    """
    there = sorted(str(name) for name in available)
    text = f"{describe_op(reader, position)} {verb} the key '{key}'"
    if deleted_by is not None:
        text += f", which {deleted_by} has deleted. Read it before it is deleted, or keep it."
        return MissingKeyError(text)
    text += f", but there is no such key. Keys there: {there}."
    if elsewhere is not None:
        text += f" {elsewhere} Put the key into the batch, or let an earlier op write it here, too."
        return MissingKeyError(text)
    near = nearest_name(key, there)
    if near is not None:
        text += f" Did you mean '{near}'?"
    text += " Put the key into the batch, or let an earlier op write it."
    return MissingKeyError(text)


def wrong_count(
    op: object, position: int | None, outputs: Sequence[str], returned: int, source: str = "forward"
) -> ValueError:
    """Word the error of an op that returns fewer values than it has outputs, or more.

    Args:
        op: The op.
        position: Its place among the ops in force, counted from 0.
        outputs: The outputs that the values are for.
        returned: How many values it returned.
        source: What of the op returned them.

    Returns:
        The error, for the caller to raise.
    """
    count, others = len(outputs), len(getattr(op, "outputs", outputs)) - len(outputs)
    return ValueError(
        f"{describe_op(op, position)} has {count} output{'' if count == 1 else 's'}"
        f"{f' besides its last {others}' if others else ''}, but its {source} returned "
        f"{returned} value{'' if returned == 1 else 's'}. Return one value for each of "
        f"{list(outputs)}, in that order."
    )


def other_keys(
    op: object,
    position: int | None,
    outputs: Sequence[str],
    returned: Mapping[Any, Any],
    source: str = "forward",
) -> ValueError:
    """Word the error of an op that returns values by name, but not by the names of its outputs.

    Args:
        op: The op.
        position: Its place among the ops in force, counted from 0.
        outputs: The outputs that the values are for.
        returned: What it returned.
        source: What of the op returned it.

    Returns:
        The error, for the caller to raise.
    """
    return ValueError(
        f"{describe_op(op, position)} writes {list(outputs)} by name from the "
        f"{type(returned).__name__} that its {source} returned, but the keys there are "
        f"{list(returned)}. Name the outputs as its keys, or return a list with one value for each "
        f"of {list(outputs)}, in that order."
    )


def not_a_batch(batch: object) -> TypeError:
    """Word the error of a step's batch that is no mapping.

    Args:
        batch: What the step was given.

    Returns:
        The error, for the caller to raise.
    """
    return TypeError(
        f"run_step takes a batch, a dict of values by key, but got {type(batch).__name__}."
    )


def not_a_sequence(
    op: object,
    position: int | None,
    outputs: Sequence[str],
    result: object,
    source: str = "forward",
) -> TypeError:
    """Word the error of an op that writes a list, but returns neither a list nor a mapping.

    Args:
        op: The op.
        position: Its place among the ops in force, counted from 0.
        outputs: The outputs that the values are for.
        result: What it returned.
        source: What of the op returned it.

    Returns:
        The error, for the caller to raise.
    """
    why = "is no list, no tuple and no mapping" if _has_parts(result) else "has no parts"
    return TypeError(
        f"{describe_op(op, position)} writes a list of outputs, but its {source} returned "
        f"{type(result).__name__}, which {why}. Return a list with one value for each of "
        f"{list(outputs)}; an op that returns a bare value names its output as a string, not a "
        "list."
    )


def _has_parts(result: object) -> bool:
    # a tensor of no axis has the method, but no length
    return hasattr(result, "__iter__") and getattr(result, "shape", (0,)) != ()


def sliced_not_unsliced(keys: Iterable[str], context: str) -> ValueError:
    """Word the error of keys that slicing left in pieces though they are wanted whole.

    Args:
        keys: The keys.
        context: The mode, epoch and ds_id of the opening, as text.

    Returns:
        The error, for the caller to raise.
    """
    return ValueError(
        f"The keys {sorted(keys)} are wanted after the step, but slicers leave them in pieces: no "
        f"slicer un-slices them ({context}). Name each of them in the `unslice` of the slicer that "
        "cuts, to have its pieces joined, or of a MeanUnslicer, to have their mean, or leave it "
        "out of desired_output_keys."
    )


def unwritten_key(key: str, available: Iterable[Any]) -> str:
    """Word the warning of a key that is wanted after a step and will not be there.

    Args:
        key: The key.
        available: The keys that are there, or that ops write.

    Returns:
        The text.
    """
    text = (
        f"The key '{key}' is wanted after the step, but no op writes it and the batch does not "
        "have it, so that it is not in the result."
    )
    near = nearest_name(key, sorted(str(name) for name in available))
    return text if near is None else f"{text} Did you mean '{near}'?"


def add_note(error: BaseException, note: str) -> None:
    """Attach a line to an error that is on its way, keeping its type and its arguments.

    An error that has the line already, because it was raised before, stays as it is.

    Args:
        error: The error.
        note: What to say; shown below the error's own text in a traceback.
    """
    if note in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10 shows no notes, so the line goes where it will be read
        first = error.args[0] if error.args else ""
        if isinstance(first, str) and note not in first:
            error.args = (f"{first}\n{note}" if first else note, *error.args[1:])
