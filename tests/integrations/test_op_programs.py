"""Ops that need a network around them, beside FastEstimator's; and whether any op was left out.

In these programs models run and are updated, gradients are taken, and ops hold other ops.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
from tests.integrations.sides import Sides
from tests.integrations.test_numpyops import CASES as NUMPY_CASES
from tests.integrations.test_op_library import CASES, in_graphs, tensorops, tensors_of
from tests.integrations.tf_sides import MARKS, tf
from tests.integrations.torchvision_stand_in import complete_fastestimator

pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def _whole_fastestimator() -> Iterator[None]:
    with complete_fastestimator():
        yield


class Side:
    """What a framework needs."""

    def __init__(self, framework: str) -> None:
        self.is_torch = framework == "torch"
        self.eager = framework == "tf"
        tools: Any = torch_sides if self.is_torch else tf_sides
        self.batches, self.mlp = tools.batches, tools.mlp
        # a layer by its place, or by its name
        self.layer: Any = 0 if self.is_torch else "hidden"

    def mean(self, x: Any) -> Any:
        return x.mean() if self.is_torch else tf.reduce_mean(x)

    def agree(self, sides: Sides, program: Any, rtol: float) -> None:
        if self.is_torch:
            sides.agree(program, rtol)
        else:
            tf_sides.agree(sides, program, rtol)

    def network(self, lib: Any, ops: list[Any]) -> Any:
        return (lib.network.TorchNetwork if self.is_torch else lib.network.TFNetwork)(ops)


Make = Callable[[Any, Side, Any], list[Any]]


def compared(t: Any, y: str = "y", loss: str = "loss", mode: Any = "!infer") -> Any:
    return t.loss.mean_squared_error.MeanSquaredError((y, "target"), loss, mode=mode)


def plus(t: Any, number: float, key: str = "x") -> Any:
    return t.LambdaOp(lambda x: x + number, key, key)


# for each program its ops, given the package's ops, the framework and a model
PROGRAMS: dict[str, Make] = {
    "delete": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y"),
        t.LambdaOp(lambda y: y * 2, "y", "z"),
        t.Delete("y", mode="train"),
        t.Delete(["z"], mode="eval"),
    ],
    "update": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.model.UpdateOp(model, "loss"),
    ],
    "layers": lambda t, side, model: [
        t.model.ModelOp(model, "x", ["y", "inner"], intermediate_layers=side.layer),
        compared(t),
        t.LambdaOp(lambda loss, inner: loss + side.mean(inner * inner), ["loss", "inner"], "loss"),
        t.model.UpdateOp(model, "loss"),
    ],
    "frozen": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y", trainable=False),
        t.model.ModelOp(model, "y2", "y3", mode="infer"),
        compared(t),
    ],
    "merged": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.model.UpdateOp(model, "loss", merge_grad=2),
    ],
    "deferred": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.model.UpdateOp(model, "loss", defer=True),
        t.model.ModelOp(model, "x", "again"),
    ],
    "gradients": lambda t, side, model: [
        t.gradient.Watch("x"),
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.gradient.GradientOp(["loss", "y"], ["dx", "dy"], inputs=["x", "x"]),
        t.gradient.GradientOp("loss", "dw", model=model),
        t.model.UpdateOp(model, "loss", gradients="dw"),
        t.LambdaOp(lambda dw: sum(side.mean(one * one) for one in dw), "dw", "steep"),
        t.Delete("dw"),
    ],
    "adversary": lambda t, side, model: [
        t.gradient.Watch("x", mode="train"),
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.gradient.FGSM("x", "loss", "moved", epsilon=0.1, mode="train"),
        t.gradient.FGSM("x", "loss", "kept", clip_low=-0.5, clip_high=0.5, mode="train"),
        t.model.ModelOp(model, "moved", "y2", mode="train"),
        compared(t, "y2", "loss2"),
        t.model.UpdateOp(model, "loss2"),
    ],
    "regularized": lambda t, side, model: [
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.loss.l2_regularization.L2Regularizaton("loss", "loss", model, beta=0.1),
        t.model.UpdateOp(model, "loss"),
    ],
    "metas": lambda t, side, model: [
        t.meta.Fuse([plus(t, 1), t.meta.Repeat(plus(t, 2), 2)]),
        t.meta.Sometimes(t.meta.OneOf(plus(t, 4), plus(t, 8), probs=[1.0, 0.0]), 1.0),
        t.meta.Repeat(t.meta.Fuse([plus(t, 1), plus(t, -0.5)]), lambda x: side.mean(x) < 20),
        t.model.ModelOp(model, "x", "y"),
    ],
    "models in metas": lambda t, side, model: [
        t.meta.Fuse([t.model.ModelOp(model, "x", "y"), compared(t, mode=None)]),
        t.model.UpdateOp(model, "loss"),
    ],
    "mixed": lambda t, side, model: [
        # that the draws are alike is not for this test: of two equal samples nothing can be mixed
        t.LambdaOp(lambda x: x * 0 + 1, "x", "x"),
        t.LambdaOp(lambda target: target * 0 + 0.5, "target", "target"),
        t.augmentation.mixup_batch.MixUpBatch(("x", "target"), ("x", "target")),
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.model.UpdateOp(model, "loss"),
    ],
}

FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "tf", "graph"])


@FRAMEWORKS
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(sides: Sides, name: str, framework: str) -> None:
    side = Side(framework)

    def program(lib: Any) -> Any:
        model = lib.build(side.mlp, "sgd", model_name="mlp")
        network = side.network(lib, PROGRAMS[name](tensorops(lib), side, model))
        told = []
        for mode in ("train", "eval") if name in ("delete", "frozen") else ("train",):
            told += tf_sides.steps(network, side.batches(3), mode, eager=side.eager)
        return told, model

    # to the bit, but for torch's fused mean of squares: a rounding of the loss, and of what follows
    side.agree(sides, program, rtol=2.4e-7 if side.is_torch else 0.0)


@pytest.mark.parametrize(
    ("name", "framework"),
    [pair for pair in in_graphs(list(CASES)) if (pair[0], "graph") in in_graphs(list(CASES))],
)
def test_ops_of_fastestimator_in_a_network_of_fastnet(
    sides: Sides, name: str, framework: str
) -> None:
    """Between ops of fastnet, each does what it does in FastEstimator's own network."""
    make, given = CASES[name]
    side = Side(framework)

    def program(lib: Any) -> Any:
        t = lib.op.tensorop
        op = make(tensorops(sides.fastestimator))
        op.mode = set()  # losses too, in every mode
        ops = [
            t.LambdaOp(lambda given: given, "given", op.inputs[0]),
            op,
            t.TensorOp(op.outputs, [f"{key}!" for key in op.outputs]),
        ]
        batch = dict(zip(op.inputs, tensors_of(given, framework), strict=True))
        batch["given"] = batch.pop(op.inputs[0])
        return tf_sides.steps(side.network(lib, ops), [batch] * 2, "eval", eager=side.eager)

    # It is the very same op. A graph for batches of any size may add up in another order.
    side.agree(sides, program, rtol=2.4e-7 if framework == "graph" else 0.0)


