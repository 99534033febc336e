"""Every numpy op of the library that a network runs, with what it must make of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastnet.op.numpyop import Delete, LambdaOp, NumpyOp
from fastnet.op.numpyop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.op.numpyop.univariate import (
    Binarize,
    ChannelTranspose,
    ExpandDims,
    Hadamard,
    Minmax,
    Onehot,
    Reshape,
    ToArray,
)
from tests.conformance.catalogue import CLASSES, IMAGES, Row, When, X


def stretched(x: Any, low: float, high: float) -> Any:
    """Let each sample reach from one value to another."""
    least, most = x.min(1, keepdims=True), x.max(1, keepdims=True)
    return ((x - least) / (most - least) * (high - low) + low).astype("float32")


def smoothed(classes: Any) -> Any:
    return (0.75 * np.eye(4)[classes] + 0.25 / 4).astype("float32")


def one(cls: type, compute: Callable[[Any], Any], x: Any, form: str = "", **options: Any) -> Row:
    """Return the row of an op that makes "y" of "x"."""
    return Row(
        cls,
        lambda fw, when: [cls(inputs="x", outputs="y", **options, **when)],
        {"x": x},
        compute=lambda b: {"y": compute(b["x"])},
        form=form,
    )


def meta(cls: type, form: str, wrap: Callable[[When], Any], factor: float) -> Row:
    """Return the row of an op around ops that multiply `y`, which a copy of `x` is before."""
    return Row(
        cls,
        lambda fw, when: [NumpyOp("x", "y"), wrap(when)],
        {"x": X},
        reads=("y",),
        compute=lambda b: {"y": b["x"] * np.float32(factor)},
        form=form,
    )


def times(factor: float, when: When) -> LambdaOp:
    return LambdaOp(lambda y: y * np.float32(factor), "y", "y", **when)


NUMPY_ROWS = [
    one(NumpyOp, lambda x: x, X),
    Row(
        LambdaOp,
        lambda fw, when: [LambdaOp(lambda x, z: [x + z, x.sum()], ["x", "z"], ["y", "y2"], **when)],
        {"x": X, "z": X[:1]},
        reads=("x", "z"),
        writes=("y", "y2"),
        compute=lambda b: {"y": b["x"] + b["z"], "y2": b["x"].sum()},
    ),
    Row(
        Delete,
        lambda fw, when: [LambdaOp(lambda x: x + 1, "x", "gone"), Delete("gone", **when)],
        {"x": X},
        reads=("gone",),
        writes=(),
        compute=lambda b: {},
    ),
    one(Binarize, lambda x: (x >= 0.25).astype("float32"), X, threshold=0.25),
    one(ChannelTranspose, lambda x: x.transpose(0, 3, 1, 2), IMAGES),
    one(ChannelTranspose, lambda x: x.transpose(0, 2, 1, 3), IMAGES, "by axes", axes=(1, 0, 2)),
    one(ExpandDims, lambda x: x[..., None], X),
    one(ExpandDims, lambda x: x[:, None], X, "in front", axis=0),
    one(
        Hadamard,
        lambda x: np.array([[-1, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, -1]], "float32")[x],
        CLASSES,
        n_classes=3,
    ),
    one(Minmax, lambda x: stretched(x, 0, 1), X),
    one(Minmax, lambda x: stretched(x, -2, 3), X, "to others", new_min=-2.0, new_max=3.0),
    one(Onehot, lambda x: np.eye(4, dtype="float32")[x], CLASSES, num_classes=4),
    one(Onehot, smoothed, CLASSES, "smoothed", num_classes=4, label_smoothing=0.25),
    one(Reshape, lambda x: x.reshape(2, 4, 9), IMAGES, shape=(4, -1)),
    one(ToArray, lambda x: x, X),
    one(ToArray, lambda x: x.astype("int32"), X * 10, "of a type", dtype="int32"),
    meta(Fuse, "", lambda when: Fuse([times(2, when), times(3, when)]), 6),
    meta(OneOf, "", lambda when: OneOf(times(2, when), times(3, when), probs=[0.0, 1.0]), 3),
    meta(Repeat, "a number", lambda when: Repeat(times(2, when), 3), 8),
    meta(
        Repeat,
        "while",
        lambda when: Repeat(times(2, when), lambda y: np.abs(y).max() < 1e6, max_iter=2),
        4,
    ),
    meta(Sometimes, "", lambda when: Sometimes(times(2, when), 1.0), 2),
    meta(
        Fuse,
        "around others",
        lambda when: Fuse(
            [
                Repeat(Sometimes(times(2, when), 1.0), 2),
                OneOf(Fuse(times(3, when)), Fuse(times(3, when))),
            ]
        ),
        12,
    ),
]
