"""FastEstimator's own ops, schedulers, slicers and models inside a fastnet network."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from fastnet.backend import clip_by_value, reduce_mean
from tests.integrations.sides import LOSS, Sides, assert_same, start_over, steps, trainer
from tests.integrations.tf_sides import tf


class Mixture:
    """A package made of two: each thing of it comes from the one that is asked for then."""

    def __init__(self, sides: Sides, turns: Iterator[bool]) -> None:
        self._sides = sides
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return _Part(self._sides, self._turns, name)


class _Part:
    def __init__(self, sides: Sides, turns: Iterator[bool], path: str) -> None:
        self._sides, self._turns, self._path = sides, turns, path

    def __getattr__(self, name: str) -> _Part:
        return _Part(self._sides, self._turns, f"{self._path}.{name}")

    def __call__(self, *args: Any, **settings: Any) -> Any:
        # networks are always fastnet's: they are what is tested
        of_fastnet = "etwork" in self._path or next(self._turns)
        # FastEstimator's build knows its own schedulers only
        if self._path == "build" and isinstance(args[1], self._sides.fastnet.schedule.Scheduler):
            of_fastnet = True
        found: Any = self._sides.fastnet if of_fastnet else self._sides.fastestimator
        for name in self._path.split("."):
            found = getattr(found, name)
        return found(*args, **settings)


# Who supplies each thing that a program makes, in turn: fastnet where it is true.
CHOICES = {"all": [False], "in turn": [True, False], "in other turn": [False, True, True]}


def agrees(sides: Sides, choice: str, program: Any, rtol: float = 0.0) -> None:
    """Check that FastEstimator alone, and with fastnet beside what it supplies, do the same."""
    mixture: Any = Mixture(sides, itertools.cycle(CHOICES[choice]))
    Sides(sides.fastestimator, mixture).agree(program, rtol)


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


@cases(torch=CHOICES, tf_eager=["all", "in other turn"], tf_static=["in turn"])
def test_training(sides: Sides, fw: Any, eager: bool, choice: str) -> None:
    """Everything at once: two models, schedules, updates put off and added up, postprocessing."""
    dense = fw.dense

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
                    [None, ops.LambdaOp(lambda y: clip_by_value(y, -1, 1), "y", "y")]
                ),
                ops.loss.CrossEntropy(("y", "onehot"), "loss", from_logits=True),
                ops.Delete("inner"),
                # in a graph FastEstimator cannot defer what it adds up
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

    agrees(sides, choice, program)


@cases(torch=CHOICES, tf_eager=["all", "in turn"])
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

    agrees(sides, choice, program, rtol=LOSS)


def test_models_go_back_and_forth(sides: Sides, fw: Any) -> None:
    """A model that either has built trains in a network of the other, in turn, like in one."""

    def program(order: list[Any]) -> Any:
        start_over()
        model = order[0].build(fw.mlp, "adam", model_name="mlp")
        told = [
            steps(trainer(lib, model), fw.batches(3, seed=epoch), epoch=epoch)
            for epoch, lib in enumerate(order, start=1)
        ]
        return told, model, fw.momenta(model)

    fe, fastnet = sides.fastestimator, sides.fastnet
    expected = program([fe, fe, fe])
    assert_same(program([fastnet, fe, fastnet]), expected)
    assert_same(program([fe, fastnet, fe]), expected)


@pytest.mark.tf
def test_ops_with_class_weights(sides: Sides) -> None:
    """FastEstimator's class weights are a hash table, which fastnet's graph captures."""
    y = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)
    fe = sides.fastestimator
    loss = fe.op.tensorop.loss.CrossEntropy

    def program(lib: Any) -> Any:
        op = loss(("y", "truth"), "loss", from_logits=True, class_weights={1: 3.0})
        batch = {"y": y, "truth": tf.constant([0, 1, 2, 1, 0])}
        return steps(lib.network.TFNetwork([op]), [batch] * 3, "eval")

    sides.agree(program)


@pytest.mark.parametrize("fw", ["torch", "tf"], indirect=True)
def test_image_augmentation(sides: Sides, fw: Any) -> None:
    """FastEstimator's ops on images, which fastnet does not copy, run in fastnet's metas."""
    source = np.random.default_rng(3)
    images = source.integers(40, 200, (3, 24, 24, 3)).astype("uint8")
    n = sides.fastestimator.op.numpyop

    def single(name: str, **settings: Any) -> Any:
        return getattr(n.univariate, name)(inputs="image", outputs="image", **settings)

    def several(name: str, **settings: Any) -> Any:
        return getattr(n.multivariate, name)(image_in="image", mask_in="mask", **settings)

    def program(lib: Any) -> Any:
        meta = lib.op.numpyop.meta
        pops = [
            single("CLAHE"),
            single("HistogramMatching", reference_images=[images[0]], read_fn=lambda one: one),
            several("CropNonEmptyMaskIfExists", height=12, width=10),
            meta.Sometimes(several("HorizontalFlip"), prob=0.5),
            meta.OneOf(single("Blur"), single("ToSepia"), probs=[0.3, 0.7]),
            meta.Repeat(several("Rotate"), repeat=2),
            meta.Fuse([several("VerticalFlip"), several("Resize", height=12, width=10)]),
            meta.Sometimes(meta.OneOf(single("ToGray"), single("InvertImg"))),
            single("ToFloat", max_value=255.0),
        ]
        op = lib.op.tensorop.LambdaOp(lambda mask: mask * 2, "mask", "twice")
        network = fw.network_class(lib)([op], pops)
        batch = {"image": fw.tensor(images), "mask": fw.tensor((images[..., 0] > 128) * 1)}
        return steps(network, [batch] * 6, "eval")

    assert len({float(reduce_mean(one["image"])) for one in sides.agree(program)}) > 3
