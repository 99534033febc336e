"""The base class of all slicers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet._slice import check_slicers as sanity_assert_slicers
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet.util.collections import to_list, to_set
from fastnet.util.formatting import format_repr
from fastnet.util.names import check_ds_id, check_io_names, parse_modes

__all__ = ["Slicer", "forward_slicers", "reverse_slicers", "sanity_assert_slicers"]


class Slicer:
    """A slicer, which slices values of a batch for minibatches, or unslices their results, or both.

    A network with slicers runs its ops once per minibatch, and unslices the results before
    postprocessing. Subclasses that slice define `_slice_batch`, and subclasses that unslice define
    `_unslice_batch`.

    Args:
        slice: The key or keys to slice.
        unslice: The key or keys to unslice. By default, those of `slice`. None for none.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        ValueError: If there is neither a key to slice nor one to unslice.
        NotImplementedError: If there are keys to slice or to unslice, but not the method for it.
        AssertionError: If a key, a mode or a dataset id is malformed.

    >>> class Halves(Slicer):
    ...     def _slice_batch(self, batch):
    ...         middle = len(batch) // 2
    ...         return [batch[:middle], batch[middle:]]
    >>> Halves(slice="x", unslice=None).slice_batches(("abcd",))
    [('ab',), ('cd',)]
    >>> Halves(slice=["x", "y"], unslice=None, mode="train")
    Halves(slices x, y, mode=train)
    """

    slice_inputs: list[str]
    unslice_inputs: list[str]
    mode: set[str]
    ds_id: set[str]
    minibatch_size: int = 0
    """The number of minibatches that the last batch was sliced into."""

    def __init__(
        self,
        slice: str | Sequence[str] | None = None,
        unslice: str | Sequence[str] | None = (),
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        if isinstance(unslice, tuple) and not unslice:
            unslice = slice
        self.slice_inputs, self.unslice_inputs = to_list(slice), to_list(unslice)
        self.mode, self.ds_id = to_set(mode), to_set(ds_id)
        self.resolve_settings()

    def __repr__(self) -> str:
        sliced = ", ".join(getattr(self, "slice_inputs", ()))
        unsliced = ", ".join(getattr(self, "unslice_inputs", ()))
        parts = []
        if sliced:
            parts.append(f"slices {sliced}")
        if unsliced:
            parts.append(f"unslices {unsliced}")
        return format_repr(self, parts)

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check the keys, modes and dataset ids, also after they have changed."""
        name = type(self).__name__
        try:
            self.slice_inputs = list(check_io_names(to_list(self.slice_inputs)))
            self.unslice_inputs = list(check_io_names(to_list(self.unslice_inputs)))
            self.mode = set(parse_modes(to_set(self.mode)))
            self.ds_id = set(check_ds_id(to_set(self.ds_id)))
        except (AssertionError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from None
        if not self.slice_inputs and not self.unslice_inputs:
            raise ValueError(f"{name} has nothing to do: give it keys to `slice` or to `unslice`.")
        for role, keys in (("slice", self.slice_inputs), ("unslice", self.unslice_inputs)):
            method = f"_{role}_batch"
            if keys and getattr(type(self), method) is getattr(Slicer, method):
                raise NotImplementedError(
                    f"{name} has the keys {keys} to {role}, but does not define {method}. Define "
                    f"it, or pass {role}=None."
                )

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Slice the values of `slice_inputs`.

        Args:
            batches: The values, one for each key of `slice_inputs`.

        Returns:
            A tuple for each minibatch, with a slice of each value.

        Raises:
            AssertionError: If the values have different numbers of slices.
        """
        columns = [self._slice_batch(batch) for batch in batches]
        counts = [len(slices) for slices in columns]
        if len(set(counts)) > 1:
            counts_by_key = dict(zip(self.slice_inputs, counts, strict=True))
            raise AssertionError(
                f"{type(self).__name__} sliced its keys into different numbers of slices: "
                f"{counts_by_key}. The keys of a slicer must have equally many. Slice the others "
                "with another slicer, or not at all."
            )
        self.minibatch_size = counts[0]
        return list(zip(*columns, strict=True))

    def _slice_batch(self, batch: Any) -> list[Any]:
        """Slice one value.

        Args:
            batch: The value, usually a tensor.

        Returns:
            The slices, one for each minibatch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _slice_batch.")

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        """Make one value of its slices.

        Args:
            slices: The slices, in the order of the minibatches.
            key: Their key. The method is called only for keys that are read afterwards.

        Returns:
            The value.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _unslice_batch.")
