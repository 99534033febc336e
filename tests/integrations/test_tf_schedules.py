"""Schedulers of ops and of optimizers in TensorFlow; learning rates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import (
    MARKS,
    agree,
    batches,
    memory,
    mlp,
    one_hot_loss,
    steps,
    tf,
)

pytestmark = MARKS

keras = tf.keras


def scheduled(lib: Any, kind: str, first: Any, second: Any) -> Any:
    if kind == "epochs":
        return lib.schedule.EpochScheduler({1: first, 2: None, 4: second})
    return lib.schedule.RepeatScheduler([first, None, second])


@pytest.mark.parametrize(("kind", "eager"), [("epochs", False), ("turns", True)])
def test_scheduled_ops(sides: Sides, kind: str, eager: bool) -> None:
    """Another loss, another model, no update at all: what runs depends on the epoch."""

    def program(lib: Any) -> Any:
        first, second = lib.build(
            lambda: [mlp(), mlp()], ["adam", "sgd"], model_name=["first", "second"]
        )
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(first, "x", "y"),
                scheduled(lib, kind, None, models.ModelOp(second, "x", "y")),
                scheduled(
                    lib,
                    kind,
                    one_hot_loss(lib),
                    ops.LambdaOp(lambda y: tf.reduce_mean(tf.square(y)), "y", "loss"),
                ),
                scheduled(
                    lib,
                    kind,
                    models.UpdateOp(first, "loss"),
                    models.UpdateOp(second, "loss"),
                ),
            ]
        )
        told: list[Any] = []
        for epoch in range(1, 6):
            told.append(steps(network, batches(2, seed=epoch), epoch=epoch, eager=eager))
            told.append(steps(network, batches(1), "eval", epoch=epoch, eager=True))
        items = network.get_scheduled_items("train")
        signature = lib.schedule.get_signature_epochs(items, 10, "train")
        return told, first, second, signature, sorted(network.get_loss_keys())

    agree(sides, program)


@pytest.mark.parametrize(
    ("kind", "merge", "eager"),
    [("epochs", 1, False), ("turns", 1, False), ("epochs", 2, True), ("turns", 2, True)],
)
def test_scheduled_optimizers(sides: Sides, kind: str, merge: int, eager: bool) -> None:
    """Where there is none for an epoch, the update is scheduled away too."""

    def program(lib: Any) -> Any:
        optimizers = scheduled(lib, kind, "adam", lambda: keras.optimizers.SGD(0.1, momentum=0.9))
        model = lib.build(mlp, optimizers, model_name="mlp")
        models = lib.op.tensorop.model
        update = models.UpdateOp(model, "loss", merge_grad=merge)
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                scheduled(lib, kind, update, update),
            ]
        )
        told: list[Any] = [type(model.current_optimizer).__name__]
        for epoch in range(1, 7):
            told.append(steps(network, batches(3, seed=epoch), epoch=epoch, eager=eager))
            told.append(type(model.current_optimizer).__name__)
            if model.current_optimizer is not None:
                told.append(memory(model))
        items = network.get_scheduled_items("train")
        return told, model, lib.schedule.get_signature_epochs(items, 8, "train")

    agree(sides, program)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_learning_rate_that_decays_while_training(sides: Sides, legacy: bool) -> None:
    """Set from outside, and from the epoch that ops are told: no graph holds on to either."""

    def program(lib: Any) -> Any:
        optimizers = keras.optimizers.legacy if legacy else keras.optimizers
        model = lib.build(mlp, lambda: optimizers.Adam(0.1), model_name="mlp")
        models = lib.op.tensorop.model

        class Weighed(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                return data / tf.cast(state["epoch"], tf.float32)

        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                Weighed("loss", "loss"),
                models.UpdateOp(model, "loss"),
            ]
        )
        results = []
        for epoch in range(1, 6):
            rate = lib.schedule.cosine_decay(epoch, cycle_length=3, init_lr=0.1)
            keras.backend.set_value(model.current_optimizer.learning_rate, rate)
            results.append(steps(network, batches(3, seed=epoch), epoch=epoch))
        return results, model, memory(model)

    agree(sides, program)


def test_an_optimizer_is_current_before_any_epoch(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, lib.schedule.EpochScheduler({2: "adam", 1: "sgd"}), model_name="mlp")
        late = lib.build(mlp, lib.schedule.EpochScheduler({2: "adam"}), model_name="late")
        return type(model.current_optimizer).__name__, late.current_optimizer

    assert agree(sides, program) == ("SGD", None)


def test_scheduled_postprocessing_and_slicers(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        numpy_ops = lib.op.numpyop
        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2 + tf.reduce_mean(x), "x", "y")],
            postprocessing=scheduled(
                lib,
                "epochs",
                numpy_ops.LambdaOp(lambda y: y + 1, "y", "y"),
                numpy_ops.LambdaOp(lambda y: y - 1, "y", "y"),
            ),
            slicers=[
                scheduled(
                    lib,
                    "turns",
                    lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y"]),
                    lib.slicer.AxisSlicer(1, slice="x", unslice=["x", "y"]),
                )
            ],
        )
        batch = {"x": tf.reshape(tf.range(6.0), (2, 3))}
        return [steps(network, [batch], "eval", epoch, eager=True) for epoch in range(1, 7)]

    agree(sides, program)
