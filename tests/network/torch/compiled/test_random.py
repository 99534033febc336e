"""Random programs that change as they go: captured steps are those that run eagerly.

Each change to the code is tested by the same ones; `FASTNET_PROGRAMS=2000` runs so many others.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    assert_same_weights,
    batches,
    built,
    cross_entropy,
)
from tests.network.torch.compiled.test_inductor import by_inductor

PROGRAMS = int(os.environ.get("FASTNET_PROGRAMS", "300"))
PARTS = 4

MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
    "norm": lambda: nn.Sequential(
        nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.4), nn.Linear(4, 3)),
}


class Weighing:
    """Has a number, and a tensor, by which it weighs."""

    weight = 1.0

    def __init__(self) -> None:
        self.held = torch.tensor(1.0)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.weight * self.held


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bend": torch.tanh,
    # less of it than all: a bias without a gradient moves by what rounding leaves of it
    "center": lambda value: value - value.mean(0) / 2,
    "share": lambda value: value * 4 / value.shape[0],
    "many": lambda value: value * 0.5 if value.shape[0] > 6 else value + 0.1,
    "column": lambda value: value + value[:, :1],
    "each": lambda value: value * len(value) / 5,
    "clip": lambda value: torch.where(value > 0.5, value * 0.9, value),
}


def look(value: torch.Tensor) -> torch.Tensor:
    """Look at values, so that the op runs by itself."""
    float(value.detach().sum())
    return value * 1


CHANGES = [
    *("rate", "decay", "optimizer", "load", "freeze", "thaw", "size", "size", "attribute", "held"),
    *("state", "hook", "mode", "eager", "nothing"),
]

# The last one says whether the change happens between two steps of an epoch.
change = st.tuples(st.sampled_from(CHANGES), st.integers(1, 9), st.booleans())
programs = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "model": st.sampled_from(sorted(MODELS)),
        "functions": st.lists(st.sampled_from(sorted(FUNCTIONS)), max_size=3),
        # where ops are divided, if anywhere
        "looking": st.sampled_from([None, None, None, "x", "pred", "loss"]),
        "scheduled": st.sampled_from([None, "repeat", "epoch"]),
        "head": st.booleans(),
        "dynamic": st.sampled_from([None, None, True, False]),
        "ragged": st.booleans(),
        # Every how many steps the batch has arrays; 0 for never.
        "arrays": st.sampled_from([0, 0, 1, 2]),
        "changes": st.lists(change, min_size=1, max_size=4),
        "seed": st.integers(0, 2**16),
    }
)


class Side:
    """The network of a program, and what of it can be changed.

    Args:
        program: What was drawn.
        compile: How its steps run.
    """

    def __init__(self, program: dict[str, Any], compile: Any) -> None:
        optimizer = OPTIMIZERS[program["optimizer"]]
        self.models = [built(MODELS[program["model"]], optimizer, program["seed"])]
        self.weighing = Weighing()
        looking = program["looking"]
        ops: list[Any] = [LambdaOp(look, "x", "x")] if looking == "x" else []
        ops.append(ModelOp(self.models[0], "x", "pred"))
        ops += [LambdaOp(look, "pred", "pred")] if looking == "pred" else []
        ops += [LambdaOp(FUNCTIONS[name], "pred", "pred") for name in program["functions"]]
        extra = LambdaOp(lambda value: value * 1.5, "pred", "pred")
        if program["scheduled"] == "repeat":
            ops.append(RepeatScheduler([extra, None]))
        elif program["scheduled"] == "epoch":
            ops.append(EpochScheduler({1: None, 3: extra, 5: LambdaOp(abs, "pred", "pred")}))
        if program["head"]:
            self.models.append(built(lambda: nn.Linear(3, 2), optimizer, program["seed"] + 1))
            ops += [
                ModelOp(self.models[1], "pred", "aux"),
                LambdaOp(lambda aux: functional.softplus(aux).mean(), "aux", "second"),
                UpdateOp(self.models[1], "second"),
            ]
        ops += [
            LambdaOp(cross_entropy, ["pred", "y"], "loss", mode="!infer"),
            LambdaOp(self.weighing, "loss", "loss", mode="!infer"),
            UpdateOp(self.models[0], "loss"),
        ]
        ops += [LambdaOp(look, "loss", "seen", mode="!infer")] if looking == "loss" else []
        self.network = TorchNetwork(ops, dynamic=program["dynamic"], compile=compile)
        self.kept = [copy.deepcopy(model.state_dict()) for model in self.models]
        self.ragged, self.arrays = program["ragged"], program["arrays"]
        self.mode, self.eager, self.size, self.epoch = "train", False, 5, 1

    def change(self, what: str, number: int) -> None:
        """Change something."""
        model = self.models[number % len(self.models)]
        group = model.current_optimizer.param_groups[0]
        match what:
            case "rate":
                group["lr"] *= 0.7
            case "decay":
                group["weight_decay"] = 0.01 * (number % 3)
            case "optimizer":
                names = sorted(OPTIMIZERS)
                model.optimizer = OPTIMIZERS[names[number % len(names)]](model.parameters())
                model.optimizer.scaler = None
            case "load":
                model.load_state_dict(self.kept[number % len(self.models)])
            case "freeze" | "thaw":
                next(model.parameters()).requires_grad_(what == "thaw")
            case "size":
                self.size = max(2, number)
            case "attribute":
                self.weighing.weight = float(number)
            case "held":
                self.weighing.held = torch.tensor(float(number) / 3)
            case "state":
                optimizer = model.current_optimizer
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            case "hook":
                model.register_forward_hook(lambda module, inputs, output: output * number / 5)
            case "mode":
                self.mode = ("train", "eval", "infer")[number % 3]
            case "eager":
                self.eager = not self.eager

    def steps(self, count: int, seed: int, change: tuple[str, int]) -> list[dict[str, Any]]:
        """Run an epoch with a change halfway, whose last batch may be of another size."""
        found = []
        torch.manual_seed(seed)
        with self.network(self.mode, self.epoch, eager=self.eager):
            for place in range(count):
                if place == count // 2:
                    self.change(*change)
                is_last = self.ragged and place == count - 1
                size = self.size // 2 + 2 if is_last else self.size
                batch: dict[str, Any] = dict(batches(1, size, seed + place)[0])
                if self.arrays and place % self.arrays == 0:
                    batch = {key: value.numpy() for key, value in batch.items()}
                found.append(self.network.run_step(batch))
        self.epoch += 1
        return found


@contextmanager
def _of_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run(program: dict[str, Any], backend: str, seen: Counter[str] | None = None) -> None:
    """Run a program captured and eagerly, and compare what comes of it in each step.

    What runs as it was captured is compared in float64, where rounding hides nothing: in float32 a
    norm of two rows makes of it as much as of a change that was missed.
    """
    is_exact = backend == "eager"
    with _of_type(torch.float64 if is_exact else torch.float32):
        _run(program, backend, 1e-4 if is_exact else 1.0, seen)


def _run(
    program: dict[str, Any], backend: str, strictness: float, seen: Counter[str] | None
) -> None:
    options = CompileOptions(backend, max_programs=32, fallback_random=True, verify=None)
    sides = [Side(program, options), Side(program, False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, (what, number, between) in enumerate(
            [("nothing", 3, False), *program["changes"]]
        ):
            halfway = (what, number) if between else ("nothing", 0)
            found = []
            for side in sides:
                if not between:
                    side.change(what, number)
                count = (2 + number % 3) * (1 + between)
                found.append(side.steps(count, program["seed"] + 10 * place, halfway))
            for one, other in zip(*found, strict=True):
                assert one.keys() == other.keys()
                for key, value in other.items():
                    rtol, atol = 1e-4 * strictness, 1e-5 * strictness
                    torch.testing.assert_close(one[key], value, rtol=rtol, atol=atol, msg=key)
            assert sides[0].models[0].training is sides[1].models[0].training
    for model, expected in zip(sides[0].models, sides[1].models, strict=True):
        rtol, of_largest = 1e-3 * strictness, 1e-5 * strictness
        assert_same_weights(model, expected, rtol, of_largest, least=1e-6 * strictness)
    traces = sides[0].network.traces
    assert program["looking"] or any(one.fallback is None for one in traces)
    for one in traces if seen is not None else ():
        seen[one.fallback or one.reason.partition(";")[0]] += 1


def _often(times: int) -> Any:
    return settings(
        max_examples=times,
        derandomize="FASTNET_PROGRAMS" not in os.environ,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@_often(5)
@given(program=programs)
def test_some_random_programs(program: dict[str, Any]) -> None:
    run(program, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part: int) -> None:
    seen: Counter[str] = Counter()
    ran = 0
    count = -(-PROGRAMS // PARTS)

    @_often(count)
    @given(program=programs)
    def each(program: dict[str, Any]) -> None:
        nonlocal ran
        ran += 1
        run(program, "eager", seen)

    # otherwise all parts would run the same ones
    (each if "FASTNET_PROGRAMS" in os.environ else seed(part)(each))()
    # what it is to find has happened
    assert ran >= count
    print(f"{ran} programs", *seen.most_common(), sep="\n")
    assert any(reason.startswith("a batch has another") for reason in seen)


@by_inductor
@pytest.mark.slow
@_often(3)
@given(program=programs)
def test_some_random_programs_by_inductor(program: dict[str, Any]) -> None:
    run({**program, "changes": program["changes"][:2]}, "inductor")
