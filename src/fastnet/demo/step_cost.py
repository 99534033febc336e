"""What a step of fastnet costs beside the same step written by hand."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fastnet
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Mode

Batch = dict[str, Any]
Step = Callable[[Batch], Batch]

STEPS = 10  # a round: long enough for the clock, short enough to stay beside its neighbour


def fastnet_network(framework: ModuleType, model: Any) -> fastnet.BaseNetwork:
    """Make the network to time."""
    built = fastnet.build(lambda: model, optimizer_fn=framework.make_sgd, model_name="measured")
    return fastnet.Network(
        [
            ModelOp(built, inputs="image", outputs="logits"),
            CrossEntropy(
                inputs=("logits", "label"), outputs="loss", from_logits=True, mode="train"
            ),
            UpdateOp(built, loss_name="loss"),
        ]
    )


def show_step_cost(framework: ModuleType, batch: Batch, rounds: int) -> None:
    """Time both, on one thread, and print a table.

    Args:
        framework: Makes the model to time, and its steps written by hand.
        batch: What to run it on.
        rounds: How often each way is timed.
    """
    table = Table(title=f"Microseconds a step, one thread, {len(batch['label'])} images")
    for column in ("mode", "by hand", "fastnet", "ratio"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    ways: list[tuple[Mode, Any]] = [
        ("train", framework.train_by_hand),
        ("infer", framework.infer_by_hand),
    ]
    for mode, write in ways:
        model = framework.make_model()
        by_hand = write(framework.copy_model(model))
        network = fastnet_network(framework, model)
        with network(mode=mode, epoch=1):
            check_same(network.run_step(batch), by_hand(batch), mode)
            hand, ours = time_in_turn([by_hand, network.run_step], batch, rounds)
        ratios = [mine / theirs for mine, theirs in zip(ours, hand, strict=True)]
        table.add_row(mode, spread(hand, ".0f"), spread(ours, ".0f"), spread(ratios, ".3f"))
    table.caption = (
        f"Medians of {rounds} interleaved rounds of {STEPS} steps; in brackets the middle half."
    )
    Console().print(table)


def check_same(ours: Batch, theirs: Batch, mode: str) -> None:
    """Make sure that both do the same work before they are compared."""
    assert ours.keys() == theirs.keys(), f"{mode}: {set(ours)} and {set(theirs)}"
    for key, value in theirs.items():
        np.testing.assert_allclose(
            np.asarray(ours[key]), np.asarray(value), rtol=1e-5, atol=1e-6, err_msg=f"{mode}: {key}"
        )


def time_in_turn(steps: list[Step], batch: Batch, rounds: int) -> list[list[float]]:
    """Return the microseconds a step of each round, of each way to do it.

    A round of one is next to a round of the other, and who comes first changes, so that whatever
    else the machine does meets both alike.
    """
    taken: list[list[float]] = [[] for _ in steps]
    for step in steps:
        for _ in range(STEPS):
            step(batch)  # caches, allocators and branch predictors warm up
    gc.disable()  # or one of them would pay for the garbage of both
    try:
        for number in range(rounds):
            for offset in range(len(steps)):
                index = (number + offset) % len(steps)
                step = steps[index]
                start = perf_counter_ns()
                for _ in range(STEPS):
                    step(batch)
                taken[index].append((perf_counter_ns() - start) / STEPS / 1000)
    finally:
        gc.enable()
    return taken


def spread(values: list[float], form: str) -> str:
    """Write a median, and the quartiles around it."""
    if len(values) < 2:
        return f"{values[0]:{form}}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"
