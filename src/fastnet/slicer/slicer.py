"""The base class of all slicers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet._slice import check_slicers as sanity_assert_slicers
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet._watch import Noticing
from fastnet.util.collections import to_list, to_set
from fastnet.util.formatting import format_repr
from fastnet.util.names import check_ds_id, check_io_names, parse_modes
from fastnet.util.noticed import NoticedList, NoticedSet

__all__ = ["Slicer", "forward_slicers", "reverse_slicers", "sanity_assert_slicers"]


class Slicer(Noticing):
    """Something that cuts values of a batch into pieces, or joins pieces into values, or both.

    A network with slicers runs its ops once for each piece, and joins the results before
    postprocessing. What is not cut is the same in every minibatch.

    A class of your own defines `_slice_batch` if it is to cut, and `_unslice_batch` if it is to
    join.

    Args:
        slice: The key or keys to cut.
        unslice: The key or keys to join. Left out, those of `slice`. None to join nothing.
        mode: The mode or modes to work in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to work for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        ValueError: If there is neither a key to cut nor one to join.
        NotImplementedError: If there are keys to cut, or to join, but the class does not say how.
        AssertionError: If a key, a mode or a dataset id is malformed.

    >>> class Halves(Slicer):
    ...     def _slice_batch(self, batch):
    ...         middle = len(batch) // 2
    ...         return [batch[:middle], batch[middle:]]
    >>> Halves(slice="x", unslice=None).slice_batches(("abcd",))
    [('ab',), ('cd',)]
    >>> Halves(slice=["x", "y"], unslice=None, mode="train")
    Halves(cuts x, y, mode=train)
    """

    slice_inputs: list[str]
    unslice_inputs: list[str]
    mode: set[str]
    ds_id: set[str]
    minibatch_size: int = 0
    """How many minibatches the last batch was cut into."""

    def __init__(
        self,
        slice: str | Sequence[str] | None = None,
        unslice: str | Sequence[str] | None = (),
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        if isinstance(unslice, tuple) and not unslice:
            unslice = slice
        self._put_names(slice, unslice, mode, ds_id)
        self.minibatch_size = 0

    def __repr__(self) -> str:
        cut, joined = (
            ", ".join(getattr(self, keys, ())) for keys in ("slice_inputs", "unslice_inputs")
        )
        return format_repr(self, [cut and f"cuts {cut}", joined and f"joins {joined}"])

    def settle(self, changed: Sequence[str] = ()) -> None:
        """Check the keys, modes and dataset ids that were written to the slicer.

        A network calls this when it is opened after they have changed.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            NotImplementedError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        self._put_names(self.slice_inputs, self.unslice_inputs, self.mode, self.ds_id)

    def _put_names(self, slice: Any, unslice: Any, mode: Any, ds_id: Any) -> None:
        self.slice_inputs = NoticedList(check_io_names(to_list(slice)))
        self.unslice_inputs = NoticedList(check_io_names(to_list(unslice)))
        self.mode = NoticedSet(parse_modes(to_set(mode)))
        self.ds_id = NoticedSet(check_ds_id(to_set(ds_id)))
        name = type(self).__name__
        if not self.slice_inputs and not self.unslice_inputs:
            raise ValueError(f"{name} has nothing to do: give it keys to `slice` or to `unslice`.")
        if self.slice_inputs and type(self)._slice_batch is Slicer._slice_batch:
            raise NotImplementedError(
                f"{name} is to slice {self.slice_inputs}, but does not define _slice_batch. Define "
                "it, or give the keys to `unslice` only."
            )
        if self.unslice_inputs and type(self)._unslice_batch is Slicer._unslice_batch:
            raise NotImplementedError(
                f"{name} is to un-slice {self.unslice_inputs}, but does not define _unslice_batch. "
                "Define it, or pass unslice=None."
            )

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Cut the values of `slice_inputs`.

        Args:
            batches: The values, one for each key of `slice_inputs`.

        Returns:
            A tuple for each minibatch, with a piece of each value.

        Raises:
            AssertionError: If the values fall into different numbers of pieces.
        """
        pieces = [self._slice_batch(batch) for batch in batches]
        counts = [len(piece) for piece in pieces]
        if len(set(counts)) > 1:
            cut = dict(zip(self.slice_inputs, counts, strict=True))
            raise AssertionError(
                f"{type(self).__name__} cut its keys into different numbers of slices: {cut}. Keys "
                "that are cut together must give equally many; cut the others with another slicer, "
                "or not at all."
            )
        self.minibatch_size = counts[0]
        return list(zip(*pieces, strict=True))

    def _slice_batch(self, batch: Any) -> list[Any]:
        """Cut one value.

        Args:
            batch: The value, usually a tensor.

        Returns:
            Its pieces.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _slice_batch.")

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        """Join the pieces of one value.

        Args:
            slices: The pieces, in the order of the minibatches.
            key: The key they belong to. A key that nobody reads afterwards is not joined, so this
                is not called for it.

        Returns:
            The joined value.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _unslice_batch.")
