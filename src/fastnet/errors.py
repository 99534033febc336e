"""Exceptions that programs may catch, and the error texts that several modules share.

A text names the op and the key, says what was found, and what to do about it. A text that only one
module uses is in that module.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
import reprlib
import signal
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["MissingKeyError", "RankError", "UnknownNameError", "WrongOptimizerError"]


class MissingKeyError(KeyError):
    """Raised for a key that an op, a slicer or a postprocessing op reads but that does not exist.

    Unlike a plain ``KeyError`` its text is shown as written, not as a quoted literal.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RankError(RuntimeError):
    """Raised when another rank of a distributed run failed, or does not match this one."""


class UnknownNameError(KeyError, ValueError):
    """Raised for an unknown name; both a ``KeyError`` and a ``ValueError``."""

    __str__ = MissingKeyError.__str__


class WrongOptimizerError(ValueError, AssertionError):
    """Raised for an invalid optimizer; FastEstimator raises either of the two base classes."""


# -------------------------------------------------------------------- names of ops, short values


def op_name(op: object) -> str:
    """Return the class of an op and its function, such as "ModelOp" or "LambdaOp[normalize]"."""
    name = type(op).__name__
    # Read the instance dict, because a property of a user's class may raise.
    function = getattr(op, "__dict__", {}).get("fn")
    while isinstance(function, functools.partial):
        function = function.func
    if not callable(function):
        return name
    called = getattr(function, "__name__", type(function).__name__)
    return f"{name}[{called}]" if isinstance(called, str) and called.isidentifier() else name


def describe_op(op: object, index: int | None = None) -> str:
    """Return an op as errors name it: "ModelOp (op 2, inputs ['x'], outputs ['y'])"."""
    details = [] if index is None else [f"op {index}"]
    for attribute in ("inputs", "outputs"):
        keys = getattr(op, attribute, None)
        if keys:
            details.append(f"{attribute} {list(keys)}")
    name = type(op).__name__
    return f"{name} ({', '.join(details)})" if details else name


class _ShortRepr(reprlib.Repr):
    """Limits a repr to one line, and shows tensors and arrays by shape and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 8
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = 100

    def repr1(self, x: Any, level: int) -> str:
        try:
            described = None if isinstance(x, type) else _describe_tensor(x)
        except Exception:
            described = None
        return super().repr1(x, level) if described is None else described

    def repr_instance(self, x: Any, level: int) -> str:
        return " ".join(super().repr_instance(x, level).split())


_short_repr = _ShortRepr()


def shorten(value: object) -> str:
    """Return the repr of a value for an error, shortened; tensors appear by shape and dtype.

    >>> import numpy as np
    >>> shorten(0.5), shorten([np.ones((2, 3)), "x"])
    ('0.5', "[<ndarray of shape (2, 3), float64>, 'x']")
    """
    return _short_repr.repr(value)


def _describe_tensor(value: Any) -> str | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    try:
        lengths = tuple(shape)
    except ValueError:
        # A TensorFlow tensor of unknown rank has a shape that cannot be iterated.
        return f"<{type(value).__name__} of any shape, {getattr(dtype, 'name', dtype)}>"
    if not lengths:
        return None
    device = getattr(value, "device", None)
    where = f", {device}" if hasattr(device, "type") else ""
    return (
        f"<{type(value).__name__} of shape {lengths}, "
        f"{str(getattr(dtype, 'name', dtype)).removeprefix('torch.')}{where}>"
    )


def nearest_name(name: str, candidates: Iterable[Any]) -> str | None:
    """Return the candidate that a mistyped name most likely meant, or None.

    >>> nearest_name("y_perd", ["x", "y", "y_pred"])
    'y_pred'
    """
    names = [candidate for candidate in candidates if isinstance(candidate, str)]
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return matches[0]
    same = [candidate for candidate in names if candidate.lower() == name.lower()]
    return same[0] if same else None


def misspelled_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that a name is most likely a typo of, or None.

    Unlike `nearest_name` it does not assume that there is one: numbered names are not typos.

    >>> misspelled_name("los", ["loss"]), misspelled_name("x2", ["x1"])
    ('loss', None)
    """
    digits = re.sub(r"\D", "", name)
    for near in difflib.get_close_matches(name, candidates, n=1, cutoff=0.75):
        if re.sub(r"\D", "", near) == digits:
            return near
    return None


