"""How values get into graphs and out again, and how a traced function is called."""

from __future__ import annotations

import dataclasses
import linecache
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet._trace import TensorKind
from fastnet.backend.foreign import NUMPY, adopter, array_of
from fastnet.backend.precision import float_dtype
from fastnet.backend.tf._internals import (
    EAGER,
    could_record,
    direct_call,
    registered_gradients,
    shape_of_eager,
    source_of_error,
    type_of,
    type_of_eager,
    unregister_gradients,
)
from fastnet.errors import add_note
from fastnet.guards import is_user_file

# The length of an axis that is unknown in a graph around the step. A trace for any length accepts
# such a tensor; a trace for such tensors accepts no others.
UNKNOWN = -1

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_FRAMEWORKS = tuple(f"{os.sep}{name}{os.sep}" for name in ("tensorflow", "keras", "tf_keras"))
# AutoGraph's own code, where TensorFlow has shortened the traceback.
_GENERATED = f"{os.sep}__autograph_generated_file"

_COMPOSITES = (
    tf.RaggedTensor,
    tf.SparseTensor,
    tf.IndexedSlices,
    tf.experimental.ExtensionType,
    tf.data.Dataset,
    tf.distribute.DistributedValues,
)
"""The classes of values that consist of several tensors."""


def _adopt(value: Any) -> tf.Tensor | None:
    if hasattr(value, "__tf_tensor__"):
        return None
    if isinstance(value, np.float64):
        return _number(value)
    array = array_of(value)
    try:
        tensor = _from_dlpack(value) if array is None else tf.convert_to_tensor(array)
    except Exception:  # The array holds objects or dates.
        return None
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        return tf.cast(tensor, tf.bfloat16)
    return tensor


def _number(value: np.float64) -> tf.Tensor:
    # A float64 tensor could not be combined with float32 tensors, as numpy's scalar can be.
    return tf.convert_to_tensor(value, float_dtype())


def _from_dlpack(value: Any) -> tf.Tensor:
    # Copied, because the other framework may still write to the memory that it shares.
    return tf.constant(tf.experimental.dlpack.from_dlpack(value.__dlpack__()).numpy())


_OWN = (tf.Tensor, tf.Variable, *_COMPOSITES)

FOREIGN = adopter((*_OWN, *NUMPY), _adopt)
"""Converts tensors of other frameworks."""


def holds_foreign(value: Any) -> bool:
    """Return whether there are tensors of other frameworks in a nest."""
    try:
        return FOREIGN.holds_leaf(value)
    except RecursionError:
        return False  # Tracing raises an error that names the key.


ARRAYS = adopter(_OWN, _adopt)
"""Converts tensors of other frameworks, and numpy arrays."""


@dataclasses.dataclass(frozen=True)
class Composite:
    """Describes a value that consists of several tensors."""

    key: Hashable
    spec: Any = dataclasses.field(compare=False)
    distributed: bool = False


def _convert(value: Any) -> Any:
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, tf.Variable):
        return value.read_value()
    if isinstance(value, np.float64):
        return _number(value)
    # Variables of Keras 3 and some other objects can be converted to tensors.
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__tf_tensor__"):
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            return None  # an array of objects or dates
    return None


def _split(value: Any) -> tuple[Composite, list[tf.Tensor]] | None:
    if isinstance(value, tf.Variable) or not isinstance(value, _COMPOSITES):
        return None
    tensors = tf.nest.flatten(value, expand_composites=True)
    spec = _any_batch(value, tf.type_spec_from_value(value))
    distributed = isinstance(value, tf.distribute.DistributedValues)
    key = (type(spec), len(tensors)) if distributed else spec
    return Composite(key, spec, distributed), tensors


def _any_batch(value: Any, spec: Any) -> Any:
    """Leave open how many samples a value has."""
    if isinstance(value, tf.IndexedSlices):
        size = None if value.dense_shape is None else value.dense_shape.dtype
        return tf.IndexedSlicesSpec(None, value.dtype, value.indices.dtype, size)
    if isinstance(value, tf.RaggedTensor):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(value, tf.SparseTensor) and spec.shape.rank:
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _join(kind: Composite, tensors: list[tf.Tensor]) -> Any:
    return tf.nest.pack_sequence_as(kind.spec, tensors, expand_composites=True)


def _shape_of(tensor: tf.Tensor) -> tuple[int, ...] | None:
    shape = tensor.shape
    if shape.rank is None:
        return None
    return tuple([UNKNOWN if length is None else length for length in shape])


