"""Numpy ops compared with FastEstimator's, on samples and on batches.

Results are bitwise equal, dtypes and random draws included. Values of each op are compared with
numpy in tests/conformance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

SOURCE = np.random.default_rng(11)
X = SOURCE.normal(size=(4, 3, 2)).astype("float32")
Y = SOURCE.normal(size=(4, 3, 2))
PIXELS = SOURCE.integers(0, 256, (4, 3, 2)).astype("uint8")
LABELS = np.array([2, 0, 3, 1])

# An op, or a list of ops, and a batch for them.
Case = tuple[Callable[[Any], Any], dict[str, np.ndarray]]


def plus(n: Any, number: float, inputs: Any = "x", outputs: Any = "x") -> Any:
    return n.LambdaOp(lambda x: x + number, inputs, outputs)


def univariate(name: str, x: np.ndarray, **settings: Any) -> Case:
    return lambda n: getattr(n.univariate, name)(inputs="x", outputs="y", **settings), {"x": x}


def two_keys(make: Callable[[Any], Any]) -> Case:
    return make, {"x": X, "y": Y}


CASES: dict[str, Case] = {
    "nothing": (lambda n: n.NumpyOp(["x", "y"], ["y", "z"]), {"x": X, "y": Y}),
    "lambda": (
        lambda n: n.LambdaOp(lambda x, y: (x + y, x - y), ["x", "y"], ["y", "z"]),
        {"x": X, "y": Y},
    ),
    "delete": (lambda n: n.Delete(["x", "y"]), {"x": X, "y": Y, "z": X}),
    "remove none": (lambda n: n.RemoveIf(lambda x: x.max() > 99, inputs="x"), {"x": X}),
    "remove": (lambda n: n.RemoveIf(lambda x: x.max() < 99, inputs="x"), {"x": X}),
    "remove for good": (
        lambda n: n.RemoveIf(lambda x, y: x[0].sum() < 99 + y.sum(), False, ["x", "y"]),
        {"x": X, "y": Y},
    ),
    "several": (
        lambda n: [plus(n, 1, outputs="y"), plus(n, 2, "y"), n.Delete("y"), plus(n, 3)],
        {"x": X},
    ),
    "fuse": two_keys(
        lambda n: n.meta.Fuse([plus(n, 1, outputs="y"), plus(n, 2, "y", "z"), plus(n, 3, "y")]),
    ),
    "one of": two_keys(lambda n: n.meta.OneOf(plus(n, 1), plus(n, 10), plus(n, 100))),
    "biased one of": two_keys(lambda n: n.meta.OneOf(plus(n, 1), plus(n, 10), probs=[0.2, 0.8])),
    "sometimes": two_keys(lambda n: n.meta.Sometimes(plus(n, 1, outputs="y"), prob=0.6)),
    "repeat": two_keys(lambda n: n.meta.Repeat(plus(n, 1), 4)),
    "repeat while": two_keys(
        lambda n: n.meta.Repeat(plus(n, 1), lambda x, y: x.max() < 20 + y.max())
    ),
    "repeat while, at most": two_keys(
        lambda n: n.meta.Repeat(plus(n, 1), lambda x: x.max() < 9, max_iter=3),
    ),
    "repeat while drawn": two_keys(
        lambda n: n.meta.Repeat(
            n.LambdaOp(lambda x: x + np.random.uniform(), "x", "x"), lambda x: x.max() < 9
        ),
    ),
    "metas in metas": two_keys(
        lambda n: n.meta.Fuse(
            [
                n.meta.Repeat(n.meta.Sometimes(plus(n, 1), 0.5), 3),
                n.meta.Sometimes(n.meta.OneOf(plus(n, 10), plus(n, 20)), 0.7),
                n.meta.Sometimes(n.meta.Fuse([plus(n, 100), plus(n, 200)])),
            ]
        ),
    ),
    "binarize": univariate("Binarize", X, threshold=0.2),
    "transpose channels": univariate("ChannelTranspose", X[..., None]),
    "expand": univariate("ExpandDims", X, axis=0),
    "hadamard": univariate("Hadamard", LABELS, n_classes=5, code_length=16),
    "minmax": univariate("Minmax", X),
    "minmax of bytes": univariate("Minmax", PIXELS),
    "minmax to a range": univariate("Minmax", Y, epsilon=0.1, new_min=-1, new_max=3),
    "onehot": univariate("Onehot", LABELS, num_classes=4, label_smoothing=0.2),
    "reshape": univariate("Reshape", X, shape=[2, 3]),
    "to array": univariate("ToArray", PIXELS, dtype="int32"),
}


def describe(answer: Any) -> Any:
    """Describe what was returned for data that is to be left out."""
    return None if answer is None else (type(answer).__name__, answer.replacement)


@pytest.mark.parametrize("name", CASES)
def test_samples_and_batches(sides: Sides, name: str) -> None:
    make, values = CASES[name]

    def program(lib: Any) -> Any:
        n = lib.op.numpyop
        ops = made if isinstance(made := make(n), list) else [made]
        told: list[Any] = []
        for place in range(12):
            sample = {key: value[place % 4].copy() for key, value in values.items()}
            answer = n.forward_numpyop(ops, sample, {"mode": "train"})
            told.append((describe(answer), sample))
        for framework, tensor in (("np", np.copy), ("torch", torch.tensor), ("tf", tf.constant)):
            batch = {key: tensor(value) for key, value in values.items()}
            answer = n.forward_numpyop(ops, batch, {"mode": "eval"}, batched=framework)
            # FastEstimator leaves a batch that is left out half converted.
            told.append((describe(answer), answer is None and batch))
        return told

    sides.agree(program, seed=7)


def test_pipelines_refuse_them(sides: Sides) -> None:
    """FastEstimator's Pipeline takes only its own classes."""
    fe = sides.fastestimator
    data = fe.dataset.NumpyDataset(data={"x": PIXELS.copy()})
    for op in (sides.fastnet.op.numpyop.Batch(batch_size=3), plus(sides.fastnet.op.numpyop, 1)):
        with pytest.raises(AssertionError, match="must provide NumpyOp"):
            fe.Pipeline(eval_data=data, batch_size=2, ops=[op], num_process=0)
