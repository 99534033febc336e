"""Cross-entropy of classes along any axis and of bits, against numpy, torch and Keras."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import CrossEntropy, Hinge, MeanSquaredError
from tests.backend.makers import gradient, make, read, slopes, type_name

TF = pytest.param("tf", marks=pytest.mark.tf)
STATIC = pytest.param("tf-static", marks=pytest.mark.tf)
FRAMEWORKS = pytest.mark.parametrize("way", ["torch", TF, STATIC])
WEIGHTS: dict[int, float] = {0: 0.5, 2: 3.0}
# predictions, and where their classes are
SHAPES: list[tuple[tuple[int, ...], int | None]] = [
    ((2, 3, 3), None),
    ((2, 4, 3), -1),
    ((2, 3, 2, 4), 1),
]
# Whether the loss is averaged, the weights of classes, whether predictions are logits, the label
# that is ignored, and the label smoothing.
SETTINGS: list[tuple[bool, dict[int, float] | None, bool, int | None, float]] = [
    (True, None, True, None, 0.1),
    (False, WEIGHTS, True, 1, 0.0),
    (True, WEIGHTS, False, -1, 0.1),
    (False, None, False, None, 0.0),
]


def framework_of(way: str) -> str:
    return way.removesuffix("-static")


def op_of(way: str, built: bool = True, **settings: Any) -> CrossEntropy:
    op = CrossEntropy(("p", "t"), "loss", **settings)
    if built:
        op.build(framework_of(way))
    return op


def call(way: str, op: Any, pred: Any, true: Any) -> Any:
    """Run an op on a tensor of predictions and an array of targets."""
    forward = op.forward
    if way == "tf-static":
        forward = pytest.importorskip("tensorflow").function(op.forward, autograph=False)
    return forward([pred, make(framework_of(way), true)], {})


def tensor(way: str, array: Any, dtype: str | None = None) -> Any:
    return make(framework_of(way), array, dtype)


def softmax(scores: Any, axis: int) -> Any:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def weights_of(classes: Any, weights: Any) -> Any:
    return np.vectorize(lambda one: (weights or {}).get(int(one), 1.0))(classes)


def of_classes(
    scores: Any, y: Any, axis: int, average: bool, weights: Any, smoothing: float, ignored: Any
) -> Any:
    """Compute the loss of class indices in numpy."""
    logs = np.log(np.moveaxis(softmax(scores, axis), axis, -1))
    left_out = y == ignored
    taken = np.take_along_axis(logs, np.where(left_out, 0, y)[..., None], -1)[..., 0]
    losses = -(1 - smoothing) * taken - smoothing * logs.mean(-1)
    losses = np.where(left_out, 0, losses * weights_of(y, weights))
    return losses.sum() / (~left_out).sum() if average else losses


@FRAMEWORKS
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("form", ["sparse", "categorical"])
def test_classes(way: str, form: str, shape: tuple[int, ...], axis: int | None) -> None:
    along = (1 if way == "torch" else len(shape) - 1) if axis is None else axis
    source = np.random.default_rng(len(shape))
    scores = source.standard_normal(shape)
    y = source.integers(0, 3, [size for at, size in enumerate(shape) if at != along % len(shape)])
    for average, weights, logits, ignored, smoothing in SETTINGS:
        labels = y.copy()
        if form == "categorical":
            ignored = None
        elif ignored == -1:
            labels.flat[0] = -1
        true = labels if form == "sparse" else np.moveaxis(np.eye(3)[y], -1, along)
        op = op_of(
            way,
            form=form if axis is None else None,
            from_logits=logits,
            average_loss=average,
            class_weights=weights,
            axis=axis,
            ignore_index=ignored,
            label_smoothing=smoothing,
        )

        def oracle(scores: Any) -> Any:
            return of_classes(scores, labels, along, average, weights, smoothing, ignored)  # noqa: B023

        pred = tensor(way, scores if logits else softmax(scores, along))
        loss = call(way, op, pred, true)
        np.testing.assert_allclose(read(loss), oracle(scores), rtol=1e-5, atol=1e-6)
        assert type_name(loss) == "float64" or weights
        if logits and not average:
            found = gradient(framework_of(way), lambda p: call(way, op, p, true), scores)  # noqa: B023
            np.testing.assert_allclose(found, slopes(oracle, scores), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse_loss"])
def test_equal_to_torch_bit_for_bit(loss: str) -> None:
    """What a hand-written loop would call, forwards and backwards."""
    scores, y = torch.randn(6, 3), torch.randint(0, 3, (6,))
    true = y if loss == "cross_entropy" else torch.randn(6, 3)
    own, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    op = op_of("torch", from_logits=True)
    if loss == "mse_loss":
        op = MeanSquaredError(("p", "t"), "loss")  # type: ignore[assignment]
    found, wanted = op.forward([own, true], {}), getattr(functional, loss)(other, true)
    assert torch.equal(found, wanted)
    found.backward()
    wanted.backward()
    assert torch.equal(own.grad, other.grad)


@pytest.mark.parametrize("way", ["torch", TF])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["binary", "categorical", "sparse", "ignored", "hinge"])
def test_means_of_many_halves(way: str, kind: str, form: str) -> None:
    """They are as near as the type can tell, however many there are, and so are their gradients."""
    # too many for a sum of halves, for a count, and for both
    for points in (400, 100_000):
        source = np.random.default_rng(points)
        scores = read(tensor(way, source.standard_normal((points, 4)), kind)).astype("float64")
        y = source.integers(0, 4, points)
        if form in ("binary", "hinge"):
            y = source.integers(0, 2, (points, 4))
        elif form == "categorical":
            y = np.eye(4)[y]
        op: Any = Hinge(("p", "t"), "loss")
        if form == "ignored":
            op = op_of(way, from_logits=True, ignore_index=1)
        elif form != "hinge":
            op = op_of(way, from_logits=True, form=form)
        found, wide = (
            gradient(
                framework_of(way),
                lambda p, dtype=dtype, op=op, y=y: call(way, op, cast(p, dtype), y),
                scores,
            )
            for dtype in (kind, "float64")
        )
        loss = read(call(way, op, tensor(way, scores, kind), y))
        wanted = read(call(way, op, tensor(way, scores), y))
        spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[kind]
        np.testing.assert_allclose(loss, wanted, rtol=3 * spacing)
        # the least that float16 can tell from nothing is as large as a sample's share of many
        np.testing.assert_allclose(found, wide, atol=4 * spacing * np.abs(wide).max() + 2.0**-23)


def cast(tensor: Any, dtype: str) -> Any:
    if isinstance(tensor, torch.Tensor):
        return tensor.to(getattr(torch, dtype))
    return pytest.importorskip("tensorflow").cast(tensor, dtype)


class TestLabels:
    @FRAMEWORKS
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("logits", [True, False])
    def test_minus_100_is_ignored_only_if_it_is_named(
        self, way: str, weights: Any, average: bool, logits: bool
    ) -> None:
        scores, y = np.random.default_rng(0).standard_normal((4, 3)), np.array([0, -100, 2, 1])
        pred = tensor(way, scores if logits else softmax(scores, 1))
        settings = {"from_logits": logits, "class_weights": weights, "average_loss": average}
        loss = call(way, op_of(way, **settings, ignore_index=-100), pred, y)
        wanted = of_classes(scores, y, 1, average, weights, 0.0, -100)
        np.testing.assert_allclose(read(loss), wanted, rtol=1e-5)
        kind: Any = IndexError
        if way != "torch":
            kind = pytest.importorskip("tensorflow").errors.InvalidArgumentError
        with pytest.raises(kind):
            call(way, op_of(way, **settings), pred, y)

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_minus_100_in_a_compiled_step(self, smoothing: float) -> None:
        op = op_of("torch", False, from_logits=True, label_smoothing=smoothing)
        network = TorchNetwork([op], compile=CompileOptions(backend="eager"))
        batch = {"p": torch.randn(2, 3), "t": torch.tensor([0, 2])}
        with network("eval"):
            for _ in range(2):
                network.run_step(batch)
            with pytest.raises(IndexError):
                network.run_step({**batch, "t": torch.tensor([0, -100])})
        assert network.traces[-1].fallback is None

    @FRAMEWORKS
    @pytest.mark.parametrize("settings", [{}, {"ignore_index": -1, "axis": -1}])
    @pytest.mark.parametrize("label", [-2, 4, -100])
    def test_one_that_is_no_class(self, way: str, settings: Any, label: int) -> None:
        op = op_of(way, from_logits=True, label_smoothing=0.1 if settings else 0, **settings)
        kind: Any = IndexError
        if way != "torch":
            kind = pytest.importorskip("tensorflow").errors.InvalidArgumentError
        with pytest.raises(kind):
            call(way, op, tensor(way, np.zeros((3, 4))), np.array([0, label, 1]))

    @pytest.mark.parametrize(
        ("label", "weights"), [(math.nan, None), (math.inf, WEIGHTS), (1e30, None)]
    )
    @FRAMEWORKS
    def test_one_that_is_no_number(self, way: str, label: float, weights: Any) -> None:
        make_network = TorchNetwork if way == "torch" else fastnet.TFNetwork
        network = make_network([op_of(way, False, from_logits=True, class_weights=weights)])
        kind: Any = IndexError
        if way != "torch":
            kind = pytest.importorskip("tensorflow").errors.InvalidArgumentError
        eager = {"eager": way == "tf"} if way != "torch" else {}
        scores = tensor(way, np.zeros((3, 3)))
        with network("eval", 1, **eager):
            with pytest.raises(kind) as caught:
                network.run_step({"p": scores, "t": tensor(way, [0, label, 2.0])})
            notes = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
            assert "Raised by CrossEntropy (op 0, inputs ['p', 't'], outputs ['loss'])." in notes
            result = network.run_step({"p": scores, "t": tensor(way, [0, 1.0, 2.0])})
            assert np.isfinite(read(result["loss"]))

    @pytest.mark.parametrize("way", ["torch", TF])
    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    @pytest.mark.parametrize("settings", [{}, {"class_weights": WEIGHTS}, {"axis": 1}])
    def test_fractions(self, way: str, dtype: str, settings: Any) -> None:
        text = rf"whole numbers.*{dtype} is 0\.(9|899).*integer dtype"
        with pytest.raises(ValueError, match=text):
            call(
                way,
                op_of(way, **settings),
                tensor(way, np.zeros((2, 3))),
                np.array([0.9, 1.9], dtype),
            )

    @pytest.mark.tf
    def test_fractions_in_a_graph(self) -> None:
        error = pytest.importorskip("tensorflow").errors.InvalidArgumentError
        with pytest.raises(error, match="label value"):
            call("tf-static", op_of("tf"), tensor("tf", np.zeros((2, 3))), np.array([0.9, 1.9]))

    @pytest.mark.parametrize("way", ["torch", TF])
    @pytest.mark.parametrize("targets", [[0, 1], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    def test_weights_of_no_class(self, way: str, targets: Any) -> None:
        scores, targets = tensor(way, np.zeros((2, 3))), np.array(targets)
        op = op_of(way, from_logits=True, class_weights={1: 2, 7: 2.0})
        with pytest.raises(ValueError, match=r"class_weights.*\[7\].* 3 classes.*0 to 2"):
            call(way, op, scores, targets)
        loss = call(way, op_of(way, from_logits=True, class_weights={1: 2}), scores, targets)
        np.testing.assert_allclose(loss, np.log(3) * 1.5, rtol=1e-6)

    @FRAMEWORKS
    @pytest.mark.parametrize("settings", [{}, {"form": "binary", "label_smoothing": 0.1}])
    def test_weights_of_no_class_of_one_logit(self, way: str, settings: Any) -> None:
        scores, targets = tensor(way, np.zeros((2, 1))), np.array([0, 1])
        op = op_of(way, from_logits=True, class_weights={1: 2.0, 2: 3.0}, **settings)
        with pytest.raises(ValueError, match=r"class_weights.*\[2\].* 2 classes.*0 to 1"):
            call(way, op, scores, targets)
        op = op_of(way, from_logits=True, class_weights={1: 2.0})
        np.testing.assert_allclose(read(call(way, op, scores, targets)), np.log(2) * 1.5, rtol=1e-6)

    @FRAMEWORKS
    @pytest.mark.parametrize("shape", [(2, 4), (2, 2, 1)])
    def test_one_logit_and_more_targets(self, way: str, shape: Any) -> None:
        with pytest.raises(ValueError, match="as many elements"):
            call(way, op_of(way), tensor(way, np.full((2, 1), 0.5)), np.ones(shape, int))

    @FRAMEWORKS
    def test_all_left_out(self, way: str) -> None:
        op = op_of(way, from_logits=True, ignore_index=-1)
        loss = read(call(way, op, tensor(way, np.zeros((3, 4))), np.full(3, -1)))
        # torch's mean of none, and Keras's
        assert np.isnan(loss) if way == "torch" else loss == 0

    @pytest.mark.tf
    def test_weights_of_large_classes(self) -> None:
        """An index that the truth's type cannot hold is that of no class there is."""
        op = op_of("tf", from_logits=True, class_weights={300: 9.0}, average_loss=False)
        loss = call("tf", op, tensor("tf", np.zeros((2, 400))), np.array([44, 3], "uint8"))
        np.testing.assert_allclose(loss, np.log(400) * np.ones(2))


