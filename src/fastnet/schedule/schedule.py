"""Schedulers, and what is in force of a list of scheduled items."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from fastnet.errors import shown
from fastnet.types import is_given, is_scheduler
from fastnet.util.collections import to_set
from fastnet.util.formatting import format_value
from fastnet.util.numbers import whole_number

__all__ = [
    "EpochScheduler",
    "RepeatScheduler",
    "Scheduler",
    "get_current_items",
    "get_signature_epochs",
    "map_scheduler",
]

T = TypeVar("T")
U = TypeVar("U")


class Scheduler(Generic[T]):
    """Something that has another value in each epoch, such as an op, a slicer or an optimizer.

    A class of your own needs `get_current_value` and `get_all_values`.
    """

    def get_current_value(self, epoch: int) -> T | None:
        """Find the value of an epoch.

        Args:
            epoch: The epoch, counted from 1.

        Returns:
            The value in force. None where there is nothing to do.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_current_value.")

    def get_all_values(self) -> list[T | None]:
        """List every value that can be in force.

        Returns:
            The values, with None among them where there are epochs without one.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_all_values.")

    def map(self, fn: Callable[[T], U]) -> Scheduler[U]:
        """Make the same schedule of other values.

        Args:
            fn: Turns one value into another. It is called once for each value, at once, and never
                with None, which stays None.

        Returns:
            A new scheduler. This one is not changed.
        """
        return _MappedScheduler(self, fn)


class EpochScheduler(Scheduler[T]):
    """A scheduler that changes its value at given epochs.

    Args:
        epoch_dict: The epochs at which the value changes, counted from 1, each with the value from
            then on. Before the first of them there is no value. None for epochs without one.

    Raises:
        AssertionError: If `epoch_dict` is not a dict, or an epoch is not a positive int.

    >>> schedule = EpochScheduler({1: "a", 3: None, 100: "b"})
    >>> [schedule.get_current_value(epoch) for epoch in (1, 2, 3, 99, 100, 1000)]
    ['a', 'a', None, None, 'b', 'b']
    >>> schedule.map(str.upper).get_all_values()
    ['A', None, 'B']
    >>> schedule
    EpochScheduler({1: 'a', 3: None, 100: 'b'})
    """

    def __init__(self, epoch_dict: dict[int, T | None]) -> None:
        if not isinstance(epoch_dict, dict):
            raise AssertionError(
                f"EpochScheduler takes a dict of epochs to values, but got "
                f"{type(epoch_dict).__name__}."
            )
        for epoch in epoch_dict:
            number = whole_number(epoch)
            if number is None:
                raise AssertionError(
                    f"The epochs of an EpochScheduler must be ints, but one is {shown(epoch)} of "
                    f"type {type(epoch).__name__}."
                )
            if number < 1:
                raise AssertionError(
                    f"The epochs of an EpochScheduler must be positive, but one is {number}. The "
                    "first epoch is 1."
                )
        self.epoch_dict = epoch_dict
        self.keys = sorted(epoch_dict)

    def __repr__(self) -> str:
        told = ", ".join(f"{key}: {format_value(one)}" for key, one in self.epoch_dict.items())
        return f"{type(self).__name__}({{{told}}})"

    def get_current_value(self, epoch: int) -> T | None:
        """Find the value of an epoch.

        Args:
            epoch: The epoch, counted from 1.

        Returns:
            The value given for `epoch`, or else for the last epoch before it that has one.
        """
        passed = bisect_right(self.keys, epoch)
        return self.epoch_dict[self.keys[passed - 1]] if passed else None

    def get_all_values(self) -> list[T | None]:
        """List every value, in the order in which they were given.

        Returns:
            The values, None among them.
        """
        return list(self.epoch_dict.values())

    def map(self, fn: Callable[[T], U]) -> EpochScheduler[U]:
        """Make the same schedule of other values.

        Args:
            fn: Called once for each value that is not None.

        Returns:
            A new scheduler of the same class. This one is not changed.
        """
        mapped: Any = copy.copy(self)
        mapped.epoch_dict = {
            epoch: None if value is None else fn(value) for epoch, value in self.epoch_dict.items()
        }
        result: EpochScheduler[U] = mapped
        return result


class RepeatScheduler(Scheduler[T]):
    """A scheduler that takes its values in turn, one an epoch, over and over.

    Args:
        repeat_list: The values, the first of them for epoch 1. None for an epoch without one.

    Raises:
        AssertionError: If `repeat_list` is not a list, or has fewer than two values.

    >>> schedule = RepeatScheduler(["a", "b", None])
    >>> [schedule.get_current_value(epoch) for epoch in (1, 2, 3, 4, 5)]
    ['a', 'b', None, 'a', 'b']
    """

    def __init__(self, repeat_list: list[T | None]) -> None:
        if not isinstance(repeat_list, list):
            raise AssertionError(
                f"RepeatScheduler takes a list of values, but got {type(repeat_list).__name__}."
            )
        if len(repeat_list) < 2:
            raise AssertionError(
                f"RepeatScheduler takes at least 2 values to alternate between, but got "
                f"{len(repeat_list)}. A value for every epoch needs no scheduler."
            )
        self.repeat_list = repeat_list
        self.cycle_length = len(repeat_list)

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(map(format_value, self.repeat_list))}])"

    def get_current_value(self, epoch: int) -> T | None:
        """Find the value of an epoch.

        Args:
            epoch: The epoch, counted from 1.

        Returns:
            The value whose turn it is.
        """
        return self.repeat_list[(epoch - 1) % self.cycle_length]

    def get_all_values(self) -> list[T | None]:
        """List every value, in the order of their turns.

        Returns:
            The values, None among them.
        """
        return list(self.repeat_list)

    def map(self, fn: Callable[[T], U]) -> RepeatScheduler[U]:
        """Make the same schedule of other values.

        Args:
            fn: Called once for each value that is not None.

        Returns:
            A new scheduler of the same class. This one is not changed.
        """
        mapped: Any = copy.copy(self)
        mapped.repeat_list = [None if value is None else fn(value) for value in self.repeat_list]
        result: RepeatScheduler[U] = mapped
        return result


class _MappedScheduler(Scheduler[U]):
    """Another scheduler's choices, with other values in the place of its own."""

    def __init__(self, source: Any, fn: Callable[[Any], U]) -> None:
        self._source = source
        self._values: list[Any] = []
        self._mapped: list[U] = []
        for value in source.get_all_values():
            # one object that stands for several epochs becomes one object again
            if value is not None and not any(value is known for known in self._values):
                self._values.append(value)
                self._mapped.append(fn(value))

    def get_current_value(self, epoch: int) -> U | None:
        return self._stand_in(self._source.get_current_value(epoch))

    def get_all_values(self) -> list[U | None]:
        return [self._stand_in(value) for value in self._source.get_all_values()]

    def _stand_in(self, value: Any) -> U | None:
        if value is None:
            return None
        for known, mapped in zip(self._values, self._mapped, strict=True):
            if value is known:
                return mapped
        if value in self._values:
            return self._mapped[self._values.index(value)]
        raise ValueError(
            f"{type(self._source).__name__} gives the value {shown(value)}, which its "
            "get_all_values did not list when it was mapped. List every value there."
        )


