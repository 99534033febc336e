"""Fits with FastEstimator's Estimator, with its Network replaced or not, in turn.

Each fit is a fresh process of an interpreter that has FastEstimator.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench import machine, processes
from bench.timing import Timing
from bench.workloads.fit import Figure
from bench.workloads.workload import Framework, weights

EPOCHS, BATCH, IMAGES = 10, 32, 1536
_ROUNDS_PER_FIT = 12
# Rounding errors grow: the tolerance of losses of the first steps, and of later losses and weights.
_FIRST_STEPS, _FIRST_TOLERANCE, _TOLERANCE = 100, 1e-6, 1e-5


@dataclass(frozen=True)
class Fit:
    """The measurements of one process; times are in nanoseconds."""

    steps: list[int]
    whole: int
    losses: list[float]
    weights: list[float]
    epochs: int = EPOCHS

    @property
    def later_steps(self) -> list[int]:
        """The steps after the first epoch, in which graphs are traced."""
        return self.steps[len(self.steps) // self.epochs :]

    @property
    def median_step(self) -> float:
        """The median of the later steps."""
        return statistics.median(self.later_steps)

    @property
    def shortest_step(self) -> float:
        """The shortest of the later steps."""
        return min(self.later_steps)


def count(rounds: int) -> int:
    """Return how many fits of each side stand for the rounds of a step.

    Example:
        >>> count(101), count(15), count(0)
        (8, 1, 1)
    """
    return max(1, rounds // _ROUNDS_PER_FIT)


def timing(fits: list[Fit], figure: Figure) -> Timing:
    """Return one figure of fits as rounds."""
    rounds = np.array([getattr(fit, figure) for fit in fits], dtype=float)
    return Timing(len(fits[0].later_steps), rounds)


@cache
def in_turn(framework: Framework, optimizer: str, times: int) -> dict[str, list[Fit]]:
    """Fit with FastEstimator's Network and with fastnet's in turn; the result is cached.

    Raises:
        RuntimeError: If a process fails.
        AssertionError: If losses or weights of the two sides differ.
    """
    found: dict[str, list[Fit]] = {"fastestimator": [], "fastnet": []}
    for turn in range(times):
        for side in list(found)[:: -1 if turn % 2 else 1]:
            with tempfile.TemporaryDirectory() as home:
                # FastEstimator writes its history to the home directory, and sets torch to as many
                # threads as there are cores.
                variables = {"HOME": home, "FE_NUM_THREADS": "1"}
                arguments = (framework, optimizer, side == "fastnet")
                result = processes.call("bench.fits:fit", *arguments, variables=variables)
            found[side].append(Fit(**result))
        check(found["fastestimator"][-1], found["fastnet"][-1])
    return found


def check(expected: Fit, result: Fit) -> None:
    """Raise `AssertionError` unless two fits have the same losses and weights."""
    assert len(result.losses) == len(expected.losses), "the numbers of steps differ"
    for step, (mine, other) in enumerate(zip(result.losses, expected.losses, strict=True)):
        allowed = _FIRST_TOLERANCE if step < _FIRST_STEPS else _TOLERANCE
        assert abs(mine - other) <= allowed * max(1.0, abs(other)), (
            f"loss of step {step}: {mine} instead of {other}"
        )
    np.testing.assert_allclose(result.weights, expected.weights, rtol=0, atol=_TOLERANCE)


def fit(framework: Framework, optimizer: str, replaced: bool) -> dict[str, Any]:
    """Train a 64-32-10 network on scikit-learn's digits, in this process.

    Args:
        framework: The framework.
        optimizer: The name of the optimizer.
        replaced: Whether fastnet's Network replaces FastEstimator's.

    Returns:
        The arguments of a `Fit`.
    """
    machine.use_threads(framework, 1)
    _initialize_samplers()
    if replaced:
        from fastnet.integrations.fastestimator import install

        install()
    fe: Any = import_module("fastestimator")
    ops: Any = import_module("fastestimator.op.tensorop")
    _seed(framework)
    pipeline = fe.Pipeline(train_data=_digits(), batch_size=BATCH, num_process=0)
    model = fe.build(partial(_model, framework), optimizer_fn=optimizer)
    network = fe.Network(
        [
            ops.model.ModelOp(model=model, inputs="x", outputs="scores"),
            ops.loss.CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            ops.model.UpdateOp(model=model, loss_name="loss"),
        ]
    )
    steps: list[int] = []
    losses: list[Any] = []
    network.run_step = _timed(network.run_step, steps, losses)
    estimator = fe.Estimator(pipeline, network, epochs=EPOCHS, log_steps=None)
    start = time.perf_counter_ns()
    estimator.fit(warmup=False)
    return {
        "whole": time.perf_counter_ns() - start,
        "steps": steps,
        "losses": [float(loss) for loss in losses],
        "weights": [float(weight) for array in weights(model) for weight in array.flat],
    }


def _timed(
    run_step: Callable[[Any], Any], steps: list[int], losses: list[Any]
) -> Callable[[Any], Any]:
    now = time.perf_counter_ns

    def timed(batch: Any) -> Any:
        start = now()
        result = run_step(batch)
        steps.append(now() - start)
        losses.append(result["loss"])
        return result

    return timed


def _digits() -> Any:
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = data.data[:IMAGES] / 16, data.target[:IMAGES]
    dataset: Any = import_module("fastestimator.dataset")
    return dataset.NumpyDataset({"x": x.astype("float32"), "y": y.astype("int64")})


def _model(framework: Framework) -> Any:
    if framework == "torch":
        from torch import nn

        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
    )


def _initialize_samplers() -> None:
    """Let FastEstimator pass a dataset to torch's Sampler, which no longer accepts one."""
    from torch.utils.data import Sampler

    if "__init__" not in vars(Sampler):

        def initialize(self: Any, data_source: Any = None) -> None:
            object.__init__(self)

        Sampler.__init__ = initialize  # type: ignore[method-assign]


def _seed(framework: Framework) -> None:
    """Draw the same weights on each side, and read the images in the same order."""
    import torch

    # A thread of tf.data reads ahead; the order must not depend on its progress.
    loader: Any = import_module("fastestimator.dataset.dataloader")
    loader.random = SimpleNamespace(
        shuffle=lambda items: random.Random(0).shuffle(items), randint=random.randint
    )
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    if framework == "tf":
        import tensorflow as tf

        tf.keras.utils.set_random_seed(0)
