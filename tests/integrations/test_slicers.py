"""Slicers: the pieces they make, what they join them to, and training with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations.sides import Sides, assert_same
from tests.integrations.tf_sides import tf


def numbered(shape: Sequence[int], dtype: str) -> np.ndarray:
    return (np.arange(math.prod(shape)) % 200).reshape(shape).astype(dtype)


def cut_and_joined(lib: Any, slicer: Any, value: Any) -> Any:
    """Cut a value, and join what would come of the pieces."""
    pieces = [dict(piece) for piece in lib.slicer.slicer.forward_slicers([slicer], {"x": value})]
    results = [{"x": piece["x"] + 1, "y": piece["x"] * 2} for piece in pieces]
    return pieces, dict(lib.slicer.slicer.reverse_slicers([slicer], results, {"x": value}))


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


@settings(max_examples=60)
@given(windows(), st.sampled_from(["float32", "float64", "int64", "int32"]))
def test_sliding_slicer(sides: Sides, fw: Any, drawn: Windows, dtype: str) -> None:
    """Wherever FastEstimator's slicer works, fastnet's gives bitwise the same."""
    shape, arguments = drawn
    assume(fits(shape, arguments))

    def program(lib: Any) -> Any:
        slicer = lib.slicer.SlidingSlicer(**arguments, slice="x", unslice=["x", "y"])
        result = cut_and_joined(lib, slicer, fw.tensor(numbered(shape, dtype)))
        # It is a TensorShape in TensorFlow, where fastnet has a list.
        unslice_shape = slicer.unslice_shape and list(slicer.unslice_shape)
        return result, unslice_shape, slicer.minibatch_size

    try:
        expected = program(sides.fastestimator)
    except REFUSED:
        assume(False)
    assert_same(program(sides.fastnet), expected)
