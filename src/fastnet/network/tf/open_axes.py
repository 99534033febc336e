"""The axes of a batch that may become dynamic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastnet.errors import shorten

# The axes of every key, or those of some keys.
Axes = int | Iterable[int] | Mapping[str, int | Iterable[int]]

# The axis of samples, whose length usually varies.
_BATCH = (0,)


class OpenAxes:
    """The axes of the tensors of a batch that may become dynamic.

    Args:
        axes: An axis, or several, for the tensors under every key; or a mapping of keys to such,
            where other keys keep axis 0. An axis below 0 counts from the last. None for axis 0.

    Raises:
        TypeError: If `axes` is anything else.
    """

    def __init__(self, axes: Axes | None = None) -> None:
        self._all: tuple[int, ...] = _BATCH
        self._by_key: dict[str, tuple[int, ...]] = {}
        if isinstance(axes, Mapping):
            self._by_key = {key: _read(some) for key, some in axes.items()}
        elif axes is not None:
            self._all = _read(axes)

    def of(self, key: str, rank: int) -> set[int]:
        """Return which axes of a tensor may become dynamic.

        Args:
            key: The key that the tensor is under.
            rank: How many axes it has.

        Returns:
            The axes, counted from the front.
        """
        axes = self._by_key.get(key, self._all)
        return {axis % rank for axis in axes if -rank <= axis < rank}

    def with_axis(self, key: str, axis: int) -> str:
        """Format the argument that would make one more axis dynamic.

        Args:
            key: The key that the tensor is under.
            axis: The axis.

        Returns:
            A piece of Python, such as ``open_axes={'x': (0, 2)}``.
        """
        axes = tuple(sorted({*self._by_key.get(key, self._all), axis}))
        return f"open_axes={ {**self._by_key, key: axes}!r}"


def _read(axes: Any) -> tuple[int, ...]:
    found = (axes,) if isinstance(axes, int) else axes
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise _wrong(axes)
    found = tuple(found)
    if not all(type(axis) is int for axis in found):
        raise _wrong(axes)
    return found


def _wrong(axes: Any) -> TypeError:
    return TypeError(
        f"open_axes holds {shorten(axes)}. Give the number of an axis, several such numbers, or a "
        "dict with the keys of a batch and these."
    )
