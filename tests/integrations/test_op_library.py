"""The op library beside FastEstimator's, on the same inputs, in torch and in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import LOSS, Sides
from tests.integrations.tf_sides import MARKS, start_over, tf

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
VOLUMES = SOURCE.normal(size=(2, 3, 6, 5, 4)).astype("float32")
AT = np.array([2, 0, 1, 1])

Make = Callable[[Any], Any]

# each op, and what it is given
CASES: dict[str, tuple[Make, list[Any]]] = {
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


def tensorops(lib: Any) -> Any:
    """Import every module of ops, which some packages do not do by themselves."""
    import importlib

    name = f"{lib.__name__}.op.tensorop"
    modules = ["argmax", "average", "gather", "permute", "reshape", "resize3d", "un_hadamard"]
    losses = ["hinge", "l1_loss", "focal_loss", "dice_loss", "super_loss", "l2_regularization"]
    mixers = ["cutmix_batch", "mixup_batch"]
    for module in modules:
        importlib.import_module(f"{name}.{module}")
    for module in losses:
        importlib.import_module(f"{name}.loss.{module}")
    for module in mixers:
        importlib.import_module(f"{name}.augmentation.{module}")
    return importlib.import_module(name)


def forward(op: Any, framework: str, given: list[Any], mode: str = "train") -> list[np.ndarray]:
    """Build an op, run it twice, and give arrays."""
    is_torch = framework == "torch"
    op.build(framework, torch.device("cpu") if is_torch else None)
    found = []
    for _ in range(2):
        tensors = [torch.tensor(one) if is_torch else tf.constant(one) for one in given]
        result = op.forward(
            tensors if op.in_list else tensors[0],
            {"mode": mode, "warmup": False, "epoch": 1, "ds_id": ""},
        )
        found += [
            np.asarray(one) for one in (result if isinstance(result, (list, tuple)) else [result])
        ]
    return found


def compare(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=LOSS, atol=LOSS / 10)


@pytest.mark.parametrize("framework", ["torch", "tf"])
@pytest.mark.parametrize("name", list(CASES))
def test_values(sides: Sides, name: str, framework: str) -> None:
    make, given = CASES[name]
    expected, actual = (
        forward(make(tensorops(lib)), framework, given)
        for lib in (sides.fastestimator, sides.fastnet)
    )
    compare(actual, expected)


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
