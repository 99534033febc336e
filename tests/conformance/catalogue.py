"""Every tensor op of the library, with a batch for it and what it must make of that, in numpy.

Images and volumes have their channels last here; a test puts them where a framework has them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastnet.network import BaseNetwork
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import (
    Argmax,
    Average,
    Delete,
    Gather,
    LambdaOp,
    Normalize,
    Permute,
    Reshape,
    Resize3D,
    TensorOp,
    UnHadamard,
    meta,
)
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import (
    CrossEntropy,
    DiceLoss,
    FocalLoss,
    Hinge,
    L1_Loss,
    L2Regularization,
    L2Regularizaton,
    LossOp,
    MeanSquaredError,
    SuperLoss,
)
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.backend.makers import slopes
from tests.conformance.frameworks import Array, Framework, make_layers

Arrays = Mapping[str, Array]
When = Mapping[str, Any]

SOURCE = np.random.default_rng(11)
X = SOURCE.normal(size=(4, 3)).astype("float32")
Z = SOURCE.normal(size=(4, 3)).astype("float32")
SIGNS = np.where(SOURCE.random(size=(4, 3)) > 0.5, 1, -1).astype("float32")
BITS = (SIGNS + 1) / 2
SHARES = SOURCE.uniform(0.1, 0.9, size=(4, 3)).astype("float32")
CLASSES = np.array([0, 2, 1, 2])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
IMAGES = SOURCE.uniform(0, 255, size=(2, 3, 4, 3)).astype("float32")
MASKS = SOURCE.uniform(0.1, 0.9, size=(2, 3, 4, 3)).astype("float32")
TRUE_MASKS = SOURCE.integers(0, 2, size=(2, 3, 4, 3)).astype("float32")
VOLUMES = SOURCE.normal(size=(1, 2, 2, 2, 2)).astype("float32")
LAYERS = make_layers(3, 4, 2)


@dataclasses.dataclass(frozen=True)
class Row:
    """An op in one of its forms.

    Attributes:
        cls: Its class.
        make: Gives the op, after those that must run in front of it, for a framework and the op's
            mode and ds_id.
        batch: A batch for them.
        reads: The keys that the op reads.
        writes: The keys that it writes.
        compute: Gives the values of the keys that it writes, from the batch in float64.
        check: Instead, for an op that draws numbers: asserts that results fit the batch, to a
            tolerance.
        by: A key of the batch that "y" can be differentiated by.
        images: The keys of images or volumes.
        form: Tells the forms of an op apart.
        limits: Which limits of where it runs the op takes.
    """

    cls: type
    make: Callable[[Framework, When], list[Any]]
    batch: Arrays
    reads: tuple[str, ...] = ("x",)
    writes: tuple[str, ...] = ("y",)
    compute: Callable[[Any], dict[str, Any]] | None = None
    check: Callable[[Any, Any, float], None] | None = None
    by: str | None = None
    images: tuple[str, ...] = ()
    form: str = ""
    limits: tuple[str, ...] = ("mode", "ds_id")

    def __str__(self) -> str:
        kind = "numpy " if self.on_arrays else ""
        return f"{kind}{self.cls.__name__} {self.form}".strip()

    @property
    def on_arrays(self) -> bool:
        """Whether it is an op of postprocessing."""
        return issubclass(self.cls, NumpyOp)

    def network(self, fw: Framework, **when: Any) -> tuple[BaseNetwork, Any]:
        """Make a network of the ops, and show the row's own."""
        ops = self.ops(fw, **when)
        return (fw.network([], ops) if self.on_arrays else fw.network(ops)), ops[-1]

    def ops(self, fw: Framework, **when: Any) -> list[Any]:
        """Make the ops, by themselves in every mode."""
        when = {"mode": None, **when}
        return self.make(fw, {key: value for key, value in when.items() if key in self.limits})

    def batch_for(self, fw: Framework) -> dict[str, Array]:
        """Put the channels of the batch where a framework has them."""
        return {
            key: np.ascontiguousarray(np.moveaxis(value, -1, 1))
            if key in self.images and fw.target == "torch"
            else value
            for key, value in self.batch.items()
        }

    def channels_last(self, fw: Framework, result: Arrays) -> dict[str, Array]:
        """Undo that."""
        return {
            key: np.moveaxis(value, 1, -1) if key in self.images and fw.target == "torch" else value
            for key, value in result.items()
        }

    def gradient(self, batch: Arrays) -> Any:
        """Differentiate the sum of "y" by the row's key, with finite differences."""
        assert self.by is not None
        assert self.compute is not None
        compute, by = self.compute, self.by
        wide = {
            key: value.astype("float64") if value.dtype.kind == "f" else value
            for key, value in batch.items()
        }
        return slopes(lambda moved: compute({**wide, by: moved})["y"], wide[by])


