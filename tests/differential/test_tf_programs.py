"""Random TensorFlow programs that change as they run: eagerly, as graphs, compiled, and by hand.

How many of them run, and how to run one, is said in test_torch_programs.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.differential.comparing import Seen, first_difference, seeds
from tests.network.keras_models import keras, tf

pytestmark = [pytest.mark.tf, pytest.mark.slow]

from tests.differential.programs import Change, Close, Open, Program
from tests.differential.tf_by_hand import ByHand
from tests.differential.tf_on_fastnet import OnFastnet
from tests.differential.tf_programs import draw
from tests.differential.tf_side import Side, apply, make_batch, make_model

# sums are added up in another order in a graph, and an update by Adam divides by small ones
CLOSE = 1e-4


@pytest.fixture(autouse=True)
def names_are_forgotten() -> Iterator[None]:
    """Let no program's models and graphs outlive it."""
    yield
    keras.backend.clear_session()


def first_weights(program: Program) -> dict[str, Any]:
    """Draw the first weights of a program's models."""
    source = np.random.default_rng(program.seed)
    weights = {}
    for name, spec in program.models.items():
        arrays = make_model(spec.kind).get_weights()
        # what divides, a moving variance, stays
        weights[name] = [
            one if one.size and one.min() == 1 else source.standard_normal(one.shape) * 0.5
            for one in arrays
        ]
    return weights


def perform(program: Program, side: Side) -> Seen:
    """Run a program one way, and take down what it did at each action."""
    seen: Seen = []
    for action in program.actions:
        told: Any = None
        try:
            if isinstance(action, Open):
                side.open(action)
            elif isinstance(action, Close):
                side.close()
            elif isinstance(action, Change):
                apply(side, action)
            else:
                told = _arrays(side.step(make_batch(action, side.knob)))
        except Exception as error:
            told = error
        seen.append((told, side.observe()))
    return seen


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(one) for key, one in value.items() if key != "knob"}
    if isinstance(value, (list, tuple)):
        return [_arrays(one) for one in value]
    return value.numpy() if tf.is_tensor(value) else value


@pytest.mark.parametrize("seed", seeds(100))
def test_program(seed: int) -> None:
    program = draw(seed)
    weights = first_weights(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_hand = perform(program, ByHand(program, weights))
        eagerly = perform(program, OnFastnet(program, weights, eager=True))
        in_graph = perform(program, OnFastnet(program, weights, eager=False))
        ways = [("eagerly", eagerly), ("in a graph", in_graph)]
        if seed % 3 == 0:
            on_fastnet = OnFastnet(program, weights, eager=False, compile=True)
            ways.append(("compiled", perform(program, on_fastnet)))
    for way, actual in ways:
        found = first_difference(program.actions, by_hand, actual, CLOSE, same_errors=False)
        if found is not None:
            pytest.fail(f"{way}: {found}\n\n{program}", pytrace=False)
