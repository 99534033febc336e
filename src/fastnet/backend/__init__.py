"""Tensor functions for torch and TensorFlow tensors and numpy arrays, and functions of models.

Each function runs the operations of its first tensor's framework (a loss, of its predictions'), and
gradients flow through it. A value that is no tensor of these frameworks raises a ValueError.
"""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from fastnet.backend import tf, torch
    from fastnet.backend.tf import processes as tf_processes
    from fastnet.backend.torch import processes as torch_processes
    from fastnet.framework import Framework, Processes

    # mypy checks here that the packages implement the protocols.
    _frameworks: list[Framework] = [torch, tf]
    _processes: list[Processes] = [torch_processes, tf_processes]

__all__: list[str] = []
__all__ += convert.__all__
__all__ += images.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += models.__all__
__all__ += reductions.__all__
__all__ += tensors.__all__
__all__ += weights.__all__
