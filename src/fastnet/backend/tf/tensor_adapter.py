"""Reads and makes TensorFlow's tensors for the kernel, and converts other frameworks' tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet._trace import TensorAdapter
from fastnet.backend.foreign import NUMPY, adopter, array_of
from fastnet.backend.precision import float_dtype
from fastnet.backend.tf._internals import EAGER, shape_of_eager, type_of, type_of_eager

# The length of an axis that is unknown in a graph around the step. A trace for any length accepts
# such a tensor; a trace for such tensors accepts no others.
UNKNOWN = -1

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


_TF_TYPES = (tf.Tensor, tf.Variable, *_COMPOSITES)

FOREIGN = adopter((*_TF_TYPES, *NUMPY), _adopt)
"""Converts tensors of other frameworks."""


def holds_foreign(value: Any) -> bool:
    """Return whether there are tensors of other frameworks in a nest."""
    try:
        return FOREIGN.holds_leaf(value)
    except RecursionError:
        return False  # Tracing raises an error that names the key.


ARRAYS = adopter(_TF_TYPES, _adopt)
"""Converts tensors of other frameworks, and numpy arrays."""


@dataclasses.dataclass(frozen=True, eq=False)
class Composite:
    """Describes a value that consists of several tensors.

    Attributes:
        key: Equal for values of the same kind, and only for them.
        spec: The type spec that makes a value of its tensors.
        distributed: Whether it has parts on several devices.
        shape: The shape of a sparse tensor, with None for a dynamic axis; None for other values.
    """

    key: Hashable
    spec: Any
    distributed: bool = False
    shape: tuple[int | None, ...] | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether a value of this kind fits a form of the other one.

        The kernel compares in this order. A dynamic axis of the form fits any length.
        """
        if not isinstance(other, Composite) or self.key != other.key:
            return False
        pairs = zip(self.shape or (), other.shape or (), strict=True)
        return all(traced in (None, length) for length, traced in pairs)

    def __hash__(self) -> int:
        return hash(self.key)

    def with_shape(self, shape: tuple[int | None, ...]) -> Composite:
        """Return the kind of sparse tensors of another shape of the same rank."""
        return _sparse(shape, self.spec.dtype)


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


def _flatten(value: Any) -> tuple[Composite, list[tf.Tensor]] | None:
    if isinstance(value, tf.Variable) or not isinstance(value, _COMPOSITES):
        return None
    tensors = tf.nest.flatten(value, expand_composites=True)
    if isinstance(value, tf.SparseTensor) and (shape := _shape_of(value)):
        return _sparse((None, *shape[1:]), value.dtype), tensors
    spec = _spec_with_dynamic_rows(value, tf.type_spec_from_value(value))
    distributed = isinstance(value, tf.distribute.DistributedValues)
    key = (type(spec), len(tensors)) if distributed else spec
    return Composite(key, spec, distributed), tensors


def _spec_with_dynamic_rows(value: Any, spec: Any) -> Any:
    """Return the type spec of a value with any number of samples."""
    if isinstance(value, tf.IndexedSlices):
        size = None if value.dense_shape is None else value.dense_shape.dtype
        return tf.IndexedSlicesSpec(None, value.dtype, value.indices.dtype, size)
    if isinstance(value, tf.RaggedTensor):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return spec


def _sparse(shape: tuple[int | None, ...], dtype: tf.DType) -> Composite:
    """Return the kind of sparse tensors of a shape, at least of rank 1."""
    lengths = [None if length == UNKNOWN else length for length in shape]
    spec = tf.SparseTensorSpec(lengths, dtype)
    return Composite((tf.SparseTensorSpec, dtype, len(lengths)), spec, shape=shape)


def _pack(kind: Composite, tensors: list[tf.Tensor]) -> Any:
    return tf.nest.pack_sequence_as(kind.spec, tensors, expand_composites=True)


def _shape_of(tensor: tf.Tensor) -> tuple[int, ...] | None:
    shape = tensor.shape
    if shape.rank is None:
        return None
    return tuple([UNKNOWN if length is None else length for length in shape])


# Tensors of an outer graph belong to another class.
TENSOR_ADAPTER = TensorAdapter(
    EAGER,
    type_of_eager,
    shape_of_eager,
    _convert,
    _flatten,
    _pack,
    others=(type_of, _shape_of),
)
"""Reads and makes TensorFlow's tensors for the kernel."""
