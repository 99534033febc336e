"""Cosine decay, against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastnet.schedule import cosine_decay

pytestmark = pytest.mark.fast


def by_definition(
    time: int, cycle_length: int, init_lr: float, min_lr: float, start: int, multiplier: int
) -> float:
    """Iterate over the cycles."""
    step = time - start + 1
    length = cycle_length
    while step > length:
        step -= length
        length *= multiplier
    return min_lr + (init_lr - min_lr) * (1 + math.cos(math.pi * step / length)) / 2


@given(
    time=st.integers(1, 300),
    cycle_length=st.integers(1, 50),
    init_lr=st.floats(1e-4, 1.0),
    min_lr=st.floats(0.0, 1e-4),
    start=st.integers(1, 20),
    multiplier=st.integers(1, 3),
)
def test_rate_follows_definition(
    time: int, cycle_length: int, init_lr: float, min_lr: float, start: int, multiplier: int
) -> None:
    rate = cosine_decay(time, cycle_length, init_lr, min_lr, start, multiplier)
    if time < start:
        assert rate == init_lr
        return
    expected = by_definition(time, cycle_length, init_lr, min_lr, start, multiplier)
    # At the end of a cycle, rounding may assign the step to the start of the next one.
    alternatives = [expected]
    if math.isclose(expected, min_lr, rel_tol=0, abs_tol=1e-12):
        alternatives.append(init_lr)
    assert any(math.isclose(rate, value, rel_tol=1e-9, abs_tol=1e-12) for value in alternatives)


def test_rate_before_start_rises_with_warmup() -> None:
    rates = [cosine_decay(t, 10, init_lr=1.0, start=5, warmup=True) for t in (1, 2, 4)]
    assert rates == pytest.approx([0.2, 0.4, 0.8])
    assert cosine_decay(4, 10, init_lr=1.0, start=5) == 1.0


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("length", [0, -3])
@pytest.mark.parametrize("time", [1, 9])
def test_cycle_length_that_is_not_positive_raises(time: int, length: int, multiplier: int) -> None:
    with pytest.raises(ValueError, match=f"cycle_length must be positive, but got {length}"):
        cosine_decay(time, length, init_lr=1.0, start=5, cycle_multiplier=multiplier)


@pytest.mark.parametrize("time", [1, 9])
def test_multiplier_below_1_raises(time: int) -> None:
    with pytest.raises(ValueError, match="cycle_multiplier must be at least 1, but got 0"):
        cosine_decay(time, 10, init_lr=1.0, start=5, cycle_multiplier=0)
