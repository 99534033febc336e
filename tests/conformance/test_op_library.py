"""The op library: every op in every framework, against numpy where that is simple.

Images and volumes have their channels first in torch, and last in TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.tensorop import (
    Argmax,
    Average,
    Gather,
    LambdaOp,
    Normalize,
    Permute,
    Reshape,
    Resize3D,
    UnHadamard,
)
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.loss import (
    CrossEntropy,
    DiceLoss,
    FocalLoss,
    Hinge,
    L1_Loss,
    L2Regularizaton,
    MeanSquaredError,
    SuperLoss,
)
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import conforms
from tests.conformance.frameworks import Array, Framework, make_layers

SOURCE = np.random.default_rng(7)
X = SOURCE.normal(size=(4, 3)).astype("float32")
Z = SOURCE.normal(size=(4, 3)).astype("float32")
SIGNS = np.where(SOURCE.random(size=(4, 3)) > 0.5, 1, -1).astype("float32")
BITS = (SIGNS + 1) / 2
PROBABILITIES = SOURCE.uniform(0.05, 0.95, size=(4, 3)).astype("float32")
IMAGES = SOURCE.uniform(0, 255, size=(4, 6, 5, 3)).astype("float32")
VOLUMES = SOURCE.normal(size=(2, 4, 6, 8, 3)).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")[[0, 2, 1, 2]]


def channels_first(fw: Framework) -> bool:
    return fw.target == "torch"


def arranged(fw: Framework, array: Array) -> Array:
    """Put the channels, which come last, where the framework has them."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if channels_first(fw) else array


def back(fw: Framework, array: Array) -> Array:
    """Put channels last again."""
    return np.moveaxis(array, 1, -1) if channels_first(fw) else array


def run(fw: Framework, op: Any, mode: str = "train", **batch: Array) -> dict[str, Any]:
    """Run an op that writes `y` (and what else begins with that) in a network."""
    result = fw.step(fw.network([op]), batch, mode, desired_output_keys=None)
    return {key: value for key, value in result.items() if key.startswith("y")}


def close(actual: Array, expected: Any, dtype: str = "float32") -> None:
    assert actual.dtype == dtype
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


class TestShapesAndPlaces:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    @conforms
    def test_argmax(self, fw: Framework, axis: int) -> Any:
        result = run(fw, Argmax(["a", "b"], ["y", "y2"], axis=axis), a=X, b=Z)
        close(result["y"], X.argmax(axis), "int64")
        close(result["y2"], Z.argmax(axis), "int64")
        return result

    @pytest.mark.parametrize("count", [1, 2, 3])
    @conforms
    def test_average(self, fw: Framework, count: int) -> Any:
        given = [X, Z, BITS][:count]
        keys = ["a", "b", "c"][:count]
        result = run(fw, Average(keys, "y"), **dict(zip(keys, given, strict=True)))
        close(result["y"], np.mean(given, axis=0))
        return result

    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    @conforms
    def test_gather_with_one_set(self, fw: Framework, shape: tuple[int, ...], dtype: str) -> Any:
        at = np.array([2, 0, 1, 1], dtype=dtype)
        op = Gather(["a", "b"], ["y", "y2"], indices="at")
        result = run(fw, op, a=X, b=IMAGES, at=at.reshape(shape))
        close(result["y"], X[np.arange(4), at])
        close(result["y2"], IMAGES[np.arange(4), at])
        return result

    @conforms
    def test_gather_with_a_set_for_each(self, fw: Framework) -> Any:
        one, two = np.array([2, 0, 1, 1]), np.array([0, 0, 2, 1])
        op = Gather(["a", "b"], ["y", "y2"], indices=["i", "j"])
        result = run(fw, op, a=X, b=Z, i=one, j=two)
        close(result["y"], X[np.arange(4), one])
        close(result["y2"], Z[np.arange(4), two])
        return result

    @conforms
    def test_gather_of_the_largest(self, fw: Framework) -> Any:
        result = run(fw, Gather("a", "y"), a=X)
        close(result["y"], X.max(1))
        empty = run(fw, Gather("a", "y", indices="at"), a=X, at=np.zeros((0,), "int64"))
        close(empty["y"], X.max(1))
        return [result, empty]

    @conforms
    def test_permute(self, fw: Framework) -> Any:
        result = run(fw, Permute("a", "y"), a=IMAGES)
        close(result["y"], IMAGES.transpose(0, 3, 1, 2))
        other = run(fw, Permute("a", "y", permutation=(0, -1, 2, 1)), a=IMAGES)
        close(other["y"], IMAGES.transpose(0, 3, 2, 1))
        return [result, other]

    @pytest.mark.parametrize("shape", [(-1, 6), (2, 6), -1, (2, -1, 3)])
    @conforms
    def test_reshape(self, fw: Framework, shape: Any) -> Any:
        result = run(fw, Reshape("a", "y", shape=shape), a=X)
        close(result["y"], X.reshape(shape))
        return result