# -------------------------------------------------------------------- keys


def missing_key(
    reader: object,
    key: str,
    available: Iterable[Any],
    index: int | None = None,
    deleted_by: str | None = None,
    verb: str = "reads",
    reason: str | None = None,
    written: Mapping[str, str] | None = None,
) -> MissingKeyError:
    """Return the error for a key that does not exist.

    `available` are the batch's keys. `written` maps the keys that earlier ops write to these ops.
    `reason` is a sentence about an op that would write the key, but not before it is read.
    """
    text = f"{describe_op(reader, index)} {verb} the key '{key}'"
    if deleted_by is not None:
        text += f", which {deleted_by} has deleted. Read it before it is deleted, or keep it."
        return MissingKeyError(text)
    there = sorted(str(name) for name in available)
    by_ops = {name: op for name, op in sorted((written or {}).items()) if name not in there}
    sources = f"{there} in the batch, {list(by_ops)} from earlier ops" if by_ops else f"{there}"
    text += f", but there is no such key. Available keys: {sources}."
    for op in reader.inner_ops() if hasattr(reader, "inner_ops") else ():
        for name in set(op.outputs) - {key, *there}:
            by_ops.setdefault(name, describe_op(op))
    near = nearest_name(key, [*there, *by_ops])
    if reason is not None:
        text += f" {reason}"
    elif near is not None:
        writer = f", which {by_ops[near]} writes" if near in by_ops else ""
        text += f" Did you mean '{near}'{writer}?"
    return MissingKeyError(f"{text} Put the key into the batch, or let an earlier op write it.")


def sliced_not_unsliced(keys: Iterable[str], context: str) -> ValueError:
    """Return the error for keys that are returned but that no slicer unslices."""
    return ValueError(
        f"The keys {sorted(keys)} are outputs of the step, but no slicer unslices them "
        f"({context}). List each of them in the `unslice` of the slicer that slices it, or "
        "of a MeanUnslicer, to average its slices, or leave it out of desired_output_keys."
    )


# -------------------------------------------------------------------- batches and outputs


def not_a_batch(batch: object) -> TypeError:
    """Return the error for a batch that is not a mapping."""
    return TypeError(
        f"run_step takes a batch, a dict of values by key, but got {type(batch).__name__}."
        f"{advise_on_batch(batch)}"
    )


def require_batches(data: object) -> None:
    """Raise an error for a tensor, or a list or tuple of tensors, in the place of batches."""
    is_several = isinstance(data, (list, tuple)) and len(data) > 0
    values = list(data) if is_several else [data]  # type: ignore[call-overload]
    if all(hasattr(value, "shape") for value in values):
        given = f"a {type(data).__name__} of tensors" if is_several else type(data).__name__
        example = '{"x": x, "y": y}' if is_several else '{"x": x}'
        raise TypeError(
            f"transform takes a batch, a dict of values by key, or an iterable of batches, but got "
            f"{given}. Put it into a dict: `{example}`."
        )


def advise_program(error: KeyError | TypeError, written: Collection[str]) -> None:
    """Add the fix to an error that a program has raised inside a `with network(...)` block.

    Args:
        error: The error.
        written: The keys that the active ops write.
    """
    if isinstance(error, TypeError):
        if "run_step() takes 2 positional arguments" in str(error):
            add_note(error, 'A batch is one dict: `network.run_step({"x": x, "y": y})`.')
        return
    key = error.args[0] if error.args else None
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    is_explained = module.startswith("fastnet.") or hasattr(error, "__notes__")
    if isinstance(key, str) and key not in written and not is_explained:
        add_note(
            error,
            f"If '{key}' was expected in the result of run_step: the ops that run in this mode "
            f"write {sorted(written)}. `network.explain(mode)` says why others do not run.",
        )


