"""The tensor functions that ops need, for the framework of whatever they are given."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.backend.convert import to_shape as to_shape
    from fastnet.backend.convert import to_tensor as to_tensor
    from fastnet.backend.convert import to_type as to_type
    from fastnet.backend.losses import binary_crossentropy as binary_crossentropy
    from fastnet.backend.losses import categorical_crossentropy as categorical_crossentropy
    from fastnet.backend.losses import mean_squared_error as mean_squared_error
    from fastnet.backend.losses import (
        sparse_categorical_crossentropy as sparse_categorical_crossentropy,
    )
    from fastnet.backend.models import feed_forward as feed_forward
    from fastnet.backend.models import get_gradient as get_gradient
    from fastnet.backend.models import update_model as update_model
    from fastnet.backend.tensors import concat as concat
    from fastnet.backend.tensors import expand_dims as expand_dims
    from fastnet.backend.tensors import get_shape as get_shape
    from fastnet.backend.tensors import reduce_mean as reduce_mean
    from fastnet.backend.tensors import squeeze as squeeze
    from fastnet.backend.tensors import zeros_like as zeros_like

# the public functions, and the submodule that each lives in
EXPORTS = {
    "binary_crossentropy": "losses",
    "categorical_crossentropy": "losses",
    "concat": "tensors",
    "expand_dims": "tensors",
    "feed_forward": "models",
    "get_gradient": "models",
    "get_shape": "tensors",
    "mean_squared_error": "losses",
    "reduce_mean": "tensors",
    "sparse_categorical_crossentropy": "losses",
    "squeeze": "tensors",
    "to_shape": "convert",
    "to_tensor": "convert",
    "to_type": "convert",
    "update_model": "models",
    "zeros_like": "tensors",
}

__all__ = list(EXPORTS)

__getattr__, __dir__ = attach(__name__, EXPORTS)