def sigmoid(logits: Any) -> Any:
    return 1 / (1 + np.exp(-logits))


def log_softmax(logits: Any) -> Any:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def weighted(losses: Any, classes: Any, weights: Mapping[int, float] | None) -> Any:
    return losses * np.vectorize(lambda one: (weights or {}).get(int(one), 1.0))(classes)


def lambert(z: Any) -> Any:
    """Solve w * exp(w) = z by Newton's method."""
    w = np.zeros_like(z)
    for _ in range(100):
        w = w - (w * np.exp(w) - z) / (np.exp(w) * (w + 1))
    return w


def nearest_codes(x: Any) -> Any:
    """Turn codes of two bits into the probabilities of two classes."""
    far = np.abs(x[:, None] - np.array([[-1, 1], [1, -1]])).sum(-1)
    near = 1 / np.maximum(far, 3e-5)
    return near / near.sum(1, keepdims=True)


def forward(x: Any) -> Any:
    """Run the model of `LAYERS`."""
    (first, bias), (second, other) = LAYERS
    return np.tanh(x @ first + bias) @ second + other


def half_squares() -> float:
    return sum(float((one.astype("float64") ** 2).sum()) for each in LAYERS for one in each) / 2


def focal(p: Any, t: Any, alpha: float = 0.25) -> Any:
    right = np.where(t == 1, p, 1 - p)
    each = -np.log(right) * (1 - right) ** 2 * np.where(t == 1, alpha, 1 - alpha)
    return (each.sum(1) / np.maximum(t.sum(1), 1)).mean()


def dice(b: Any, soft: bool, weights: Mapping[int, float] | None) -> Any:
    """Compute the loss of each sample and channel."""
    p, t = b["p"], b["t"]
    total = (p**2 + t**2 if soft else p + t).sum((1, 2)) + 1e-6
    score = 2 * (p * t).sum((1, 2)) / total
    return -weighted(score, np.arange(3), weights)


def easier(b: Any) -> dict[str, Any]:
    """Weigh squared errors, of each sample, by how much they are over 1."""
    excess = ((b["p"] - b["t"]) ** 2).mean(1) - 1
    confidence = np.exp(-lambert(np.maximum(excess, -2 / math.e) / 2))
    return {"y": (excess * confidence + np.log(confidence) ** 2).mean(), "y2": confidence}


def trained(fw: Framework) -> Any:
    return fw.build(LAYERS, fw.sgd())


def of_bits(p: Any, t: Any) -> Any:
    """Compute binary cross-entropies of logits."""
    return -np.log(sigmoid(p * (2 * t - 1)))


def of_classes(p: Any, t: Any) -> Any:
    """Compute cross-entropies of logits and class indices."""
    return -log_softmax(p)[np.arange(4), t]


def pair(cls: type, form: str, compute: Callable[..., Any], /, t: Array = Z, **options: Any) -> Row:
    """Return the row of a loss that compares `X` with the truth."""
    return Row(
        cls,
        lambda fw, when: [cls(("p", "t"), "y", **options, **when)],
        {"p": X, "t": t},
        reads=("p", "t"),
        compute=lambda b: {"y": compute(b["p"], b["t"])},
        by="p",
        form=form,
    )


