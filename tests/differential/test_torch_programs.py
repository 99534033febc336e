"""Random torch programs that change as they go, beside a hand-written loop.

Eager steps are equal to it bit for bit, compiled ones up to the rounding of float64.

`FASTNET_PROGRAMS=5000` runs more of them than each change to the code is tested by, and
`FASTNET_FIRST_PROGRAM=1234 FASTNET_PROGRAMS=1` just one, whose number a failure tells.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.differential.comparing import Seen, first_difference, seeds
from tests.differential.programs import Change, Close, Open, Program, Step
from tests.differential.torch_by_hand import ByHand
from tests.differential.torch_changes import apply
from tests.differential.torch_drawing import draw
from tests.differential.torch_on_fastnet import OnFastnet
from tests.differential.torch_side import AROUND, Interrupt, Side, make_batch
from tests.torch_settings import one_thread, settings_are_put_back

__all__ = ["one_thread", "settings_are_put_back"]


# Gradients that are rounding errors are small beside the eps of the optimizers in float64.
CLOSE = 1e-6


def perform(program: Program, side: Side, interrupts: Mapping[int, str] | None = None) -> Seen:
    """Run a program one way, and take down what it did at each action.

    `interrupts` says in which steps an interrupt has come in a compiled network, and where.
    """
    seen: Seen = []
    around = ExitStack()
    torch.manual_seed(program.seed)
    np.random.seed(program.seed)
    random.seed(program.seed)
    with around:
        for number, action in enumerate(program.actions):
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
                    told = _step(side, action, (interrupts or {}).get(number))
            except (Exception, Interrupt) as error:
                told = error
            seen.append((told, side.observe() if isinstance(action, Step) else None))
    return seen


def _step(side: Side, action: Step, interrupt: str | None) -> Any:
    batch = make_batch(action)
    if interrupt == "in program":
        raise Interrupt(interrupt)  # Nothing has been computed.
    side.tripwire.failing = action.fails
    side.in_program = action.fails if action.fails == "in program" else None
    try:
        with AROUND[action.around]():
            result = side.step(batch)
    finally:
        side.tripwire.failing = side.in_program = None
    if interrupt == "in trace":
        raise Interrupt(interrupt)  # A trace follows a complete step.
    return result


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


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("seed", seeds(30))
def test_compiled_program(seed: int) -> None:
    program = draw(seed, compiled=True)
    with warnings.catch_warnings(), float64():
        warnings.simplefilter("ignore")
        actual = perform(program, OnFastnet(program))
        interrupts = {
            number: str(told).partition("\n")[0]
            for number, (told, _) in enumerate(actual)
            if isinstance(told, Interrupt)
        }
        expected = perform(program, ByHand(program), interrupts)
    found = first_difference(program.actions, expected, actual, CLOSE)
    if found is not None:
        pytest.fail(f"{found}\n\n{program}", pytrace=False)
