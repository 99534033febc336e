"""An interrupt, wherever it comes: no gradient, deferred update, merged sum or lock stays.

Each program is run for each line of Python that stands between it and its ops, with an interrupt
raised the first time that the line is reached, and again the last time.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.compat import v1
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.network.programs import (
    batches,
    built,
    is_free,
    mlp,
    no_gradients,
    regression,
    seeded,
    supervised,
)

pytestmark = pytest.mark.slow

PACKAGE = os.path.dirname(fastnet.__file__) + os.sep
# what a profile makes of its times runs before and after the steps, and touches no network
SHOWING = os.path.join(PACKAGE, "profiling", "")
RECORDING = os.path.join(SHOWING, "recording.py")
# a line of a file, and which time it is reached, counted from 0
Place = tuple[str, int, int]
BATCHES = batches(3)


class Interrupt(BaseException):
    """What a user's Ctrl-C raises."""


class Interrupter:
    """Raises an interrupt at one of the lines that are run between a program and its ops.

    Args:
        at: Which; None for none.

    Attributes:
        reached: How often each line of a file was reached.
    """

    def __init__(self, at: Place | None) -> None:
        self.at = at
        self.reached: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Interrupter:
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, value: Any) -> Any:
        name = frame.f_code.co_filename
        is_between = name.startswith(PACKAGE) and (
            not name.startswith(SHOWING) or name == RECORDING
        )
        return self._line if is_between else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            before = self.reached[line]
            self.reached[line] += 1
            if self.at == (*line, before):
                raise Interrupt
        return self._line

    def places(self) -> list[Place]:
        """List the first and the last time that each line was reached."""
        times = ((line, time) for line, count in self.reached.items() for time in {0, count - 1})
        return [(*line, time) for line, time in times]


def begin_anew(program: Program) -> None:
    """Let each run of a program take the same way."""
    program.network.clear_plans()
    for op in program.updates:
        op.load_state_dict({"merged": 0, "gradients": [None] * len(op.state_dict()["gradients"])})


def places_of(program: Program) -> list[Place]:
    """List where a program can be interrupted."""
    begin_anew(program)
    with Interrupter(None) as interrupter:
        program.use(program.network)
    return interrupter.places()


def interrupt(program: Program, place: Place) -> bool:
    """Run a program and interrupt it; tell whether it came to that place."""
    begin_anew(program)
    try:
        with Interrupter(place):
            program.use(program.network)
    except Interrupt:
        return True
    return False


@dataclass
class Program:
    """A network, the program that uses it, and the same step by hand.

    Attributes:
        network: The network.
        models: Its models.
        use: Opens it and runs steps.
        by_hand: Given copies of the models and of the updates' states, and a batch, does what a
            step does, without fastnet.
        updates: Its UpdateOps that add gradients up.
    """

    network: Any
    models: Sequence[Any]
    use: Callable[[Any], None]
    by_hand: Callable[[Sequence[Any], Sequence[dict[str, Any]], Any], None]
    updates: Sequence[UpdateOp] = ()


def train(network: Any) -> None:
    with network(mode="train", epoch=1):
        for batch in BATCHES[:2]:
            network.run_step(batch)


def cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, labels)


