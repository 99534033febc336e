"""Slicers of TensorFlow tensors: the pieces, what they are joined to, and training with them.

Kinds of pieces and the errors are the same in both frameworks: test_slicers.py has them all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations.sides import Sides
from tests.integrations.test_slicers import fits, windows
from tests.integrations.tf_sides import (
    LOSS,
    MARKS,
    agree,
    assert_same,
    mlp,
    steps,
    tf,
)

pytestmark = MARKS

dtypes = st.sampled_from([tf.float32, tf.float64, tf.int64, tf.int32])


def numbered(shape: tuple[int, ...], dtype: Any) -> Any:
    count = int(np.prod(shape)) if shape else 1
    return tf.cast(tf.reshape(tf.range(count) % 200, shape), dtype)


def cut_and_joined(lib: Any, slicer: Any, value: Any) -> Any:
    """Cut a value, and join what would come of the pieces."""
    pieces = [dict(piece) for piece in lib.slicer.slicer.forward_slicers([slicer], {"x": value})]
    results = [{"x": piece["x"] + 1, "y": piece["x"] * 2} for piece in pieces]
    return pieces, dict(lib.slicer.slicer.reverse_slicers([slicer], results, {"x": value}))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data(), dtypes)
def test_axis_slicer(sides: Sides, shape: list[int], data: st.DataObject, dtype: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))

    def program(lib: Any) -> Any:
        slicer = lib.slicer.AxisSlicer(axis, slice="x", unslice=["x", "y"])
        return cut_and_joined(lib, slicer, numbered(tuple(shape), dtype)), slicer.minibatch_size

    assert_same(program(sides.fastnet), program(sides.fastestimator))


def attempted(lib: Any, shape: list[int], arguments: dict[str, Any], dtype: Any) -> Any:
    value = numbered(tuple(shape), dtype)
    try:
        slicer = lib.slicer.SlidingSlicer(**arguments, slice="x", unslice=["x", "y"])
        return cut_and_joined(lib, slicer, value), slicer.minibatch_size
    except (AssertionError, ValueError, IndexError, RuntimeError, tf.errors.InvalidArgumentError):
        return None


@settings(max_examples=60)
@given(windows(), dtypes)
def test_sliding_slicer(sides: Sides, drawn: tuple[list[int], dict[str, Any]], dtype: Any) -> None:
    """Wherever FastEstimator's slicer works, fastnet's gives the same."""
    shape, arguments = drawn
    assume(fits(shape, arguments))
    expected = attempted(sides.fastestimator, shape, arguments, dtype)
    assume(expected is not None)
    assert_same(attempted(sides.fastnet, shape, arguments, dtype), expected)


@pytest.mark.parametrize("unslice_mode", ["avg", "sum"])
@pytest.mark.parametrize(
    ("pad_mode", "axes"),
    [
        *((mode, (1, 2)) for mode in ("drop", "partial", "constant", "nopad")),
        # FastEstimator cannot join what it mirrored along the first two axes: test_tf_mended.py
        ("mirror", (2, 3)),
    ],
)
def test_overlapping_windows_of_an_image(
    sides: Sides, pad_mode: str, axes: tuple[int, int], unslice_mode: str
) -> None:
    """Through a network: noise is cut, evened out, and joined."""
    shape, window, strides = [2, 3, 3, 3], [-1, -1, -1, -1], [0, 0, 0, 0]
    for axis, size, length, stride in zip(axes, (11, 13), (4, 5), (3, 2), strict=True):
        shape[axis], window[axis], strides[axis] = size, length, stride
    image = tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)

    def program(lib: Any) -> Any:
        network = lib.network.TFNetwork(
            [
                lib.op.tensorop.LambdaOp(
                    lambda x: x - tf.reduce_mean(x, axes, keepdims=True), "x", "y"
                )
            ],
            slicers=lib.slicer.SlidingSlicer(
                window,
                strides=strides,
                pad_mode=pad_mode,
                pad_val=0.5,
                slice="x",
                unslice=["x", "y"],
                unslice_mode=unslice_mode,
            ),
        )
        return steps(network, [{"x": image}], "infer", eager=True)

    agree(sides, program)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_mean_unslicer(sides: Sides, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=(5, *shape))

    def program(lib: Any) -> Any:
        slicer = lib.slicer.MeanUnslicer("loss")
        pieces = tuple(tf.constant(value, tf.float32) for value in values)
        return slicer._unslice_batch(pieces, key="loss")

    agree(sides, program)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_means_of_integers(sides: Sides, dtype: Any) -> None:
    def program(lib: Any) -> Any:
        slicer = lib.slicer.MeanUnslicer("y")
        return slicer._unslice_batch((tf.constant(1, dtype), tf.constant(2, dtype)), key="y")

    assert agree(sides, program) == 1.5


def volumes(count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(3)
    return [
        {
            "x": tf.constant(generator.normal(size=(4, 6, 5)), tf.float32),
            "label": tf.constant(generator.integers(0, 3, (4, 5))),
            "name": tf.range(4),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("merge", [1, 5])
def test_training_on_slices(sides: Sides, merge: int) -> None:
    """A volume is cut along its depth: an update for each slice, or one for all of them."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.loss.CrossEntropy(("y", "label"), "loss", from_logits=True),
                models.UpdateOp(model, "loss", merge_grad=merge),
            ],
            slicers=[
                lib.slicer.AxisSlicer(-1, slice=["x", "label"], unslice=["x", "y"]),
                lib.slicer.MeanUnslicer("loss"),
            ],
            pops=lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "y"),
        )
        return steps(network, volumes(4)), model

    agree(sides, program)


def test_training_on_windows(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(lambda: mlp(width=3), "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: tf.reduce_mean(tf.square(y)), "y", "loss"),
                models.UpdateOp(model, "loss"),
            ],
            slicers=[
                lib.slicer.SlidingSlicer(
                    [2, 3, 1], slice="x", unslice="x", squeeze_window=True, strides=[1, 3, 2]
                ),
                lib.slicer.MeanUnslicer(["loss", "y"]),
            ],
        )
        return steps(network, volumes(3), eager=True), model

    agree(sides, program)


def test_a_slicer_for_one_mode(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x - tf.reduce_mean(x), "x", "y")],
            slicers=lib.slicer.AxisSlicer(
                0, slice="x", unslice=["x", "y"], mode="!eval", ds_id="!whole"
            ),
        )
        return [
            steps(network, volumes(1), mode, ds_id=ds_id, eager=True)
            for mode in ("train", "eval", "infer")
            for ds_id in ("", "whole", "other")
        ]

    agree(sides, program, rtol=LOSS)
