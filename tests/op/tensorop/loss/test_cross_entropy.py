"""Cross entropy in all its forms, against numpy and torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from tests.network.programs import run
from tests.op.tensorop.loss import numpy_losses

WEIGHTS: dict[int, float] = {0: 0.5, 2: 3.0}


def op_of(built: bool = True, **kwargs: Any) -> CrossEntropy:
    op = CrossEntropy(inputs=("y_pred", "y"), outputs="loss", **kwargs)
    if built:
        op.build("torch", torch.device("cpu"))
    return op


def data_of(form: str, shape: tuple[int, ...], logits: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and truth, for (batch, classes, ...)."""
    source = torch.Generator().manual_seed(len(shape))
    scores = torch.randn(shape, generator=source)
    if form == "binary":
        truth = torch.randint(0, 2, shape, generator=source)
        return (scores if logits else torch.sigmoid(scores)), truth
    truth = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=source)
    if form == "categorical":
        truth = functional.one_hot(truth, shape[1]).movedim(-1, 1)
    return (scores if logits else torch.softmax(scores, dim=1)), truth


def expected(form: str, y_pred: Any, y: Any, logits: bool, **kwargs: Any) -> Any:
    y_pred, y = y_pred.double().numpy(), y.numpy()
    if logits:
        y_pred = (numpy_losses.sigmoid if form == "binary" else numpy_losses.softmax)(y_pred)
    return getattr(numpy_losses, form)(y_pred, y, **kwargs)


SHAPES = {
    "binary": [(6,), (6, 1), (6, 3), (2, 3, 4)],
    "categorical": [(6, 3), (4, 3, 5), (2, 3, 4, 5)],
    "sparse": [(6, 3), (4, 3, 5), (2, 3, 4, 5)],
}
FORMS = [(form, shape) for form, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize(("form", "shape"), FORMS)
@pytest.mark.parametrize("logits", [False, True])
class TestValues:
    @pytest.mark.parametrize("weights", [None, WEIGHTS, {}])
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("built", [True, False])
    def test_against_numpy(
        self,
        form: str,
        shape: tuple[int, ...],
        logits: bool,
        weights: Any,
        average: bool,
        built: bool,
    ) -> None:
        data = data_of(form, shape, logits)
        op = op_of(
            built, form=form, from_logits=logits, average_loss=average, class_weights=weights
        )
        loss = op.forward(list(data), {})
        wanted = expected(form, *data, logits, weights=weights)
        assert loss.dtype is torch.float32
        if average:
            assert loss.shape == ()
            wanted = wanted.mean()
        np.testing.assert_allclose(loss.numpy(), wanted, rtol=1e-5)

    def test_gradients_against_numbers(
        self, form: str, shape: tuple[int, ...], logits: bool
    ) -> None:
        y_pred, y = data_of(form, shape, logits)
        y_pred = y_pred.double().requires_grad_()
        for weights in (None, WEIGHTS):
            for average in (True, False):
                op = op_of(
                    form=form, from_logits=logits, class_weights=weights, average_loss=average
                )
                assert torch.autograd.gradcheck(lambda p, op=op: op.forward([p, y], {}), y_pred)

    @pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.float32, torch.bool])
    def test_any_type_of_truth(
        self, form: str, shape: tuple[int, ...], logits: bool, kind: torch.dtype
    ) -> None:
        if kind is torch.bool and form == "sparse":
            shape = (shape[0], 2, *shape[2:])
        y_pred, y = data_of(form, shape, logits)
        op = op_of(form=form, from_logits=logits)
        assert torch.equal(op.forward([y_pred, y.to(kind)], {}), op.forward([y_pred, y], {}))


class TestAgainstTorch:
    """What a hand-written loop would call, equal to the bit, forwards and backwards."""

    @pytest.mark.parametrize("shape", SHAPES["sparse"])
    def test_sparse(self, shape: tuple[int, ...]) -> None:
        y_pred, y = data_of("sparse", shape, True)
        own, other = y_pred.clone().requires_grad_(), y_pred.clone().requires_grad_()
        loss = op_of(form="sparse", from_logits=True).forward([own, y], {})
        wanted = functional.cross_entropy(other, y)
        assert torch.equal(loss, wanted)
        loss.backward()
        wanted.backward()
        assert torch.equal(own.grad, other.grad)

    def test_binary(self) -> None:
        y_pred, y = data_of("binary", (8, 1), True)
        loss = op_of(from_logits=True).forward([y_pred, y], {})
        wanted = functional.binary_cross_entropy_with_logits(y_pred, y.float())
        torch.testing.assert_close(loss, wanted)

    def test_categorical(self) -> None:
        y_pred, y = data_of("categorical", (8, 3), True)
        loss = op_of(from_logits=True).forward([y_pred, y], {})
        torch.testing.assert_close(loss, functional.cross_entropy(y_pred, y.float()))