class TestErrors:
    @FRAMEWORKS
    @pytest.mark.parametrize(
        ("pred", "true", "settings", "form", "needs"),
        [
            ((2, 5, 4), (2, 5), {}, "binary", "as many elements"),
            ((2, 5, 4), (2, 4), {"axis": -1}, "sparse", "shape (2, 5)"),
            ((2,), (2, 4), {}, "binary", "inputs are the predictions, then the targets"),
            ((2, 5, 4), (2, 5), {"axis": 3}, "sparse", "an axis of classes"),
            ((2, 5, 4), (2, 3, 4), {"axis": -1}, "categorical", "the same shape"),
            ((2, 5), (2, 4), {"label_smoothing": 0.1}, "categorical", "the same shape"),
        ],
    )
    def test_impossible_shapes(
        self, way: str, pred: Any, true: Any, settings: Any, form: str, needs: str
    ) -> None:
        op = op_of(way, from_logits=True, **settings)
        with pytest.raises(ValueError, match="CrossEntropy") as caught:
            call(way, op, tensor(way, np.zeros(pred)), np.zeros(true, int))
        for part in (pred, true, repr(form), f"axis={settings.get('axis')}", needs):
            assert str(part) in str(caught.value)

    def test_no_shape(self) -> None:
        with pytest.raises(ValueError, match=r"CrossEntropy's axis.*known number of axes"):
            op_of("torch", axis=-1).forward([torch.zeros(3, 4), None], {})

    def test_ignore_index_of_one_hot_targets(self) -> None:
        with pytest.raises(ValueError, match="CrossEntropy's ignore_index"):
            op_of("torch", ignore_index=0).forward([torch.zeros(3, 4), torch.eye(3, 4)], {})


