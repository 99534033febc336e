"""Every numpy op of the library that a network runs, with what it must make of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.op.numpyop import Delete, LambdaOp, NumpyOp, meta
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
from tests.conformance.catalogue import CLASSES, IMAGES, Row, X, meta_rows, unary


def stretched(x: Any, low: float, high: float) -> Any:
    """Let each sample reach from one value to another."""
    least, most = x.min(1, keepdims=True), x.max(1, keepdims=True)
    return ((x - least) / (most - least) * (high - low) + low).astype("float32")


def smoothed(classes: Any) -> Any:
    return (0.75 * np.eye(4)[classes] + 0.25 / 4).astype("float32")


NUMPY_ROWS = [
    unary(NumpyOp, "", X, lambda x: x),
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
    unary(Binarize, "", X, lambda x: (x >= 0.25).astype("float32"), threshold=0.25),
    unary(ChannelTranspose, "", IMAGES, lambda x: x.transpose(0, 3, 1, 2)),
    unary(ChannelTranspose, "by axes", IMAGES, lambda x: x.transpose(0, 2, 1, 3), axes=(1, 0, 2)),
    unary(ExpandDims, "", X, lambda x: x[..., None]),
    unary(ExpandDims, "in front", X, lambda x: x[:, None], axis=0),
    unary(
        Hadamard,
        "",
        CLASSES,
        lambda x: np.array([[-1, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, -1]], "float32")[x],
        n_classes=3,
    ),
    unary(Minmax, "", X, lambda x: stretched(x, 0, 1)),
    unary(Minmax, "to others", X, lambda x: stretched(x, -2, 3), new_min=-2.0, new_max=3.0),
    unary(Onehot, "", CLASSES, lambda x: np.eye(4, dtype="float32")[x], num_classes=4),
    unary(Onehot, "smoothed", CLASSES, smoothed, num_classes=4, label_smoothing=0.25),
    unary(Reshape, "", IMAGES, lambda x: x.reshape(2, 4, 9), shape=(4, -1)),
    unary(ToArray, "", X, lambda x: x),
    unary(ToArray, "of a type", X * 10, lambda x: x.astype("int32"), dtype="int32"),
    *meta_rows(meta, NumpyOp, LambdaOp, lambda y: np.abs(y).max() < 1e6),
]
