"""Every name of TensorFlow that is not part of its public API, and what is done where it is gone.

The rest of fastnet takes from here what these names stand for; those of Keras are in
`_keras_internals.py`. None of them is needed: in a version of TensorFlow that has no such name, or
another thing under it, results are the same.
"""

from __future__ import annotations

import inspect
import pkgutil
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = [
    "COMPOSITES",
    "EAGER",
    "DirectCall",
    "autograph_status",
    "direct_call",
    "graph_code",
    "is_composite",
    "is_recording",
    "look_up",
    "profiler_is_on",
    "recording",
    "registered_gradients",
    "shape_of_eager",
    "source_error",
    "trace",
    "type_of_eager",
    "unregister_gradients",
    "variable_spec",
]


def look_up(path: str, fits: Callable[[Any], bool]) -> Any:
    """Return the object that a private name stands for, or None where it is missing or unfit."""
    try:
        found = pkgutil.resolve_name(path)
        return found if fits(found) else None
    except Exception:  # `fits` may call the object, which can raise anything in another version
        return None


class _NoTensor:
    """A class without instances, so that no value passes for an eager tensor at first sight."""


def _is_kind_of_tensor(found: Any) -> bool:
    return issubclass(found, tf.Tensor)


EAGER: Any = look_up("tensorflow.__internal__.EagerTensor", _is_kind_of_tensor) or _NoTensor
"""The class of tensors that have values.

By one comparison the kernel knows a tensor of a batch, 0.015 microseconds sooner than others, and
`shape_of_eager` and `type_of_eager` are told where they may be called, which saves more. Without it
every tensor is asked. (The class of a tensor that is made here would do, but to make one starts
TensorFlow's runtime, after which a program cannot set up its devices any more.)
"""


def _type_of(tensor: tf.Tensor) -> int:
    number: int = tensor.dtype.as_datatype_enum
    return number


