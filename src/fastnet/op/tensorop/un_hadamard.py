"""Class probabilities from Hadamard codes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet import backend
from fastnet.op.hadamard_codes import hadamard_codes, resolve_code_length
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, Tensor

if TYPE_CHECKING:
    import torch

# The probability of a class whose code is matched exactly.
_MAX_PROBABILITY = 0.99999


class UnHadamard(PerTensor):
    """Convert Hadamard codes into class probabilities, inverse to the distance from each code.

    `fastnet.op.numpyop.univariate.Hadamard` makes the codes. See `TensorOp` for `mode` and `ds_id`.
    Source: "Error Correcting Output Codes Improve Probability Estimation and Adversarial Robustness
    of Deep Neural Networks" (Verma and Swami, 2019).

    Args:
        inputs: Key(s) of codes, shape (batch, code_length), each element from -1 to 1.
        outputs: Key(s) of probabilities, shape (batch, n_classes); float32 for half precision.
        n_classes: The number of classes.
        code_length: The length of the codes, a power of 2. None for the shortest possible.

    Raises:
        ValueError: If `code_length` is not a power of 2, or too short for the classes.

    >>> import torch
    >>> UnHadamard("x", "y", n_classes=2).forward([torch.tensor([[-1.0, 0.0]])], {})
    [tensor([[0.7500, 0.2500]])]
    """

    resolved_from = ("n_classes", "code_length")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        n_classes: int,
        code_length: int | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.n_classes = n_classes
        self.code_length = resolve_code_length("UnHadamard", n_classes, code_length)
        self._codes = hadamard_codes(self.code_length)[:n_classes]
        # The lower bound of distances that `iwd` derives from max_prob, for a pairwise distance of
        # code_length + 1.
        ratio = (1.0 - _MAX_PROBABILITY) / (_MAX_PROBABILITY * max(n_classes - 1, 1))
        self._eps = np.array((self.code_length + 1) * ratio, dtype="float32")
        self._tensors: tuple[Any, Any] | None = None
        self._dtype: Any = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Convert the codes to tensors; see `TensorOp.build`."""
        super().build(framework, device)
        codes = backend.to_tensor(self._codes, framework)
        eps = backend.to_tensor(self._eps, framework)
        self._dtype = codes.dtype
        self._tensors = (codes, eps) if device is None else (codes.to(device), eps.to(device))

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the probabilities for one tensor of codes."""
        if self._tensors is None:
            constant = self._backend_of(tensor, "constant").constant
            codes, eps = constant(self._codes, tensor), constant(self._eps, tensor)
        else:
            codes, eps = self._tensors
        if tensor.dtype is not self._dtype and _is_half(tensor.dtype):
            # The inverse of the smallest distance is not representable in float16.
            tensor = self.backend.cast(tensor, "float32")
        distances = self.backend.abs(self.backend.expand_dims(tensor, 1) - codes)
        return backend.iwd(self.backend.sum_of(distances, -1), eps=eps)


@cache
def _is_half(dtype: Any) -> bool:
    # Matches bfloat16 as well.
    return "float16" in str(dtype)
