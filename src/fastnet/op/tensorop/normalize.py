"""Pixels centred and scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor

if TYPE_CHECKING:
    import torch


class Normalize(PerTensor):
    """Takes a mean from pixels and divides by a deviation, both as parts of the largest value.

    Args:
        inputs: Key(s) of images, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow.
        outputs: Key(s) for the results, of the same shapes, float32.
        mean: The mean, one for all channels or one a channel.
        std: The standard deviation, one for all channels or one a channel.
        max_pixel_value: The largest value that a pixel can have.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If `mean` and `std` are no numbers or for other counts of channels, or
            `max_pixel_value` is not positive; in a network also if there are not as many outputs as
            inputs.

    >>> import torch
    >>> op = Normalize("x", "y", mean=0.5, std=0.25, max_pixel_value=1.0)
    >>> op.forward([torch.tensor([[[[0.5, 1.0]]]])], {})
    [tensor([[[[0.0000, 2.0000]]]])]
    """

    _function = OfFramework("normalize")
    _make_normalizer = OfFramework("images.Normalizer")

    resolved_from = ("mean", "std", "max_pixel_value")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mean: float | Sequence[float] = (0.485, 0.456, 0.406),
        std: float | Sequence[float] = (0.229, 0.224, 0.225),
        max_pixel_value: float = 255.0,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        counts = [_channels(name, each) for name, each in (("mean", mean), ("std", std))]
        if None not in counts and counts[0] != counts[1]:
            raise ValueError(
                f"Normalize's mean and std are for as many channels, but there are {counts[0]} "
                f"and {counts[1]} of them."
            )
        if not is_number(max_pixel_value) or not max_pixel_value > 0:
            raise ValueError(
                f"Normalize's max_pixel_value is more than 0, not {shorten(max_pixel_value)}."
            )
        self.mean = mean
        self.std = std
        self.max_pixel_value = max_pixel_value
        self._normalizer: Callable[..., Tensor] | None = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's function, with the settings that the op has now.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self._normalizer = self._make_normalizer(self.mean, self.std, self.max_pixel_value)

    def apply(self, tensor: Tensor) -> Tensor:
        """Centre and scale.

        Args:
            tensor: The images.

        Returns:
            The same images, normalized.
        """
        if self._normalizer is not None:
            return self._normalizer(tensor)
        return self._function(tensor, self.mean, self.std, self.max_pixel_value)


def _channels(name: str, setting: Any) -> int | None:
    """Count the channels that a setting is for; None if it is for all of them."""
    try:
        parts = list(setting)
    except TypeError:  # it is one by itself
        parts, count = [setting], None
    else:
        count = len(parts)
    if not parts or not all(map(is_number, parts)):
        raise ValueError(
            f"Normalize's {name} is a number, or one a channel, not {shorten(setting)}."
        )
    return count
