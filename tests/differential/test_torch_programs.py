"""Random torch programs that change as they go: equal bit for bit to a hand-written loop.

`FASTNET_PROGRAMS=5000` runs more of them than each change to the code is tested by, and
`FASTNET_FIRST_PROGRAM=1234 FASTNET_PROGRAMS=1` just one, whose number a failure tells.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import pytest

from tests.differential.comparing import Seen, first_difference, seeds
from tests.differential.programs import Change, Close, Open, Program, Step
from tests.differential.torch_by_hand import ByHand
from tests.differential.torch_changes import apply
from tests.differential.torch_drawing import draw
from tests.differential.torch_on_fastnet import OnFastnet
from tests.differential.torch_side import AROUND, Interrupt, Side, make_batch
from tests.torch_settings import one_thread, settings_are_put_back

__all__ = ["one_thread", "settings_are_put_back"]


def perform(program: Program, side: Side) -> Seen:
    """Run a program one way, and take down what it did at each action."""
    seen: Seen = []
    around = ExitStack()
    with around:
        for action in program.actions:
            told: Any = None
            try:
                if isinstance(action, Open):
                    around.enter_context(AROUND[action.around]())
                    side.open(action)
                elif isinstance(action, Close):
                    side.close()
                    around.close()
                elif isinstance(action, Change):
                    apply(side, action)
                else:
                    told = _step(side, action)
            except (Exception, Interrupt) as error:
                told = error
            seen.append((told, side.observe() if isinstance(action, Step) else None))
    return seen


def _step(side: Side, action: Step) -> Any:
    batch = make_batch(action)
    side.failing = action.fails
    try:
        with AROUND[action.around]():
            return side.step(batch)
    finally:
        side.failing = None


@pytest.mark.parametrize("seed", seeds(300))
def test_program(seed: int) -> None:
    program = draw(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = perform(program, ByHand(program))
        actual = perform(program, OnFastnet(program))
    found = first_difference(program.actions, expected, actual)
    if found is not None:
        pytest.fail(f"{found}\n\n{program}", pytrace=False)
