"""The same training, step by step: results, losses, weights, optimizers' memories.

Both packages make the same calls of torch and Keras, so results are equal bit for bit unless a test
says why not. One reason there is in TensorFlow: FastEstimator's graph is of one batch size,
fastnet's of any. TensorFlow reorders the sum of several gradients of one variable only where it
knows how large they are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.backend import cast, reduce_sum
from tests.integrations.sides import (
    Sides,
    one_hot_loss,
    steps,
    trainer,
)
from tests.integrations.tf_sides import tf

keras = tf.keras


def ways(names: str, **cases: list[tuple[Any, ...]]) -> Any:
    """Say in which frameworks, whether eagerly in TensorFlow, and with which other arguments."""
    return pytest.mark.parametrize(
        ("fw", "eager", *names.split()),
        [
            (way.partition("_")[0], way == "tf_eager", *case)
            for way, of_this in cases.items()
            for case in of_this
        ],
        indirect=["fw"],
    )


in_every_way = ways("", torch=[()], tf_static=[()], tf_eager=[()])

STEPS = 20
OPTIMIZERS = {
    "adam": "adam",
    "sgd": "sgd",
    "torch momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "legacy momentum": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9, nesterov=True),
    "new adam": lambda: keras.optimizers.Adam(0.01),
    "new adamw with an average": lambda: keras.optimizers.AdamW(0.01, use_ema=True),
    "a schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    ),
}


@ways(
    "optimizer",
    torch=[(name,) for name in ("adam", "sgd", "torch momentum")],
    tf_static=[(name,) for name in ("sgd", *list(OPTIMIZERS)[3:])],
    tf_eager=[("adam",), ("new adam",)],
)
def test_one_model(sides: Sides, fw: Any, eager: bool, optimizer: str) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, OPTIMIZERS[optimizer], model_name="mlp")
        results = steps(trainer(lib, model), fw.batches(STEPS), eager=eager)
        return results, model, fw.momenta(model)

    results, _, _ = sides.agree(program)
    assert float(results[-1]["loss"]) != float(results[0]["loss"])


@ways(
    "trainable",
    torch=[(True,), (False,)],
    tf_static=[(True,)],
    tf_eager=[(True,), (False,)],
)
def test_modes(sides: Sides, fw: Any, eager: bool, trainable: bool) -> None:
    """Layers train in "train" only, and only if the op is trainable; losses stay out of "infer"."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.noisy, "adam", model_name="noisy")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y", trainable=trainable),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        told = []
        for epoch in (1, 2):
            for mode in ("train", "eval", "test", "infer"):
                told.append(steps(network, fw.batches(2, seed=epoch), mode, epoch, eager=eager))
                told.append(fw.weights(model))
                fw.random_numbers_start_over()
        return told

    sides.agree(program)


@ways(
    "first second",
    torch=[(first, second) for first in (True, False) for second in (True, False)],
    tf_static=[(False, True)],
    tf_eager=[(True, False)],
)
def test_updates_put_off(sides: Sides, fw: Any, eager: bool, first: bool, second: bool) -> None:
    """An update in the middle, and a later op that reads the model: deferred, it sees old weights.

    The second update of the same model takes the first one's gradients along.
    """

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "adam", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss", defer=first),
                models.ModelOp(model, "x", "y again"),
                one_hot_loss(lib, "loss again", "y again"),
                models.UpdateOp(model, "loss again", defer=second),
                lib.op.tensorop.LambdaOp(
                    lambda one, other: reduce_sum(abs(one - other)), ["y", "y again"], "difference"
                ),
            ]
        )
        return steps(network, fw.batches(6), eager=eager), model, fw.momenta(model)

    results, _, _ = sides.agree(program)
    assert bool(results[0]["difference"] == 0) is first


@ways(
    "merge defer",
    torch=[(2, False), (3, True)],
    # in a graph FastEstimator cannot defer what it adds up
    tf_static=[(2, False)],
    tf_eager=[(3, True)],
)
def test_gradients_added_up(sides: Sides, fw: Any, eager: bool, merge: int, defer: bool) -> None:
    """The count of steps goes on from one epoch, and from one mode, to the next."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "adam", model_name="mlp")
        network = trainer(lib, model, merge_grad=merge, defer=defer)
        told: list[Any] = []
        for epoch in (1, 2, 3):
            told.append(steps(network, fw.batches(4, seed=epoch), epoch=epoch, eager=eager))
            told.append(steps(network, fw.batches(1), "eval", epoch, eager=eager))
            told.append(fw.weights(model))
        return told, fw.momenta(model)

    sides.agree(program)


@in_every_way
def test_layers_that_are_frozen(sides: Sides, fw: Any, eager: bool) -> None:
    """Before the first epoch, and then others in a later one."""

    def program(lib: Any) -> Any:
        def half_frozen() -> Any:
            model = fw.mlp()
            fw.freeze(model, first=True, last=False)
            return model

        model = lib.build(half_frozen, "sgd", model_name="mlp")
        network = trainer(lib, model)
        told: list[Any] = []
        for epoch in (1, 2, 3):
            fw.freeze(model, first=epoch % 2 == 1, last=epoch % 2 == 0)
            told.append(steps(network, fw.batches(2, seed=epoch), epoch=epoch, eager=eager))
            told.append(fw.weights(model))
        return told

    sides.agree(program)


@ways(
    "optimizer merge",
    torch=[("adam", 1), ("adam", 2)],
    tf_static=[("adam", 2)],
)
def test_mixed_precision(sides: Sides, fw: Any, eager: bool, optimizer: str, merge: int) -> None:
    """float16 with a scaled loss in TensorFlow; on a CPU, torch has bfloat16 and no scaler."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, OPTIMIZERS[optimizer], model_name="mlp", mixed_precision=True)
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: cast(y, "float32"), "y", "y32"),
                one_hot_loss(lib, y="y32"),
                models.UpdateOp(model, "loss", merge_grad=merge),
            ]
        )
        told = {
            "mixed": (network.mixed_precision, model.mixed_precision),
            "scaler": getattr(model.current_optimizer, "scaler", None),
            "optimizer": type(model.current_optimizer).__name__,
            "results": [steps(network, fw.batches(8)), steps(network, fw.batches(2), "eval")],
        }
        return told, model, fw.momenta(model)

    told, _, _ = sides.agree(program)
    half = torch.bfloat16 if fw.NAME == "torch" else tf.float16
    assert told["results"][0][0]["y"].dtype == half


def scheduled(lib: Any, kind: str, first: Any, second: Any) -> Any:
    if kind == "epochs":
        return lib.schedule.EpochScheduler({1: first, 2: None, 4: second})
    return lib.schedule.RepeatScheduler([first, None, second])


@ways(
    "kind merge",
    torch=[("epochs", 1), ("turns", 2)],
    tf_static=[("turns", 1)],
    tf_eager=[("epochs", 2)],
)
def test_scheduled_optimizers(sides: Sides, fw: Any, eager: bool, kind: str, merge: int) -> None:
    """Where there is none for an epoch, the update is scheduled away too."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, scheduled(lib, kind, "adam", fw.momentum()), model_name="mlp")
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
        for epoch in (1, 2, 3, 4):
            told.append(steps(network, fw.batches(3, seed=epoch), epoch=epoch, eager=eager))
            told.append(type(model.current_optimizer).__name__)
            if model.current_optimizer is not None:
                told.append(fw.momenta(model))
            told.append(steps(network, fw.batches(1), "eval", epoch=epoch, eager=True))
        items = network.get_scheduled_items("train")
        return told, model, lib.schedule.get_signature_epochs(items, 8, "train")

    sides.agree(program)
