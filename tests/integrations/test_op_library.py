"""Ops that compute one value from others, beside FastEstimator's: what they give, and gradients.

Results are equal to the bit, but for what ROUNDINGS names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import MARKS, start_over, tf
from tests.integrations.torchvision_stand_in import complete_fastestimator

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

# each op, and what it is given
CASES: dict[str, tuple[Make, list[Any]]] = {
    "nothing": (lambda t: t.TensorOp("a", "y"), [X]),
    "nothing-of-several": (lambda t: t.TensorOp(["a", "b"], ["y", "z"]), [X, Z]),
    "lambda": (lambda t: t.LambdaOp(lambda a: a * 3 + 0.1, "a", "y"), [X]),
    "lambda-of-several": (
        lambda t: t.LambdaOp(lambda a, b: (a - b, a / b), ["a", "b"], ["y", "z"]),
        [X, Z],
    ),
    "normalize": (lambda t: t.normalize.Normalize("a", "y", 0.4, 0.3, 1.0), [IMAGES]),
    "normalize-channels": (lambda t: t.normalize.Normalize(["a", "b"], ["y", "z"]), CHANNELS),
    "normalize-to-255": (
        lambda t: t.normalize.Normalize("a", "y", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
        [np.round(CHANNELS[0] * 255).astype("uint8")],
    ),
    "argmax": (lambda t: t.argmax.Argmax("a", "y", axis=1), [X]),
    "argmax-from-the-end": (lambda t: t.argmax.Argmax("a", "y", axis=-1), [IMAGES]),
    "average": (lambda t: t.average.Average(["a", "b"], "y"), [X, Z]),
    "gather": (lambda t: t.gather.Gather(["a", "b"], ["y", "y2"], "i"), [AT, X, Z]),
    "gather-each": (lambda t: t.gather.Gather(["a", "b"], ["y", "y2"], ["i", "j"]), [AT, AT, X, Z]),
    "gather-empty": (lambda t: t.gather.Gather("a", "y", "i"), [AT[:0], X]),
    "permute": (lambda t: t.permute.Permute("a", "y"), [IMAGES]),
    "reshape": (lambda t: t.reshape.Reshape("a", "y", (-1, 6)), [X]),
    "resize": (lambda t: t.resize3d.Resize3D("a", "y", (3, 2, 5)), [VOLUMES]),
    "resize-area": (lambda t: t.resize3d.Resize3D("a", "y", (3, 2, 2), "area"), [VOLUMES]),
    "unhadamard": (
        lambda t: t.un_hadamard.UnHadamard("a", "y", 3),
        [SHARES @ np.eye(3, 4, dtype="float32")],
    ),
    "unhadamard-long": (lambda t: t.un_hadamard.UnHadamard("a", "y", 4, 8), [np.tile(X[:, :1], 8)]),
    **{
        f"cross-entropy-{form}-{logits}-{average}-{weights}": (
            lambda t, form=form, logits=logits, average=average, weights=weights: (
                t.loss.cross_entropy.CrossEntropy(
                    ("p", "t"),
                    "y",
                    form=form,
                    from_logits=logits,
                    average_loss=average,
                    class_weights=weights,
                )
            ),
            [predicted[logits], truth],
        )
        for form, predicted, truth in (
            ("categorical", {True: X, False: ROWS}, ONE_HOT),
            ("sparse", {True: X, False: ROWS}, CLASSES),
            ("binary", {True: X[:, :1], False: SHARES[:, :1]}, BITS[:, :1]),
            (None, {True: X, False: ROWS}, ONE_HOT),
        )
        for logits in (True, False)
        for average in (True, False)
        for weights in (None, {0: 0.5, 1: 2.0})
    },
    # truths of other types and ranks, and targets that count as 0
    **{
        f"forms-{form}-{name}": (
            lambda t, form=form: t.loss.cross_entropy.CrossEntropy(
                ("p", "t"), "y", form=form, from_logits=True, average_loss=False
            ),
            [predicted, truth],
        )
        for name, form, predicted, truth in (
            ("ints", "categorical", X, ONE_HOT.astype("int64")),
            ("bytes", "categorical", X, ONE_HOT.astype("uint8")),
            ("bytes", "sparse", X, CLASSES.astype("uint8")),
            ("inferred", None, X, CLASSES),
            ("ints", "binary", X[:, :1], BITS[:, :1].astype("int64")),
            ("flat", "binary", X[:, :1], BITS[:, 0]),
            ("images", "binary", IMAGES[..., :1], MASKS[..., :1]),
        )
    },
    **{
        f"squares-{average}": (
            lambda t, average=average: t.loss.mean_squared_error.MeanSquaredError(
                ("p", "t"), "y", average_loss=average
            ),
            [X, Z],
        )
        for average in (True, False)
    },
    "hinge": (lambda t: t.loss.hinge.Hinge(("p", "t"), "y"), [X, SIGNS]),
    "hinge-each": (lambda t: t.loss.hinge.Hinge(("p", "t"), "y", average_loss=False), [X, BITS]),
    **{
        f"l1-{form}-{beta}-{average}": (
            lambda t, form=form, beta=beta, average=average: t.loss.l1_loss.L1_Loss(
                ("p", "t"), "y", loss_type=form, beta=beta, average_loss=average
            ),
            [X, Z],
        )
        for form in ("L1", "Smooth", "Huber")
        for beta in (1.0, 0.5)
        for average in (True, False)
    },
    **{
        f"focal-{sample}-{shape}-{normalize}": (
            lambda t, sample=sample, shape=shape, normalize=normalize: t.loss.focal_loss.FocalLoss(
                ("p", "t"),
                "y",
                sample_reduction=sample,
                shape_reduction=shape,
                normalize=normalize,
            ),
            [SHARES, BITS],
        )
        for sample in ("none", "mean", "sum")
        for shape in ("mean", "sum")
        for normalize in (True, False)
    },
    "focal-logits": (
        lambda t: t.loss.focal_loss.FocalLoss(("p", "t"), "y", gamma=1.5, from_logits=True),
        [X, BITS],
    ),
    **{
        f"dice-{soft}-{average}-{channels}-{weights}": (
            lambda t, soft=soft, average=average, channels=channels, weights=weights: (
                t.loss.dice_loss.DiceLoss(
                    ("p", "t"),
                    "y",
                    soft_dice=soft,
                    average_loss=average,
                    channel_average=channels,
                    channel_weights=weights,
                )
            ),
            [IMAGES, MASKS],
        )
        for soft in (True, False)
        for average in (True, False)
        for channels in (True, False)
        for weights in (None, {0: 0.5, 2: 2.0})
    },
    **{
        f"super-{threshold}-{average}-{confidence}": (
            lambda t, threshold=threshold, average=average, confidence=confidence: (
                t.loss.super_loss.SuperLoss(
                    t.loss.l1_loss.L1_Loss(("p", "t"), "y"),
                    threshold=threshold,
                    average_loss=average,
                    output_confidence=confidence,
                )
            ),
            [X, Z],
        )
        for threshold in ("exp", 0.7)
        for average in (True, False)
        for confidence in (None, "c")
    },
}


# What is not equal to the bit, in float32's roundings of a result's largest value, and why.
ROUNDINGS: dict[tuple[str, str], int] = {
    # The mean of some numbers, added up in another order: TensorFlow's own way to resize by area,
    # which FastEstimator calls for one axis after another, has no gradients, and fastnet's has.
    **{("resize-area", framework): 2 for framework in ("tf", "graph")},
    # A graph divides by what is constant in it by multiplying with the inverse; which is constant
    # in fastnet's, and worked out in each of FastEstimator's steps.
    ("normalize", "graph"): 1,
    # Outside of a graph FastEstimator's Keras makes probabilities of logits, then logits of these.
    ("focal-logits", "tf"): 5,
    # Lambert's W is found by iteration. FastEstimator stops where a step is below 1e-6 of W, one or
    # two of its roundings, and differentiates the steps; fastnet differentiates what W solves.
    **{
        (f"super-{threshold}-{average}-{confidence}", framework): 6 if confidence else 2
        for threshold in ("exp", 0.7)
        for average in (True, False)
        for confidence in ("c", None)
        for framework in ("torch", "tf", "graph")
    },
}

# The same for gradients alone: those of a focal loss are products of the same factors, which are
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


def in_graphs(names: list[str]) -> list[tuple[str, str]]:
    """Pair names of cases with frameworks: all run op by op, and one of each kind in a graph."""
    first = {name.partition("-")[0]: name for name in reversed(names)}
    traced = {*first.values(), "focal-logits"}
    return [
        (name, framework)
        for name in names
        for framework in ("torch", "tf", "graph")
        if framework != "graph" or name in traced
    ]


def tensorops(lib: Any) -> Any:
    """Import every module of ops, which some packages do not do by themselves."""
    import importlib

    name = f"{lib.__name__}.op.tensorop"
    modules = ["argmax", "average", "gather", "normalize", "permute", "reshape", "resize3d"]
    losses = ["cross_entropy", "hinge", "l1_loss", "focal_loss", "dice_loss", "super_loss"]
    for module in [*modules, "un_hadamard"]:
        importlib.import_module(f"{name}.{module}")
    for module in [*losses, "mean_squared_error", "l2_regularization"]:
        importlib.import_module(f"{name}.loss.{module}")
    for module in ("cutmix_batch", "mixup_batch"):
        importlib.import_module(f"{name}.augmentation.{module}")
    return importlib.import_module(name)


def results_of(op: Any, tensors: list[Any], mode: str) -> list[Any]:
    result = op.forward(
        tensors if op.in_list else tensors[0],
        {"mode": mode, "warmup": False, "epoch": 1, "ds_id": ""},
    )
    return list(result) if isinstance(result, (list, tuple)) else [result]


def forward(op: Any, framework: str, given: list[Any], mode: str = "train") -> list[np.ndarray]:
    """Build an op, run it twice, and give arrays."""
    build(op, framework)
    found: list[Any] = []

    def run(*tensors: Any) -> list[Any]:
        return results_of(op, list(tensors), mode)

    step = tf.function(run) if framework == "graph" else run
    for _ in range(2):
        found += step(*tensors_of(given, framework))
    return [np.asarray(one) for one in found]


def build(op: Any, framework: str) -> None:
    if framework == "torch":
        op.build("torch", torch.device("cpu"))
    else:
        op.build("tf", None)


def tensors_of(given: list[Any], framework: str) -> list[Any]:
    return [torch.tensor(one) if framework == "torch" else tf.constant(one) for one in given]


def gradients(op: Any, framework: str, given: list[Any]) -> list[np.ndarray]:
    """Build an op, and differentiate the sum of all that it gives by each input that is float."""
    build(op, framework)
    tensors = tensors_of(given, framework)
    if framework == "torch":
        sources = [one.requires_grad_() for one in tensors if one.is_floating_point()]
        total = sum(one.sum() for one in results_of(op, tensors, "train"))
        found = torch.autograd.grad(total, sources, allow_unused=True)
    else:
        sources = [one for one in tensors if one.dtype.is_floating]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            total = sum(tf.reduce_sum(one) for one in results_of(op, tensors, "train"))
        found = tape.gradient(total, sources)
    return [np.asarray(0.0 if one is None else one) for one in found]


def compare(actual: list[np.ndarray], expected: list[np.ndarray], roundings: int = 0) -> None:
    """Compare arrays: types, shapes, and values to so many roundings of the largest of them."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if roundings and other.size:
            atol = roundings * np.finfo("float32").eps * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module", autouse=True)
