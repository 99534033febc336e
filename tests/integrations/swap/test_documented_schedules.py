"""What FastEstimator's documentation says of its schedulers, as it is and swapped."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = pytest.mark.tf

Fe = Any


def test_repeat_scheduler_cycles(fe: Fe) -> None:
    schedule = fe.schedule.RepeatScheduler(["a", "b", "c"])
    assert [schedule.get_current_value(epoch=epoch) for epoch in range(1, 6)] == list("abcab")
    assert list(schedule.get_all_values()) == ["a", "b", "c"]


def test_repeat_scheduler_may_skip(fe: Fe) -> None:
    schedule = fe.schedule.RepeatScheduler(["a", None])
    assert [schedule.get_current_value(epoch) for epoch in (1, 2, 3)] == ["a", None, "a"]


@pytest.mark.parametrize("wrong", [("a", "b"), "ab", {1: "a"}, ["a"], []], ids=str)
def test_repeat_scheduler_refuses(fe: Fe, wrong: Any) -> None:
    with pytest.raises(AssertionError):
        fe.schedule.RepeatScheduler(wrong)


def test_epoch_scheduler_takes_the_closest_prior_key(fe: Fe) -> None:
    schedule = fe.schedule.EpochScheduler({1: "a", 3: "b", 4: None, 100: "c"})
    found = [schedule.get_current_value(epoch=epoch) for epoch in (1, 2, 3, 4, 99, 100)]
    assert found == ["a", "a", "b", None, None, "c"]
    assert list(schedule.get_all_values()) == ["a", "b", None, "c"]


def test_before_the_first_key_there_is_nothing(fe: Fe) -> None:
    assert fe.schedule.EpochScheduler({3: "b"}).get_current_value(2) is None


@pytest.mark.parametrize("wrong", [["a"], {"1": "a"}, {0: "a"}, {-1: "a"}, {1.5: "a"}], ids=str)
def test_epoch_scheduler_refuses(fe: Fe, wrong: Any) -> None:
    with pytest.raises(AssertionError):
        fe.schedule.EpochScheduler(wrong)


def test_the_base_class_says_nothing(fe: Fe) -> None:
    with pytest.raises(NotImplementedError):
        fe.schedule.Scheduler().get_current_value(1)
    with pytest.raises(NotImplementedError):
        fe.schedule.Scheduler().get_all_values()


def test_signature_epochs_are_those_of_changes(fe: Fe) -> None:
    items = [
        "always",
        fe.schedule.EpochScheduler({1: "a", 3: "b", 5: "a"}),
        fe.schedule.RepeatScheduler(["x", "x", None]),
    ]
    # in epoch 4 "b" is with "x", in 6 "a" is alone: neither was there before
    assert fe.schedule.get_signature_epochs(items, total_epochs=9) == [1, 3, 4, 6]


class Item:
    def __init__(self, name: str, mode: Any = None, ds_id: Any = None) -> None:
        self.name, self.mode, self.ds_id = name, set(mode or ()), set(ds_id or ())

    def __repr__(self) -> str:
        return self.name


def names(found: Any) -> str:
    return "".join(one.name for one in found)


def test_current_items_by_mode(fe: Fe) -> None:
    items = [Item("a"), Item("b", ["train"]), Item("c", ["eval", "test"])]
    choose = fe.schedule.get_current_items
    assert names(choose(items, run_modes="train")) == "ab"
    assert names(choose(items, run_modes={"train", "test"})) == "abc"
    assert names(choose(items)) == "abc"


def test_current_items_by_dataset(fe: Fe) -> None:
    """An empty id is none of the wanted ones, and satisfies each that is not wanted."""
    items = [Item("a"), Item("b", ds_id=["one"]), Item("c", ds_id=["!one"])]
    choose = fe.schedule.get_current_items
    assert names(choose(items, ds_id="one")) == "ab"
    assert names(choose(items, ds_id="two")) == "ac"
    assert names(choose(items, ds_id="")) == "ac"
    assert names(choose(items)) == "abc"


def test_current_items_by_epoch(fe: Fe) -> None:
    a, b = Item("a"), Item("b", ["eval"])
    items = [fe.schedule.EpochScheduler({1: a, 2: None, 3: b})]
    choose = fe.schedule.get_current_items
    assert [names(choose(items, epoch=epoch)) for epoch in (1, 2, 3)] == ["a", "", "b"]
    assert names(choose(items, run_modes="train", epoch=3)) == ""
    assert names(choose(items)) == "ab"


def half_cosine(part: float, high: float, low: float = 1e-6) -> float:
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * part))


@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 9])
def test_cosine_decay_starts_again_after_a_cycle(fe: Fe, time: int) -> None:
    expected = half_cosine(((time - 1) % 4 + 1) / 4, 0.1)
    assert fe.schedule.cosine_decay(time, 4, 0.1) == pytest.approx(expected)


def test_cosine_decay_ends_at_the_least(fe: Fe) -> None:
    assert fe.schedule.cosine_decay(4, 4, 0.1, min_lr=0.02) == pytest.approx(0.02)


@pytest.mark.parametrize(("time", "part"), [(2, 1.0), (4, 0.5), (6, 1.0), (10, 0.5), (14, 1.0)])
def test_cycles_may_grow(fe: Fe, time: int, part: float) -> None:
    """Cycles of two, four and eight epochs."""
    rate = fe.schedule.cosine_decay(time, 2, 0.1, cycle_multiplier=2)
    assert rate == pytest.approx(half_cosine(part, 0.1))


def test_before_the_start(fe: Fe) -> None:
    assert fe.schedule.cosine_decay(3, 4, 0.1, start=5) == pytest.approx(0.1)
    assert fe.schedule.cosine_decay(3, 4, 0.1, start=5, warmup=True) == pytest.approx(0.06)
    assert fe.schedule.cosine_decay(6, 4, 0.1, start=5) == pytest.approx(half_cosine(0.5, 0.1))


def test_cycles_do_not_shrink(fe: Fe) -> None:
    with pytest.raises(ValueError, match="multiplier"):
        fe.schedule.cosine_decay(6, 4, 0.1, cycle_multiplier=0)
