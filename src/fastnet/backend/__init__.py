"""The tensor functions that ops need, for the framework of whatever they are given."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.backend.casting import cast as cast
    from fastnet.backend.casting import convert_tensor_precision as convert_tensor_precision
    from fastnet.backend.convert import to_shape as to_shape
    from fastnet.backend.convert import to_tensor as to_tensor
    from fastnet.backend.convert import to_type as to_type
    from fastnet.backend.dice import dice_score as dice_score
    from fastnet.backend.focal import focal_loss as focal_loss
    from fastnet.backend.images import normalize as normalize
    from fastnet.backend.images import resize_3d as resize_3d
    from fastnet.backend.losses import binary_crossentropy as binary_crossentropy
    from fastnet.backend.losses import categorical_crossentropy as categorical_crossentropy
    from fastnet.backend.losses import hinge as hinge
    from fastnet.backend.losses import huber as huber
    from fastnet.backend.losses import l1_loss as l1_loss
    from fastnet.backend.losses import mean_squared_error as mean_squared_error
    from fastnet.backend.losses import smooth_l1_loss as smooth_l1_loss
    from fastnet.backend.losses import (
        sparse_categorical_crossentropy as sparse_categorical_crossentropy,
    )
    from fastnet.backend.math import abs as abs
    from fastnet.backend.math import argmax as argmax
    from fastnet.backend.math import check_nan as check_nan
    from fastnet.backend.math import clip_by_value as clip_by_value
    from fastnet.backend.math import exp as exp
    from fastnet.backend.math import iwd as iwd
    from fastnet.backend.math import lambertw as lambertw
    from fastnet.backend.math import matmul as matmul
    from fastnet.backend.math import maximum as maximum
    from fastnet.backend.math import pow as pow
    from fastnet.backend.math import sign as sign
    from fastnet.backend.math import tensor_pow as tensor_pow
    from fastnet.backend.math import tensor_round as tensor_round
    from fastnet.backend.math import tensor_sqrt as tensor_sqrt
    from fastnet.backend.math import zscore as zscore
    from fastnet.backend.models import feed_forward as feed_forward
    from fastnet.backend.models import get_gradient as get_gradient
    from fastnet.backend.models import l2_regularization as l2_regularization
    from fastnet.backend.models import update_model as update_model
    from fastnet.backend.models import watch as watch
    from fastnet.backend.optimizers import get_lr as get_lr
    from fastnet.backend.optimizers import set_lr as set_lr
    from fastnet.backend.random import random_normal_like as random_normal_like
    from fastnet.backend.random import random_uniform_like as random_uniform_like
    from fastnet.backend.reductions import percentile as percentile
    from fastnet.backend.reductions import reduce_max as reduce_max
    from fastnet.backend.reductions import reduce_mean as reduce_mean
    from fastnet.backend.reductions import reduce_min as reduce_min
    from fastnet.backend.reductions import reduce_std as reduce_std
    from fastnet.backend.reductions import reduce_sum as reduce_sum
    from fastnet.backend.tensors import concat as concat
    from fastnet.backend.tensors import expand_dims as expand_dims
    from fastnet.backend.tensors import flip as flip
    from fastnet.backend.tensors import gather as gather
    from fastnet.backend.tensors import gather_from_batch as gather_from_batch
    from fastnet.backend.tensors import get_image_dims as get_image_dims
    from fastnet.backend.tensors import get_shape as get_shape
    from fastnet.backend.tensors import ones_like as ones_like
    from fastnet.backend.tensors import permute as permute
    from fastnet.backend.tensors import reshape as reshape
    from fastnet.backend.tensors import roll as roll
    from fastnet.backend.tensors import squeeze as squeeze
    from fastnet.backend.tensors import transpose as transpose
    from fastnet.backend.tensors import where as where
    from fastnet.backend.tensors import zeros_like as zeros_like
    from fastnet.backend.weights import load_model as load_model
    from fastnet.backend.weights import save_model as save_model

# the public functions, and the submodule that each lives in
EXPORTS = {
    "abs": "math",
    "argmax": "math",
    "binary_crossentropy": "losses",
    "cast": "casting",
    "categorical_crossentropy": "losses",
    "check_nan": "math",
    "clip_by_value": "math",
    "concat": "tensors",
    "convert_tensor_precision": "casting",
    "dice_score": "dice",
    "exp": "math",
    "expand_dims": "tensors",
    "feed_forward": "models",
    "flip": "tensors",
    "focal_loss": "focal",
    "gather": "tensors",
    "gather_from_batch": "tensors",
    "get_gradient": "models",
    "get_image_dims": "tensors",
    "get_lr": "optimizers",
    "get_shape": "tensors",
    "hinge": "losses",
    "huber": "losses",
    "iwd": "math",
    "l1_loss": "losses",
    "l2_regularization": "models",
    "lambertw": "math",
    "load_model": "weights",
    "matmul": "math",
    "maximum": "math",
    "mean_squared_error": "losses",
    "normalize": "images",
    "ones_like": "tensors",
    "percentile": "reductions",
    "permute": "tensors",
    "pow": "math",
    "random_normal_like": "random",
    "random_uniform_like": "random",
    "reduce_max": "reductions",
    "reduce_mean": "reductions",
    "reduce_min": "reductions",
    "reduce_std": "reductions",
    "reduce_sum": "reductions",
    "reshape": "tensors",
    "resize_3d": "images",
    "roll": "tensors",
    "save_model": "weights",
    "set_lr": "optimizers",
    "sign": "math",
    "smooth_l1_loss": "losses",
    "sparse_categorical_crossentropy": "losses",
    "squeeze": "tensors",
    "tensor_pow": "math",
    "tensor_round": "math",
    "tensor_sqrt": "math",
    "to_shape": "convert",
    "to_tensor": "convert",
    "to_type": "convert",
    "transpose": "tensors",
    "update_model": "models",
    "watch": "models",
    "where": "tensors",
    "zeros_like": "tensors",
    "zscore": "math",
}

__all__ = list(EXPORTS)

__getattr__, __dir__ = attach(__name__, EXPORTS)