def _whole_fastestimator() -> Iterator[None]:
    with complete_fastestimator():
        yield


@pytest.mark.parametrize(("name", "framework"), in_graphs(list(CASES)))
def test_values(sides: Sides, name: str, framework: str) -> None:
    make, given = CASES[name]
    expected, actual = (
        forward(make(tensorops(lib)), framework, given)
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare(actual, expected, ROUNDINGS.get((name, framework), 0))


# whole numbers have no gradients, and means over areas none in FastEstimator's TensorFlow
DIFFERENTIABLE = [
    name for name in CASES if not name.startswith(("argmax", "normalize-to-255", "resize-area"))
]


@pytest.mark.parametrize("framework", ["torch", "tf"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(sides: Sides, name: str, framework: str) -> None:
    make, given = CASES[name]
    expected, actual = (
        gradients(make(tensorops(lib)), framework, given)
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare(actual, expected, GRADIENT_ROUNDINGS.get((name, framework), 0))


@pytest.mark.parametrize("name", ["cutmix", "mixup", "mixup-shared", "mixup-alpha", "cutmix-alpha"])
def test_torch_draws_the_same(sides: Sides, name: str) -> None:
    def program(lib: Any) -> list[np.ndarray]:
        start_over()
        augmentation = tensorops(lib).augmentation
        kind, _, setting = name.partition("-")
        settings: dict[str, Any] = {"alpha": 0.4} if setting == "alpha" else {}
        if setting == "shared":
            settings["shared_beta"] = True
        op_class = (
            augmentation.cutmix_batch.CutMixBatch
            if kind == "cutmix"
            else augmentation.mixup_batch.MixUpBatch
        )
        torch.manual_seed(3)
        op = op_class(("x", "l"), ("x", "l"), **settings)
        return forward(op, "torch", [IMAGES, np.eye(4, dtype="float32")])

    compare(program(sides.fastnet), program(sides.fastestimator))


def test_l2_regularization_in_torch(sides: Sides) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    loss = torch.tensor(1.5)
    expected, actual = (
        tensorops(lib)
        .loss.l2_regularization.L2Regularizaton("loss", "loss", model, beta=0.3)
        .forward(loss, {})
        .detach()
        .numpy()
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare([actual], [expected])


def test_l2_regularization_in_tensorflow(sides: Sides) -> None:
    start_over()
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(4)])
    expected, actual = (
        tensorops(lib)
        .loss.l2_regularization.L2Regularizaton("loss", "loss", model, beta=0.3)
        .forward(tf.constant(1.5), {})
        .numpy()
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare([actual], [expected])


@pytest.mark.parametrize("first", ["float16", "int64"])
def test_averages_of_two_types(sides: Sides, first: str) -> None:
    """FastEstimator adds them up in the first one's type, or fails to."""
    given = [np.round(X * 8).astype(first), np.round(Z * 8)]

    def average(lib: Any) -> np.ndarray:
        op = tensorops(lib).average.Average(["a", "b"], "y")
        return forward(op, "torch", given)[0]

    if first == "float16":
        assert average(sides.fastestimator).dtype == first
    else:
        with pytest.raises(RuntimeError, match="can't be cast"):
            average(sides.fastestimator)
    compare([average(sides.fastnet)], [(given[0].astype("float32") + given[1]) / 2])


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_gather_without_keys_of_indices(sides: Sides, framework: str) -> None:
    """FastEstimator looks for the first of no indices, and fails."""
    op = sides.fastestimator.op.tensorop.gather.Gather("a", "y", indices=[])
    build(op, framework)
    with pytest.raises(IndexError, match="list index out of range"):
        op.forward(tensors_of([X], framework), {})
    op = sides.fastnet.op.tensorop.gather.Gather("a", "y", indices=[])
    build(op, framework)
    (found,) = op.forward(tensors_of([X], framework), {})
    np.testing.assert_array_equal(np.asarray(found), X.max(axis=1))
