"""Tensor ops compared with FastEstimator's: values, gradients, and networks that train with them.

Results are bitwise equal, but for those that ROUNDINGS names. Values and gradients for every
setting are compared with numpy in tests/conformance.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.backend import reduce_mean
from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
from tests.integrations.sides import Sides, steps
from tests.integrations.test_numpyops import CASES as NUMPY_CASES
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

SOURCE = np.random.default_rng(5)
X = SOURCE.normal(size=(4, 3)).astype("float32")
Z = SOURCE.normal(size=(4, 3)).astype("float32")
SIGNS = np.where(SOURCE.random(size=(4, 3)) > 0.5, 1, -1).astype("float32")
BITS = (SIGNS + 1) / 2
SHARES = SOURCE.uniform(0.05, 0.95, size=(4, 3)).astype("float32")
# as many channels wherever a framework has them
IMAGES = SOURCE.uniform(0, 1, size=(4, 3, 6, 3)).astype("float32")
MASKS = SOURCE.integers(0, 2, size=(4, 3, 6, 3)).astype("float32")
# as many channels as rows, so that each framework finds three of them
CHANNELS = [SOURCE.uniform(0, 1, size=(2, 3, 3, 3)).astype("float32") for _ in range(2)]
VOLUMES = SOURCE.normal(size=(2, 3, 6, 5, 4)).astype("float32")
AT = np.array([2, 0, 1, 1])
ROWS = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
CLASSES = np.array([2, 0, 1, 2])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]

Make = Callable[[Any], Any]
Case = tuple[Make, list[Any]]


def loss(name: str, predicted: Any, truth: Any, **settings: Any) -> Case:
    """Return the case of a loss that compares predictions with the truth."""
    return lambda t: getattr(t.loss, name)(("p", "t"), "y", **settings), [predicted, truth]


def losses(
    label: str, name: str, predicted: Any, truth: Any, **choices: Sequence[Any]
) -> dict[str, Case]:
    """Return a case for each combination of settings."""
    return {
        "-".join([label, *map(str, chosen)]): loss(
            name, predicted, truth, **dict(zip(choices, chosen, strict=True))
        )
        for chosen in itertools.product(*choices.values())
    }


# Each op, and its inputs.
CASES: dict[str, Case] = {
    "nothing": (lambda t: t.TensorOp("a", "y"), [X]),
    "lambda": (lambda t: t.LambdaOp(lambda a: a * 3 + 0.1, "a", "y"), [X]),
    "normalize": (lambda t: t.Normalize("a", "y", 0.4, 0.3, 1.0), [IMAGES]),
    "normalize-channels": (lambda t: t.Normalize(["a", "b"], ["y", "z"]), CHANNELS),
    "normalize-to-255": (
        lambda t: t.Normalize("a", "y", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
        [np.round(CHANNELS[0] * 255).astype("uint8")],
    ),
    "argmax": (lambda t: t.Argmax("a", "y", axis=1), [X]),
    "average": (lambda t: t.Average(["a", "b"], "y"), [X, Z]),
    "gather": (lambda t: t.Gather(["a", "b"], ["y", "y2"], "i"), [AT, X, Z]),
    "permute": (lambda t: t.Permute("a", "y"), [IMAGES]),
    "reshape": (lambda t: t.Reshape("a", "y", (-1, 6)), [X]),
    "resize": (lambda t: t.Resize3D("a", "y", (3, 2, 5)), [VOLUMES]),
    "resize-area": (lambda t: t.Resize3D("a", "y", (3, 2, 2), "area"), [VOLUMES]),
    "unhadamard": (
        lambda t: t.UnHadamard("a", "y", 3),
        [SHARES @ np.eye(3, 4, dtype="float32")],
    ),
    "hinge": loss("Hinge", X, SIGNS),
    "focal-logits": loss("FocalLoss", X, BITS, gamma=1.5, from_logits=True),
    **losses("squares", "MeanSquaredError", X, Z, average_loss=(True, False)),
    **losses(
        "l1", "L1_Loss", X, Z, loss_type=("L1", "Smooth", "Huber"), average_loss=(True, False)
    ),
    **losses(
        "focal",
        "FocalLoss",
        SHARES,
        BITS,
        sample_reduction=("none", "mean", "sum"),
        shape_reduction=("mean", "sum"),
        normalize=(True, False),
    ),
    **losses(
        "dice",
        "DiceLoss",
        IMAGES,
        MASKS,
        soft_dice=(True, False),
        average_loss=(True, False),
        channel_average=(True, False),
        channel_weights=(None, {0: 0.5, 2: 2.0}),
    ),
    **{
        name: case
        for form, predicted, truth in (
            ("categorical", {True: X, False: ROWS}, ONE_HOT),
            ("sparse", {True: X, False: ROWS}, CLASSES),
            ("binary", {True: X[:, :1], False: SHARES[:, :1]}, BITS[:, :1]),
        )
        for logits in (True, False)
        for name, case in losses(
            "cross-entropy",
            "CrossEntropy",
            predicted[logits],
            truth,
            form=(form,),
            from_logits=(logits,),
            average_loss=(True, False),
            class_weights=(None, {0: 0.5, 1: 2.0}),
        ).items()
    },
    **{
        f"super-{threshold}-{confidence}": (
            lambda t, threshold=threshold, confidence=confidence: t.loss.SuperLoss(
                t.loss.L1_Loss(("p", "t"), "y"), threshold=threshold, output_confidence=confidence
            ),
            [X, Z],
        )
        for threshold in ("exp", 0.7)
        for confidence in (None, "c")
    },
}


# Results that are not bitwise equal, and by how many float32 roundings of their largest value.
ROUNDINGS: dict[tuple[str, str], int] = {
    # The order of summation differs: FastEstimator calls TensorFlow's area resizing once per axis.
    ("resize-area", "tf"): 2,
    # FastEstimator's Keras makes probabilities of logits, then logits of these.
    ("focal-logits", "tf"): 5,
    # Lambert's W is found by iteration. FastEstimator stops where a step is below 1e-6 of W, one or
    # two of its roundings, and differentiates the steps; fastnet differentiates what W solves.
    **{
        (f"super-{threshold}-{confidence}", framework): 6 if confidence else 2
        for threshold in ("exp", 0.7)
        for confidence in ("c", None)
        for framework in ("torch", "tf")
    },
}

# The same for gradients: those of a focal loss are products of the same factors, which are
# multiplied in another order.
GRADIENT_ROUNDINGS: dict[tuple[str, str], int] = {
    **{
        (name, framework): 1
        for name in CASES
        for framework in ("torch", "tf")
        if name.startswith("focal-")
    },
    **ROUNDINGS,
}


# Integers have no gradients, and averages over areas none in FastEstimator's TensorFlow.
WITHOUT_GRADIENTS = ("argmax", "normalize-to-255", "resize-area")


def tensors_of(given: list[Any], framework: str) -> list[Any]:
    return [torch.tensor(one) if framework == "torch" else tf.constant(one) for one in given]


def forward(op: Any, tensors: list[Any]) -> list[Any]:
    state = {"mode": "train", "warmup": False, "epoch": 1, "ds_id": ""}
    result = op.forward(tensors if op.in_list else tensors[0], state)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def evaluate(op: Any, framework: str, given: list[Any], gradients: bool) -> tuple[Any, Any]:
    """Return the values of an op, and the gradients of their sum by each input of floats."""
    tensors = tensors_of(given, framework)
    if framework == "torch":
        op.build("torch", torch.device("cpu"))
        sources = [one for one in tensors if one.is_floating_point()]
        for source in sources:
            source.requires_grad_(gradients)
        values = forward(op, tensors)
        if not gradients:
            return values, []
        total = sum(one.sum() for one in values)
        return values, list(torch.autograd.grad(total, sources, allow_unused=True))
    op.build("tf", None)
    if not gradients:
        return forward(op, tensors), []
    sources = [one for one in tensors if one.dtype.is_floating]
    with tf.GradientTape() as tape:
        for source in sources:
            tape.watch(source)
        values = forward(op, tensors)
        total = sum(tf.reduce_sum(one) for one in values)
    return values, tape.gradient(total, sources)


def compare(actual: list[Any], expected: list[Any], roundings: int = 0) -> None:
    """Compare tensors: dtypes, shapes, and values to so many roundings of the largest of them."""
    assert len(actual) == len(expected)
    for pair in zip(actual, expected, strict=True):
        assert (pair[0] is None) == (pair[1] is None)
        one, other = (
            np.asarray(each.detach() if isinstance(each, torch.Tensor) else each) for each in pair
        )
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if roundings and other.size:
            atol = roundings * np.finfo("float32").eps * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("framework", ["torch", "tf"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(sides: Sides, name: str, framework: str) -> None:
    make, given = CASES[name]
    gradients = not name.startswith(WITHOUT_GRADIENTS)
    (values, slopes), (own_values, own_slopes) = (
        evaluate(make(lib.op.tensorop), framework, given, gradients)
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare(own_values, values, ROUNDINGS.get((name, framework), 0))
    compare(own_slopes, slopes, GRADIENT_ROUNDINGS.get((name, framework), 0))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CutMixBatch", {}),
        ("CutMixBatch", {"alpha": 0.4}),
        ("MixUpBatch", {"alpha": 0.4}),
        ("MixUpBatch", {"shared_beta": True}),
    ],
)
def test_augmentations_draw_the_same_in_torch(
    sides: Sides, name: str, settings: dict[str, Any]
) -> None:
    def program(lib: Any) -> Any:
        op = getattr(lib.op.tensorop.augmentation, name)(("x", "l"), ("x", "l"), **settings)
        return evaluate(op, "torch", [IMAGES, np.eye(4, dtype="float32")], gradients=False)

    sides.agree(program)


Programs = Callable[[Any, Any, Any], list[Any]]


def compared(t: Any, y: str = "y", loss: str = "loss", mode: Any = "!infer") -> Any:
    return t.loss.MeanSquaredError((y, "target"), loss, mode=mode)


def plus(t: Any, number: float, key: str = "x") -> Any:
    return t.LambdaOp(lambda x: x + number, key, key)


# The ops of each program, given the ops of a package, the name of a layer, and a model.
PROGRAMS: dict[str, Programs] = {
    "layers": lambda t, layer, model: [
        t.model.ModelOp(model, "x", ["y", "inner"], intermediate_layers=layer),
        compared(t),
        t.LambdaOp(lambda loss, y: loss + reduce_mean(y * y), ["loss", "inner"], "loss"),
        t.loss.L2Regularizaton("loss", "loss", model, beta=0.1),
        t.model.UpdateOp(model, "loss"),
        t.Delete("y", mode="train"),
        t.Delete(["inner"], mode="eval"),
    ],
    "gradients": lambda t, layer, model: [
        t.gradient.Watch("x"),
        t.model.ModelOp(model, "x", "y"),
        compared(t),
        t.gradient.GradientOp(["loss", "y"], ["dx", "dy"], inputs=["x", "x"]),
        t.gradient.FGSM("x", "loss", "moved", epsilon=0.1),
        t.gradient.FGSM("x", "loss", "kept", clip_low=-0.5, clip_high=0.5),
        t.model.ModelOp(model, "moved", "y2"),
        compared(t, "y2", "loss2"),
        t.gradient.GradientOp("loss2", "dw", model=model),
        t.model.UpdateOp(model, "loss2", gradients="dw"),
        t.LambdaOp(lambda dw: sum(reduce_mean(one * one) for one in dw), "dw", "steep"),
        t.Delete("dw"),
    ],
    "metas": lambda t, layer, model: [
        t.meta.Fuse([plus(t, 1), t.meta.Repeat(plus(t, 2), 2)]),
        t.meta.Sometimes(t.meta.OneOf(plus(t, 4), plus(t, 8), probs=[1.0, 0.0]), 1.0),
        t.meta.Repeat(t.meta.Fuse([plus(t, 1), plus(t, -0.5)]), lambda x: reduce_mean(x) < 20),
        # Mixing equal samples changes nothing, whatever is drawn.
        t.LambdaOp(lambda target: target * 0 + 0.5, "target", "target"),
        t.augmentation.MixUpBatch(("target", "target"), ("target", "target")),
        t.meta.Fuse([t.model.ModelOp(model, "x", "y"), compared(t, mode=None)]),
        t.model.UpdateOp(model, "loss"),
    ],
}


@pytest.mark.parametrize("framework", ["torch", "tf", "graph"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(sides: Sides, name: str, framework: str) -> None:
    is_torch = framework == "torch"
    fw: Any = torch_sides if is_torch else tf_sides

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, "sgd", model_name="mlp")
        network = fw.network_class(lib)(PROGRAMS[name](lib.op.tensorop, fw.LAYER, model))
        told = []
        for mode in ("train", "eval") if name == "layers" else ("train",):
            told += steps(network, fw.batches(3), mode, eager=framework == "tf")
        return told, model

    # Torch's fused mean of squares rounds the loss differently, and what follows from it.
    sides.agree(program, rtol=2.4e-7 if is_torch else 0.0)


def inside(op: Any) -> list[Any]:
    """List an op and the ops that it holds."""
    held = [*getattr(op, "ops", []), getattr(op, "loss", None)]
    return [op, *(one for each in held if each is not None for one in inside(each))]


def test_no_op_is_left_out(sides: Sides) -> None:
    """Every class that both packages export is in the tables of these tests."""
    fastnet = sides.fastnet
    t, n = fastnet.op.tensorop, fastnet.op.numpyop
    model = fastnet.build(torch_sides.mlp, "sgd", model_name="mlp")
    made: list[Any] = [make(t) for make, _ in CASES.values()]
    for program in PROGRAMS.values():
        made += program(t, 0, model)
    for make, _ in NUMPY_CASES.values():
        ops = make(n)
        made += ops if isinstance(ops, list) else [ops]
    found = {type(each) for op in made for each in inside(op)}
    # What is tested by itself: above, and in test_numpyops.py; and one to derive from.
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
