"""Class probabilities from Hadamard codes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet import backend
from fastnet.op.hadamard_codes import hadamard_codes, resolve_code_length
from fastnet.op.tensorop.of_framework import OfFramework, WithFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor

if TYPE_CHECKING:
    import torch

# what the nearest class gets, when its code is met exactly
_MAX_PROBABILITY = 0.99999


def _as_tensors(functions: Any, like: Tensor, *arrays: np.ndarray[Any, Any]) -> list[Any]:
    return [functions.from_numpy(array, like) for array in arrays]


class UnHadamard(PerTensor):
    """Turns codes, one bit a position, into class probabilities: the nearer a code the likelier.

    Args:
        inputs: Key(s) of codes, shape (batch, code_length), each position from -1 to 1.
        outputs: Key(s) for probabilities, shape (batch, n_classes). Of half precision they become
            float32.
        n_classes: How many classes there are.
        code_length: The length of the codes, a power of 2. None for the least that is enough.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If the length is no power of 2 or too short; in a network also if there are not
            as many outputs as inputs.

    Source: "Error Correcting Output Codes Improve Probability Estimation and Adversarial Robustness
    of Deep Neural Networks" (Verma and Swami, 2019).
    """

    _cast = OfFramework("cast")
    _probabilities = OfFramework("code_probabilities")
    _as_tensors = WithFramework(_as_tensors)

    resolved_from = ("n_classes", "code_length")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        n_classes: int,
        code_length: int | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.n_classes = n_classes
        self.code_length = resolve_code_length("UnHadamard", n_classes, code_length)
        self._codes = hadamard_codes(self.code_length)[:n_classes]
        gap = (1.0 - _MAX_PROBABILITY) / (_MAX_PROBABILITY * max(n_classes - 1, 1))
        self._eps = np.array((self.code_length + 1) * gap, dtype="float32")
        self._tensors: tuple[Any, Any] | None = None
        # the type that codes mostly have
        self._dtype: Any = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Make tensors of the codes.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        codes = backend.to_tensor(self._codes, framework)
        eps = backend.to_tensor(self._eps, framework)
        self._dtype = codes.dtype
        self._tensors = (codes, eps) if device is None else (codes.to(device), eps.to(device))

    def apply(self, tensor: Tensor) -> Tensor:
        """Find the probabilities.

        Args:
            tensor: The codes.

        Returns:
            A probability for each class.
        """
        if self._tensors is None:
            # an op that was not built for a framework
            codes, eps = self._as_tensors(tensor, self._codes, self._eps)
        else:
            codes, eps = self._tensors
        if tensor.dtype is not self._dtype and _is_half(tensor.dtype):
            # torch would do so by itself; and the least distance has no inverse in float16
            tensor = self._cast(tensor, "float32")
        return self._probabilities(tensor, codes, eps)


@cache
def _is_half(dtype: Any) -> bool:
    return "float16" in str(dtype)  # or bfloat16
