"""The tensor functions, in TensorFlow."""

from fastnet.backend.tf.tensors import (
    concat,
    convert,
    expand_dims,
    from_numpy,
    get_shape,
    is_integral,
    pad_ends,
    reduce_mean,
    slices_along,
    squeeze,
    stack,
    zeros,
    zeros_like,
)

__all__ = [
    "concat",
    "convert",
    "expand_dims",
    "from_numpy",
    "get_shape",
    "is_integral",
    "pad_ends",
    "reduce_mean",
    "slices_along",
    "squeeze",
    "stack",
    "zeros",
    "zeros_like",
]