def update(model: Any, loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    step(model)


def step(model: Any) -> None:
    model.current_optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


def classifier(models: Sequence[Any], states: Any, batch: Any) -> None:
    update(models[0], cross_entropy(models[0](batch["x"]), batch["t"]))


def plain() -> Program:
    model = built(mlp, "adam")
    ops = supervised(model)
    ops.append(LambdaOp(lambda y: y, "y", "z"))  # so that the update is not put off
    return Program(TorchNetwork(ops), [model], train, classifier)


def deferred() -> Program:
    model = built(mlp, "adam")
    return Program(TorchNetwork(supervised(model)), [model], train, classifier)


def profiled() -> Program:
    program = deferred()

    def use(network: Any) -> None:
        with fastnet.profile(network):
            train(network)

    program.use = use
    return program


def half_precision() -> Program:
    model = built(mlp, "sgd", mixed_precision=True)

    def by_hand(models: Sequence[Any], states: Any, batch: Any) -> None:
        with torch.autocast("cpu"):
            classifier(models, states, batch)

    return Program(TorchNetwork(supervised(model)), [model], train, by_hand)


def merging() -> Program:
    model = built(mlp, "sgd")
    ops = supervised(model, merge_grad=2)

    def use(network: Any) -> None:
        with network(mode="train", epoch=1):
            for batch in BATCHES:
                network.run_step(batch)

    def by_hand(models: Sequence[Any], states: Sequence[dict[str, Any]], batch: Any) -> None:
        (model,), (state,) = models, states
        cross_entropy(model(batch["x"]), batch["t"]).backward()  # type: ignore[no-untyped-call]
        if state["merged"] == 0:
            for parameter in model.parameters():
                parameter.grad = None
            return
        for parameter, merged in zip(model.parameters(), state["gradients"], strict=True):
            parameter.grad = (torch.as_tensor(merged) + parameter.grad) / 2
        step(model)

    return Program(TorchNetwork(ops), [model], use, by_hand, ops[-1:])


def given() -> Program:
    model = built(mlp, "adam")
    ops = [
        *supervised(model)[:2],
        GradientOp("loss", "grads", model=model),
        UpdateOp(model, "loss", gradients="grads"),
    ]
    return Program(TorchNetwork(ops), [model], train, classifier)


def inside() -> Program:
    model = built(mlp, "adam")
    ops = [
        ModelOp(model, "x", "y", mode="train"),
        CrossEntropy(("y", "t"), "loss", from_logits=True, mode="train"),
        UpdateOp(model, "loss"),
    ]
    return Program(TorchNetwork([Fuse(ops)]), [model], train, classifier)


def sliced() -> Program:
    model = built(mlp, "adam")
    slicers = [AxisSlicer(0, "x", unslice="y"), MeanUnslicer("loss")]
    network = TorchNetwork(regression(model), slicers=slicers)

    def use(network: Any) -> None:
        with network(mode="train", epoch=1):
            network.run_step({"x": BATCHES[0]["x"][:2]})

    def by_hand(models: Sequence[Any], states: Any, batch: Any) -> None:
        for one in batch["x"]:
            update(models[0], (models[0](one) ** 2).mean())

    return Program(network, [model], use, by_hand)


def postprocessed() -> Program:
    model = built(mlp, "adam")
    after = NumpyLambdaOp(lambda y: y + 1, "y", "z")
    network = TorchNetwork(supervised(model), postprocessing=after)
    return Program(network, [model], train, classifier)


def adversaries() -> Program:
    """A GAN: two losses over shared graphs, both updates put off."""
    made = built(lambda: seeded(lambda: nn.Linear(16, 16)), "sgd", model_name="made")
    judge = built(lambda: seeded(lambda: nn.Linear(16, 1)), "adam", model_name="judge")
    ops = [
        ModelOp(made, "x", "fake"),
        ModelOp(judge, "fake", "score"),
        ModelOp(judge, "x", "real"),
        LambdaOp(lambda score: -score.mean(), "score", "made_loss"),
        LambdaOp(lambda score, real: (score - real).mean(), ["score", "real"], "judge_loss"),
        UpdateOp(made, "made_loss"),
        UpdateOp(judge, "judge_loss"),
    ]

    def by_hand(models: Sequence[Any], states: Any, batch: Any) -> None:
        made, judge = models
        score = judge(made(batch["x"]))
        losses = -score.mean(), (score - judge(batch["x"])).mean()
        grads = [
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for model, loss in zip(models, losses, strict=True)
        ]
        for model, of_model in zip(models, grads, strict=True):
            for parameter, grad in zip(model.parameters(), of_model, strict=True):
                parameter.grad = grad
            step(model)

    return Program(TorchNetwork(ops), [made, judge], train, by_hand)


def failing() -> Program:
    """An op fails after an update was put off; the interrupt may come while that is cleaned up."""
    model = built(mlp, "adam")

    def check(y: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(y).all():
            raise ArithmeticError
        return y

    ops = supervised(model)
    ops[-1].defer = True
    ops.append(LambdaOp(check, "y", "z"))

    def use(network: Any) -> None:
        with network(mode="train", epoch=1):
            with contextlib.suppress(ArithmeticError):
                network.run_step({**BATCHES[0], "x": torch.full((8, 16), torch.inf)})
            network.run_step(BATCHES[1])

    return Program(TorchNetwork(ops), [model], use, classifier)


def loaded() -> Program:
    """The older API, where an interrupt may come before an epoch counts as loaded."""
    model = built(mlp, "adam")

    def use(network: Any) -> None:
        network.load_epoch("train", 1)
        try:
            network.run_step(BATCHES[0])
        finally:
            network.unload_epoch()

    return Program(v1.Network(supervised(model)), [model], use, classifier)


PROGRAMS = (
    plain,
    deferred,
    profiled,
    half_precision,
    merging,
    given,
    inside,
    sliced,
    postprocessed,
    adversaries,
    failing,
    loaded,
)


def merged_of(program: Program) -> list[dict[str, Any]]:
    return [copy.deepcopy(op.state_dict()) for op in program.updates]


def values_of(models: Sequence[nn.Module]) -> list[torch.Tensor]:
    return [value for model in models for value in model.state_dict().values()]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_at_every_line(make: Callable[[], Program]) -> None:
    program = seeded(make)
    places_of(program)  # what is done once in the life of a network is behind it
    places = places_of(program)
    interrupted = 0
    for place in places:
        interrupted += interrupt(program, place)
        if isinstance(program.network, v1.BaseNetwork):
            program.network.unload_epoch()
        check_clean(program, place)
    assert interrupted == len(places) > 40


def check_clean(program: Program, line: Place) -> None:
    """Check that nothing has stayed: the next step is the one by hand from the same weights."""
    assert no_gradients(*program.models), line
    with program.network(mode="infer", epoch=1):
        pass  # which a network that is in use would refuse
    assert is_free(program.network), line
    copies = copy.deepcopy(list(program.models))
    merged = merged_of(program)
    program.by_hand(copies, merged, BATCHES[2])
    if isinstance(program.network, v1.BaseNetwork):
        program.network.load_epoch("train", 1)
        program.network.run_step(BATCHES[2])
        program.network.unload_epoch()
    else:
        with program.network(mode="train", epoch=1):
            assert program.network.ctx_state["deferred"] == {}, line
            program.network.run_step(BATCHES[2])
    pairs = zip(values_of(program.models), values_of(copies), strict=True)
    assert all(torch.equal(own, by_hand) for own, by_hand in pairs), line
    assert no_gradients(*program.models), line


def test_merged_gradients_count_once() -> None:
    """A sum of gradients is what whole steps have left, or is used up as its update begins."""
    program = seeded(merging)
    whole = [(values_copy(program), 0)]
    with program.network(mode="train", epoch=1):
        for batch in BATCHES:
            program.network.run_step(batch)
            whole.append((values_copy(program), merged_of(program)[0]["merged"]))
    for place in places_of(program):
        program = seeded(merging)
        interrupt(program, place)
        now = values_copy(program), merged_of(program)[0]["merged"]
        assert now[1] == 0 or any(same(now, then) for then in whole), place
        assert any(same((now[0], 0), (then[0], 0)) for then in whole), place


def values_copy(program: Program) -> list[torch.Tensor]:
    return [value.clone() for value in values_of(program.models)]


def same(now: tuple[list[torch.Tensor], int], then: tuple[list[torch.Tensor], int]) -> bool:
    return now[1] == then[1] and all(map(torch.equal, now[0], then[0]))