def advise_on_batch(given: object) -> str:
    """Return how to make a batch of a tuple, a tensor or a loader; "" for anything else."""
    if isinstance(given, (list, tuple)):
        return (
            ' Name its values: in torch, `batch = dict(zip(["x", "y"], batch))`, or use '
            "`StackDataset(x=x, y=y)` instead of a TensorDataset; in TensorFlow, "
            '`dataset = dataset.map(lambda x, y: {"x": x, "y": y})`.'
        )
    if hasattr(given, "shape"):
        return ' Put it into a dict: `{"x": x}`.'
    # A loader can be iterated, but unlike a collection it has no `in`.
    if hasattr(given, "__iter__") and not hasattr(given, "__contains__"):
        return " Loop over it: `for batch in loader: network.run_step(batch)`."
    return ""


_ADVICE_ON_ATTRIBUTES = {
    "fit": "Loop over `fastnet.steps(network, loader, mode, epoch)`.",
    "evaluate": 'Loop over `network.iter_transform(loader, "eval")`.',
    "predict": 'Call `network.transform(data, "infer")`.',
    "forward": 'Call `network.transform(data, "infer")`.',
    "parameters": "Its models, `network.models`, have them.",
    "optimizer": "Each of `network.models` has one, `model.current_optimizer`.",
    "step": "Call `network.run_step(batch)`.",
    "run": "Call `network.run_step(batch)`.",
    "train": 'Its mode is an argument: `with network(mode="train", epoch=1):`.',
    "eval": 'Its mode is an argument: `with network(mode="eval", epoch=1):`.',
    "to": "In torch the device is an argument: `Network(ops, device=...)`.",
    "compile": "It is an argument: `Network(ops, compile=True)`.",
    "state_dict": "Call `fastnet.save_checkpoint(path, network)`.",
    "save": "Call `fastnet.save_checkpoint(path, network)`.",
}
"""The advice for attributes of trainers and models that a network does not have."""


def missing_attribute(network: object, name: str) -> AttributeError | None:
    """Return the error for an attribute that users of other libraries expect, or None."""
    advice = _ADVICE_ON_ATTRIBUTES.get(name)
    if advice is None:
        return None
    return AttributeError(
        f"A {type(network).__name__} has no attribute '{name}'. {advice}", name=name, obj=network
    )


def advise_on_op(given: Any) -> str | None:
    """Return how to make an op of a module, a function or a list; None for anything else."""
    name = getattr(given, "__name__", type(given).__name__)
    if hasattr(given, "forward_batch"):
        return "Pass it as postprocessing (`pops`)."
    if isinstance(given, (list, tuple, dict, Iterator)):
        return "Pass all ops in one flat list."
    if not callable(given):
        return None
    # By name, because errors must not import a framework.
    bases = {base.__name__ for base in type(given).__mro__}
    if "Loss" in bases:  # Keras compares (y_true, y_pred), torch (input, target).
        return f'Wrap it: LambdaOp({name}(...), inputs=["label", "scores"], outputs="loss").'
    if bases.isdisjoint({"Module", "Layer"}):
        wrapped = f"LambdaOp({name}"
    elif getattr(given, "fe_compiled", False):
        wrapped = "ModelOp(model"
    elif hasattr(given, "parameters") and not any(True for _ in given.parameters()):
        wrapped = f"LambdaOp({name}()"
    else:
        layer = f"lambda: keras.Sequential([{name}(...)]), " if "Model" not in bases else ""
        wrapped = f"ModelOp(fastnet.build({layer if 'Layer' in bases else ''}...)"
    return f"Wrap it: {wrapped}, inputs=..., outputs=...)."