class TestForm:
    @pytest.mark.parametrize(
        ("pred", "true", "form"),
        [
            ((6, 3), (6, 3), "categorical"),
            ((6, 3), (6,), "sparse"),
            ((6, 3), (6, 1), "sparse"),
            ((6, 1), (6, 1), "binary"),
            ((6, 1), (6,), "binary"),
            ((6,), (6,), "binary"),
            ((2, 3, 4), (2, 3, 4), "binary"),
            ((2, 3, 4, 5), (2, 3, 4, 5), "binary"),
        ],
    )
    def test_is_seen_from_the_shapes(self, pred: Any, true: Any, form: str) -> None:
        y_pred = torch.rand(pred)
        y = torch.zeros(true)
        if form == "categorical":
            y[:, 0] = 1
        seen = op_of(from_logits=True).forward([y_pred, y], {})
        given = op_of(from_logits=True, form=form).forward([y_pred, y], {})
        assert torch.equal(seen, given)

    def test_a_column_of_indices(self) -> None:
        y_pred, y = data_of("sparse", (6, 3), True)
        op = op_of(from_logits=True, class_weights=WEIGHTS)
        assert torch.equal(op.forward([y_pred, y[:, None]], {}), op.forward([y_pred, y], {}))


class TestIndices:
    @pytest.mark.parametrize("logits", [False, True])
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    @pytest.mark.parametrize("average", [True, False])
    def test_minus_100_has_no_loss_and_counts_in_the_mean(
        self, logits: bool, weights: Any, average: bool
    ) -> None:
        y_pred, y = data_of("sparse", (4, 3, 5), logits)
        y[0, 1] = y[2, 2] = -100
        op = op_of(form="sparse", from_logits=logits, class_weights=weights, average_loss=average)
        loss = op.forward([y_pred, y], {})
        wanted = expected("sparse", y_pred, y, logits, weights=weights)
        np.testing.assert_allclose(loss, wanted.mean() if average else wanted, rtol=1e-5)

    @pytest.mark.parametrize("index", [3, -1, 99])
    @pytest.mark.parametrize("average", [True, False])
    def test_one_that_is_no_class(self, index: int, average: bool) -> None:
        y_pred, y = data_of("sparse", (6, 3), True)
        y[2] = index
        with pytest.raises(IndexError, match=f"Target {index} is out of bounds"):
            op_of(from_logits=True, average_loss=average).forward([y_pred, y], {})

    @pytest.mark.parametrize("label", [math.nan, math.inf, -math.inf, 1e30, -1e30])
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    @pytest.mark.parametrize("kind", [torch.float32, torch.float64])
    def test_one_that_is_no_number(
        self, label: float, average: bool, weights: Any, kind: torch.dtype
    ) -> None:
        """An error as in torch, that tells where the label came from."""
        y_pred, y = data_of("sparse", (6, 3), True)
        y = y.to(kind)
        y[2] = label
        with pytest.raises(IndexError) as torchs:
            functional.cross_entropy(y_pred, y.long())
        op = op_of(False, from_logits=True, average_loss=average, class_weights=weights)
        network = TorchNetwork([op])
        with pytest.raises(IndexError) as caught:
            run(network, {"y_pred": y_pred, "y": y}, "train")
        assert str(torchs.value) in str(caught.value)
        notes = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
        assert "Raised by CrossEntropy (op 0, inputs ['y_pred', 'y'], outputs ['loss'])." in notes
        # the network stays of use
        y[2] = 1
        assert torch.isfinite(run(network, {"y_pred": y_pred, "y": y}, "train")["loss"]).all()


@pytest.mark.parametrize("form", list(SHAPES))
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rest", [(), (16,), (4, 4)])
def test_means_of_many_halves(
    form: str, logits: bool, kind: torch.dtype, rest: tuple[int, ...]
) -> None:
    """As near as the type can tell, however many there are."""
    for points in (320, 65_536):
        shape = (points // math.prod(rest), 10, *rest)
        y_pred, y = data_of(form, shape, logits)
        y_pred = y_pred.to(kind)
        wide = op_of(form=form, from_logits=logits).forward([y_pred.double(), y], {})
        loss = op_of(form=form, from_logits=logits).forward([y_pred, y], {})
        spacing = torch.finfo(kind).eps
        torch.testing.assert_close(loss.double(), wide.double(), rtol=spacing, atol=spacing / 10)
