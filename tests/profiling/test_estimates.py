"""What blocks tell: against tables of Student's t, and in simulated runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastnet.profiling.blocks import Blocks
from fastnet.profiling.comparison import Comparison
from fastnet.profiling.estimates import Estimate, adjusted, chance, quantile
from fastnet.profiling.rows import Row, Section, Stats

Series = Callable[[np.random.Generator, int], Any]
STEPS = 600
RUNS = 200
# what comparisons do not go by
STATS = vars(Stats.of(np.ones(2)))

# two-sided quantiles as tables of Student's t give them
TABLE = {
    (0.95, 1): 12.706,
    (0.95, 2): 4.303,
    (0.95, 3): 3.182,
    (0.95, 10): 2.228,
    (0.95, 30): 2.042,
    (0.95, 120): 1.980,
    (0.99, 1): 63.657,
    (0.99, 2): 9.925,
    (0.99, 5): 4.032,
    (0.99, 12): 3.055,
    (0.999, 7): 5.408,
}


@pytest.mark.parametrize(("level", "freedom"), TABLE)
def test_students_t(level: float, freedom: int) -> None:
    expected = TABLE[level, freedom]
    assert quantile(level, freedom) == pytest.approx(expected, abs=6e-4)
    assert chance(expected, freedom) == pytest.approx(1 - level, rel=1e-3)
    # rounded down: the surer side
    assert quantile(level, freedom + 0.9) == quantile(level, freedom)


def test_the_difference_of_two_runs() -> None:
    """Welch's: 5 and 7 with errors 3 and 4 differ by 2, with the error 5."""
    difference = Estimate(7.0, 4.0, 10.0) - Estimate(5.0, 3.0, 10.0)
    assert (difference.mean, difference.error) == (2.0, 5.0)
    assert difference.freedom == pytest.approx(625 / (81 / 10 + 256 / 10))


def test_independent_blocks_have_the_textbook_error() -> None:
    source = np.random.default_rng(0)
    errors = [Estimate.of(source.normal(0, 1, 20)).error for _ in range(500)]
    assert np.median(errors) == pytest.approx(1 / np.sqrt(20), rel=0.15)


def test_values_that_are_all_the_same() -> None:
    same = Estimate.of([2.0] * 9) - Estimate.of([2.0] * 9)
    other = Estimate.of([2.0] * 9) - Estimate.of([1.0] * 9)
    assert (same.chance(), same.reach()) == (1.0, 0.0)
    assert (other.chance(), other.reach()) == (0.0, 0.0)


def test_holm() -> None:
    """The least of four counts four times, the next one three times, and no less than that."""
    assert adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert adjusted([]) == []


def white(source: np.random.Generator, steps: int) -> Any:
    return 1 + 0.2 * source.gamma(1.0, 1.0, steps)


def drifting(source: np.random.Generator, steps: int) -> Any:
    """A machine whose speed wanders, over a dozen blocks and more."""
    level = np.zeros(steps)
    pushes = source.normal(0, 0.01, steps)
    for step in range(1, steps):
        level[step] = 0.99 * level[step - 1] + pushes[step]
    return 1 + level + 0.05 * source.normal(size=steps)


def stepping(source: np.random.Generator, steps: int) -> Any:
    """A machine that has another speed from time to time."""
    changes = source.random(steps) < 8 / steps
    return 1 + source.normal(0, 0.05, steps)[np.cumsum(changes)] + 0.05 * source.normal(size=steps)


def section(*parts: Any) -> Section:
    """Make a section of steps that these parts add up to."""
    times = np.stack(parts)
    blocks = Blocks.of(None, times.shape[1], 1)
    rows = [
        Row(name, kind, None, "train", STEPS, **STATS, blocks=blocks.medians(each))
        for name, kind, each in [
            ("step", "step", times.sum(axis=0)),
            *((f"op {place}", "op", part) for place, part in enumerate(times)),
        ]
    ]
    return Section("train", "train", False, STEPS, rows[0], tuple(rows[1:]))


def verdicts(series: Series, grown: float, least: float) -> list[str]:
    """Compare pairs of runs, the second of which takes longer, and list what is said."""
    source = np.random.default_rng(0)
    found = []
    for _ in range(RUNS):
        one, other = series(source, STEPS), series(source, STEPS) * grown
        comparison = Comparison.of([section(one)], [section(other)], least)
        found.append(comparison.steps[0].verdict)
    return found


@pytest.mark.parametrize("series", [white, drifting, stepping])
@pytest.mark.parametrize("least", [0.0, 0.05])
def test_the_same_step_seldom_has_a_verdict(series: Series, least: float) -> None:
    """Even with no least effect it is one in twenty, and with it fewer."""
    found = verdicts(series, 1.0, least)
    wrong = sum(verdict in ("grew", "shrank") for verdict in found)
    # three standard errors above one in twenty are 8 %; drift costs more, as no run sees all of it
    assert wrong <= (0.11 if series is not white and not least else 0.08) * RUNS


def test_a_tenth_more_is_found() -> None:
    assert verdicts(white, 1.1, 0.05).count("grew") >= 0.95 * RUNS


@pytest.mark.parametrize("series", [white, drifting, stepping])
def test_what_is_not_found_is_not_denied(series: Series) -> None:
    """A tenth more is found, or too noisy to tell; seldom is it said to be the same."""
    found = verdicts(series, 1.1, 0.05)
    assert found.count("") <= 0.01 * RUNS
    assert found.count("shrank") <= 0.005 * RUNS


def test_many_parts_do_not_cry_wolf() -> None:
    source = np.random.default_rng(0)
    wrong = 0
    for _ in range(60):
        one, other = (section(*(white(source, 200) for _ in range(30))) for _ in range(2))
        changed = Comparison.of([one], [other], 0.0).changed
        # what is not a hundredth of the step has none either, so let all of them count
        wrong += bool(changed)
    assert wrong <= 7  # one table in twenty, give or take two standard errors


def test_one_part_among_many_is_found() -> None:
    source = np.random.default_rng(0)
    parts = [white(source, STEPS) for _ in range(40)]
    later = [white(source, STEPS) for _ in range(40)]
    later[7] = later[7] * 2
    comparison = Comparison.of([section(*parts)], [section(*later)])
    assert [(row.name, row.verdict) for row in comparison.changed] == [("op 7", "grew")]