def inside(op: Any) -> list[Any]:
    """List an op and the ops that it holds."""
    held = [*getattr(op, "ops", []), getattr(op, "loss", None)]
    return [op, *(one for each in held if each is not None for one in inside(each))]


def test_no_op_is_left_out(sides: Sides) -> None:
    """Every class that both packages export is in the tables of these tests."""
    fastnet = sides.fastnet
    t, n = tensorops(fastnet), fastnet.op.numpyop
    model = fastnet.build(Side("torch").mlp, "sgd", model_name="mlp")
    made: list[Any] = [make(t) for make, _ in CASES.values()]
    for program in PROGRAMS.values():
        made += program(t, Side("torch"), model)
    for make, _ in NUMPY_CASES.values():
        ops = make(n)
        made += ops if isinstance(ops, list) else [ops]
    found = {type(each) for op in made for each in inside(op)}
    # What is tested by itself: in test_random_ops.py, in test_numpyops.py; and one to derive from.
    found |= {t.augmentation.CutMixBatch, n.Batch, t.loss.LossOp}
    packages = ["", ".model", ".loss", ".gradient", ".meta", ".augmentation"]
    paths = [f"op.tensorop{one}" for one in packages]
    paths += [f"op.numpyop{one}" for one in ("", ".meta", ".univariate")]
    left_out = []
    for path in paths:
        there, here = (
            importlib.import_module(f"{lib.__name__}.{path}")
            for lib in (sides.fastestimator, fastnet)
        )
        for name in set(dir(there)) & set(dir(here)):
            one = getattr(here, name)
            if isinstance(one, type) and not name.startswith("_") and one not in found:
                left_out.append(f"{path}.{name}")
    assert left_out == []
