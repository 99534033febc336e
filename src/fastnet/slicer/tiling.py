"""Where the windows of a SlidingSlicer lie over data of a given shape."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Tiling", "tile"]


@dataclass(frozen=True)
class Tiling:
    """The windows over one shape."""

    cuts: tuple[tuple[slice, ...], ...]
    """For each window, a slice for each axis; the last axis moves fastest."""
    padding: tuple[int, ...]
    """How much each axis must grow at its end so that no window reaches past it."""
    coverage: tuple[tuple[int, ...] | None, ...]
    """For each axis, how many windows lie over each position; None where each has exactly one."""


@lru_cache(maxsize=256)
def tile(
    shape: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pad_mode: str,
    mirrored_from: int = 2,
) -> Tiling:
    """Lay windows over a shape.

    An axis is left whole where its window is -1 or its stride is 0, and also where its stride is
    at least its length, even if its window is shorter: FastEstimator has it so. But "drop" drops a
    window that is longer than its axis, whatever the stride.

    Args:
        shape: The shape of the data.
        window: The length of the window along each axis, or -1.
        strides: The distance between windows along each axis, or 0.
        pad_mode: What to do where a window reaches past the end: "drop" it, make it "partial",
            pad the data for it ("constant", "mirror"), or move it back ("nopad").
        mirrored_from: The first axis that "mirror" pads. A mirrored batch or channel would be
            another sample or channel, and where these are depends on the framework.

    Returns:
        The windows.

    Raises:
        ValueError: If no window fits into an axis, or the data is too short to be mirrored.
        AssertionError: If `pad_mode` is "nopad" and an axis is shorter than its window.

    >>> tile((4,), window=(3,), strides=(3,), pad_mode="partial").cuts
    ((slice(0, 3, None),), (slice(3, 4, None),))
    """
    per_axis = []
    padding = []
    coverage = []
    for axis, (size, length, stride) in enumerate(zip(shape, window, strides, strict=True)):
        if length == -1:
            stride = 0
        cuts = _cut_axis(size, length, stride, pad_mode)
        if not cuts:
            raise ValueError(
                f"No window fits: axis {axis} of data of shape {list(shape)} is shorter than its "
                f"window, in the window size {list(window)}, and pad_mode 'drop' drops what does "
                "not fill a window. Use another pad_mode, or a smaller window."
            )
        padded = pad_mode == "constant" or (pad_mode == "mirror" and axis >= mirrored_from)
        growth = _growth(size, length, stride) if padded else 0
        if pad_mode == "mirror" and growth >= size > 0:
            raise ValueError(
                f"Axis {axis} of data of shape {list(shape)} is too short to be mirrored: the "
                f"window size {list(window)} needs {growth} more positions, and mirroring gives at "
                f"most {size - 1}. Use another pad_mode, or a smaller window."
            )
        per_axis.append(cuts)
        padding.append(growth)
        coverage.append(_count(size, cuts))
    return Tiling(tuple(itertools.product(*per_axis)), tuple(padding), tuple(coverage))


def _cut_axis(size: int, length: int, stride: int, pad_mode: str) -> list[slice]:
    if stride == 0 or stride >= size:
        too_short = pad_mode == "drop" and stride > 0 and 0 < size < length
        return [] if too_short else [slice(None)]
    if pad_mode == "nopad" and size < length:
        raise AssertionError(
            f"With pad_mode 'nopad' the data must be at least as long as the window, but an axis "
            f"of length {size} is to be cut into windows of length {length}. Use another pad_mode, "
            "or a smaller window."
        )
    cuts = []
    for start in range(0, size, stride):
        stop = start + length
        if stop <= size or pad_mode in ("constant", "mirror"):
            cuts.append(slice(start, stop))
        elif pad_mode == "partial":
            cuts.append(slice(start, size))
        elif pad_mode == "nopad":
            cuts.append(slice(size - length, size))
        if stop >= size:
            break
    return cuts


def _growth(size: int, length: int, stride: int) -> int:
    if stride == 0:
        return 0
    for start in range(0, size, stride):
        if start + length >= size:
            return start + length - size
    return 0


def _count(size: int, cuts: list[slice]) -> tuple[int, ...] | None:
    counts = [0] * size
    for cut in cuts:
        for position in range(*cut.indices(size)):
            counts[position] += 1
    return None if all(count == 1 for count in counts) else tuple(counts)
