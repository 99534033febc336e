"""The state of several ranks for another number of them, beside averages by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.network.run_state import state_for_rank

ONE, OTHER = np.array([1.0, 2.0]), np.array([5.0])


def saved(names: list[str], gradients: list[Any], weight: float | None = None) -> dict[str, Any]:
    state = {"merged": 2, "gradients": gradients, "weight": weight, "names": names}
    return {"states": {"ops/0": {"state": state}}, "random": {}, "variables": {}}


def merged(parts: list[dict[str, Any]], world_size: int = 1) -> dict[str, Any]:
    first, *others = parts
    made = state_for_rank(first, others, 0, world_size, lambda one: one)
    state: dict[str, Any] = made["states"]["ops/0"]["state"]
    return state


@pytest.mark.parametrize("names", [["a", "b"], ["", ""]])
def test_gradients_are_averaged_by_parameter_also_without_names(names: list[str]) -> None:
    """Parameters of an optimizer that are of no model have no name."""
    state = merged([saved(names, [ONE, OTHER]), saved(names, [3 * ONE, None])])
    assert state["names"] == names
    np.testing.assert_array_equal(state["gradients"][0], 2 * ONE)
    np.testing.assert_array_equal(state["gradients"][1], OTHER / 2)


def test_parameters_that_one_rank_has_frozen_meanwhile_are_averaged_with_zeros() -> None:
    state = merged([saved(["a"], [ONE]), saved(["a", "b"], [ONE, OTHER])])
    assert state["names"] == ["a", "b"]
    np.testing.assert_array_equal(state["gradients"][1], OTHER / 2)


@pytest.mark.parametrize("world_size", [1, 3])
def test_sums_of_gradients_and_weights_stay_the_same(world_size: int) -> None:
    state = merged([saved(["a"], [ONE], 3.0), saved(["a"], [3 * ONE], 9.0)], world_size)
    np.testing.assert_allclose(state["gradients"][0] * world_size, 4 * ONE)
    assert state["weight"] * world_size == 12.0