def dice_loss(form: str, soft: bool, weights: dict[int, float] | None) -> Row:
    return Row(
        DiceLoss,
        lambda fw, when: [
            DiceLoss(("p", "t"), "y", soft_dice=soft, channel_weights=weights, **when)
        ],
        {"p": MASKS, "t": TRUE_MASKS},
        reads=("p", "t"),
        compute=lambda b: {"y": dice(b, soft, weights).mean()},
        by="p",
        images=("p", "t"),
        form=form,
    )


def huber(p: Any, t: Any, beta: float) -> Any:
    far = np.abs(p - t)
    return np.where(far < beta, far**2 / 2, beta * (far - beta / 2))


def unary(cls: type, form: str, x: Array, compute: Callable[[Any], Any], **options: Any) -> Row:
    """Return the row of an op that makes "y" of "x"."""
    return Row(
        cls,
        lambda fw, when: [cls(inputs="x", outputs="y", **options, **when)],
        {"x": x},
        compute=lambda b: {"y": compute(b["x"])},
        by="x" if x.dtype == "float32" and cls not in (Argmax, UnHadamard) else None,
        images=("x", "y") if cls in (Normalize, Resize3D) else (),
        form=form,
    )


def meta_rows(
    metas: Any, hand_on: type, lambda_op: Callable[..., Any], holds: Callable[[Any], Any]
) -> list[Row]:
    """Return the rows of ops around ops that multiply `y`, which a copy of `x` is before."""

    def times(factor: float, when: When) -> Any:
        return lambda_op(lambda y: y * np.float32(factor), "y", "y", **when)

    def row(cls: type, form: str, wrap: Callable[[When], Any], factor: float) -> Row:
        return Row(
            cls,
            lambda fw, when: [hand_on("x", "y"), wrap(when)],
            {"x": X},
            reads=("y",),
            compute=lambda b: {"y": b["x"] * np.float32(factor)},
            by="x",
            form=form,
        )

    fuse, one_of, repeat, sometimes = metas.Fuse, metas.OneOf, metas.Repeat, metas.Sometimes
    return [
        row(fuse, "", lambda when: fuse([times(2, when), times(3, when)]), 6),
        row(one_of, "", lambda when: one_of(times(2, when), times(3, when), probs=[0.0, 1.0]), 3),
        row(repeat, "a number", lambda when: repeat(times(2, when), 3), 8),
        row(repeat, "while", lambda when: repeat(times(2, when), holds, max_iter=2), 4),
        row(sometimes, "", lambda when: sometimes(times(2, when), 1.0), 2),
        row(
            fuse,
            "around others",
            lambda when: fuse(
                [
                    repeat(sometimes(times(2, when), 1.0), 2),
                    one_of(fuse(times(3, when)), fuse(times(3, when))),
                ]
            ),
            12,
        ),
    ]


def check_mixup(batch: Any, result: Any, rough: float) -> None:
    images, labels = batch["x"], batch["l"]
    mixed, others = result["y"], np.roll(images, 1, 0)
    share = ((mixed - others) * (images - others)).sum(1) / ((images - others) ** 2).sum(1)
    blend = images * share[:, None] + others * (1 - share[:, None])
    np.testing.assert_allclose(mixed, blend, rough, rough)
    assert ((share > 0.5 - rough) & (share < 1 + rough)).all()
    np.testing.assert_allclose(result["y2"].sum(1), 1, rough)
    own = (result["y2"] * labels).sum(1)
    np.testing.assert_allclose(np.maximum(own, 1 - own), share, rough, rough)


def check_cutmix(batch: Any, result: Any, rough: float) -> None:
    images, mixed = batch["x"], result["y"]
    kept = (mixed == images).all(-1)
    assert (kept | (mixed == np.roll(images, 1, 0)).all(-1)).all()
    assert (kept == kept[:1]).all(), "the same box in each image"
    share = kept[0].mean()
    labels = share * batch["l"] + (1 - share) * np.roll(batch["l"], 1, 0)
    np.testing.assert_allclose(result["y2"], labels, rough, rough)


