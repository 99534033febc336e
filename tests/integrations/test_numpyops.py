"""Ops on arrays, beside FastEstimator's: on samples, on batches, and by `forward_numpyop`.

Results are equal to the bit, types included.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides, assert_same
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

SOURCE = np.random.default_rng(11)
X = SOURCE.normal(size=(4, 3, 2)).astype("float32")
Y = SOURCE.normal(size=(4, 3, 2))
PIXELS = SOURCE.integers(0, 256, (4, 3, 2)).astype("uint8")
LABELS = np.array([2, 0, 3, 1])

# each op, or ops in a row, and a batch for them
Case = tuple[Callable[[Any], Any], dict[str, np.ndarray]]


def plus(n: Any, number: float, inputs: Any = "x", outputs: Any = "x") -> Any:
    return n.LambdaOp(lambda x: x + number, inputs, outputs)


CASES: dict[str, Case] = {
    "nothing": (lambda n: n.NumpyOp("x", "y"), {"x": X}),
    "nothing of several": (lambda n: n.NumpyOp(["x", "y"], ["y", "z"]), {"x": X, "y": Y}),
    "lambda": (lambda n: n.LambdaOp(lambda x: x.sum(axis=-1), "x", "y"), {"x": X}),
    "lambda of several": (
        lambda n: n.LambdaOp(lambda x, y: (x + y, x - y), ["x", "y"], ["y", "z"]),
        {"x": X, "y": Y},
    ),
    "delete": (lambda n: n.Delete("x"), {"x": X, "y": Y}),
    "delete several": (lambda n: n.Delete(["x", "y"]), {"x": X, "y": Y, "z": X}),
    "remove none": (lambda n: n.RemoveIf(lambda x: x.max() > 99, inputs="x"), {"x": X}),
    "remove": (lambda n: n.RemoveIf(lambda x: x.max() < 99, inputs="x"), {"x": X}),
    "remove for good": (
        lambda n: n.RemoveIf(lambda x, y: x[0].sum() < 99 + y.sum(), False, ["x", "y"]),
        {"x": X, "y": Y},
    ),
    "a row": (
        lambda n: [plus(n, 1, outputs="y"), plus(n, 2, "y"), n.Delete("y"), plus(n, 3)],
        {"x": X},
    ),
    "fuse": (
        lambda n: n.meta.Fuse([plus(n, 1, outputs="y"), plus(n, 2, "y", "z"), plus(n, 3, "y")]),
        {"x": X},
    ),
    "fuse one": (lambda n: n.meta.Fuse(plus(n, 1)), {"x": X}),
    "one of": (lambda n: n.meta.OneOf(plus(n, 1), plus(n, 10), plus(n, 100)), {"x": X}),
    "one of, unfair": (
        lambda n: n.meta.OneOf(plus(n, 1), plus(n, 10), probs=[0.2, 0.8]),
        {"x": X},
    ),
    "one of samples": (
        lambda n: n.meta.OneOf(n.univariate.Minmax("x", "x"), n.univariate.Binarize(0.1, "x", "x")),
        {"x": X},
    ),
    "sometimes": (lambda n: n.meta.Sometimes(plus(n, 1), prob=0.4), {"x": X}),
    "sometimes to another key": (
        lambda n: n.meta.Sometimes(plus(n, 1, outputs="y"), prob=0.6),
        {"x": X, "y": Y},
    ),
    "repeat": (lambda n: n.meta.Repeat(plus(n, 1), 4), {"x": X}),
    "repeat while": (lambda n: n.meta.Repeat(plus(n, 1), lambda x: x.max() < 9), {"x": X}),
    "repeat while another key": (
        lambda n: n.meta.Repeat(plus(n, 1), lambda x, y: x.max() < 20 + y.max()),
        {"x": X, "y": Y},
    ),
    "repeat while, at most": (
        lambda n: n.meta.Repeat(plus(n, 1), lambda x: x.max() < 9, max_iter=3),
        {"x": X},
    ),
    "repeat while drawn": (
        lambda n: n.meta.Repeat(
            n.LambdaOp(lambda x: x + np.random.uniform(), "x", "x"), lambda x: x.max() < 9
        ),
        {"x": X},
    ),
    "metas in metas": (
        lambda n: n.meta.Fuse(
            [
                n.meta.Repeat(n.meta.Sometimes(plus(n, 1), 0.5), 3),
                n.meta.Sometimes(n.meta.OneOf(plus(n, 10), plus(n, 20)), 0.7),
                n.meta.Sometimes(n.meta.Fuse([plus(n, 100), plus(n, 200)])),
            ]
        ),
        {"x": X},
    ),
    "binarize": (lambda n: n.univariate.Binarize(0.2, "x", "y"), {"x": X}),
    "binarize several": (
        lambda n: n.univariate.Binarize(100, ["x", "y"], ["y", "z"]),
        {"x": PIXELS, "y": Y},
    ),
    "transpose channels": (lambda n: n.univariate.ChannelTranspose("x", "y"), {"x": X[..., None]}),
    "transpose channels otherwise": (
        lambda n: n.univariate.ChannelTranspose("x", "x", axes=(1, 2, 0)),
        {"x": X[..., None]},
    ),
    "expand": (lambda n: n.univariate.ExpandDims("x", "y"), {"x": X}),
    "expand in front": (lambda n: n.univariate.ExpandDims("x", "x", axis=0), {"x": X}),
    "hadamard": (lambda n: n.univariate.Hadamard("x", "y", 4), {"x": LABELS}),
    "hadamard, long": (lambda n: n.univariate.Hadamard("x", "y", 5, 16), {"x": LABELS}),
    "minmax": (lambda n: n.univariate.Minmax("x", "y"), {"x": X}),
    "minmax of bytes": (lambda n: n.univariate.Minmax("x", "y"), {"x": PIXELS}),
    "minmax to a range": (
        lambda n: n.univariate.Minmax("x", "y", epsilon=0.1, new_min=-1, new_max=3),
        {"x": Y},
    ),
    "onehot": (lambda n: n.univariate.Onehot("x", "y", 4), {"x": LABELS}),
    "onehot, smooth": (
        lambda n: n.univariate.Onehot("x", "y", 4, label_smoothing=0.2),
        {"x": LABELS},
    ),
    "reshape": (lambda n: n.univariate.Reshape(-1, "x", "y"), {"x": X}),
    "reshape several": (
        lambda n: n.univariate.Reshape([2, 3], ["x", "y"], ["x", "y"]),
        {"x": X, "y": Y},
    ),
    "to array": (lambda n: n.univariate.ToArray("x", "y"), {"x": X}),
    "to array of a type": (lambda n: n.univariate.ToArray("x", "y", dtype="int32"), {"x": PIXELS}),
}


def agree(sides: Sides, program: Callable[[Any], Any]) -> Any:
    """Run a program in both from the same seeds, with the package's numpy ops."""
    results = []
    for lib in (sides.fastestimator, sides.fastnet):
        random.seed(7)
        np.random.seed(7)
        results.append(program(lib.op.numpyop))
    assert_same(results[1], results[0])
    return results[1]