def wrong_count(
    op: object, index: int | None, outputs: Sequence[str], returned: int, source: str = "forward"
) -> ValueError:
    """Return the error for an op that returns more or fewer values than it has outputs."""
    count, others = len(outputs), len(getattr(op, "outputs", outputs)) - len(outputs)
    return ValueError(
        f"{describe_op(op, index)} has {count} output{'' if count == 1 else 's'}"
        f"{f' besides its last {others}' if others else ''}, but its {source} returned "
        f"{returned} value{'' if returned == 1 else 's'}. Return one value for each of "
        f"{list(outputs)}, in that order."
    )


def require_one_gradient_each(gradients: Sequence[Any], count: int, model: str) -> None:
    """Raise an error unless there is a gradient, or None, for each of a model's parameters."""
    if len(gradients) != count:
        raise ValueError(
            f"An update of model '{model}' got {len(gradients)} gradient"
            f"{'' if len(gradients) == 1 else 's'}, but the model has {count} trainable "
            "parameters. Pass one for each, in order, and None for those without a gradient."
        )


def other_keys(
    op: object,
    index: int | None,
    outputs: Sequence[str],
    returned: Mapping[Any, Any],
    source: str = "forward",
) -> ValueError:
    """Return the error for an op that returns a mapping without its outputs as keys."""
    return ValueError(
        f"{describe_op(op, index)} writes {list(outputs)} by name from the "
        f"{type(returned).__name__} that its {source} returned, but that has the keys "
        f"{list(returned)}. Name the outputs as its keys, or return a list with one value for each "
        f"of {list(outputs)}, in that order."
    )


def not_a_sequence(
    op: object,
    index: int | None,
    outputs: Sequence[str],
    result: object,
    source: str = "forward",
) -> TypeError:
    """Return the error for an op with a list of outputs that returns a single value."""
    returned = "None" if result is None else type(result).__name__
    forgotten = " Is a `return` missing?" if result is None else ""
    return TypeError(
        f"{describe_op(op, index)} writes a list of outputs, but its {source} returned {returned}."
        f"{forgotten} Return a list with one value for each of {list(outputs)}. To return a single "
        "value, name the output as a string instead of a list."
    )


# -------------------------------------------------------------------- notes on failed ops


Read = tuple[str, object, Any, int | None]
"""A value that an op read: its key, the value, and the op that wrote it with its index, or None."""


def note_failure(error: BaseException, op: Any, index: int | None, reads: Sequence[Read]) -> None:
    """Add notes to an error that an op raised: the op, and inputs that it may not have expected.

    An error that names the op already is left as it is.
    """
    # A note must not hide the error, even if the error or a value cannot be shown.
    with contextlib.suppress(Exception):
        described = describe_op(op, index)
        note = f"Raised by {described}."
        if described in str(error) or note in getattr(error, "__notes__", ()):
            return
        add_note(error, note)
        if isinstance(error, Exception):
            for advice in _advise_on_inputs(error, op, reads):
                add_note(error, advice)


def _advise_on_inputs(error: Exception, op: Any, reads: Sequence[Read]) -> Iterator[str]:
    """Describe the inputs of a failed op that are lists, tuples, None or of a wrong dtype."""
    if _expects_bare_value(op, error):
        keys = list(op.inputs)
        instead = f"pass inputs={keys[0]!r} for the bare value" if len(keys) == 1 else "unpack it"
        yield f"Its `data` is a list, because its inputs are the list {keys}: {instead}."
    for read in reads:
        text = _describe_read(*read)
        if text is not None:
            yield text
    advice = _advise_on_dtype(error, op, reads)
    if advice is not None:
        yield advice