class TestImages:
    @pytest.mark.parametrize("dtype", ["float32", "uint8"])
    @conforms
    def test_normalize(self, fw: Framework, dtype: str) -> Any:
        op = Normalize("a", "y")
        result = run(fw, op, a=arranged(fw, IMAGES.astype(dtype)))
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        pixels = back(fw, result["y"])
        close(pixels, (IMAGES.astype(dtype) / 255.0 - mean) / std)
        return [pixels]

    @conforms
    def test_normalize_by_scalars(self, fw: Framework) -> Any:
        op = Normalize("a", "y", mean=0.5, std=0.25, max_pixel_value=10.0)
        result = run(fw, op, a=arranged(fw, IMAGES))
        pixels = back(fw, result["y"])
        close(pixels, (IMAGES / 10.0 - 0.5) / 0.25)
        return [pixels]

    def test_resize_3d_to_the_nearest(self, fw: Framework) -> None:
        result = run(fw, Resize3D("a", "y", output_shape=(2, 3, 4)), a=arranged(fw, VOLUMES))
        volumes = back(fw, result["y"])
        # where two are as near, torch takes the first, and TensorFlow the second
        first = 0 if channels_first(fw) else 1
        close(volumes, VOLUMES[:, first::2, first::2, first::2])

    @conforms
    def test_resize_3d_by_area(self, fw: Framework) -> Any:
        op = Resize3D("a", "y", output_shape=(2, 3, 4), resize_mode="area")
        volumes = back(fw, run(fw, op, a=arranged(fw, VOLUMES))["y"])
        close(volumes, VOLUMES.reshape(2, 2, 2, 3, 2, 4, 2, 3).mean((2, 4, 6)))
        return [volumes]

    @conforms
    def test_resize_3d_to_a_larger_size(self, fw: Framework) -> Any:
        op = Resize3D("a", "y", output_shape=(8, 12, 8))
        volumes = back(fw, run(fw, op, a=arranged(fw, VOLUMES))["y"])
        close(volumes, VOLUMES.repeat(2, 1).repeat(2, 2))
        return [volumes]


class TestUnHadamard:
    @pytest.mark.parametrize("length", [None, 4, 16])
    @conforms
    def test_probabilities(self, fw: Framework, length: int | None) -> Any:
        op = UnHadamard("a", "y", n_classes=4, code_length=length)
        codes = op.code_length
        given = np.random.default_rng(1).uniform(-1, 1, size=(5, codes)).astype("float32")
        result = run(fw, op, a=given)
        assert result["y"].shape == (5, 4)
        np.testing.assert_allclose(result["y"].sum(1), 1, rtol=1e-5)
        return result

    @conforms
    def test_a_code_is_its_class(self, fw: Framework) -> Any:
        codes = np.array([[-1, 1], [1, -1]], dtype="float32")
        result = run(fw, UnHadamard("a", "y", n_classes=2), a=codes)
        np.testing.assert_allclose(result["y"], np.eye(2), atol=1e-4)
        return result


