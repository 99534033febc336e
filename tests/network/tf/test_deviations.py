"""The deviations of arrays, and the judgement of compiled steps by them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fastnet.network.deviations import DisturbedStep, Excess, excesses
from fastnet.network.tf.deviations import deviation_of, disturb
from fastnet.network.verification_limits import TENSORFLOW

SOURCE = np.random.default_rng(0)


def compared(before: Any, expected: Any, compiled: Any, disturbed: Any = None) -> Excess | None:
    deviation = deviation_of(compiled, expected, "float32", before, before)
    steps = []
    if disturbed is not None:
        moved = deviation_of(disturbed, expected, "float32", before, before)
        steps.append(DisturbedStep([moved]))
    tolerance = TENSORFLOW.program_tolerances["float32"]
    return next(excesses([deviation], steps, tolerance, TENSORFLOW), None)


class TestChanges:
    BEFORE = SOURCE.standard_normal(1000).astype("float32")
    STEP = (1e-4 * SOURCE.standard_normal(1000)).astype("float32")

    @pytest.mark.parametrize(
        ("factor", "has_difference"),
        [(1.0, False), (1.0001, False), (1.1, True), (2.0, True), (0.0, True), (-1.0, True)],
    )
    def test_are_judged_and_not_values(self, factor: float, has_difference: bool) -> None:
        before, step = self.BEFORE, self.STEP
        found = compared(before, before + step, before + np.float32(factor) * step)
        assert (found is not None) is has_difference

    @pytest.mark.parametrize(
        ("factor", "has_difference"), [(1.0, False), (1.1, False), (2.0, True), (0.0, True)]
    )
    def test_of_which_signs_are_rounding_errors(self, factor: float, has_difference: bool) -> None:
        before, step = np.zeros(1000, "float32"), np.sign(self.STEP)
        compiled, disturbed = step.copy(), step.copy()
        compiled[:10] *= -1
        disturbed[5:15] *= -1
        found = compared(before, step, factor * compiled, disturbed)
        assert (found is not None) is has_difference

    @pytest.mark.parametrize(("size", "is_found"), [(100, True), (1, False)])
    def test_that_are_rounding_errors(self, size: int, is_found: bool) -> None:
        before = np.zeros(size, "float32")
        step, compiled = (1e-9 * SOURCE.standard_normal((2, size))).astype("float32")
        assert compared(before, step, 20 * compiled, -step) is None
        assert (compared(before, step, before, -step) is not None) is is_found

    def test_of_stored_values_that_round(self) -> None:
        before = np.ones(1000, "float32")
        step = np.float32(2.0**-23) * SOURCE.integers(0, 3, (2, 1000)).astype("float32")
        assert compared(before, before + step[0], before + step[1]) is None

    def test_without_a_reference(self) -> None:
        before = np.zeros(9, "float32")
        assert compared(before, before, before + np.float32(1e-8)) is None
        assert compared(before, before, before + np.float32(1e-4)) is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_elements_that_are_not_finite(value: float) -> None:
    expected = np.float32([1, value, 2])
    assert compared(None, expected, expected.copy()) is None
    assert compared(None, expected, np.float32([1, 0, 2])) is not None
    assert compared(None, np.float32([1, 0, 2]), expected) is not None
    # Another disturbed step whose elements are finite explains nothing.
    assert compared(None, expected, np.float32([1, 0, 2]), expected.copy()) is not None
    before = np.float32([0, 0, 1])
    assert compared(before, expected, expected.copy()) is None


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_integers_differ_where_those_of_a_disturbed_step_do(dtype: str) -> None:
    expected, compiled, disturbed = np.zeros((3, 10), dtype)
    compiled[:2] = disturbed[4:6] = 1
    assert compared(None, expected, compiled, disturbed) is None
    disturbed[5] = 0
    assert compared(None, expected, compiled, disturbed) is not None
    deviation = deviation_of(compiled, expected, "float32")
    assert deviation.describe("'y'", is_change=False) == "'y' differs in 0.2 of its elements"


def test_long_arrays_are_compared_to_the_end() -> None:
    expected = np.ones((1 << 20) + 5, "float32")
    compiled = expected.copy()
    compiled[-1] = 3000
    assert compared(None, expected, compiled) is not None
    deviation = deviation_of(compiled, expected, "float32")
    assert deviation.expected == pytest.approx(math.sqrt(expected.size))
    assert deviation.distance == pytest.approx(2999)


def test_disturbed_numbers_that_are_whole_stay() -> None:
    array = np.float32([[0, 3, -1], [math.inf, 0.1, -2.5]])
    found = disturb(array, 1e-6, np.random.default_rng(0))
    np.testing.assert_array_equal(found[:, :1], array[:, :1])
    np.testing.assert_array_equal(found[0], array[0])
    assert (found[1, 1:] != array[1, 1:]).all()
    np.testing.assert_allclose(found, array, 1e-4)
    assert disturb(np.arange(3), 1.0, np.random.default_rng(0)).tolist() == [0, 1, 2]