def _expects_bare_value(op: Any, error: Exception) -> bool:
    """Return whether a user's op failed because it takes a list of inputs for a single value."""
    if not op.in_list or not isinstance(error, (AttributeError, TypeError)):
        return False
    module = str(getattr(op.forward, "__module__", ""))
    return "list" in str(error) and not module.startswith(("fastnet.", "fastestimator."))


def _describe_read(key: str, value: object, writer: Any, index: int | None) -> str | None:
    """Describe a value that is None, a list or a tuple; None for any other value."""
    describe = getattr(writer, "describe_value", None)
    described: str | None = describe and describe(key, value)
    if described:
        return described
    if value is None:
        if writer is None:
            return f"The batch's '{key}' is None. Pass a tensor or an array."
        op = describe_op(writer, index)
        return f"The value of '{key}' is None, as {op} returned it. Is a `return` missing?"
    if not isinstance(value, (list, tuple)):
        return _describe_unconverted(key, value)
    container = "list" if isinstance(value, list) else "tuple"
    kinds = {type(item).__name__ for item in value}
    kind = kinds.pop() if len(kinds) == 1 else "value"
    text = f"a {container} of {len(value)} {kind}{'' if len(value) == 1 else 's'}"
    if writer is None:
        return f"The batch's '{key}' is {text}. Pass a tensor or an array."
    return (
        f"The value of '{key}' is {text}, as {describe_op(writer, index)} returned it. To write "
        "its items under separate keys, list these keys in `outputs`."
    )


def _describe_unconverted(key: str, value: Any) -> str | None:
    """Describe a numpy array that is not converted to a tensor; None for any other value."""
    dtype = getattr(value, "dtype", None)
    contents = {"O": "objects", "S": "bytes", "U": "strings"}.get(getattr(dtype, "kind", ""))
    if contents is not None:
        return (
            f"'{key}' is an array of {contents}, which is not converted to a tensor. Pass numbers, "
            "such as class indices."
        )
    if not getattr(dtype, "isnative", True):
        return (
            f"'{key}' is an array of another byte order than this machine's, which is not "
            'converted to a tensor. Pass `array.astype(array.dtype.newbyteorder("="))`.'
        )
    return None


def _advise_on_dtype(error: Exception, op: Any, reads: Sequence[Read]) -> str | None:
    """Return how to cast a value of the batch to the dtype of a torch model, or None."""
    text = str(error)
    parameters = getattr(getattr(op, "model", None), "parameters", None)
    is_about_dtypes = "type" in text and "indices" not in text and not isinstance(error, TypeError)
    if not is_about_dtypes or not callable(parameters):
        return None
    expected = _dtype_name(next(iter(parameters()), None))
    for key, value, writer, _ in reads:
        dtype = _dtype_name(value)
        # One of several inputs may be integers on purpose, such as tokens.
        is_suspect = dtype.startswith("float") or (dtype and len(reads) == 1)
        if writer is None and expected and is_suspect and dtype != expected:
            example = ', such as by `array.astype("float32")`' if expected == "float32" else ""
            return (
                f"The batch's '{key}' is {dtype}, and the parameters of the model are {expected}. "
                f"Cast it before the step{example}."
            )
    return None


def _dtype_name(value: Any) -> str:
    """Return the name of the dtype of a tensor or an array, or "" for other values."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program has raised an error, such as an alarm's."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, once; on Python 3.10 the note becomes part of its text."""
    if note in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        first = error.args[0] if error.args else ""
        if isinstance(first, str) and note not in first:
            error.args = (f"{first}\n{note}" if first else note, *error.args[1:])


GRADIENT_ADVICE = (
    "Put a Watch in front of the op that computes one from the other, and see that it reads what "
    "the Watch writes."
)
"""Advice for a value without a gradient with respect to another value."""

SECOND_ORDER_ADVICE = "A gradient that a GradientOp writes has a graph only with higher_order=True."
"""Advice for a loss without gradients, which may be made of gradients alone."""