class TestLosses:
    @pytest.mark.parametrize("average", [True, False])
    @conforms
    def test_hinge(self, fw: Framework, average: bool) -> Any:
        op = Hinge(("p", "t"), "y", average_loss=average)
        result = run(fw, op, p=X, t=SIGNS)
        wanted = np.maximum(1 - X * SIGNS, 0).mean(-1)
        close(result["y"], wanted.mean() if average else wanted)
        return result

    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("beta", [1.0, 0.5])
    @pytest.mark.parametrize("form", ["L1", "Smooth", "Huber"])
    @conforms
    def test_l1(self, fw: Framework, form: str, beta: float, average: bool) -> Any:
        op = L1_Loss(("p", "t"), "y", average_loss=average, loss_type=form, beta=beta)
        result = run(fw, op, p=X, t=Z)
        far = np.abs(X - Z)
        huber = np.where(far < beta, far**2 / 2, beta * (far - beta / 2))
        wanted = {"L1": far, "Smooth": huber / beta, "Huber": huber}[form].mean(-1)
        close(result["y"], wanted.mean() if average else wanted)
        return result

    @conforms
    def test_l2_regularization(self, fw: Framework) -> Any:
        layers = make_layers(3, 4, 2)
        model = fw.build(layers)
        fw.freeze(model, 1)
        loss = np.array(1.5, dtype="float32")
        result = run(fw, L2Regularizaton("loss", "y", model=model, beta=0.5), loss=loss)
        squares = sum((weight**2).sum() for weight in layers[0])
        close(result["y"], np.float32(1.5 + 0.5 * squares / 2))
        return result

    @pytest.mark.parametrize("logits", [True, False])
    @pytest.mark.parametrize("alpha", [0.25, 0.75])
    @conforms
    def test_focal_loss(self, fw: Framework, logits: bool, alpha: float) -> Any:
        results = {}
        for sample in ("none", "mean", "sum"):
            for shape in ("none", "mean", "sum"):
                op = FocalLoss(
                    ("p", "t"),
                    "y",
                    alpha=alpha,
                    from_logits=logits,
                    sample_reduction=sample,
                    shape_reduction=shape,
                    normalize=False,
                )
                results[sample, shape] = run(fw, op, p=X if logits else PROBABILITIES, t=BITS)["y"]
        p = 1 / (1 + np.exp(-X)) if logits else PROBABILITIES
        right = np.where(BITS == 1, p, 1 - p)
        each = -np.log(right) * (1 - right) ** 2
        each = each * np.where(BITS == 1, alpha, 1 - alpha)
        close(results["none", "none"], each)
        close(results["none", "mean"], each.mean(1))
        close(results["none", "sum"], each.sum(1))
        close(results["mean", "sum"], each.sum(1).mean())
        close(results["sum", "sum"], each.sum())
        return results

    @conforms
    def test_focal_loss_normalized(self, fw: Framework) -> Any:
        return run(fw, FocalLoss(("p", "t"), "y"), p=PROBABILITIES, t=BITS)

    @pytest.mark.parametrize("weights", [None, {1: 3.0}, {0: 0.5, 2: 2.0}])
    @pytest.mark.parametrize("soft", [True, False])
    @conforms
    def test_dice_loss(self, fw: Framework, soft: bool, weights: Any) -> Any:
        source = np.random.default_rng(3)
        p = source.uniform(0, 1, size=(4, 5, 6, 3)).astype("float32")
        t = source.integers(0, 2, size=(4, 5, 6, 3)).astype("float32")
        results = []
        for average in (True, False):
            for channels in (True, False):
                op = DiceLoss(
                    ("p", "t"),
                    "y",
                    soft_dice=soft,
                    average_loss=average,
                    channel_average=channels,
                    channel_weights=weights,
                )
                results.append(run(fw, op, p=arranged(fw, p), t=arranged(fw, t))["y"])
        row = np.ones(3)
        for index, weight in (weights or {}).items():
            row[index] = weight
        total = (p**2 + t**2) if soft else p + t
        each = -(2 * (p * t).sum((1, 2)) / total.sum((1, 2))) * row
        close(results[3], each)
        close(results[2], each.mean(1))
        close(results[0], each.mean())
        return results

    @pytest.mark.parametrize("confidence", [None, "y_confidence"])
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("threshold", ["exp", 1.0, 0])
    @conforms
    def test_super_loss(
        self, fw: Framework, threshold: Any, average: bool, confidence: str | None
    ) -> Any:
        op = SuperLoss(
            CrossEntropy(("p", "t"), "y", from_logits=True),
            threshold=threshold,
            average_loss=average,
            output_confidence=confidence,
        )
        network = fw.network([op])
        batches = [{"p": factor * X, "t": ONE_HOT} for factor in (1.0, 3.0, 0.5)]
        batches = [{key: value.astype("float32") for key, value in one.items()} for one in batches]
        results = [fw.steps(network, batches, mode) for mode in ("train", "eval")]
        first = results[0][0]["y"]
        assert first.shape == (() if average else (4,))
        return results

    @conforms
    def test_super_loss_follows_its_average(self, fw: Framework) -> Any:
        op = SuperLoss(L1_Loss(("p", "t"), "y"), output_confidence="y_confidence")
        ones = np.ones((2, 1), dtype="float32")
        batches = [{"p": ones * size, "t": ones * 0} for size in (1.0, 1.0, 11.0)]
        batches = [{key: one.astype("float32") for key, one in each.items()} for each in batches]
        results = fw.steps(fw.network([op]), batches, "train")
        # no excess over the average: full confidence, nothing lost
        close(results[0]["y"], np.float32(0))
        close(results[1]["y_confidence"], np.ones(2))
        # an average of 2: the excess is 9
        confidence = results[2]["y_confidence"].astype("float64")
        logs = np.log(confidence)
        assert (confidence < 0.5).all()
        close(results[2]["y"], np.float32((9 * confidence + logs**2).mean()))
        # W(4.5) exp(W(4.5)) = 4.5
        np.testing.assert_allclose(-logs * np.exp(-logs), 4.5, rtol=1e-5)
        return results

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Hinge(("p", "t"), "loss"),
            lambda: L1_Loss(("p", "t"), "loss", loss_type="Smooth", beta=0.5),
            lambda: L1_Loss(("p", "t"), "loss", loss_type="Huber"),
            lambda: FocalLoss(("p", "t"), "loss", from_logits=True),
            lambda: SuperLoss(MeanSquaredError(("p", "t"), "loss")),
        ],
    )
    @conforms
    def test_gradients(self, fw: Framework, make: Any) -> Any:
        model = fw.build(make_layers(3, 4, 3), fw.sgd())
        ops = [ModelOp(model, "x", "p"), make(), UpdateOp(model, "loss")]
        losses = fw.steps(fw.network(ops), [{"x": X, "t": BITS}] * 3, "train")
        return [losses, fw.weights(model)]