def _shape_of(tensor: tf.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


shape_of_eager: Callable[[tf.Tensor], tuple[int, ...]] = (
    look_up("tensorflow.__internal__.EagerTensor._shape_tuple", callable) or _shape_of
)
"""Reads the shape of an eager tensor: in a tenth of the time that a `TensorShape` takes."""

type_of_eager: Callable[[tf.Tensor], int] = (
    look_up("tensorflow.__internal__.EagerTensor._datatype_enum", callable) or _type_of
)
"""Reads the number of an eager tensor's type, for each input of a graph, without calling Python."""


_composite: Any = look_up("tensorflow.__internal__.CompositeTensor", inspect.isclass)

_known = tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, tf.experimental.ExtensionType

COMPOSITES: tuple[type, ...] = (_composite,) if _composite else (*_known, tf.data.Dataset)
"""The classes of values that TensorFlow makes of several tensors."""


def is_composite(value: Any) -> bool:
    """Return whether a value is one that TensorFlow makes of several tensors."""
    if _composite:
        return isinstance(value, _composite)
    if isinstance(value, COMPOSITES):
        return True
    # such as those of other packages, which derive from the class that cannot be had
    if tf.nest.is_nested(value):
        return False
    parts = tf.nest.flatten(value, expand_composites=True)
    return len(parts) != 1 or parts[0] is not value


def _takes_a_context(convert: Any) -> bool:
    inspect.signature(convert).bind(len, None)
    return True


def _gives_a_context(find: Any) -> bool:
    return hasattr(find(), "__enter__")


_convert: Any = look_up("tensorflow.__internal__.autograph.tf_convert", _takes_a_context)
_status: Any = look_up("tensorflow.__internal__.autograph.control_status_ctx", _gives_a_context)
_knows_autograph = _convert is not None and _status is not None


def autograph_status() -> AbstractContextManager[Any]:
    """Return whether AutoGraph is on."""
    status: AbstractContextManager[Any] = _status() if _knows_autograph else nullcontext()
    return status


def graph_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph turn a function's conditions and loops over tensors into those of a graph."""
    if _knows_autograph:
        converted: Callable[..., Any] = _convert(function, _status())
        return converted
    if isinstance(function, partial):
        return partial(graph_code(function.func), *function.args, **function.keywords)
    if isinstance(function, types.MethodType):
        return partial(_converted(function), function.__self__)
    return _converted(function) if isinstance(function, types.FunctionType) else function


def _converted(function: Any) -> Callable[..., Any]:
    try:
        converted: Callable[..., Any] = tf.autograph.to_graph(function)
    except Exception:  # a function of another kind, or without a source
        return getattr(function, "__func__", function)  # type: ignore[no-any-return]
    return converted


def trace(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Make a graph of a function.

    AutoGraph does not convert it, but what `graph_code` has been given.
    """
    if _knows_autograph:
        return tf.function(function, autograph=False).get_concrete_function(*specs)
    raised: list[BaseException] = []

    def run(*args: tf.Tensor) -> Any:
        try:
            return function(*args)
        except BaseException as error:
            raised.append(error)
            raise

    # a function that AutoGraph is told to leave alone turns it off for all that it calls, and one
    # that it converts does not: so it converts this, and does not get through what C calls
    call: Any = methodcaller

    def enter(*args):  # type: ignore[no-untyped-def]
        return call("__call__", *args)(run)

    try:
        return tf.function(enter).get_concrete_function(*specs)
    except Exception:
        if raised:
            raise raised[0] from raised[0].__cause__
        raise


def source_error(
    error: Exception,
) -> tuple[Exception, list[tuple[str, int, str]], list[str]] | None:
    """Return the original error below the ones that AutoGraph wrapped around it."""
    layers = []
    wrapper: Any = error
    while str(wrapper).startswith("Exception encountered when calling"):
        # Layers of Keras 2 call AutoGraph too, and wrap its errors again.
        layers.append(str(wrapper).partition("\n")[0])
        wrapper = wrapper.__context__
    source: Any = getattr(wrapper, "__context__", None)
    origin = getattr(source, "ag_error_metadata", None)
    stack = getattr(origin, "translated_stack", None)
    if not str(wrapper).startswith("in user code:") or stack is None:
        return None
    return source, [(one.filename, one.lineno, one.function_name) for one in stack], layers


_registry: Any = look_up(
    "tensorflow.python.framework.ops.gradient_registry._registry",
    lambda found: callable(found.pop),
)
_TYPE = "_gradient_op_type"


def registered_gradients(graph: Any) -> list[str]:
    """Name the gradients that were registered while a graph was traced.

    TensorFlow keeps for good what `tf.custom_gradient` registers, and with it the graph. Every
    optimizer of Keras does so, for the sum of the gradients of all devices. Where they cannot be
    told, a program that traces on and on grows.
    """
    if _registry is None:
        return []
    return [
        operation.get_attr(_TYPE).decode()
        for operation in graph.get_operations()
        if operation.type == "IdentityN" and _TYPE in operation.node_def.attr
    ]


def unregister_gradients(names: Sequence[str]) -> None:
    """Let TensorFlow forget gradients."""
    for name in names:
        _registry.pop(name, None)


def _calls_functions(find: Any) -> bool:
    inspect.signature(find().call_function).bind(b"name", [], 1)
    return isinstance(find().executing_eagerly(), bool)


def _tells(function: Any) -> bool:
    return isinstance(function(), bool)


_find_context: Any = look_up("tensorflow.python.eager.context.context", _calls_functions)
_could_record: Any = look_up("tensorflow.python.eager.record.could_possibly_record", _tells)


class DirectCall(NamedTuple):
    """The operation behind a concrete function, to be called with flat tensors."""

    function: Callable[[bytes, list[tf.Tensor], int], Any]
    name: bytes
    captured: list[tf.Tensor]
    results: int
    could_record: Callable[[], bool]
    executing_eagerly: Callable[[], bool]


def recording() -> tuple[Callable[[], bool], Callable[[], bool]]:
    """Return what tells whether a tape may record a step, and whether no graph does."""
    if _find_context is None or _could_record is None:
        return _always, tf.executing_eagerly
    return _could_record, _find_context().executing_eagerly


def _always() -> bool:
    return True


def direct_call(concrete: Any) -> DirectCall | None:
    """Find the shortest way to call a concrete function.

    Saves the binding of arguments in each step of a graph. Without it the function is called.
    """
    if _find_context is None or _could_record is None:
        return None
    try:
        deferred = concrete.graph.deferred_external_captures
        name, captured, outputs = concrete.name, list(concrete.captured_inputs), concrete.outputs
    except AttributeError:
        return None
    steady = not deferred and all(type(one) is EAGER for one in captured)
    handles = any(output.dtype in (tf.resource, tf.variant) for output in outputs)
    if not steady or handles or not isinstance(name, bytes):
        return None
    call = _find_context().call_function
    return DirectCall(call, name, captured, len(outputs), *recording())


def variable_spec(handle: tf.Tensor) -> tf.TensorSpec | None:
    """Tell what a variable holds, of which there is the handle alone.

    The optimizers of older Keras hand such handles to TensorFlow. Where it cannot be told, steps
    that have them are not compiled.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not getattr(data, "is_set", False) or len(data.shape_and_type) != 1:
        return None
    (found,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(found.shape), tf.dtypes.as_dtype(found.dtype))


def is_recording(tape: tf.GradientTape | None) -> bool | None:
    """Return whether a tape records now.

    Saves the context manager that finds out by trying, in each step that takes gradients.
    """
    if tape is None:
        return False
    found = getattr(tape, "_recording", None)
    return found if isinstance(found, bool) else None


def _has_a_switch(module: Any) -> bool:
    return isinstance(module.enabled() if callable(module.enabled) else module.enabled, bool)


_trace_events: Any = look_up("tensorflow.python.profiler.trace", _has_a_switch)


def profiler_is_on() -> bool:
    """Return whether TensorFlow's profiler is on.

    Saves the ranges around ops in steps that are measured while it is not. Where it cannot be told
    they are always there, which only costs time.
    """
    if _trace_events is None:
        return True
    # a variable in older releases, a function in newer ones
    enabled = _trace_events.enabled
    return bool(enabled() if callable(enabled) else enabled)
