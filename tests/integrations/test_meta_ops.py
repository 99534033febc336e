"""Ops around ops, and ops that take gradients, beside FastEstimator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
from tests.integrations.sides import Sides
from tests.integrations.tf_sides import tf

pytestmark = tf_sides.MARKS


class Torch:
    batches = staticmethod(torch_sides.batches)
    mlp = staticmethod(torch_sides.mlp)

    @staticmethod
    def agree(sides: Sides, program: Any, rtol: float = 0.0) -> Any:
        return sides.agree(program, rtol)

    @staticmethod
    def mean(x: Any) -> Any:
        return x.mean()

    steps = staticmethod(torch_sides.steps)


class TF:
    def __init__(self, eager: bool) -> None:
        self.eager = eager

    batches = staticmethod(tf_sides.batches)
    mlp = staticmethod(tf_sides.mlp)
    agree = staticmethod(tf_sides.agree)
    mean = staticmethod(tf.reduce_mean)

    def steps(self, network: Any, data: Any, **settings: Any) -> Any:
        return tf_sides.steps(network, data, eager=self.eager, **settings)


@pytest.fixture(params=[Torch(), TF(False), TF(True)], ids=["torch", "tf-static", "tf-eager"])
def fw(request: pytest.FixtureRequest) -> Any:
    return request.param


def make(fw: Any, lib: Any, ops: Any) -> Any:
    name = "TorchNetwork" if isinstance(fw, Torch) else "TFNetwork"
    return getattr(lib.network, name)(ops)


def add(lib: Any, value: float) -> Any:
    return lib.op.tensorop.LambdaOp(lambda x: x + value, "x", "x")


def test_fuse_and_repeat(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        double = lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "z")
        mean = fw.mean
        ops = [
            meta.Fuse([add(lib, 1), double]),
            meta.Repeat(add(lib, 2), 3),
            meta.Repeat(add(lib, 3), lambda x: mean(x) < 20),
            meta.Repeat(add(lib, 3), lambda x: mean(x) < 90, max_iter=2),
        ]
        keys = [(list(op.inputs), list(op.outputs)) for op in ops]
        return keys, fw.steps(make(fw, lib, ops), fw.batches(2))

    # graphs add up constants first, each in its own order: one rounding
    fw.agree(sides, program, rtol=2.4e-7)


def test_choices_that_are_certain(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        ops = [
            meta.Sometimes(add(lib, 1), 1.0),
            meta.Sometimes(add(lib, 10), 0.0),
            meta.OneOf(add(lib, 100), add(lib, 200), probs=[0.0, 1.0]),
        ]
        keys = [(list(op.inputs), list(op.outputs)) for op in ops]
        return keys, fw.steps(make(fw, lib, ops), fw.batches(2))

    fw.agree(sides, program)


@pytest.mark.parametrize("fw", [Torch()], ids=["torch"])
@pytest.mark.parametrize("probs", [None, [0.3, 0.7]])
def test_draws_of_torch(sides: Sides, fw: Any, probs: Any) -> None:
    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        ops = [
            meta.Sometimes(add(lib, 1), 0.4),
            meta.OneOf(add(lib, 10), add(lib, 20), probs=probs),
        ]
        return fw.steps(make(fw, lib, ops), [{"x": torch.zeros(1)}] * 40)

    fw.agree(sides, program)


def test_gradients(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        ops = lib.op.tensorop
        model = lib.build(fw.mlp, "sgd", model_name="m")
        network = make(
            fw,
            lib,
            [
                ops.gradient.Watch("x"),
                ops.model.ModelOp(model, "x", "y"),
                ops.loss.MeanSquaredError(("y", "target"), "loss"),
                ops.gradient.GradientOp("loss", "dx", inputs="x"),
                ops.gradient.GradientOp("loss", "dw", model=model),
                ops.gradient.FGSM("x", "loss", "moved", epsilon=0.1),
                ops.model.ModelOp(model, "moved", "y2"),
                ops.loss.MeanSquaredError(("y2", "target"), "loss2"),
                ops.model.UpdateOp(model, "loss2"),
            ],
        )
        wanted = {"dx", "dw", "moved", "loss", "loss2"}
        results = fw.steps(network, fw.batches(3), wanted=wanted)
        return [{key: one[key] for key in wanted} for one in results], model

    fw.agree(sides, program, rtol=1e-5)


class TestNumpy:
    @pytest.mark.parametrize("probs", [None, [0.3, 0.7]])
    def test_draws(self, sides: Sides, probs: Any) -> None:
        def program(lib: Any) -> Any:
            numpyop = lib.op.numpyop
            plus = [numpyop.LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 10, 100)]
            meta = numpyop.meta
            op = meta.Fuse(
                [
                    meta.Repeat(meta.Sometimes(plus[0], 0.4), 3),
                    meta.OneOf(plus[1], plus[2], probs=probs),
                ]
            )
            state = {"mode": "train"}
            data = [np.asarray(op.forward([np.zeros(1)], state)[0]) for _ in range(40)]
            return list(op.inputs), list(op.outputs), data

        sides.agree(program)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("Binarize", {"threshold": 2}),
            ("ChannelTranspose", {}),
            ("ExpandDims", {"axis": 1}),
            ("Minmax", {"new_min": -1.0, "new_max": 2.0}),
            ("Reshape", {"shape": (2, -1)}),
            ("ToArray", {"dtype": "float32"}),
        ],
    )
    def test_images(self, sides: Sides, name: str, settings: dict[str, Any]) -> None:
        x = np.arange(24.0).reshape(2, 3, 4) / 4

        def program(lib: Any) -> Any:
            op = getattr(lib.op.numpyop.univariate, name)(inputs="x", outputs="y", **settings)
            return op.forward([x], {"mode": "train"})

        sides.agree(program)

    @pytest.mark.parametrize("index", [2, [2], [0, 3], [[0], [3]]])
    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("Onehot", {"num_classes": 4}),
            ("Onehot", {"num_classes": 4, "label_smoothing": 0.2}),
            ("Hadamard", {"n_classes": 4}),
            ("Hadamard", {"n_classes": 5, "code_length": 16}),
        ],
    )
    def test_classes(self, sides: Sides, name: str, settings: dict[str, Any], index: Any) -> None:
        def program(lib: Any) -> Any:
            op = getattr(lib.op.numpyop.univariate, name)(inputs="x", outputs="y", **settings)
            return [np.asarray(one) for one in op.forward([np.array(index)], {"mode": "train"})]

        sides.agree(program)