@pytest.mark.tf
class TestProbabilitiesInTensorFlow:
    @pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
    def test_that_are_certain(self, kind: str) -> None:
        for form, pred, true in (
            ("binary", [[1.0], [0.0], [1.0], [0.0]], [[1], [0], [0], [1]]),
            ("sparse", [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1]),
            ("categorical", [[1.0, 0.0], [1.0, 0.0]], [[1, 0], [0, 1]]),
        ):
            op = op_of("tf", form=form, average_loss=False)
            loss = read(call("tf", op, tensor("tf", pred, kind), true)).astype("float32")
            assert np.isfinite(loss).all()
            assert loss[0] < 0.01
            assert loss[-1] > 10

    @pytest.mark.parametrize("form", ["sparse", "categorical", "binary"])
    def test_of_a_model_in_a_graph_are_not_clipped(self, form: str) -> None:
        """Keras computes with the scores that a last activation was given."""
        tf = pytest.importorskip("tensorflow")
        from fastnet import build
        from fastnet.op.tensorop.model import ModelOp

        units, activation = (1, "sigmoid") if form == "binary" else (3, "softmax")
        keras = tf.keras
        layer = keras.layers.Dense(units, activation=activation)
        model = build(lambda: keras.Sequential([keras.Input((6,)), layer]), "sgd")
        op = CrossEntropy(("y", "t"), "loss", form=form, average_loss=False)
        network = fastnet.TFNetwork([ModelOp(model, "x", "y"), op])
        source = np.random.default_rng(0)
        with network("eval", 1):
            for size in (8, 5):
                x = 100 * source.standard_normal((size, 6)).astype("float32")
                y = source.integers(0, max(units, 2), size)
                true = np.eye(3, dtype="float32")[y] if form == "categorical" else y
                loss = network.run_step({"x": tf.constant(x), "t": tf.constant(true)})["loss"]
                scores = (x @ layer.kernel.numpy()).astype("float64")
                wanted = np.logaddexp(0, scores[:, 0]) - y * scores[:, 0]
                if form != "binary":
                    logs = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
                    wanted = -logs[np.arange(size), y]
                np.testing.assert_allclose(loss, wanted, rtol=1e-4, atol=1e-4)
