"""FastEstimator's own ops, schedulers, slicers and models inside a fastnet network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrations import graphs, test_random_steps, test_tf_random, tf_sides
from tests.integrations import sides as torch_sides
from tests.integrations.graphs import Opening
from tests.integrations.sides import LOSS, Sides, batches, mlp, steps
from tests.integrations.test_random_steps import batch_keys, deletable, make_slicer
from tests.integrations.tf_sides import tf


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


def agrees(fw: Any, sides: Sides, choice: str, program: Any, rtol: float = 0.0) -> None:
    """Check that FastEstimator alone, and with fastnet beside what it supplies, do the same."""
    mixture: Any = Mixture(sides, CHOICES[choice]())
    expected, actual = fw.run(Sides(sides.fastestimator, mixture), program)
    fw.assert_same(actual, expected, rtol)


def cases(**choices: Iterable[str]) -> Any:
    """Return what FastEstimator supplies, in which framework, and whether TensorFlow is eager."""
    return pytest.mark.parametrize(
        ("fw", "eager", "choice"),
        [
            (way.partition("_")[0], way == "tf_eager", choice)
            for way, of_this in choices.items()
            for choice in of_this
        ],
        indirect=["fw"],
    )


@cases(torch=CHOICES, tf_eager=CHOICES, tf_static=["all", "in turn"])
def test_training(sides: Sides, fw: Any, eager: bool, choice: str) -> None:
    """Everything at once: two models, schedules, updates put off and added up, postprocessing."""
    clip, dense = fw.clip, fw.dense

    def program(lib: Any) -> Any:
        scheduler = lib.schedule.EpochScheduler({1: "adam", 2: "sgd"})
        front = lib.build(lambda: dense(6, 4), scheduler, model_name="front")
        back = lib.build(lambda: dense(4, 3), "adam", model_name="back")
        ops = lib.op.tensorop
        network = lib.Network(
            [
                ops.model.ModelOp(front, "x", "code"),
                ops.model.ModelOp(back, "code", ["y", "inner"], intermediate_layers="inner"),
                lib.schedule.RepeatScheduler(
                    [None, ops.LambdaOp(lambda y: clip(y, -1, 1), "y", "y")]
                ),
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.Delete("inner"),
                # in a graph FastEstimator cannot defer what it adds up: see test_tf_mended.py
                ops.model.UpdateOp(
                    back, "loss", merge_grad=2 if fw.NAME == "torch" else 1, defer=True
                ),
                ops.model.UpdateOp(front, "loss", merge_grad=1 if fw.NAME == "torch" else 2),
            ],
            pops=[
                lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "guess"),
                lib.op.numpyop.NumpyOp("guess", "same"),
                lib.op.numpyop.LambdaOp(lambda guess: guess.sum(), "guess", "sum", mode="eval"),
            ],
        )
        told: list[Any] = []
        for epoch in (1, 2, 3):
            told.append(steps(network, fw.batches(3, seed=epoch), "train", epoch, eager=eager))
            told.append(steps(network, fw.batches(2), "eval", epoch, eager=True))
            told.append(steps(network, fw.batches(2), "infer", epoch, eager=True))
        memories = fw.momenta(front), fw.momenta(back)
        return told, front, back, memories, network.get_loss_keys()

    agrees(fw, sides, choice, program)


@cases(torch=CHOICES, tf_eager=["all", "in turn", "slicers", "schedulers"])
def test_slicers(sides: Sides, fw: Any, eager: bool, choice: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 5, 6)).astype("float32")
    truth = generator.normal(size=(4, 3)).astype("float32")

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "sgd", model_name="mlp")
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
        batch = {"x": fw.tensor(x), "truth": fw.tensor(truth)}
        return [
            steps(network, [batch] * 2, epoch=epoch, wanted={"x", "loss"}, eager=eager)
            for epoch in (1, 2)
        ], model

    agrees(fw, sides, choice, program, rtol=LOSS)


@cases(torch=CHOICES, tf_eager=["all", "in turn", "in other turn"])
def test_mixed_precision(sides: Sides, fw: Any, eager: bool, choice: str) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "adam", model_name="mlp", mixed_precision=True)
        ops = lib.op.tensorop
        to_float32 = [] if fw.NAME == "torch" else [ops.LambdaOp(widened, "y", "y")]
        network = lib.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                *to_float32,
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.model.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, fw.batches(4), eager=eager), model

    agrees(fw, sides, choice, program)


def widened(y: Any) -> Any:
    return tf.cast(y, tf.float32)


a_mixture = given(
    graphs.ops,
    graphs.slicers | st.just([]),
    graphs.openings,
    batch_keys,
    st.lists(st.booleans(), min_size=8, max_size=8),
)


def check_random_steps(
    fw: Any,
    sides: Sides,
    ops: list[Any],
    slicers: list[Any],
    step: Callable[[Any], Any],
    drawn: list[bool],
) -> None:
    """Check that a mixture of ops, schedulers and slicers does what FastEstimator does alone."""
    make_op = (test_random_steps if fw is torch_sides else test_tf_random).make_op

    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        cutters, _ = graphs.built(lib, slicers, lambda item: make_slicer(lib, item))
        always = lib.op.tensorop.TensorOp()
        network = fw.network_class(lib)([always, *made], slicers=cutters)
        try:
            return step(network)
        except (ValueError, IndexError, RuntimeError) as error:
            return type(error).__name__

    turns = itertools.cycle(drawn)
    mixture = Mixture(sides, lambda path: next(turns))
    fw.assert_same(program(mixture), program(sides.fastestimator))


@settings(max_examples=150)
@a_mixture
def test_random_steps_in_torch(
    sides: Sides,
    ops: list[Any],
    slicers: list[Any],
    opening: Opening,
    keys: set[str],
    drawn: list[bool],
) -> None:
    def step(network: Any) -> Any:
        return test_random_steps.stepped(network, test_random_steps.filled(keys), opening)

    check_random_steps(torch_sides, sides, ops, slicers, step, drawn)


@pytest.mark.tf
@settings(max_examples=40)
@a_mixture
def test_random_steps_in_tensorflow(
    sides: Sides,
    ops: list[Any],
    slicers: list[Any],
    opening: Opening,
    keys: set[str],
    drawn: list[bool],
) -> None:
    left = keys - deletable(ops)  # see test_tf_mended.py

    def step(network: Any) -> Any:
        return test_tf_random.stepped(network, test_tf_random.filled(left), opening, eager=True)

    check_random_steps(tf_sides, sides, ops, slicers, step, drawn)


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


def test_models_go_back_and_forth(sides: Sides, fw: Any) -> None:
    """A model that either has built trains in a network of the other, in turn, like in one."""

    def program(order: list[Any]) -> Any:
        fw.start_over()
        model = order[0].build(fw.mlp, "adam", model_name="mlp")
        told = [
            steps(fw.trainer(lib, model), fw.batches(3, seed=epoch), epoch=epoch)
            for epoch, lib in enumerate(order, start=1)
        ]
        return told, model, fw.momenta(model)

    fe, fastnet = sides.fastestimator, sides.fastnet
    expected = program([fe, fe, fe])
    fw.assert_same(program([fastnet, fe, fastnet]), expected)
    fw.assert_same(program([fe, fastnet, fe]), expected)


def test_one_model_in_two_networks_at_once(sides: Sides, fw: Any) -> None:
    """Steps of FastEstimator's network and of fastnet's take turns on a model's weights."""

    def program(first: Any, second: Any) -> Any:
        fw.start_over()
        model = first.build(fw.mlp, "sgd", model_name="mlp")
        networks = [fw.trainer(lib, model) for lib in (first, second)]
        results = []
        with networks[0]("train", 1, ""), networks[1]("train", 1, ""):
            for batch in fw.batches(4):
                results += [dict(network.run_step(batch)) for network in networks]
        return results, model

    fe, fastnet = sides.fastestimator, sides.fastnet
    fw.assert_same(program(fe, fastnet), program(fe, fe))


def test_other_ops_of_fastestimator(sides: Sides, fw: Any) -> None:
    """Ops that fastnet has not, or not yet: those with gradients, those that hold other ops."""
    ops = sides.fastestimator.op.tensorop

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "sgd", model_name="mlp")
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
        told = [steps(network, fw.batches(3), "train"), fw.weights(model)]
        modes = ("eval", "infer")
        return told, [steps(network, fw.batches(3), mode, eager=True) for mode in modes]

    fw.agree(sides, program)


@pytest.mark.tf
def test_a_table_that_an_op_has_made_for_itself(sides: Sides) -> None:
    """FastEstimator's weights of classes are a hash table, which fastnet's graph captures."""
    tf_sides.start_over()
    y = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)
    truth = tf.constant([0, 1, 2, 1, 0])

    def program(lib: Any, loss: Any) -> Any:
        op = loss.op.tensorop.loss.CrossEntropy(
            ("y", "truth"), "loss", from_logits=True, class_weights={1: 3.0}
        )
        network = lib.network.TFNetwork([op])
        return steps(network, [{"y": y, "truth": truth}] * 3, "eval")

    fe, fastnet = sides.fastestimator, sides.fastnet
    tf_sides.assert_same(program(fastnet, fe), program(fe, fe))