ROWS = [
    unary(TensorOp, "", X, lambda x: x),
    unary(LossOp, "", X, lambda x: x),
    Row(
        LambdaOp,
        lambda fw, when: [LambdaOp(lambda x, z: x * z + x, ["x", "z"], "y", **when)],
        {"x": X, "z": Z},
        reads=("x", "z"),
        compute=lambda b: {"y": b["x"] * b["z"] + b["x"]},
        by="x",
    ),
    Row(
        Delete,
        lambda fw, when: [LambdaOp(lambda x: x + 1, "x", "gone"), Delete("gone", **when)],
        {"x": X},
        reads=("gone",),
        writes=(),
        compute=lambda b: {},
    ),
    unary(Argmax, "", X, lambda x: x.argmax(1), axis=1),
    Row(
        Average,
        lambda fw, when: [Average(["x", "z"], "y", **when)],
        {"x": X, "z": Z},
        reads=("x", "z"),
        compute=lambda b: {"y": (b["x"] + b["z"]) / 2},
        by="x",
    ),
    Row(
        Gather,
        lambda fw, when: [Gather(["x", "z"], ["y", "y2"], indices="at", **when)],
        {"x": X, "z": Z, "at": CLASSES},
        reads=("at", "x", "z"),
        writes=("y", "y2"),
        compute=lambda b: {
            "y": b["x"][np.arange(4), b["at"]],
            "y2": b["z"][np.arange(4), b["at"]],
        },
        by="x",
        form="at indices",
    ),
    unary(
        Normalize,
        "",
        IMAGES,
        lambda x: (x / 255 - np.array([0.5, 0.25, 0.75])) / np.array([0.5, 1, 2]),
        mean=(0.5, 0.25, 0.75),
        std=(0.5, 1.0, 2.0),
    ),
    unary(Permute, "", X, lambda x: x.T, permutation=(1, 0)),
    unary(Reshape, "", X, lambda x: x.reshape(2, 6), shape=(2, -1)),
    unary(
        Resize3D,
        "nearest",
        VOLUMES,
        lambda x: x.repeat(2, 1).repeat(2, 2),
        output_shape=(4, 4, 2),
    ),
    unary(
        UnHadamard,
        "",
        np.array([[0.5, -0.75], [-0.25, 0.5], [1, -1]], "float32"),
        nearest_codes,
        n_classes=2,
    ),
    Row(
        ModelOp,
        lambda fw, when: [ModelOp(trained(fw), "x", "y", **when)],
        {"x": X},
        compute=lambda b: {"y": forward(b["x"])},
        by="x",
    ),
    Row(
        UpdateOp,
        lambda fw, when: [
            ModelOp(model := trained(fw), "x", "p"),
            LambdaOp(lambda p: p * p, "p", "loss"),
            UpdateOp(model, "loss", **when),
        ],
        {"x": X},
        reads=("loss",),
        writes=(),
        compute=lambda b: {},
    ),
    Row(
        Watch,
        lambda fw, when: [Watch("x", **when)],
        {"x": X},
        writes=("x",),
        compute=lambda b: {"x": b["x"]},
    ),
    Row(
        GradientOp,
        lambda fw, when: [
            Watch("x"),
            LambdaOp(lambda x: x * x * x, "x", "f"),
            GradientOp("f", "y", inputs="x", **when),
        ],
        {"x": X},
        reads=("x", "f"),
        compute=lambda b: {"y": 3 * b["x"] ** 2},
    ),
    Row(
        FGSM,
        lambda fw, when: [
            Watch("x"),
            LambdaOp(lambda x, z: x * z, ["x", "z"], "loss"),
            FGSM("x", "loss", "y", epsilon=0.25, clip_low=-1.5, clip_high=1.0, **when),
        ],
        {"x": X, "z": Z},
        reads=("x", "loss"),
        compute=lambda b: {"y": np.clip(b["x"] + 0.25 * np.sign(b["z"]), -1.5, 1)},
    ),
    pair(
        CrossEntropy,
        "binary",
        lambda p, t: of_bits(p, t).mean(),
        BITS,
        from_logits=True,
        form="binary",
    ),
    pair(
        CrossEntropy,
        "categorical",
        lambda p, t: of_classes(p, t.argmax(1)).mean(),
        ONE_HOT,
        from_logits=True,
        form="categorical",
    ),
    pair(
        CrossEntropy,
        "sparse",
        lambda p, t: of_classes(p, t).mean(),
        CLASSES,
        from_logits=True,
        form="sparse",
    ),
    pair(
        CrossEntropy,
        "weighted",
        lambda p, t: weighted(of_classes(p, t), t, {0: 0.5, 1: 2.0}).mean(),
        CLASSES,
        from_logits=True,
        class_weights={0: 0.5, 1: 2.0},
    ),
    dice_loss("", False, None),
    pair(FocalLoss, "logits", lambda p, t: focal(sigmoid(p), t), BITS, from_logits=True),
    pair(Hinge, "", lambda p, t: np.maximum(1 - p * t, 0).mean(), SIGNS),
    pair(L1_Loss, "L1", lambda p, t: np.abs(p - t).mean()),
    *[
        Row(
            cls,
            lambda fw, when, cls=cls: [  # type: ignore[misc]
                cls("x", "y", model=trained(fw), beta=0.5, **when)
            ],
            {"x": np.array(1.5, "float32")},
            compute=lambda b: {"y": b["x"] + 0.5 * half_squares()},
            by="x",
            limits=("mode",),
        )
        for cls in (L2Regularization, L2Regularizaton)
    ],
    pair(MeanSquaredError, "", lambda p, t: ((p - t) ** 2).mean()),
    Row(
        SuperLoss,
        lambda fw, when: [
            SuperLoss(
                MeanSquaredError(("p", "t"), "y", **when),
                threshold=1.0,
                regularization=1.0,
                output_confidence="y2",
            )
        ],
        {"p": X, "t": Z},
        reads=("p", "t"),
        writes=("y", "y2"),
        compute=easier,
        by="p",
    ),
    *meta_rows(meta, TensorOp, LambdaOp, lambda y: y[0, 0] * y[0, 0] < 1e6),
    Row(
        MixUpBatch,
        lambda fw, when: [MixUpBatch(("x", "l"), ("y", "y2"), **when)],
        {"x": X, "l": np.eye(4, dtype="float32")},
        reads=("x", "l"),
        writes=("y", "y2"),
        check=check_mixup,
    ),
    Row(
        CutMixBatch,
        lambda fw, when: [CutMixBatch(("x", "l"), ("y", "y2"), **when)],
        {"x": IMAGES, "l": np.eye(2, dtype="float32")},
        reads=("x", "l"),
        writes=("y", "y2"),
        check=check_cutmix,
        images=("x", "y"),
    ),
]


