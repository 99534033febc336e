"""Schedulers, compared with naive models."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler
from fastnet.schedule.schedule import map_scheduler

pytestmark = pytest.mark.fast

VALUES = st.none() | st.text(max_size=2)


def latest(epoch_dict: dict[int, Any], epoch: int) -> Any:
    """Search backwards, one epoch at a time."""
    while epoch >= 1:
        if epoch in epoch_dict:
            return epoch_dict[epoch]
        epoch -= 1
    return None


class EvenOdd(Scheduler[Any]):
    """A user-defined scheduler."""

    def __init__(self, even: Any, odd: Any) -> None:
        self.even, self.odd = even, odd

    def get_current_value(self, epoch: int) -> Any:
        return self.odd if epoch % 2 else self.even

    def get_all_values(self) -> list[Any]:
        return [self.even, self.odd]


class Foreign:
    """A scheduler without a base class."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    get_current_value = EvenOdd.get_current_value
    get_all_values = EvenOdd.get_all_values


class TestEpochScheduler:
    @given(st.dictionaries(st.integers(1, 30), VALUES, max_size=6), st.integers(-2, 40))
    def test_value(self, epoch_dict: dict[int, Any], epoch: int) -> None:
        scheduler = EpochScheduler(epoch_dict)
        assert scheduler.get_current_value(epoch) == latest(epoch_dict, epoch)
        assert scheduler.get_all_values() == list(epoch_dict.values())

    def test_epochs_that_are_added_later(self) -> None:
        scheduler = EpochScheduler({1: "a"})
        scheduler.epoch_dict[3] = "b"
        assert [scheduler.get_current_value(epoch) for epoch in (2, 3)] == ["a", "b"]

    def test_epochs_of_numpy(self) -> None:
        scheduler = EpochScheduler({np.int64(3): "b", 1: "a"})
        assert [scheduler.get_current_value(epoch) for epoch in (1, 2, np.int32(3), 4)] == [*"aabb"]

    @pytest.mark.parametrize(
        ("epoch_dict", "text"),
        [
            (["a"], "takes a dict.*list"),
            ({1: "a", "2": "b"}, "positive ints.*'2' of type str"),
            ({1.0: "a"}, r"positive ints.*1\.0 of type float"),
            ({True: "a"}, "positive ints.*True of type bool"),
            ({math.nan: "a"}, "positive ints.*nan of type float"),
            ({0: "a"}, "positive ints.*0 of type int.*first epoch is 1"),
        ],
    )
    def test_invalid_epochs(self, epoch_dict: Any, text: str) -> None:
        with pytest.raises(AssertionError, match=f"EpochScheduler.*{text}"):
            EpochScheduler(epoch_dict)


class TestRepeatScheduler:
    @given(st.lists(VALUES, min_size=2, max_size=5), st.integers(1, 40))
    def test_value(self, values: list[Any], epoch: int) -> None:
        scheduler = RepeatScheduler(values)
        endless = values * epoch
        assert scheduler.get_current_value(epoch) == endless[epoch - 1]
        assert scheduler.get_all_values() == values

    @pytest.mark.parametrize("repeat_list", [("a", "b"), ["a"]])
    def test_invalid_values(self, repeat_list: Any) -> None:
        with pytest.raises(AssertionError, match="RepeatScheduler takes a list of at least 2"):
            RepeatScheduler(repeat_list)


class TestBase:
    def test_methods_must_be_defined(self) -> None:
        class Unfinished(Scheduler[Any]):
            pass

        with pytest.raises(NotImplementedError, match="Unfinished must define get_current_value"):
            Unfinished().get_current_value(1)
        with pytest.raises(NotImplementedError, match="Unfinished must define get_all_values"):
            Unfinished().get_all_values()

    @pytest.mark.parametrize(
        "scheduler", [EpochScheduler({1: "a", 3: None}), RepeatScheduler(["a", None])]
    )
    def test_copies_and_pickles(self, scheduler: Scheduler[Any]) -> None:
        for again in (copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))):
            assert type(again) is type(scheduler)
            for epoch in range(1, 6):
                assert again.get_current_value(epoch) == scheduler.get_current_value(epoch)


class TestMap:
    @given(st.dictionaries(st.integers(1, 9), VALUES, max_size=4))
    def test_epochs(self, epoch_dict: dict[int, Any]) -> None:
        before = dict(epoch_dict)
        calls: list[Any] = []
        scheduler = EpochScheduler(epoch_dict)
        mapped = map_scheduler(scheduler, lambda value: calls.append(value) or (value, "mapped"))
        for epoch in range(1, 12):
            value = latest(before, epoch)
            assert mapped.get_current_value(epoch) == (None if value is None else (value, "mapped"))
        assert calls == [value for value in before.values() if value is not None]
        assert scheduler.epoch_dict is epoch_dict
        assert epoch_dict == before

    def test_derived_classes(self) -> None:
        class Named(EpochScheduler[Any]):
            def __init__(self, name: str) -> None:
                super().__init__({1: name})
                self.name = name

        mapped = map_scheduler(Named("a"), str.upper)
        assert isinstance(mapped, Named)
        assert mapped.name == "a"
        assert mapped.get_current_value(1) == "A"

    @pytest.mark.parametrize("scheduler", [EvenOdd("a", None), Foreign(even="a", odd=None)])
    def test_other_schedulers(self, scheduler: Any) -> None:
        mapped = map_scheduler(scheduler, str.upper)
        assert [mapped.get_current_value(epoch) for epoch in (1, 2)] == [None, "A"]
        assert mapped.get_all_values() == ["A", None]

    def test_values_that_were_not_listed(self) -> None:
        class Secretive(EvenOdd):
            def get_all_values(self) -> list[Any]:
                return [self.even]

        mapped = map_scheduler(Secretive("even", "odd"), str.upper)
        with pytest.raises(ValueError, match=r"Secretive.*'odd' in epoch 1.*get_all_values"):
            mapped.get_current_value(1)
