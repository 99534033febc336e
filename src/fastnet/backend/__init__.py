"""Tensor functions for torch and TensorFlow tensors and numpy arrays, and functions of models.

Each function runs the operations of its first tensor's framework (a loss, of its predictions'), and
gradients flow through it. A value that is no tensor of these frameworks raises a ValueError.
"""

from fastnet.backend import (
    convert,
    images,
    losses,
    math,
    models,
    reductions,
    tensors,
    weights,
)
from fastnet.backend.convert import *
from fastnet.backend.images import *
from fastnet.backend.losses import *
from fastnet.backend.math import *
from fastnet.backend.models import *
from fastnet.backend.reductions import *
from fastnet.backend.tensors import *
from fastnet.backend.weights import *

__all__: list[str] = []
__all__ += convert.__all__
__all__ += images.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += models.__all__
__all__ += reductions.__all__
__all__ += tensors.__all__
__all__ += weights.__all__
