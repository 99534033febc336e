"""Slicers: the pieces they make, what they join them to, and training with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
from tests.integrations.sides import LOSS, Sides, steps
from tests.integrations.tf_sides import tf

torch_dtypes = st.sampled_from(["float32", "float64", "int64", "uint8"])
tf_dtypes = st.sampled_from(["float32", "float64", "int64", "int32"])


def numbered(shape: Sequence[int], dtype: str) -> np.ndarray:
    return (np.arange(math.prod(shape)) % 200).reshape(shape).astype(dtype)


def cut_and_joined(lib: Any, slicer: Any, value: Any) -> Any:
    """Cut a value, and join what would come of the pieces."""
    pieces = [dict(piece) for piece in lib.slicer.slicer.forward_slicers([slicer], {"x": value})]
    results = [{"x": piece["x"] + 1, "y": piece["x"] * 2} for piece in pieces]
    return pieces, dict(lib.slicer.slicer.reverse_slicers([slicer], results, {"x": value}))


@st.composite
def axes(draw: st.DrawFn) -> tuple[list[int], int]:
    """A shape, and one of its axes."""
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    return shape, draw(st.integers(-len(shape), len(shape) - 1))


def check_axis_slicer(fw: Any, sides: Sides, drawn: tuple[list[int], int], dtype: str) -> None:
    shape, axis = drawn

    def program(lib: Any) -> Any:
        slicer = lib.slicer.AxisSlicer(axis, slice="x", unslice=["x", "y"])
        value = fw.tensor(numbered(shape, dtype))
        return cut_and_joined(lib, slicer, value), slicer.minibatch_size

    fw.assert_same(program(sides.fastnet), program(sides.fastestimator))


@given(axes(), torch_dtypes)
def test_axis_slicer_in_torch(sides: Sides, drawn: tuple[list[int], int], dtype: str) -> None:
    check_axis_slicer(torch_sides, sides, drawn, dtype)


@pytest.mark.tf
@settings(max_examples=40)
@given(axes(), tf_dtypes)
def test_axis_slicer_in_tensorflow(sides: Sides, drawn: tuple[list[int], int], dtype: str) -> None:
    check_axis_slicer(tf_sides, sides, drawn, dtype)


Windows = tuple[list[int], dict[str, Any]]


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    """A shape, and the arguments of a slicer that may fit it."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    window = [draw(st.sampled_from([-1, 1, 2, 3, 5])) for _ in shape]
    stride = st.integers(0, 4)
    strides: Any = draw(
        st.one_of(
            st.just(()),
            st.integers(1, 4),
            st.tuples(*[stride if length > 0 else st.just(0) for length in window]).map(list),
        )
    )
    return shape, {
        "window_size": window,
        "strides": strides,
        "pad_mode": draw(st.sampled_from(["drop", "partial", "constant", "nopad", "mirror"])),
        "pad_val": draw(st.sampled_from([0.0, 0, -1.0, 7])),
        "unslice_mode": draw(st.sampled_from(["avg", "sum"])),
        "squeeze_window": draw(st.booleans()),
    }


def fits(shape: list[int], arguments: dict[str, Any]) -> bool:
    """Return whether "drop" leaves a window along each axis that is cut.

    Where it does not, FastEstimator leaves the axis whole, gives the data back with an axis that it
    never had, or fails.
    """
    strides = arguments["strides"]
    for axis, (size, length) in enumerate(zip(shape, arguments["window_size"], strict=True)):
        stride = strides if isinstance(strides, int) else strides[axis] if strides else length
        if arguments["pad_mode"] == "drop" and length > size > 0 < stride:
            return False
    return True


REFUSED = (
    AssertionError,
    ValueError,
    IndexError,
    RuntimeError,
    tf.errors.InvalidArgumentError,
)


def check_sliding_slicer(fw: Any, sides: Sides, drawn: Windows, dtype: str) -> None:
    """Check that wherever FastEstimator's slicer works, fastnet's gives the same to the bit."""
    shape, arguments = drawn
    assume(fits(shape, arguments))

    def program(lib: Any) -> Any:
        slicer = lib.slicer.SlidingSlicer(**arguments, slice="x", unslice=["x", "y"])
        result = cut_and_joined(lib, slicer, fw.tensor(numbered(shape, dtype)))
        # a TensorShape in TensorFlow, where fastnet has a list
        unslice_shape = slicer.unslice_shape and list(slicer.unslice_shape)
        return result, unslice_shape, slicer.minibatch_size

    try:
        expected = program(sides.fastestimator)
    except REFUSED:
        assume(False)
    fw.assert_same(program(sides.fastnet), expected)


@settings(max_examples=500)
@given(windows(), torch_dtypes)
def test_sliding_slicer_in_torch(sides: Sides, drawn: Windows, dtype: str) -> None:
    check_sliding_slicer(torch_sides, sides, drawn, dtype)


@pytest.mark.tf
@settings(max_examples=60)
@given(windows(), tf_dtypes)
def test_sliding_slicer_in_tensorflow(sides: Sides, drawn: Windows, dtype: str) -> None:
    check_sliding_slicer(tf_sides, sides, drawn, dtype)


@pytest.mark.parametrize(("strides", "shape"), [(1, (1, 1, 2)), ((), (1, 2))])
def test_a_window_that_does_not_fit(sides: Sides, strides: Any, shape: tuple[int, ...]) -> None:
    """FastEstimator's piece has three axes, of data with two, or is shorter than its window."""

    def pieces(lib: Any) -> Any:
        slicer = lib.slicer.SlidingSlicer([-1, 3], strides=strides, slice="x")
        return slicer.slice_batches((torch.ones(1, 2),))

    ((piece,),) = pieces(sides.fastestimator)
    assert piece.shape == shape
    with pytest.raises(ValueError, match="No window fits"):
        pieces(sides.fastnet)


@pytest.mark.tf
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_means_of_integers(sides: Sides, dtype: Any) -> None:
    def program(lib: Any) -> Any:
        slicer = lib.slicer.MeanUnslicer("y")
        return slicer._unslice_batch((tf.constant(1, dtype), tf.constant(2, dtype)), key="y")

    assert tf_sides.agree(sides, program) == 1.5


def volumes(fw: Any, count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(3)
    return [
        {
            "x": fw.tensor(generator.normal(size=(4, 6, 5)).astype("float32")),
            "label": fw.tensor(generator.integers(0, 3, (4, 5))),
            "name": fw.tensor(np.arange(4)),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("merge", [1, 5])
def test_training_on_slices(sides: Sides, fw: Any, merge: int) -> None:
    """A volume is cut along its depth: an update for each slice, or one for all of them."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "adam", model_name="mlp")
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
        results = steps(network, volumes(fw, 4)), steps(network, volumes(fw, 1), "eval", eager=True)
        return results, model

    # torch's sparse cross entropy is one call in fastnet, several in FastEstimator
    fw.agree(sides, program, rtol=LOSS if fw.NAME == "torch" else 0.0)