def told_of(answer: Any) -> Any:
    """Say what was returned for data that is to be left out."""
    return None if answer is None else (type(answer).__name__, answer.replacement)


def rows(n: Any, name: str) -> list[Any]:
    made = CASES[name][0](n)
    return made if isinstance(made, list) else [made]


@pytest.mark.parametrize("name", CASES)
def test_samples(sides: Sides, name: str) -> None:
    def program(n: Any) -> Any:
        told = []
        for place in range(12):
            sample = {key: value[place % 4].copy() for key, value in CASES[name][1].items()}
            answer = n.forward_numpyop(rows(n, name), sample, {"mode": "train"})
            told.append((told_of(answer), sample))
        return told

    agree(sides, program)


@pytest.mark.parametrize("framework", ["np", "torch", "tf"])
@pytest.mark.parametrize("name", CASES)
def test_batches(sides: Sides, name: str, framework: str) -> None:
    make = {"np": np.copy, "torch": torch.tensor, "tf": tf.constant}[framework]

    def program(n: Any) -> Any:
        told = []
        for _ in range(3):
            batch = {key: make(value) for key, value in CASES[name][1].items()}
            answer = n.forward_numpyop(rows(n, name), batch, {"mode": "eval"}, batched=framework)
            kinds = {key: type(value).__name__ for key, value in batch.items()}
            arrays = {key: np.asarray(value) for key, value in batch.items()}
            # a batch that is left out is in FastEstimator left half converted
            told.append((told_of(answer), answer is None and (kinds, arrays)))
        return told

    agree(sides, program)


class TestBatch:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"batch_size": 3, "drop_last": True, "mode": "train", "ds_id": "!a"},
            {"pad_value": -1},
            {"collate_fn": lambda samples: {"count": len(samples)}},
        ],
    )
    def test_settings(self, sides: Sides, settings: dict[str, Any]) -> None:
        def program(n: Any) -> Any:
            op = n.Batch(**settings)
            samples = [
                {"x": np.ones((size if settings.get("pad_value") else 2, 2)), "y": size}
                for size in (1, 3, 2)
            ]
            limits = set(op.mode), set(op.ds_id)
            about = op.batch_size, op.drop_last, *limits, list(op.inputs), list(op.outputs)
            return about, dict(op.collate_fn(samples))

        agree(sides, program)

    def test_in_a_pipeline(self, sides: Sides) -> None:
        """FastEstimator's Pipeline takes classes of its own only."""
        fe = sides.fastestimator
        data = fe.dataset.NumpyDataset(data={"x": PIXELS.copy()})
        for op in (sides.fastnet.op.numpyop.Batch(batch_size=3), plus(sides.fastnet.op.numpyop, 1)):
            with pytest.raises(AssertionError, match="must provide NumpyOp"):
                fe.Pipeline(eval_data=data, batch_size=2, ops=[op], num_process=0)


def test_settings_of_metas_that_are_refused(sides: Sides) -> None:
    def program(n: Any) -> Any:
        for probs in ([0.5], [0.6, 0.6]):
            with pytest.raises(AssertionError):
                n.meta.OneOf(plus(n, 1), plus(n, 2), probs=probs)
        for repeat, most in ((0, None), (1, 2)):
            with pytest.raises(ValueError):  # noqa: PT011 - the texts are not copied
                n.meta.Repeat(plus(n, 1), repeat, max_iter=most)

    agree(sides, program)
