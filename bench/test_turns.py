"""Single steps in turn: small differences of long steps."""

from __future__ import annotations

import gc
import random
import time

import pytest

from bench import turns
from bench.program import Program, unchanged


def test_programs_take_turns() -> None:
    order: list[str] = []
    programs = {name: Program(order.append, name) for name in "ab"}
    turns.quiet_steps(programs, budget_ns=1)
    both = "".join(order[-80:])  # the fewest turns, behind the warm-up
    rounds = [both[start : start + 2] for start in range(0, 80, 2)]
    # none is always behind the same one
    assert set(rounds) == {"ab", "ba"}
    assert gc.isenabled()


def test_quiet_steps_are_those_that_nothing_disturbed() -> None:
    waits = iter(range(1000))

    def disturbed(_: object) -> None:
        time.sleep(0.02 if next(waits) % 2 else 0.001)

    quiet = turns.quiet_steps({"disturbed": Program(disturbed)}, budget_ns=1)
    assert 0.001e9 <= quiet["disturbed"] < 0.02e9


def test_plain_steps_are_taken_off_before_calls_are() -> None:
    quiet = {"fastnet": 9.0, "fastnet, plain": 3.0, "tf_eager": 5.0}
    assert turns.over_calls(quiet, "fastnet", "tf_eager") == {"least": 1.0, "step": 5.0}
    quiet["tf_eager, plain"] = 2.0
    assert turns.over_calls(quiet, "fastnet", "tf_eager") == {"least": 3.0, "step": 3.0}


def test_fresh_arguments_are_used_once() -> None:
    used: list[object] = []
    turns.quiet_steps({"a": Program(used.append, fresh=object)}, budget_ns=1)
    assert len(set(map(id, used))) == len(used)


def test_all_steps_of_a_turn_draw_alike() -> None:
    drawn: dict[str, list[float]] = {"a": [], "b": []}
    programs = {
        name: Program(lambda _, each=each: each.append(random.random()))
        for name, each in drawn.items()
    }
    turns.quiet_steps(programs, budget_ns=1, before=lambda: random.seed(0))
    assert drawn["a"][-40:] == drawn["b"][-40:] == [random.Random(0).random()] * 40


def test_what_is_done_before_a_step_is_not_timed() -> None:
    quiet = turns.quiet_steps({"a": Program(unchanged)}, 1, before=lambda: time.sleep(0.001))
    assert quiet["a"] < 0.001e9


def test_an_error_leaves_the_garbage_collector_on() -> None:
    steps = iter([None] * 50)
    with pytest.raises(StopIteration):
        turns.quiet_steps({"a": Program(lambda _: next(steps))}, budget_ns=1)
    assert gc.isenabled()