# Tensors of an outer graph belong to another class.
KIND = TensorKind(
    EAGER,
    type_of_eager,
    shape_of_eager,
    _convert,
    _split,
    _join,
    others=(type_of, _shape_of),
)
"""TensorFlow's tensors, for the kernel."""


def graph_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph convert the conditions and loops over tensors in a function, and what it calls.

    Layers of Keras 2 convert their own code while it runs.
    """
    return partial(_converted_call(), function)


@cache
def _converted_call() -> Any:
    # The function that is called is converted, also where it is a method or a partial.
    return tf.autograph.to_graph(_call)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def as_graph_code(function: Callable[..., Any], convert: bool) -> Callable[..., Any]:
    """Let a function run while a graph is traced, and raise errors as its own code has them."""
    run_it = graph_code(function) if convert else function

    def run(*args: Any) -> Any:
        try:
            return run_it(*args)
        except Exception as error:
            source = _source_of_error(error)
            if source is error:
                raise
        # Outside, so that the error is not shown as one of AutoGraph's wrappers.
        raise source

    return run


def _source_of_error(error: Exception) -> Exception:
    """Find the error that AutoGraph has wrapped, with notes of where it was raised."""
    found = source_of_error(error)
    if found is None:
        return error
    source, stack, layers = found
    frame = _frame_of_user(stack)
    if frame is not None:
        add_note(source, _line(*frame))
    for layer in layers:
        add_note(source, layer)
    # A layer may have wrapped it before.
    return source if source is error else _source_of_error(source)


def source_of(graph: Any, node: str) -> str | None:
    """Find the line of a program that put a node into a graph."""
    operations = {operation.name: operation for operation in graph.get_operations()}
    while node and node not in operations:
        node = node.rpartition("/")[0]
    if not node:
        return None
    stack = []
    for frame in reversed(operations[node].traceback):
        if frame.filename.startswith(_PACKAGE):
            break  # The caller of the network did not create the node.
        stack.append((frame.filename, frame.lineno, frame.name))
    found = _frame_of_user(stack)
    return None if found is None else _line(*found)


_Frame = tuple[str, int, str]
"""The file, line and function of a frame."""


def _frame_of_user(stack: Sequence[_Frame]) -> _Frame | None:
    """Return the innermost frame of the user's program in a stack, which lists inner frames first.

    A library's frame is returned where there are no others: the program may be installed as well.
    """
    frames = [frame for frame in stack if not _is_foreign(frame[0])]
    return next((frame for frame in frames if is_user_file(frame[0])), next(iter(frames), None))


def _is_foreign(filename: str) -> bool:
    """Return whether a file belongs to fastnet or TensorFlow, or was generated."""
    return filename.startswith(_PACKAGE) or any(
        name in filename for name in (*_FRAMEWORKS, _GENERATED)
    )


def _line(filename: str, number: int, function: str) -> str:
    code = linecache.getline(filename, number).strip()
    return f'In the source: File "{filename}", line {number}, in {function or "<lambda>"}: {code}'


def forget_gradients(concrete: Any) -> None:
    """Unregister the custom gradients of a traced function when it is deleted.

    TensorFlow never drops the gradients that `tf.custom_gradient` registers during tracing, and
    they refer to the graph. Every Keras optimizer registers one that sums over all devices.
    """
    names = registered_gradients(concrete.graph)
    if names:
        weakref.finalize(concrete, unregister_gradients, names).atexit = False


def is_recorded() -> bool:
    """Return whether a tape, or a function that is traced, may record the operations of a step."""
    return could_record() or not tf.executing_eagerly()


def caller(
    concrete: Any,
    explain: Callable[[BaseException, Any], None],
    recorded: Callable[[list[tf.Tensor]], Iterable[tf.Tensor]] | None = None,
) -> Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]:
    """Return the function that calls a traced function with the least overhead.

    `recorded` runs the calls that a tape or a graph of the user records; by default the function.
    """

    def call_publicly(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if recorded is not None and not tf.executing_eagerly():
            return recorded(tensors)
        try:
            return concrete(*tensors) or ()
        except tf.errors.OpError as error:
            explain(error, concrete.graph)
            raise

    direct = direct_call(concrete, concrete.outputs)
    if direct is None:
        return call_publicly
    call_recorded = recorded or call_publicly

    def call(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if is_recorded():
            return call_recorded(tensors)
        try:
            return direct(tensors) or ()
        except tf.errors.OpError as error:
            explain(error, concrete.graph)
            raise

    return call