class TestMixing:
    def test_cutmix(self, fw: Framework) -> None:
        images = np.zeros((4, 32, 24, 3)) + np.arange(1, 5).reshape(4, 1, 1, 1)
        op = CutMixBatch(("a", "l"), ("y", "y_label"))
        result = run(fw, op, a=arranged(fw, images.astype("float32")), l=np.eye(4, dtype="float32"))
        mixed, labels = back(fw, result["y"]), result["y_label"]
        kept = (mixed == images).mean((1, 2, 3))
        pasted = mixed == np.roll(images, 1, 0)
        np.testing.assert_allclose(kept + pasted.mean((1, 2, 3)), 1)
        share = kept[0]
        wanted = share * np.eye(4) + (1 - share) * np.roll(np.eye(4), 1, 0)
        close(labels, wanted)
        # a box: whole rows and columns of it, the same in each image
        rows, columns = pasted[0, ..., 0].any(1), pasted[0, ..., 0].any(0)
        assert (pasted == (rows[:, None] & columns)[None, :, :, None]).all()

    @pytest.mark.parametrize("shared", [True, False])
    def test_mixup(self, fw: Framework, shared: bool) -> None:
        op = MixUpBatch(("a", "l"), ("y", "y_label"), shared_beta=shared)
        images = np.eye(4, dtype="float32").reshape(4, 2, 1, 2)
        result = run(fw, op, a=images, l=np.eye(4, dtype="float32"))
        mixed, labels = result["y"].reshape(4, 4), result["y_label"]
        own, others = np.diag(labels), np.diag(np.roll(labels, 1, 1))
        np.testing.assert_allclose(own + others, 1, rtol=1e-5)
        np.testing.assert_allclose(np.diag(mixed), np.maximum(own, 1 - own), rtol=1e-5)
        np.testing.assert_allclose(labels.sum(), 4, rtol=1e-5)
        np.testing.assert_allclose(mixed.sum(1), 1, rtol=1e-5)
        assert (len(np.unique(own)) == 1) == shared

    def test_mixes_only_in_training(self, fw: Framework) -> None:
        network = fw.network(
            [
                LambdaOp(fn=lambda a: a + 1, inputs="a", outputs="a"),
                MixUpBatch(("a", "l"), ("a", "l")),
            ]
        )
        given = {"a": X, "l": ONE_HOT}
        assert (fw.step(network, given, "eval")["a"] == X + 1).all()
        assert (fw.step(network, given, "train")["a"] != X + 1).any()

    def test_draws_anew_in_each_step(self, fw: Framework) -> None:
        network = fw.network([MixUpBatch(("a", "l"), ("y", "y_label"))])
        results = fw.steps(network, [{"a": X, "l": ONE_HOT}] * 3, "train")
        assert len({one["y_label"].tobytes() for one in results}) == 3


class TestHalves:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: Hinge(("p", "t"), "y"),
            lambda: L1_Loss(("p", "t"), "y"),
            lambda: L1_Loss(("p", "t"), "y", loss_type="Smooth"),
            lambda: L1_Loss(("p", "t"), "y", loss_type="Huber"),
            lambda: Average(["p", "t"], "y"),
            lambda: Gather("p", "y"),
            lambda: Permute("p", "y", permutation=(1, 0)),
            lambda: Reshape("p", "y", shape=(-1,)),
            lambda: MixUpBatch(("p", "t"), ("y", "y2")),
        ],
    )
    def test_type_is_kept(self, fw: Framework, make: Any) -> None:
        (written, *_) = run(fw, make(), p=X.astype("float16"), t=BITS.astype("float16")).values()
        assert written.dtype == "float16"
        assert np.isfinite(written).all()