def pair_of(
    cls: type, form: str, batch: Arrays, compute: Callable[[Any], Any], /, **options: Any
) -> Row:
    """Return the row of a loss of images or of targets of some type."""
    return dataclasses.replace(
        pair(cls, form, lambda p, t: None, **options),
        batch=batch,
        compute=lambda b: {"y": compute(b)},
        by=None,
        images=("p", "t") if batch["p"].ndim == 4 else (),
    )


MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

# More forms of some ops, of which only the values and gradients differ from those above.
FORMS = [
    unary(Gather, "of the largest", X, lambda x: x.max(1)),
    unary(
        Resize3D,
        "area",
        VOLUMES,
        lambda x: x.mean((1, 2), keepdims=True),
        output_shape=(1, 1, 2),
        resize_mode="area",
    ),
    pair_of(
        CrossEntropy,
        "binary probabilities weighted",
        {"p": SHARES, "t": BITS},
        lambda b: weighted(
            -np.log(np.where(b["t"] == 1, b["p"], 1 - b["p"])), b["t"], {0: 0.5, 1: 2.0}
        ).mean(),
        class_weights={0: 0.5, 1: 2.0},
        form="binary",
    ),
    dice_loss("soft weighted", True, {1: 2.0}),
    Row(
        FocalLoss,
        lambda fw, when: [FocalLoss(("p", "t"), "y", **when)],
        {"p": SHARES, "t": BITS},
        reads=("p", "t"),
        compute=lambda b: {"y": focal(b["p"], b["t"])},
        by="p",
        form="probabilities",
    ),
    pair(
        L1_Loss,
        "Smooth",
        lambda p, t: huber(p, t, 0.5).mean() / 0.5,
        loss_type="Smooth",
        beta=0.5,
    ),
    pair(L1_Loss, "Huber", lambda p, t: huber(p, t, 0.5).mean(), loss_type="Huber", beta=0.5),
    pair(MeanSquaredError, "each", lambda p, t: ((p - t) ** 2).mean(-1), average_loss=False),
    *[
        pair_of(
            CrossEntropy,
            f"sparse {name}",
            {"p": X, "t": truth},
            lambda b: of_classes(b["p"], CLASSES).mean(),
            from_logits=True,
        )
        for name, truth in (
            ("int32", CLASSES.astype("int32")),
            ("uint8", CLASSES.astype("uint8")),
            ("column", CLASSES[:, None]),
        )
    ],
    pair_of(
        CrossEntropy,
        "categorical ints",
        {"p": X, "t": ONE_HOT.astype("int64")},
        lambda b: -(b["t"] * log_softmax(b["p"])).sum(1).mean(),
        from_logits=True,
    ),
    pair(
        CrossEntropy,
        "binary smoothed",
        lambda p, t: of_bits(p, t).mean() + 0.1 * (p * (2 * t - 1)).mean(),
        BITS,
        from_logits=True,
        form="binary",
        label_smoothing=0.2,
    ),
    pair_of(
        CrossEntropy,
        "binary booleans",
        {"p": X[:, :1], "t": BITS[:, :1] == 1},
        lambda b: of_bits(b["p"], BITS[:, :1]).mean(),
        from_logits=True,
    ),
    pair_of(
        CrossEntropy,
        "binary sequences",
        {"p": X.reshape(2, 2, 3), "t": BITS.reshape(2, 2, 3)},
        lambda b: of_bits(b["p"], b["t"]).mean(),
        from_logits=True,
    ),
    pair_of(
        CrossEntropy,
        "binary flat",
        {"p": X[:, :1], "t": BITS[:, 0]},
        lambda b: of_bits(b["p"][:, 0], b["t"]).mean(),
        from_logits=True,
    ),
    unary(Argmax, "of the first axis", X, lambda x: x.argmax(0), axis=0),
    Row(
        Argmax,
        lambda fw, when: [Argmax(["x", "z"], ["y", "y2"], axis=-1, **when)],
        {"x": X, "z": Z},
        writes=("y", "y2"),
        compute=lambda b: {"y": b["x"].argmax(-1), "y2": b["z"].argmax(-1)},
        form="of two keys",
    ),
    unary(Average, "of one key", X, lambda x: x),
    Row(
        Gather,
        lambda fw, when: [Gather(["x", "z"], ["y", "y2"], indices=["i", "j"], **when)],
        {"x": X, "z": IMAGES, "i": CLASSES.astype("int32")[:, None], "j": np.array([1, 0])},
        writes=("y", "y2"),
        compute=lambda b: {
            "y": b["x"][np.arange(4), b["i"][:, 0]],
            "y2": b["z"][np.arange(2), b["j"]],
        },
        form="at indices of each",
    ),
    unary(Permute, "", IMAGES, lambda x: x.transpose(0, 3, 1, 2)),
    unary(
        Permute, "backwards", IMAGES, lambda x: x.transpose(0, 3, 2, 1), permutation=(0, -1, 2, 1)
    ),
    unary(Reshape, "flat", X, lambda x: x.reshape(-1), shape=-1),
    unary(Normalize, "as usual", IMAGES, lambda x: (x / 255 - MEAN) / STD),
]
