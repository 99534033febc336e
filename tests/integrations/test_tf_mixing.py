"""FastEstimator's own ops, schedulers, slicers and models inside a fastnet TFNetwork."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrations import graphs
from tests.integrations.graphs import Opening
from tests.integrations.sides import Sides
from tests.integrations.test_mixing import CHOICES, Mixture
from tests.integrations.test_random_steps import batch_keys, deletable, make_slicer
from tests.integrations.test_tf_random import filled, make_op, stepped
from tests.integrations.tf_sides import (
    LOSS,
    MARKS,
    agree,
    assert_same,
    batches,
    memory,
    mlp,
    one_hot_loss,
    run,
    start_over,
    steps,
    tf,
)

pytestmark = MARKS

keras = tf.keras


@pytest.fixture(params=CHOICES)
def mixture(request: pytest.FixtureRequest, sides: Sides) -> Mixture:
    """What FastEstimator supplies; fastnet supplies the rest."""
    return Mixture(sides, CHOICES[request.param]())


def agrees(sides: Sides, mixture: Mixture, program: Any, rtol: float = 0.0) -> None:
    """Check that FastEstimator alone and the mixture come to the same."""
    expected, actual = run(Sides(sides.fastestimator, mixture), program)  # type: ignore[arg-type]
    assert_same(actual, expected, rtol)


def layer(inputs: int, outputs: int) -> Any:
    return keras.Sequential(
        [keras.layers.Input((inputs,)), keras.layers.Dense(outputs, name="inner")]
    )


def whole_program(lib: Any, eager: bool) -> Any:
    """Everything at once: two models, schedules, updates put off or added up, postprocessing."""
    scheduler = lib.schedule.EpochScheduler({1: "adam", 2: "sgd"})
    front = lib.build(lambda: layer(6, 4), scheduler, model_name="front")
    back = lib.build(lambda: layer(4, 3), "adam", model_name="back")
    ops = lib.op.tensorop
    network = lib.Network(
        [
            ops.model.ModelOp(front, "x", "code"),
            ops.model.ModelOp(back, "code", ["y", "inner"], intermediate_layers="inner"),
            lib.schedule.RepeatScheduler(
                [None, ops.LambdaOp(lambda y: tf.clip_by_value(y, -1, 1), "y", "y")]
            ),
            ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
            ops.Delete("inner"),
            ops.model.UpdateOp(back, "loss", defer=True),
            ops.model.UpdateOp(front, "loss", merge_grad=2),
        ],
        pops=[
            lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "guess"),
            lib.op.numpyop.NumpyOp("guess", "same"),
            lib.op.numpyop.LambdaOp(lambda guess: guess.sum(), "guess", "sum", mode="eval"),
        ],
    )
    told: list[Any] = []
    for epoch in (1, 2):
        told.append(steps(network, batches(3, seed=epoch), "train", epoch, eager=eager))
        told.append(steps(network, batches(2), "eval", epoch, eager=True))
        told.append(steps(network, batches(2), "infer", epoch, eager=True))
    return told, front, back, memory(front), memory(back), network.get_loss_keys()


def test_training(sides: Sides, mixture: Mixture) -> None:
    agrees(sides, mixture, lambda lib: whole_program(lib, eager=True))


@pytest.mark.parametrize("choice", ["all", "in turn"])
def test_training_in_a_graph(sides: Sides, choice: str) -> None:
    mixture = Mixture(sides, CHOICES[choice]())
    agrees(sides, mixture, lambda lib: whole_program(lib, eager=False))


@pytest.mark.parametrize("choice", ["all", "in turn", "slicers", "schedulers"])
def test_slicers(sides: Sides, choice: str) -> None:
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
        generator = np.random.default_rng(0)
        batch = {
            "x": tf.constant(generator.normal(size=(4, 5, 6)), tf.float32),
            "truth": tf.constant(generator.normal(size=(4, 3)), tf.float32),
        }
        return [
            steps(network, [batch] * 2, epoch=epoch, wanted={"x", "loss"}, eager=True)
            for epoch in (1, 2)
        ], model

    agrees(sides, Mixture(sides, CHOICES[choice]()), program, rtol=LOSS)


@pytest.mark.parametrize("choice", ["all", "in turn", "in other turn"])
def test_mixed_precision(sides: Sides, choice: str) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp", mixed_precision=True)
        ops = lib.op.tensorop
        network = lib.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                ops.LambdaOp(lambda y: tf.cast(y, tf.float32), "y", "y"),
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.model.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(4), eager=True), model

    agrees(sides, Mixture(sides, CHOICES[choice]()), program)


@settings(max_examples=40)
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
    keys = keys - deletable(ops)  # see test_tf_mended.py

    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        cutters, _ = graphs.built(lib, slicers, lambda item: make_slicer(lib, item))
        always = lib.op.tensorop.TensorOp()
        network = lib.network.TFNetwork([always, *made], slicers=cutters)
        try:
            return stepped(network, filled(keys), opening, eager=True)
        except (ValueError, IndexError) as error:
            return type(error).__name__

    turns = itertools.cycle(drawn)
    mixture = Mixture(sides, lambda path: next(turns))
    assert_same(program(mixture), program(sides.fastestimator))


def test_models_go_back_and_forth(sides: Sides) -> None:
    """A model that either has built trains in a network of the other, in turn, like in one."""

    def program(order: list[Any]) -> Any:
        start_over()
        model = order[0].build(mlp, "adam", model_name="mlp")
        told = []
        for epoch, lib in enumerate(order, start=1):
            network = lib.Network(
                [
                    lib.op.tensorop.model.ModelOp(model, "x", "y"),
                    one_hot_loss(lib),
                    lib.op.tensorop.model.UpdateOp(model, "loss"),
                ]
            )
            told.append(steps(network, batches(3, seed=epoch), epoch=epoch))
        return told, model, memory(model)

    fe, fastnet = sides.fastestimator, sides.fastnet
    expected = program([fe, fe, fe])
    assert_same(program([fastnet, fe, fastnet]), expected)
    assert_same(program([fe, fastnet, fe]), expected)


def test_one_model_in_two_networks_at_once(sides: Sides) -> None:
    """Steps of FastEstimator's network and of fastnet's take turns on a model's weights."""

    def program(first: Any, second: Any) -> Any:
        start_over()
        model = first.build(mlp, "sgd", model_name="mlp")
        networks = [
            lib.Network(
                [
                    lib.op.tensorop.model.ModelOp(model, "x", "y"),
                    one_hot_loss(lib),
                    lib.op.tensorop.model.UpdateOp(model, "loss"),
                ]
            )
            for lib in (first, second)
        ]
        results = []
        with networks[0]("train", 1, ""), networks[1]("train", 1, ""):
            for batch in batches(4):
                results += [dict(network.run_step(batch)) for network in networks]
        return results, model

    fe, fastnet = sides.fastestimator, sides.fastnet
    assert_same(program(fe, fastnet), program(fe, fe))


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
        told = [steps(network, batches(3), "train")]
        return told, [steps(network, batches(3), mode, eager=True) for mode in ("eval", "infer")]

    agree(sides, program)


def test_a_table_that_an_op_has_made_for_itself(sides: Sides) -> None:
    """FastEstimator's weights of classes are a hash table, which fastnet's graph captures."""
    start_over()
    y = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)
    truth = tf.constant([0, 1, 2, 1, 0])

    def program(lib: Any, loss: Any) -> Any:
        op = loss.op.tensorop.loss.CrossEntropy(
            ("y", "truth"), "loss", from_logits=True, class_weights={1: 3.0}
        )
        network = lib.network.TFNetwork([op])
        return steps(network, [{"y": y, "truth": truth}] * 3, "eval")

    fe, fastnet = sides.fastestimator, sides.fastnet
    assert_same(program(fastnet, fe), program(fe, fe))
