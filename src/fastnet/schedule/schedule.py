"""Schedulers, and the selection of the items that are active in an epoch."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, Generic, TypeVar

from fastnet.errors import shorten
from fastnet.types import is_given, is_scheduler
from fastnet.util.collections import to_set
from fastnet.util.formatting import format_value

T = TypeVar("T")
U = TypeVar("U")


class Scheduler(Generic[T]):
    """A value, such as an op, a slicer or an optimizer, that depends on the epoch.

    Subclasses define `get_current_value` and `get_all_values`.
    """

    def get_current_value(self, epoch: int) -> T | None:
        """Return the value for an epoch.

        Args:
            epoch: The epoch, counted from 1.

        Returns:
            The value, or None if there is none in this epoch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_current_value.")

    def get_all_values(self) -> list[T | None]:
        """Return the values of all epochs.

        Returns:
            The values. None is one of them if there are epochs without a value.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_all_values.")


class EpochScheduler(Scheduler[T]):
    """A scheduler that changes its value at given epochs.

    Args:
        epoch_dict: Maps epochs, counted from 1, to the value from that epoch on. Use None for
            epochs without a value. Before the first epoch given there is no value.

    Raises:
        AssertionError: If `epoch_dict` is not a dict, or an epoch is not a positive int.

    >>> schedule = EpochScheduler({1: "a", 3: None, 100: "b"})
    >>> [schedule.get_current_value(epoch) for epoch in (1, 2, 3, 99, 100, 1000)]
    ['a', 'a', None, None, 'b', 'b']
    >>> schedule
    EpochScheduler({1: 'a', 3: None, 100: 'b'})
    """

    def __init__(self, epoch_dict: dict[int, T | None]) -> None:
        if not isinstance(epoch_dict, dict):
            raise AssertionError(
                f"EpochScheduler takes a dict of epochs to values, but got "
                f"{type(epoch_dict).__name__}."
            )
        epochs: Any = epoch_dict
        for epoch in epochs:
            if isinstance(epoch, bool) or not isinstance(epoch, Integral) or epoch < 1:
                raise AssertionError(
                    "The epochs of an EpochScheduler must be positive ints, but one is "
                    f"{shorten(epoch)} of type {type(epoch).__name__}. The first epoch is 1."
                )
        self.epoch_dict = epoch_dict

    @property
    def keys(self) -> list[int]:
        """The epochs that have a value of their own, in ascending order."""
        return sorted(self.epoch_dict)

    def __repr__(self) -> str:
        items = [f"{epoch}: {format_value(value)}" for epoch, value in self.epoch_dict.items()]
        return f"{type(self).__name__}({{{', '.join(items)}}})"

    def get_current_value(self, epoch: int) -> T | None:
        """Return the value given for `epoch`, or for the last epoch before it that has one."""
        epochs = self.keys
        n_begun = bisect_right(epochs, epoch)
        return self.epoch_dict[epochs[n_begun - 1]] if n_begun else None

    def get_all_values(self) -> list[T | None]:
        """Return the values, including None, in the order of `epoch_dict`."""
        return list(self.epoch_dict.values())


class RepeatScheduler(Scheduler[T]):
    """A scheduler that cycles through its values, one per epoch.

    Args:
        repeat_list: The values, beginning with the one for epoch 1. Use None for an epoch without a
            value.

    Raises:
        AssertionError: If `repeat_list` is not a list, or has fewer than two values.

    >>> schedule = RepeatScheduler(["a", "b", None])
    >>> [schedule.get_current_value(epoch) for epoch in (1, 2, 3, 4, 5)]
    ['a', 'b', None, 'a', 'b']
    """

    def __init__(self, repeat_list: list[T | None]) -> None:
        values: Any = repeat_list
        if not isinstance(values, list) or len(values) < 2:
            raise AssertionError(
                "RepeatScheduler takes a list of at least 2 values, but got "
                f"{shorten(repeat_list)}. A value for every epoch needs no scheduler."
            )
        self.repeat_list = repeat_list
        self.cycle_length = len(repeat_list)

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(map(format_value, self.repeat_list))}])"

    def get_current_value(self, epoch: int) -> T | None:
        """Return the value at `epoch` in the cycle."""
        return self.repeat_list[(epoch - 1) % self.cycle_length]

    def get_all_values(self) -> list[T | None]:
        """Return the values, including None, in the order of the cycle."""
        return list(self.repeat_list)


class _MappedScheduler(Scheduler[U]):
    """A scheduler of any class with a function applied to each of its values."""

    def __init__(self, source: Any, fn: Callable[[Any], U]) -> None:
        self._source = source
        self._mapped: list[tuple[Any, U]] = []
        for value in source.get_all_values():
            # Call the function once for an object that is listed twice.
            if value is not None and all(value is not listed for listed, _ in self._mapped):
                self._mapped.append((value, fn(value)))

    def get_current_value(self, epoch: int) -> U | None:
        return self._lookup(self._source.get_current_value(epoch), f" in epoch {epoch}")

    def get_all_values(self) -> list[U | None]:
        return [self._lookup(value) for value in self._source.get_all_values()]

    def _lookup(self, value: Any, when: str = "") -> U | None:
        if value is None:
            return None
        # Compare by identity first: a different but equal value may be listed before this one.
        for listed, mapped in self._mapped:
            if value is listed:
                return mapped
        for listed, mapped in self._mapped:
            if value == listed:
                return mapped
        raise ValueError(
            f"{type(self._source).__name__} has the value {shorten(value)}{when}, which its "
            "get_all_values did not list when it was mapped. List every value there."
        )


def map_scheduler(scheduler: Any, fn: Callable[[Any], Any]) -> Any:
    """Return any scheduler, such as one of FastEstimator's, with a function applied to each value.

    >>> map_scheduler(RepeatScheduler(["a", None]), str.upper).get_all_values()
    ['A', None]
    """
    if not isinstance(scheduler, Scheduler):
        # FastEstimator's schedulers cannot be copied.
        if isinstance(getattr(scheduler, "epoch_dict", None), dict):
            scheduler = EpochScheduler(scheduler.epoch_dict)
        elif isinstance(getattr(scheduler, "repeat_list", None), list):
            scheduler = RepeatScheduler(scheduler.repeat_list)
    if not isinstance(scheduler, (EpochScheduler, RepeatScheduler)):
        return _MappedScheduler(scheduler, fn)
    mapped: Any = copy.copy(scheduler)
    if isinstance(scheduler, EpochScheduler):
        mapped.epoch_dict = {
            epoch: None if value is None else fn(value)
            for epoch, value in scheduler.epoch_dict.items()
        }
    else:
        mapped.repeat_list = [
            None if value is None else fn(value) for value in scheduler.repeat_list
        ]
    return mapped


def get_current_items(
    items: Iterable[Any],
    run_modes: str | Iterable[str] | None = None,
    epoch: int | None = None,
    ds_id: str | Iterable[str] | None = None,
) -> list[Any]:
    """Select the items that run in a mode, an epoch and for a dataset.

    An item without a `mode`, or with an empty one, runs in every mode. The same holds for `ds_id`
    and datasets.

    Args:
        items: Items, schedulers of items, and Nones.
        run_modes: The mode or modes. None for all of them.
        epoch: The epoch, counted from 1. None for all values of each scheduler.
        ds_id: The dataset id or ids. None for all of them. An empty string is a dataset without an
            id, for which items run that exclude ids with "!", but not items that name ids.

    Returns:
        The selected items, in the given order.

    >>> class Item:
    ...     def __init__(self, name, mode=(), ds_id=()):
    ...         self.name, self.mode, self.ds_id = name, set(mode), set(ds_id)
    >>> items = [Item("a"), Item("b", mode=["eval"]), EpochScheduler({2: Item("c", ds_id=["!x"])})]
    >>> [item.name for item in get_current_items(items, run_modes="train", epoch=2, ds_id="y")]
    ['a', 'c']
    """
    modes = to_set(run_modes)
    ds_ids = to_set(ds_id)
    selected: list[Any] = []
    for item in items:
        if not is_scheduler(item):
            candidates: Sequence[Any] = (item,)
        elif epoch is None:
            candidates = item.get_all_values()
        else:
            candidates = (item.get_current_value(epoch),)
        selected += [
            candidate
            for candidate in filter(is_given, candidates)
            if _runs_in(getattr(candidate, "mode", None), modes)
            and _runs_for(getattr(candidate, "ds_id", None), ds_ids)
        ]
    return selected


def get_signature_epochs(
    items: Iterable[Any], total_epochs: int, mode: str | None = None, ds_id: str | None = None
) -> list[int]:
    """Return the epochs with a combination of items that no earlier epoch has.

    Args:
        items: Items and schedulers of items.
        total_epochs: The last epoch to consider.
        mode: The mode. None for all of them.
        ds_id: The dataset id. None for all of them.

    Returns:
        The epochs in ascending order. The first is 1, unless `total_epochs` is less.

    >>> items = [EpochScheduler({1: "a", 4: "b", 6: "a"}), "c"]
    >>> get_signature_epochs(items, total_epochs=10)
    [1, 4]
    """
    scheduled = list(items)
    seen: list[list[Any]] = []
    signature_epochs = []
    for epoch in range(1, total_epochs + 1):
        active = get_current_items(scheduled, run_modes=mode, epoch=epoch, ds_id=ds_id)
        if active not in seen:
            seen.append(active)
            signature_epochs.append(epoch)
    return signature_epochs


def _runs_in(item_modes: Any, modes: set[str]) -> bool:
    return not item_modes or not modes or not modes.isdisjoint(item_modes)


def _runs_for(item_ds_ids: Any, ds_ids: set[str]) -> bool:
    if not item_ds_ids or not ds_ids or not ds_ids.isdisjoint(item_ds_ids):
        return True
    # Excluded and included ids are never mixed.
    excludes = any(name.startswith("!") for name in item_ds_ids)
    return excludes and all(name[1:] not in ds_ids for name in item_ds_ids)
