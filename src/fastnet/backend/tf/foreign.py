"""Converts tensors of other frameworks, and numpy arrays, to TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.foreign import NUMPY, adopter, array_of

__all__ = ["ARRAYS", "COMPOSITES", "FOREIGN"]

COMPOSITES = (
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
    array = array_of(value)
    try:
        tensor = _from_dlpack(value) if array is None else tf.convert_to_tensor(array)
    except Exception:  # The array holds objects or dates.
        return None
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        return tf.cast(tensor, tf.bfloat16)
    return tensor


def _from_dlpack(value: Any) -> tf.Tensor:
    # Copied, because the other framework may still write to the memory that it shares.
    return tf.constant(tf.experimental.dlpack.from_dlpack(value.__dlpack__()).numpy())


_OWN = (tf.Tensor, tf.Variable, *COMPOSITES)

FOREIGN = adopter((*_OWN, *NUMPY), _adopt)
"""Converts tensors of other frameworks."""

ARRAYS = adopter(_OWN, _adopt)
"""Converts tensors of other frameworks, and numpy arrays."""
