"""Behaviour of single tensor ops, losses and meta ops, or of one framework only."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.op.tensorop import Delete, Gather, LambdaOp, Normalize, Reshape
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import (
    CrossEntropy,
    DiceLoss,
    L2Regularizaton,
    LossOp,
    MeanSquaredError,
)
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes

VALUES = torch.tensor([[0.1, 0.9], [0.8, 0.2]])


def test_an_empty_list_of_keys_is_none() -> None:
    op = Gather("x", "y", indices=[])
    assert (op.inputs, op.num_indices) == (["x"], 0)
    (found,) = op.forward([VALUES], {})
    assert torch.equal(found, VALUES.amax(1))


@pytest.mark.tf
@pytest.mark.parametrize("eager", [True, False])
def test_types_of_indices_in_tensorflow(eager: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    op = Gather("x", "y", indices="i")
    op.build("tf")
    values = tf.constant(VALUES.numpy())
    for dtype in ("int64", "int32", "uint8", "float32"):
        step = op.forward if eager else tf.function(op.forward)
        (found,) = step([tf.cast([1, 0], dtype), values], {})
        np.testing.assert_allclose(found, [0.9, 0.8])
    for listed in ([], [1, 0]):
        (found,) = op.forward([listed, values], {})
        np.testing.assert_allclose(found, [0.9, 0.8])


@pytest.mark.tf
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_precision_is_settled_when_a_network_is_made(framework: str) -> None:
    tf = pytest.importorskip("tensorflow")
    policies = tf.keras.mixed_precision
    op = Normalize("x", "y", mean=0.5, std=0.25, max_pixel_value=1.0)
    images = np.random.default_rng(0).uniform(size=(2, 3, 4, 5)).astype("float32")
    given = torch.from_numpy(images) if framework == "torch" else tf.constant(images)
    before = policies.global_policy()
    policies.set_global_policy("mixed_float16")
    try:
        (unbuilt,) = op.forward([given], {})
        op.build(framework, torch.device("cpu") if framework == "torch" else None)
    finally:
        policies.set_global_policy(before)
    (built,) = op.forward([given], {})
    wanted = (images - 0.5) / 0.25
    for found in (built, unbuilt):
        assert np.asarray(found).dtype == np.float16
        np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-2)
    op.build(framework, torch.device("cpu") if framework == "torch" else None)
    (built,) = op.forward([given], {})
    assert np.asarray(built).dtype == np.float32
    np.testing.assert_allclose(np.asarray(built), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.tf
def test_ragged_images() -> None:
    tf = pytest.importorskip("tensorflow")
    op = Normalize("x", "y", mean=(0.5, 0.25), std=(0.5, 2.0), max_pixel_value=1.0)
    op.build("tf")
    images = np.random.default_rng(0).uniform(size=(5, 2)).astype("float32")
    (found,) = op.forward([tf.RaggedTensor.from_row_lengths(images, [2, 3])], {})
    assert found.row_lengths().numpy().tolist() == [2, 3]
    np.testing.assert_allclose(found.values, (images - [0.5, 0.25]) / [0.5, 2.0], rtol=1e-5)


@pytest.mark.tf
def test_in_a_graph_the_shape_is_known() -> None:
    tf = pytest.importorskip("tensorflow")
    op = Reshape("x", "y", shape=(-1, 2, 3))
    op.build("tf")
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def step(x):
        (found,) = op.forward([x], {})
        seen.append(found.shape.as_list())
        return found

    for count in (2, 5):
        given = torch.randn(count, 6)
        found = step(tf.constant(given.numpy()))
        np.testing.assert_array_equal(found, given.reshape(-1, 2, 3))
    assert seen == [[None, 2, 3]]


@pytest.mark.tf
def test_a_tape_of_the_program() -> None:
    tf = pytest.importorskip("tensorflow")
    op = GradientOp("loss", "z", "x")
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, other = x**3, tf.constant(2.0) * 2
        (found,) = op.forward([x, loss], {"tape": tape})
        assert tape.gradient(found, x) is None  # nothing of it was recorded
        assert op.forward([x, other], {"tape": tape}) == [None]
        (second,) = GradientOp("loss", "z", "x", higher_order=True).forward(
            [x, loss], {"tape": tape}
        )
    assert found.numpy().tolist() == second.numpy().tolist() == [3.0, 12.0]
    assert tape.gradient(second, x).numpy().tolist() == [6.0, 12.0]


def test_second_gradients_of_complex_numbers() -> None:
    op = GradientOp("loss", "z", "x", higher_order=True)
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    (found,) = op.forward([x, x**3], {})
    (expected,) = torch.autograd.grad(x**3, x, torch.ones_like(x), create_graph=True)
    assert torch.equal(found, expected)
    of_found, of_expected = (
        torch.autograd.grad(one.abs().pow(2).sum(), x)[0] for one in (found, expected)
    )
    assert torch.equal(of_found, of_expected)
    assert of_found.abs().min() > 0


@pytest.mark.parametrize("cls", [LossOp, CrossEntropy, MeanSquaredError])
def test_keys(cls: type[LossOp]) -> None:
    op = cls(inputs=("y_pred", "y"), outputs="loss")
    assert (op.pred_key, op.true_key) == ("y_pred", "y")
    assert (op.pred_key_idx, op.true_key_idx) == (0, 1)
    assert (op.in_list, op.out_list) == (True, False)


def test_one_with_its_keys_the_other_way_round() -> None:
    class Turned(LossOp):
        @property
        def true_key_idx(self) -> int:
            return 0

        @property
        def pred_key_idx(self) -> int:
            return 1

    op = Turned(inputs=["y", "y_pred"], outputs="loss")
    assert (op.pred_key, op.true_key) == ("y_pred", "y")


def test_weights_of_dice_loss_follow_the_channels() -> None:
    """Cached weights are not used for masks with more channels, or after another build."""
    op = DiceLoss(("p", "t"), "loss", channel_weights={1: 3.0}, channel_average=False)
    for _ in range(2):
        op.build("torch", torch.device("cpu"))
        for channels in (2, 4, 2):
            masks = torch.ones(2, channels, 4, 4)
            wanted = torch.ones(channels)
            wanted[1] = 3.0
            torch.testing.assert_close(op.forward([masks, masks], {}), -wanted)


def test_weights_of_dice_loss_made_in_inference_mode_have_gradients() -> None:
    op = DiceLoss(("p", "t"), "loss", channel_weights={0: 2.0})
    op.build("torch", torch.device("cpu"))
    truth = torch.ones(1, 2, 3, 3)
    with torch.inference_mode():
        op.forward([truth, truth], {})
    predicted = torch.full((1, 2, 3, 3), 0.5, requires_grad=True)
    op.forward([predicted, truth], {}).backward()
    # The gradient of -w * 2 * sum(p) / (sum(p) + 9), averaged over two channels.
    slope = -2 * 9 / 13.5**2 / 2
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad[0, :, 0, 0], torch.tensor([2 * slope, slope]))


def test_regularized_weights_that_come_between_steps() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    op = L2Regularizaton("a", "y", model=model, beta=0.5)
    state = {"mode": "train"}
    for weight in (3.0, 5.0):
        torch.nn.init.constant_(model[0].weight, weight)
        loss = op.forward(torch.tensor(1.0), state)
        assert loss.item() == 1 + 0.5 * weight**2
        model[0] = torch.nn.Linear(2, 1, bias=False)


class Value:
    """A value whose lifetime a weak reference can follow."""


def step(op: Any, batch: dict[str, Any]) -> dict[str, Any]:
    network = fastnet.Network([op])
    with network("train", 1):
        return dict(network.run_step(batch))


def op(inputs: Any = "x", outputs: Any = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda *values: values, inputs, outputs, **rest)


def test_what_is_deleted_again_is_no_output() -> None:
    ops = [
        LambdaOp(lambda x: x + 1, "x", "y"),
        LambdaOp(lambda y: 2 * y, "y", "z"),
        Delete("y"),
    ]
    fused = Fuse(ops)
    assert (fused.inputs, fused.outputs) == (["x"], ["z"])
    assert fused.forward([torch.tensor(1)], {}) == [4]
    again = Fuse([*ops, LambdaOp(lambda z: -z, "z", "y")])
    assert (again.inputs, again.outputs) == (["x"], ["z", "y"])
    assert again.forward([torch.tensor(1)], {}) == [4, -4]


@pytest.mark.parametrize("read", ["y", ["y", "w"]])
def test_a_value_is_dropped_once_it_was_read_for_the_last_time(read: Any) -> None:
    made: list[weakref.ref[Value]] = []
    alive: list[int] = []

    def make(*values: Any) -> Value:
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        value = Value()
        made.append(weakref.ref(value))
        return value

    ops = [
        LambdaOp(make, "w", "y"),
        LambdaOp(make, "y", "y"),
        LambdaOp(make, read, "y"),
        LambdaOp(make, "w", "w"),
    ]
    Fuse(ops).forward([Value()], {})
    # an op's input, and nothing that was there before it
    assert alive == [0, 1, 1, 1]


class Doubling(Fuse):
    """An op around others with a forward of its own."""

    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        return [2 * value for value in super().forward(data, state)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda op: op,
        lambda op: Fuse([op]),
        lambda op: Repeat(op, 1),
        lambda op: Sometimes(op, 1.0),
        lambda op: OneOf(op, op),
    ],
)
def test_a_derived_forward_is_called(wrap: Any) -> None:
    op = Doubling([LambdaOp(lambda x: x + 1, "x", "x")])
    result = step(wrap(op), {"x": torch.ones(2)})
    assert result["x"].tolist() == [4.0, 4.0]


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


def test_cutmix_takes_images() -> None:
    op = CutMixBatch(("x", "l"), ("x", "l"))
    with pytest.raises(ValueError, match=r"CutMixBatch .* 4 axes .* 'x' has 3"):
        op.forward([IMAGES[:, 0], LABELS], {})


class Fixed:
    """A replacement of the distribution, with a `sample` method."""

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
