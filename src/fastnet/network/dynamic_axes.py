"""The axes of a batch whose lengths vary, as `Network(dynamic=...)` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastnet.errors import nearest_name, shorten
from fastnet.op.op import with_inner_ops
from fastnet.schedule import get_current_items
from fastnet.util.warnings import warn

Dynamic = bool | Mapping[str, int | Iterable[int]] | None

# A function of the key and the rank of a tensor that returns axes of it.
AxesOf = Callable[[str, int], set[int]]

# The axis of samples, whose length usually varies.
_BATCH = (0,)


class DynamicAxes:
    """The axes of the tensors of a batch whose lengths may vary within one program or trace.

    Args:
        dynamic: None for axis 0, once a second length comes; True for axis 0 at once; False for
            none. A mapping gives an axis, or several, for the tensors under a key, which are
            dynamic at once; an axis below 0 counts from the last. Other keys are as with None.

    Raises:
        TypeError: If `dynamic` is anything else.
    """

    def __init__(self, dynamic: Dynamic = None) -> None:
        self._by_key: dict[str, tuple[int, ...]] = {}
        self._default_axes: tuple[int, ...] = () if dynamic is False else _BATCH
        self._are_defaults_initially_dynamic = dynamic is True
        if isinstance(dynamic, Mapping):
            self._by_key = {_read_key(key): _read_axes(axes) for key, axes in dynamic.items()}
        elif not isinstance(dynamic, bool | None):
            raise _wrong(dynamic)

    def warn_of_unread_keys(self, keys: Iterable[str]) -> None:
        """Warn of keys of `dynamic` that no op reads, given the keys that ops read."""
        keys_read = set(keys)
        for key in self._by_key.keys() - keys_read:
            near = nearest_name(key, keys_read)
            warn(
                f"dynamic names the key '{key}', which no op reads."
                + (f" Did you mean '{near}'?" if near else "")
            )

    def possibly_dynamic(self, key: str, rank: int) -> set[int]:
        """Return which axes of a tensor may be dynamic.

        Args:
            key: The key that the tensor is under.
            rank: How many axes it has.

        Returns:
            The axes, counted from the front.
        """
        axes = self._by_key.get(key, self._default_axes)
        return {axis % rank for axis in axes if -rank <= axis < rank}

    def initially_dynamic(self, key: str, rank: int) -> set[int]:
        """Return which axes are dynamic before a second length comes; see `possibly_dynamic`."""
        is_initial = self._are_defaults_initially_dynamic or key in self._by_key
        return self.possibly_dynamic(key, rank) if is_initial else set()

    def with_axis(self, key: str, axis: int) -> str:
        """Format the argument that makes one more axis dynamic.

        Args:
            key: The key that the tensor is under.
            axis: The axis.

        Returns:
            A piece of Python, such as ``dynamic={'x': (0, 2)}``.
        """
        axes = tuple(sorted({*self._by_key.get(key, self._default_axes), axis}))
        return f"dynamic={ {**self._by_key, key: axes}!r}"


def read_keys(ops: Sequence[Any]) -> set[str]:
    """Return the keys that ops read, in any epoch."""
    return {key for op in with_inner_ops(get_current_items(ops)) for key in op.inputs}


def refuse_open_axes(open_axes: Any) -> None:
    """Raise a TypeError that says how to write an argument `open_axes`, which was replaced."""
    if open_axes is None:
        return
    instead = "dynamic={key: axes}, with the keys of the batch"
    if isinstance(open_axes, Mapping):
        instead = f"dynamic={shorten(open_axes)}"
    elif isinstance(open_axes, tuple | list) and not open_axes:
        instead = "dynamic=False"
    raise TypeError(f"open_axes={shorten(open_axes)} is not an argument any more. Pass {instead}.")


def _read_key(key: Any) -> str:
    if not isinstance(key, str):
        raise _wrong(key)
    return key


def _read_axes(axes: Any) -> tuple[int, ...]:
    numbers = (axes,) if isinstance(axes, int) else axes
    if isinstance(numbers, str | bytes | Mapping) or not isinstance(numbers, Iterable):
        raise _wrong(axes)
    numbers = tuple(numbers)
    if not all(type(axis) is int for axis in numbers):
        raise _wrong(axes)
    return numbers


def _wrong(dynamic: Any) -> TypeError:
    return TypeError(
        f"dynamic is, or holds, {shorten(dynamic)}. Pass None, True, False, or a dict that gives "
        "the number of an axis, or of several, by the key of a batch."
    )
