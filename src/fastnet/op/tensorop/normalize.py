"""Normalization of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.backend.images import normalize
from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, Tensor

if TYPE_CHECKING:
    import torch


class Normalize(PerTensor):
    """Normalize images: ``(x / max_pixel_value - mean) / std``.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of images, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow.
        outputs: Key(s) of the results, of the same shapes, float32.
        mean: The mean of all channels, or one per channel; by default those of ImageNet.
        std: The standard deviation, likewise.
        max_pixel_value: The largest possible value of a pixel.

    Raises:
        ValueError: If `mean` and `std` are not numbers or have different numbers of channels, or
            `max_pixel_value` is not positive.

    >>> import torch
    >>> op = Normalize("x", "y", mean=0.5, std=0.25, max_pixel_value=1.0)
    >>> op.forward([torch.tensor([[[[0.5, 1.0]]]])], {})
    [tensor([[[[0.0000, 2.0000]]]])]
    """

    resolved_from = ("mean", "std", "max_pixel_value")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mean: float | Sequence[float] = (0.485, 0.456, 0.406),
        std: float | Sequence[float] = (0.229, 0.224, 0.225),
        max_pixel_value: float = 255.0,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        mean_channels, std_channels = _count_channels("mean", mean), _count_channels("std", std)
        if None not in (mean_channels, std_channels) and mean_channels != std_channels:
            raise ValueError(
                f"Normalize's mean and std must have the same number of channels, but have "
                f"{mean_channels} and {std_channels}."
            )
        if not is_number(max_pixel_value) or not max_pixel_value > 0:
            raise ValueError(
                f"Normalize's max_pixel_value must be positive, not {shorten(max_pixel_value)}."
            )
        self.mean = mean
        self.std = std
        self.max_pixel_value = max_pixel_value
        self._normalizer: Callable[..., Tensor] | None = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the constants; see `TensorOp.build`."""
        super().build(framework, device)
        self._normalizer = self.backend.Normalizer(self.mean, self.std, self.max_pixel_value)

    def compared_state(self) -> dict[str, Any]:
        """Return the constants; see `Op.compared_state`."""
        return {} if self._normalizer is None else vars(self._normalizer)

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the images of one tensor, normalized."""
        if self._normalizer is not None:
            return self._normalizer(tensor)
        return normalize(tensor, self.mean, self.std, self.max_pixel_value)


def _count_channels(name: str, setting: Any) -> int | None:
    """Return the number of channels that a setting is for, or None for a single number."""
    n_channels: int | None
    try:
        numbers = list(setting)
        n_channels = len(numbers)
    except TypeError:
        numbers, n_channels = [setting], None
    if not numbers or not all(map(is_number, numbers)):
        raise ValueError(
            f"Normalize's {name} must be a number, or one per channel, not {shorten(setting)}."
        )
    return n_channels
