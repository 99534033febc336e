"""What a step of fastnet costs beside the same step written by hand in PyTorch."""

from __future__ import annotations

import copy
import gc
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fastnet
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], dict[str, torch.Tensor]]

STEPS = 10  # a round: long enough for the clock, short enough to stay beside its neighbour


def fastnet_networks(model: nn.Module) -> dict[str, fastnet.BaseNetwork]:
    """Make a network to time for each mode."""
    built = fastnet.build(lambda: model, optimizer_fn="sgd", model_name="measured")
    ops = [
        ModelOp(built, inputs="image", outputs="logits"),
        CrossEntropy(inputs=("logits", "label"), outputs="loss", from_logits=True),
        UpdateOp(built, loss_name="loss"),
    ]
    return {mode: fastnet.Network(ops) for mode in ("train", "infer")}


def manual_steps(model: nn.Module) -> dict[str, Step]:
    """Write the same steps by hand: the same calls, and results that hold no graph.

    The model must be in the step's mode. fastnet sees to that at each step, but who writes a loop
    by hand does it once.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(batch: Batch) -> dict[str, torch.Tensor]:
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {**batch, "logits": logits.detach(), "loss": loss.detach()}

    def infer(batch: Batch) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {**batch, "logits": model(batch["image"])}

    return {"train": train, "infer": infer}


def show_step_cost(make_model: Callable[[], nn.Module], batch: Batch, rounds: int) -> None:
    """Time both, and print a table.

    Args:
        make_model: Makes the model to time.
        batch: What to run it on.
        rounds: How often each way is timed.
    """
    model = make_model()
    model_by_hand = copy.deepcopy(model)
    by_hand = manual_steps(model_by_hand)
    threads = "one thread" if torch.get_num_threads() == 1 else "several threads"
    table = Table(title=f"Microseconds a step, {threads}, {len(batch['label'])} images")
    for column in ("mode", "by hand", "fastnet", "ratio"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for mode, network in fastnet_networks(model).items():
        model_by_hand.train(mode == "train")
        with network(mode=mode, epoch=1):
            check_same(network.run_step(batch), by_hand[mode](batch), mode)
            hand, ours = time_in_turn([by_hand[mode], network.run_step], batch, rounds)
        ratios = [mine / theirs for mine, theirs in zip(ours, hand, strict=True)]
        table.add_row(mode, spread(hand, ".0f"), spread(ours, ".0f"), spread(ratios, ".3f"))
    table.caption = (
        f"Medians of {rounds} interleaved rounds of {STEPS} steps; in brackets the middle half."
    )
    Console().print(table)


def check_same(ours: dict[str, Any], theirs: dict[str, Any], mode: str) -> None:
    """Make sure that both do the same work before they are compared."""
    assert ours.keys() == theirs.keys(), f"{mode}: {set(ours)} and {set(theirs)}"
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, msg=lambda text: f"{mode}: {text}")


def time_in_turn(steps: list[Step], batch: Batch, rounds: int) -> list[list[float]]:
    """Give the microseconds a step of each round, of each way to do it.

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
