"""Schedulers, against a naive model of each."""

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
from fastnet.types import is_scheduler

pytestmark = pytest.mark.fast

VALUES = st.none() | st.text(max_size=2)


def latest(epoch_dict: dict[int, Any], epoch: int) -> Any:
    """What is in force, found by walking back an epoch at a time."""
    while epoch >= 1:
        if epoch in epoch_dict:
            return epoch_dict[epoch]
        epoch -= 1
    return None


class EvenOdd(Scheduler[Any]):
    """A scheduler of a user's own."""

    def __init__(self, even: Any, odd: Any) -> None:
        self.even, self.odd = even, odd

    def get_current_value(self, epoch: int) -> Any:
        return self.odd if epoch % 2 else self.even

    def get_all_values(self) -> list[Any]:
        return [self.even, self.odd]


class Foreign:
    """A scheduler that derives from nothing."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def get_current_value(self, epoch: int) -> Any:
        return "value"

    def get_all_values(self) -> list[Any]:
        return ["value", None]


class TestEpochScheduler:
    @given(st.dictionaries(st.integers(1, 30), VALUES, max_size=6), st.integers(-2, 40))
    def test_value(self, epoch_dict: dict[int, Any], epoch: int) -> None:
        scheduler = EpochScheduler(epoch_dict)
        assert scheduler.get_current_value(epoch) == latest(epoch_dict, epoch)
        assert scheduler.get_all_values() == list(epoch_dict.values())

    def test_attributes(self) -> None:
        values = {3: "b", 1: "a"}
        scheduler = EpochScheduler(values)
        assert scheduler.epoch_dict is values
        assert scheduler.keys == [1, 3]

    def test_epochs_of_numpy(self) -> None:
        scheduler = EpochScheduler({np.int64(3): "b", 1: "a"})
        assert [scheduler.get_current_value(epoch) for epoch in (1, 2, np.int32(3), 4)] == [*"aabb"]

    @pytest.mark.parametrize(
        ("epoch_dict", "text"),
        [
            (["a"], "EpochScheduler takes a dict of epochs to values, but got list."),
            (
                {1: "a", "2": "b"},
                "The epochs of an EpochScheduler must be ints, but one is '2' of type str.",
            ),
            (
                {1.0: "a"},
                "The epochs of an EpochScheduler must be ints, but one is 1.0 of type float.",
            ),
            (
                {True: "a"},
                "The epochs of an EpochScheduler must be ints, but one is True of type bool.",
            ),
            (
                {math.nan: "a"},
                "The epochs of an EpochScheduler must be ints, but one is nan of type float.",
            ),
            (
                {0: "a"},
                "The epochs of an EpochScheduler must be positive, but one is 0. The first epoch "
                "is 1.",
            ),
        ],
    )
    def test_errors(self, epoch_dict: Any, text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            EpochScheduler(epoch_dict)
        assert str(caught.value) == text


class TestRepeatScheduler:
    @given(st.lists(VALUES, min_size=2, max_size=5), st.integers(1, 40))
    def test_value(self, values: list[Any], epoch: int) -> None:
        scheduler = RepeatScheduler(values)
        endless = values * epoch
        assert scheduler.get_current_value(epoch) == endless[epoch - 1]
        assert scheduler.get_all_values() == values

    def test_attributes(self) -> None:
        values = ["a", "b"]
        scheduler = RepeatScheduler(values)
        assert scheduler.repeat_list is values
        assert scheduler.cycle_length == 2

    @pytest.mark.parametrize(
        ("repeat_list", "text"),
        [
            (("a", "b"), "RepeatScheduler takes a list of values, but got tuple."),
            (
                ["a"],
                "RepeatScheduler takes at least 2 values to alternate between, but got 1. A value "
                "for every epoch needs no scheduler.",
            ),
        ],
    )
    def test_errors(self, repeat_list: Any, text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            RepeatScheduler(repeat_list)
        assert str(caught.value) == text


class TestBase:
    def test_methods_must_be_defined(self) -> None:
        class Unfinished(Scheduler[Any]):
            pass

        with pytest.raises(NotImplementedError) as caught:
            Unfinished().get_current_value(1)
        assert str(caught.value) == "Unfinished must define get_current_value."
        with pytest.raises(NotImplementedError) as caught:
            Unfinished().get_all_values()
        assert str(caught.value) == "Unfinished must define get_all_values."

    def test_generic(self) -> None:
        assert Scheduler[int] is not None

    @pytest.mark.parametrize(
        "scheduler", [EpochScheduler({1: "a", 3: None}), RepeatScheduler(["a", None])]
    )
    def test_copies_and_pickles(self, scheduler: Scheduler[Any]) -> None:
        for again in (copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))):
            assert type(again) is type(scheduler)
            assert [again.get_current_value(epoch) for epoch in range(1, 6)] == [
                scheduler.get_current_value(epoch) for epoch in range(1, 6)
            ]

    def test_whoever_has_the_methods_is_a_scheduler(self) -> None:
        assert is_scheduler(EvenOdd(1, 2))
        assert is_scheduler(Foreign())
        assert not is_scheduler("a")


class TestMap:
    @given(st.dictionaries(st.integers(1, 9), VALUES, max_size=4))
    def test_epochs(self, epoch_dict: dict[int, Any]) -> None:
        before = dict(epoch_dict)
        calls: list[Any] = []
        scheduler = EpochScheduler(epoch_dict)
        mapped = scheduler.map(lambda value: calls.append(value) or (value, "mapped"))
        for epoch in range(1, 12):
            value = latest(before, epoch)
            assert mapped.get_current_value(epoch) == (None if value is None else (value, "mapped"))
        assert calls == [value for value in before.values() if value is not None]
        assert scheduler.epoch_dict is epoch_dict
        assert epoch_dict == before

    def test_repeats(self) -> None:
        values = ["a", None, "a"]
        mapped = RepeatScheduler(values).map(lambda value: [value])
        assert mapped.get_all_values() == [["a"], None, ["a"]]
        # a value for each entry, not one for each value
        assert mapped.get_current_value(1) is not mapped.get_current_value(3)
        assert values == ["a", None, "a"]

    def test_derived_classes_stay(self) -> None:
        class Named(EpochScheduler[Any]):
            def __init__(self, name: str) -> None:
                super().__init__({1: name})
                self.name = name

        mapped = Named("a").map(str.upper)
        assert type(mapped) is Named
        assert mapped.name == "a"
        assert mapped.get_current_value(1) == "A"

    def test_a_scheduler_of_ones_own(self) -> None:
        mapped = EvenOdd("even", None).map(str.upper)
        assert [mapped.get_current_value(epoch) for epoch in (1, 2)] == [None, "EVEN"]
        assert mapped.get_all_values() == ["EVEN", None]

    def test_one_object_stays_one_object(self) -> None:
        value = object()
        mapped = EvenOdd(value, value).map(lambda _: object())
        assert mapped.get_current_value(1) is mapped.get_current_value(2)

    def test_equal_objects_are_found_again(self) -> None:
        class Fresh(EvenOdd):
            def get_current_value(self, epoch: int) -> Any:
                return [epoch % 2]

        mapped = Fresh([0], [1]).map(lambda value: value[0] * 10)
        assert [mapped.get_current_value(epoch) for epoch in (1, 2)] == [10, 0]

    def test_values_that_were_never_listed(self) -> None:
        class Secretive(EvenOdd):
            def get_all_values(self) -> list[Any]:
                return [self.even]

        mapped = Secretive("even", "odd").map(str.upper)
        with pytest.raises(ValueError, match="did not list") as caught:
            mapped.get_current_value(1)
        assert str(caught.value) == (
            "Secretive gives the value 'odd', which its get_all_values did not list when it was "
            "mapped. List every value there."
        )


class TestMapScheduler:
    def test_ours(self) -> None:
        mapped = map_scheduler(RepeatScheduler(["a", None]), str.upper)
        assert isinstance(mapped, RepeatScheduler)
        assert mapped.get_all_values() == ["A", None]

    def test_foreign_ones_of_known_form(self) -> None:
        source = Foreign(epoch_dict={2: "a"})
        mapped = map_scheduler(source, str.upper)
        assert [mapped.get_current_value(epoch) for epoch in (1, 2)] == [None, "A"]
        assert source.epoch_dict == {2: "a"}
        mapped = map_scheduler(Foreign(repeat_list=["a", "b"]), str.upper)
        assert [mapped.get_current_value(epoch) for epoch in (1, 2)] == ["A", "B"]

    def test_foreign_ones_of_any_form(self) -> None:
        mapped = map_scheduler(Foreign(), str.upper)
        assert mapped.get_current_value(5) == "VALUE"
        assert mapped.get_all_values() == ["VALUE", None]
