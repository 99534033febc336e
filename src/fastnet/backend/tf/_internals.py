"""Every private name of TensorFlow that fastnet uses; those of Keras are in `_keras_internals`.

A private name is used in a step only where it saves at least 3 % of one, as its comment says. The
other names are here because TensorFlow offers no public way.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import tensorflow as tf


def look_up(path: str) -> Any:
    """Return the object that a private name refers to, or None where it is missing."""
    try:
        return pkgutil.resolve_name(path)
    except (AttributeError, ImportError):
        return None


class _NoTensor:
    """Replaces the class of eager tensors where it is missing: all tensors are read publicly."""


EAGER: Any = look_up("tensorflow.__internal__.EagerTensor") or _NoTensor
"""The class of tensors that have values, whose shapes and dtypes the kernel reads directly.

Making a tensor to see its class would start TensorFlow's runtime, after which a program cannot set
up its devices any more.
"""


def _shape_of(tensor: tf.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def type_of(tensor: tf.Tensor) -> int:
    """Return the number of a tensor's dtype."""
    number: int = tensor.dtype.as_datatype_enum
    return number


shape_of_eager: Callable[[tf.Tensor], tuple[int, ...]] = (
    look_up("tensorflow.__internal__.EagerTensor._shape_tuple") or _shape_of
)
type_of_eager: Callable[[tf.Tensor], int] = (
    look_up("tensorflow.__internal__.EagerTensor._datatype_enum") or type_of
)


def source_of_error(error: Any) -> tuple[Exception, list[tuple[str, int, str]], list[str]] | None:
    """Return the error below those that AutoGraph and Keras 2 wrapped around it.

    With it come the file, line and function of each frame in user code, and the first lines of
    Keras's errors. None if AutoGraph has not converted what raised it.
    """
    layers = []
    while str(error).startswith("Exception encountered when calling"):
        layers.append(str(error).partition("\n")[0])
        error = error.__context__
    wrapped = error.__context__ if str(error).startswith("in user code:") else None
    source: Any = wrapped if hasattr(wrapped, "ag_error_metadata") else error
    stack = getattr(getattr(source, "ag_error_metadata", None), "translated_stack", None)
    if stack is None:
        return None
    frames = [(frame.filename, frame.lineno, frame.function_name) for frame in stack]
    return source, frames, layers


_registry: Any = look_up("tensorflow.python.framework.ops.gradient_registry._registry")
_TYPE = "_gradient_op_type"


def registered_gradients(graph: Any) -> list[str]:
    """List the names of the gradients that `tf.custom_gradient` registered in a traced graph.

    TensorFlow keeps them, and with them the graph, for good. Without the registry a program that
    traces again and again grows.
    """
    if _registry is None:
        return []
    return [
        operation.get_attr(_TYPE).decode()
        for operation in graph.get_operations()
        if operation.type == "IdentityN" and _TYPE in operation.node_def.attr
    ]


def unregister_gradients(names: Sequence[str]) -> None:
    """Remove gradients from TensorFlow's registry."""
    for name in names:
        _registry.pop(name, None)


def _always() -> bool:
    return True


_context: Any = look_up("tensorflow.python.eager.context.context")

could_record: Callable[[], bool] = (
    look_up("tensorflow.python.eager.record.could_possibly_record") or _always
)
"""Returns whether a tape may record an operation now."""


def can_detect_tapes() -> bool:
    """Return whether `could_record` asks TensorFlow; without the private name it is always True."""
    return could_record is not _always


DirectCall: TypeAlias = Callable[[list[tf.Tensor]], Any]


def direct_call(
    concrete: Any, results: Sequence[tf.Tensor], captured: list[tf.Tensor] | None = None
) -> DirectCall | None:
    """Return a function that runs a concrete function on flat tensors, not seen by tapes.

    Saves more than half of a small step over calling the concrete function, which binds arguments.
    None where it cannot be called so. `results` are the outputs that it was traced with, to which
    TensorFlow adds others under a tape. `captured` replaces the captured inputs, such as the
    handles of variables.
    """
    if _context is None or not can_detect_tapes() or concrete.graph.deferred_external_captures:
        return None
    if captured is None:
        captured = list(concrete.captured_inputs)
    has_handles = any(result.dtype in (tf.resource, tf.variant) for result in results)
    if has_handles or not all(type(tensor) is EAGER for tensor in captured):
        return None
    call, name, count = _context().call_function, concrete.name, len(results)
    return lambda tensors: call(name, tensors + captured, count)


def variable_spec(handle: tf.Tensor) -> tf.TensorSpec | None:
    """Return the shape and dtype of the variable of a handle; None if they are unknown.

    Keras 2 gives TensorFlow handles only. Without it steps that have them are not compiled.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (variable,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(variable.shape), tf.dtypes.as_dtype(variable.dtype))


_XlaContext: Any = look_up(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function.OptionalXlaContext"
)


def xla_context() -> AbstractContextManager[Any]:
    """Return the context in which `tf.function` with `jit_compile` traces.

    Without it, gradients of conditions and loops have operations that XLA cannot compile.
    """
    return nullcontext() if _XlaContext is None else _XlaContext(True)


_profiler: Any = look_up("tensorflow.python.profiler.trace")


def profiler_is_on() -> bool:
    """Return whether TensorFlow's profiler is on, or may be."""
    if _profiler is None:
        return True
    # A variable in older releases, a function in newer ones.
    enabled = _profiler.enabled
    return bool(enabled() if callable(enabled) else enabled)
