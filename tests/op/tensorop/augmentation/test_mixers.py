"""Samples mixed with each other: errors, seeds and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch

IMAGES = torch.rand(4, 3, 8, 6)
LABELS = torch.eye(4)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_distribution_in_torch(alpha: float) -> None:
    torch.manual_seed(0)
    op = MixUpBatch(("x", "l"), ("x", "l"), alpha=alpha)
    count = 2000
    labels = torch.eye(2).repeat(count // 2, 1)
    _, mixed = op.forward([torch.zeros(count, 1), labels], {})
    check_shares((mixed * labels).sum(1).numpy(), alpha)


def check_shares(shares: Any, alpha: float) -> None:
    """Compare with what the beta distribution has by its formulas."""
    assert ((shares >= 0) & (shares <= 1)).all()
    np.testing.assert_allclose(shares.mean(), 0.5, atol=0.04)
    np.testing.assert_allclose(shares.var(), 1 / (4 * (2 * alpha + 1)), rtol=0.12)


@pytest.mark.tf
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("framework", ["torch", "tf"])
@pytest.mark.parametrize("op_class", [CutMixBatch, MixUpBatch])
def test_whole_numbers_are_mixed_as_floats(op_class: Any, framework: str, dtype: str) -> None:
    """One-hot labels are often of ints, and images of bytes."""
    tf = pytest.importorskip("tensorflow")
    make = tf.constant if framework == "tf" else torch.tensor
    images = (IMAGES * 255).numpy().astype(dtype)

    def mixed(images: Any, labels: Any) -> list[Any]:
        torch.manual_seed(0)
        tf.random.set_seed(0)
        op = op_class(("x", "l"), ("x", "l"))
        op.build(framework, torch.device("cpu") if framework == "torch" else None)
        return [np.asarray(one) for one in op.forward([make(images), make(labels)], {})]

    found = mixed(images, LABELS.numpy().astype(dtype))
    wanted = mixed(images.astype("float32"), LABELS.numpy())
    assert found[1].dtype == "float32"
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[0].astype("float32"), wanted[0])
    # a box is pasted as it is
    assert found[0].dtype == (dtype if op_class is CutMixBatch else "float32")


class Fixed:
    """What users put in the place of the distribution: anything that can be sampled."""

    def __init__(self, share: float) -> None:
        self.share = share

    def sample(self, sample_shape: Any = ()) -> Any:
        return np.full([int(one) for one in sample_shape], self.share, "float32")


@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=pytest.mark.tf)])
class TestBetaOfAUser:
    def mixed(self, framework: str, op: Any, samples: Any, labels: Any) -> list[Any]:
        if framework == "torch":
            op.build("torch", torch.device("cpu"))
            make: Any = torch.tensor
        else:
            op.build("tf")
            make = pytest.importorskip("tensorflow").constant
        op.beta = Fixed(0.25)
        return [np.asarray(each) for each in op.forward([make(samples), make(labels)], {})]

    @pytest.mark.parametrize("shared", [True, False])
    def test_mixup(self, framework: str, shared: bool) -> None:
        samples = np.arange(12, dtype="float32").reshape(4, 3)
        labels = np.eye(4, dtype="float32")
        op = MixUpBatch(("x", "y"), ("x", "y"), shared_beta=shared)
        mixed, shares = self.mixed(framework, op, samples, labels)
        np.testing.assert_allclose(mixed, 0.75 * samples + 0.25 * np.roll(samples, 1, 0))
        np.testing.assert_allclose(shares, 0.25 * labels + 0.75 * np.roll(labels, 1, 0))

    def test_cutmix(self, framework: str) -> None:
        """The box has the rest of the larger share of the area, or less at an edge."""
        images = np.arange(4, dtype="float32").reshape(4, 1, 1, 1) * np.ones(
            (4, 16, 16, 16), "float32"
        )
        labels = np.eye(4, dtype="float32")
        boxes = []
        for _ in range(40):
            op = CutMixBatch(("x", "y"), ("x", "y"))
            mixed, shares = self.mixed(framework, op, images, labels)
            own = (mixed == images).mean(axis=(1, 2, 3))
            np.testing.assert_allclose(own, own[0])
            np.testing.assert_allclose(np.diag(shares), own, atol=1e-6)
            boxes.append(1 - own[0])
        # sides of half of the image's, where no edge cuts them
        assert max(boxes) == pytest.approx(0.25, abs=0.07)
