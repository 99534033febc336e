"""FastEstimator's own ops, schedulers, slicers and models inside a fastnet network."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrations import graphs
from tests.integrations.graphs import Opening
from tests.integrations.sides import LOSS, Sides, assert_same, batches, mlp, momenta, steps
from tests.integrations.test_random_steps import (
    batch_keys,
    filled,
    make_op,
    make_slicer,
    stepped,
)


class Mixture:
    """A package made of two: each thing of it comes from the one that is asked for then."""

    def __init__(self, sides: Sides, choose: Callable[[str], bool]) -> None:
        self._sides = sides
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        return _Part(self._sides, self._choose, name)


class _Part:
    def __init__(self, sides: Sides, choose: Callable[[str], bool], path: str) -> None:
        self._sides, self._choose, self._path = sides, choose, path

    def __getattr__(self, name: str) -> _Part:
        return _Part(self._sides, self._choose, f"{self._path}.{name}")

    def __call__(self, *args: Any, **settings: Any) -> Any:
        # networks are always fastnet's: they are what is tested
        of_fastnet = "etwork" in self._path or self._choose(self._path)
        # FastEstimator's build knows its own schedulers only
        if self._path == "build" and isinstance(args[1], self._sides.fastnet.schedule.Scheduler):
            of_fastnet = True
        found: Any = self._sides.fastnet if of_fastnet else self._sides.fastestimator
        for name in self._path.split("."):
            found = getattr(found, name)
        return found(*args, **settings)


def all_of_fastestimator(path: str) -> bool:
    return False


def in_turn() -> Callable[[str], bool]:
    turns = itertools.cycle([True, False])
    return lambda path: next(turns)


def in_other_turn() -> Callable[[str], bool]:
    turns = itertools.cycle([False, True, True])
    return lambda path: next(turns)


def only(part: str) -> Callable[[str], bool]:
    return lambda path: part not in path


CHOICES = {
    "all": lambda: all_of_fastestimator,
    "in turn": in_turn,
    "in other turn": in_other_turn,
    "models": lambda: only("build"),
    "ops": lambda: only("op."),
    "losses": lambda: only("loss"),
    "updates": lambda: only("UpdateOp"),
    "schedulers": lambda: only("schedule"),
    "slicers": lambda: only("slicer"),
}


@pytest.fixture(params=CHOICES)
def mixture(request: pytest.FixtureRequest, sides: Sides) -> Mixture:
    """What FastEstimator supplies; fastnet supplies the rest."""
    return Mixture(sides, CHOICES[request.param]())


def agrees(sides: Sides, mixture: Mixture, program: Any, rtol: float = 0.0) -> None:
    """Check that FastEstimator alone and the mixture come to the same."""
    expected, actual = Sides(sides.fastestimator, mixture).run(program)  # type: ignore[arg-type]
    assert_same(actual, expected, rtol)


def test_training(sides: Sides, mixture: Mixture) -> None:
    """Everything at once: two models, schedules, updates put off and added up, postprocessing."""

    def program(lib: Any) -> Any:
        scheduler = lib.schedule.EpochScheduler({1: "adam", 2: "sgd"})
        front = lib.build(lambda: torch.nn.Linear(6, 4), scheduler, model_name="front")
        back = lib.build(lambda: torch.nn.Linear(4, 3), "adam", model_name="back")
        ops = lib.op.tensorop
        network = lib.Network(
            [
                ops.model.ModelOp(front, "x", "code"),
                ops.model.ModelOp(back, "code", ["y", "inner"], intermediate_layers=0),
                lib.schedule.RepeatScheduler(
                    [None, ops.LambdaOp(lambda y: y.clamp(-1, 1), "y", "y")]
                ),
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.Delete("inner"),
                ops.model.UpdateOp(back, "loss", merge_grad=2, defer=True),
                ops.model.UpdateOp(front, "loss"),
            ],
            pops=[
                lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "guess"),
                lib.op.numpyop.NumpyOp("guess", "same"),
                lib.op.numpyop.LambdaOp(lambda guess: guess.sum(), "guess", "sum", mode="eval"),
            ],
        )
        told: list[Any] = []
        for epoch in (1, 2, 3):
            told.append(steps(network, batches(3, seed=epoch), "train", epoch))
            told.append(steps(network, batches(2), "eval", epoch))
            told.append(steps(network, batches(2), "infer", epoch))
        return told, front, back, momenta(front), momenta(back), network.get_loss_keys()

    agrees(sides, mixture, program)


def test_slicers(sides: Sides, mixture: Mixture) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        ops = lib.op.tensorop
        network = lib.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                ops.loss.MeanSquaredError(("y", "truth"), "loss"),
                ops.model.UpdateOp(model, "loss"),
            ],
            slicers=[
                lib.schedule.EpochScheduler(
                    {
                        1: lib.slicer.AxisSlicer(1, slice=["x"], unslice=["x", "y"]),
                        2: lib.slicer.SlidingSlicer(
                            [-1, 1, -1], slice="x", unslice="x", squeeze_window=True
                        ),
                    }
                ),
                lib.slicer.MeanUnslicer("loss"),
            ],
        )
        generator = torch.Generator().manual_seed(0)
        batch = {
            "x": torch.randn(4, 5, 6, generator=generator),
            "truth": torch.randn(4, 3, generator=generator),
        }
        return [
            steps(network, [batch] * 2, epoch=epoch, wanted={"x", "loss"}) for epoch in (1, 2)
        ], model

    agrees(sides, mixture, program, rtol=LOSS)


def test_mixed_precision(sides: Sides, mixture: Mixture) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp", mixed_precision=True)
        ops = lib.op.tensorop
        network = lib.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.model.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(4)), model

    agrees(sides, mixture, program)


@settings(max_examples=150)
@given(graphs.ops, graphs.slicers | st.just([]), graphs.openings, batch_keys, st.data())
def test_random_steps(
    sides: Sides,
    ops: list[Any],
    slicers: list[Any],
    opening: Opening,
    keys: set[str],
    data: st.DataObject,
) -> None:
    """Any mixture of ops, schedulers and slicers does what FastEstimator does alone."""
    drawn = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))

    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        cutters, _ = graphs.built(lib, slicers, lambda item: make_slicer(lib, item))
        always = lib.op.tensorop.TensorOp()
        network = lib.network.TorchNetwork([always, *made], slicers=cutters)
        try:
            return stepped(network, filled(keys), opening)
        except (ValueError, IndexError, RuntimeError) as error:
            return type(error).__name__

    turns = itertools.cycle(drawn)
    agrees(sides, Mixture(sides, lambda path: next(turns)), program)


def test_numpy_ops_by_sample(sides: Sides) -> None:
    """FastEstimator's NumpyOp splits batches itself; its Delete is known by its class."""
    fe, fastnet = sides.fastestimator, sides.fastnet

    class Flipped(fe.op.numpyop.NumpyOp):  # type: ignore[misc, name-defined]
        def forward(self, data: np.ndarray, state: Any) -> np.ndarray:
            assert data.ndim == 1
            return data[::-1]

    class Changed(fe.op.numpyop.NumpyOp):  # type: ignore[misc, name-defined]
        def forward_batch(self, data: np.ndarray, state: Any) -> np.ndarray:
            data += 1
            return data

    network = fastnet.network.TorchNetwork(
        [fe.op.tensorop.TensorOp("x", "y")],
        [Flipped("y", "z"), Changed("y", "y"), fe.op.numpyop.Delete("x")],
    )
    x = torch.arange(6.0).reshape(2, 3)
    result = network.transform({"x": x}, mode="eval")
    assert set(result) == {"y", "z"}
    assert result["z"].equal(x.flip(1))
    assert result["y"].equal(x + 1)
    assert x.equal(torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("kind", ["RemoveIf", "Batch"])
def test_numpy_ops_that_are_refused(sides: Sides, kind: str) -> None:
    fe = sides.fastestimator
    pop = fe.op.numpyop.Batch() if kind == "Batch" else fe.op.numpyop.RemoveIf(bool, inputs="x")
    with pytest.raises(ValueError, match=kind):
        sides.fastnet.network.TorchNetwork([fe.op.tensorop.TensorOp("x", "y")], pop)


def test_fastestimators_deferral_is_left_as_it_was(sides: Sides) -> None:
    """Its UpdateOp knows `defer` only as an attribute, which is on for no longer than the call."""
    fe = sides.fastestimator
    torch.manual_seed(0)
    model = fe.build(mlp, "sgd", model_name="mlp")
    update = fe.op.tensorop.model.UpdateOp(model, "loss")
    network = sides.fastnet.Network(
        [
            fe.op.tensorop.model.ModelOp(model, "x", "y"),
            fe.op.tensorop.loss.MeanSquaredError(("y", "target"), "loss"),
            update,
        ]
    )
    network("train", 1)
    assert update.defer is False
    with network("train", 1):
        assert update.defer is False
        network.run_step(batches(1)[0])
        assert update.defer is False


def test_models_go_back_and_forth(sides: Sides) -> None:
    """A model that either has built trains in a network of the other, in turn, like in one."""

    def program(order: list[Any]) -> Any:
        torch.manual_seed(0)
        model = order[0].build(mlp, "adam", model_name="mlp")
        told = []
        for epoch, lib in enumerate(order, start=1):
            ops = lib.op.tensorop
            network = lib.Network(
                [
                    ops.model.ModelOp(model, "x", "y"),
                    ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                    ops.model.UpdateOp(model, "loss"),
                ]
            )
            told.append(steps(network, batches(3, seed=epoch), epoch=epoch))
        return told, model, momenta(model)

    fe, fastnet = sides.fastestimator, sides.fastnet
    expected = program([fe, fe, fe])
    assert_same(program([fastnet, fe, fastnet]), expected)
    assert_same(program([fe, fastnet, fe]), expected)


def test_other_ops_of_fastestimator(sides: Sides) -> None:
    """Ops that fastnet has not, or not yet: those with gradients, those that hold other ops."""
    ops = sides.fastestimator.op.tensorop

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        own = lib.op.tensorop
        network = lib.Network(
            [
                ops.gradient.Watch("x", mode="!infer"),
                own.model.ModelOp(model, "x", "y"),
                own.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.gradient.GradientOp("loss", "slope", inputs="x", mode="!infer"),
                ops.gradient.FGSM("x", "loss", "attack", mode="!infer"),
                ops.gradient.GradientOp("loss", "gradients", model=model, mode="train"),
                ops.meta.Repeat(ops.LambdaOp(lambda y: y * 2, "y", "y"), repeat=3),
                ops.meta.Fuse([ops.Average(["y", "y"], "mean"), ops.TensorOp("mean", "same")]),
                ops.Argmax("y", "guess", axis=1),
                own.model.UpdateOp(model, "loss", gradients="gradients"),
            ]
        )
        modes = ("train", "eval", "infer")
        return [steps(network, batches(3), mode) for mode in modes], model

    sides.agree(program)