def map_scheduler(scheduler: Any, fn: Callable[[Any], U]) -> Scheduler[U]:
    """Make the same schedule of other values, whoever wrote the scheduler.

    Args:
        scheduler: A scheduler of fastnet, of FastEstimator, or anything else with the methods
            `get_current_value` and `get_all_values`.
        fn: Turns one value into another. It is called once for each value, and never with None,
            which stays None.

    Returns:
        A new scheduler. `scheduler` is not changed.

    >>> map_scheduler(RepeatScheduler(["a", None]), str.upper).get_all_values()
    ['A', None]
    """
    if isinstance(scheduler, Scheduler):
        return scheduler.map(fn)
    # FastEstimator's own, which cannot be copied but can be read
    epoch_dict = getattr(scheduler, "epoch_dict", None)
    if isinstance(epoch_dict, dict):
        return EpochScheduler(epoch_dict).map(fn)
    repeat_list = getattr(scheduler, "repeat_list", None)
    if isinstance(repeat_list, list):
        return RepeatScheduler(repeat_list).map(fn)
    return _MappedScheduler(scheduler, fn)


def get_current_items(
    items: Iterable[Any],
    run_modes: str | Iterable[str] | None = None,
    epoch: int | None = None,
    ds_id: str | Iterable[str] | None = None,
) -> list[Any]:
    """Select the items that run in a mode, an epoch and for a dataset.

    An item without a `mode` runs in every mode, and one without a `ds_id` for every dataset. So
    does one whose `mode` or `ds_id` is empty.

    Args:
        items: Items, schedulers of items, and Nones.
        run_modes: The mode or modes. None for all of them.
        epoch: The epoch, counted from 1. None for all of them: every value of each scheduler.
        ds_id: The dataset id or ids. None for all of them. An empty string is the dataset without
            an id: items that name the ids they run for do not run for it, items that name ids with
            "!" do.

    Returns:
        The items selected, in the order given.

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
        for candidate in candidates:
            if (
                is_given(candidate)
                and _runs_in(getattr(candidate, "mode", None), modes)
                and _runs_for(getattr(candidate, "ds_id", None), ds_ids)
            ):
                selected.append(candidate)
    return selected


def get_signature_epochs(
    items: Iterable[Any], total_epochs: int, mode: str | None = None, ds_id: str | None = None
) -> list[int]:
    """Find the epochs that bring a combination of items never seen in an earlier epoch.

    Args:
        items: Items and schedulers of items.
        total_epochs: The last epoch to look at.
        mode: The mode to look at. None for all of them.
        ds_id: The dataset id to look at. None for all of them.

    Returns:
        The epochs, in order. The first is always 1, unless `total_epochs` is less.

    >>> items = [EpochScheduler({1: "a", 4: "b", 6: "a"}), "c"]
    >>> get_signature_epochs(items, total_epochs=10)
    [1, 4]
    """
    scheduled = list(items)
    seen: list[list[Any]] = []
    signature_epochs = []
    for epoch in range(1, total_epochs + 1):
        in_force = get_current_items(scheduled, run_modes=mode, epoch=epoch, ds_id=ds_id)
        if in_force not in seen:
            seen.append(in_force)
            signature_epochs.append(epoch)
    return signature_epochs


def _runs_in(own: Any, modes: set[str]) -> bool:
    return not own or not modes or not modes.isdisjoint(own)


def _runs_for(own: Any, ds_ids: set[str]) -> bool:
    if not own or not ds_ids or not ds_ids.isdisjoint(own):
        return True
    # an item that names ids to leave out names nothing else
    return any(name.startswith("!") for name in own) and all(name[1:] not in ds_ids for name in own)
