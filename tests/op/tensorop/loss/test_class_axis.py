"""Cross entropy along a given axis, with labels left out and smoothed, against torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fastnet.op.tensorop.loss import CrossEntropy

WEIGHTS: dict[int, float] = {0: 0.5, 2: 3.0}
# predictions, and where their classes are
SHAPES = [((6, 4), None), ((6, 4), -1), ((3, 5, 4), -1), ((2, 4, 3, 5), 1), ((2, 3, 4, 5), 2)]


def op_of(built: bool = True, **kwargs: Any) -> CrossEntropy:
    op = CrossEntropy(inputs=("y_pred", "y"), outputs="loss", **kwargs)
    if built:
        op.build("torch", torch.device("cpu"))
    return op


def data_of(shape: tuple[int, ...], axis: int | None, kind: torch.dtype) -> Any:
    """Make scores, and class indices."""
    source = torch.Generator().manual_seed(len(shape))
    scores = torch.randn(shape, generator=source, dtype=torch.float64).to(kind)
    places = list(shape)
    classes = places.pop(1 if axis is None else axis)
    return scores, torch.randint(0, classes, places, generator=source)


def weights_of(classes: torch.Tensor) -> torch.Tensor:
    return torch.tensor([WEIGHTS.get(int(one), 1.0) for one in classes.flatten()]).view_as(classes)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
class TestAgainstTorch:
    @pytest.mark.parametrize("ignored", [None, 1, -1, -100])
    def test_sparse(
        self,
        shape: tuple[int, ...],
        axis: int | None,
        logits: bool,
        smoothing: float,
        average: bool,
        weights: Any,
        kind: torch.dtype,
        ignored: int | None,
    ) -> None:
        scores, y = data_of(shape, axis, kind)
        if ignored is not None and ignored < 0:
            y[0] = ignored
        at = 1 if axis is None else axis
        own, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        op = op_of(
            form="sparse" if axis is None else None,
            from_logits=logits,
            average_loss=average,
            class_weights=weights,
            axis=axis,
            ignore_index=ignored,
            label_smoothing=smoothing,
        )
        loss = op.forward([own if logits else own.softmax(at), y], {})
        left_out = -100 if ignored is None else ignored
        settings: dict[str, Any] = {"ignore_index": left_out, "label_smoothing": smoothing}
        moved = other.movedim(at, 1)
        if average and weights is None:
            wanted = functional.cross_entropy(moved, y, **settings)
        else:
            wanted = functional.cross_entropy(moved, y, **settings, reduction="none")
            if weights:
                wanted = wanted * weights_of(y)
            if average:
                wanted = wanted.sum() / (y != left_out).sum()
        assert loss.dtype is kind or weights
        torch.testing.assert_close(loss, wanted.to(loss.dtype), rtol=1e-5, atol=1e-6)
        (slopes,) = torch.autograd.grad(loss.sum(), own)
        (slopes_wanted,) = torch.autograd.grad(wanted.sum(), other)
        torch.testing.assert_close(slopes, slopes_wanted, rtol=1e-4, atol=1e-6)

    def test_categorical(
        self,
        shape: tuple[int, ...],
        axis: int | None,
        logits: bool,
        smoothing: float,
        average: bool,
        weights: Any,
        kind: torch.dtype,
    ) -> None:
        scores, y = data_of(shape, axis, kind)
        at = 1 if axis is None else axis
        one_hot = functional.one_hot(y, 4).movedim(-1, at)
        op = op_of(
            form="categorical" if axis is None else None,
            from_logits=logits,
            average_loss=average,
            class_weights=weights,
            axis=axis,
            label_smoothing=smoothing,
        )
        loss = op.forward([scores if logits else scores.softmax(at), one_hot], {})
        wanted = functional.cross_entropy(
            scores.movedim(at, 1),
            one_hot.movedim(at, 1).to(kind),
            label_smoothing=smoothing,
            reduction="none",
        )
        if weights:
            wanted = wanted * weights_of(y)
        wanted = wanted.mean() if average else wanted
        torch.testing.assert_close(loss, wanted.to(loss.dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_smoothed_binary(logits: bool, weights: Any) -> None:
    scores = torch.linspace(-3, 3, 12).view(6, 2)
    y = (torch.arange(12) % 2).view(6, 2)
    op = op_of(form="binary", from_logits=logits, label_smoothing=0.2, class_weights=weights)
    loss = op.forward([scores if logits else scores.sigmoid(), y], {})
    wanted = functional.binary_cross_entropy_with_logits(scores, 0.1 + 0.8 * y, reduction="none")
    if weights:
        wanted = wanted * weights_of(y)
    torch.testing.assert_close(loss, wanted.mean())


class TestLeftOut:
    def test_all_of_them(self) -> None:
        """Torch's mean of none."""
        scores, y = torch.zeros(3, 4), torch.full((3,), -1)
        assert op_of(from_logits=True, ignore_index=-1).forward([scores, y], {}).isnan()
        assert functional.cross_entropy(scores, y, ignore_index=-1).isnan()

    @pytest.mark.parametrize("label", [-100, -2, 4])
    def test_another_index_that_is_no_class(self, label: int) -> None:
        y = torch.tensor([0, label, -1])
        op = op_of(from_logits=True, ignore_index=-1)
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            op.forward([torch.zeros(3, 4), y], {})

    @pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
    def test_a_mean_of_many_halves(self, kind: torch.dtype) -> None:
        scores, y = data_of((70_000, 4), None, kind)
        op = op_of(from_logits=True, ignore_index=1)
        wanted = functional.cross_entropy(scores.double(), y, ignore_index=1)
        loss = op.forward([scores, y], {})
        torch.testing.assert_close(loss.double(), wanted, rtol=torch.finfo(kind).eps, atol=0)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize(
    ("pred", "true", "settings", "form", "needs"),
    [
        ((2, 5, 4), (2, 5), {}, "binary", "as many elements"),
        ((2, 5, 4), (2, 5), {"form": "sparse"}, "sparse", "shape (2, 4)"),
        ((2, 5, 4), (2, 4), {"axis": -1}, "sparse", "shape (2, 5)"),
        ((2, 4), (3,), {"axis": 1}, "sparse", "shape (2,)"),
        ((2, 4), (3,), {}, "sparse", "shape (2,)"),
        ((2, 5, 4), (2, 5), {"axis": 3}, "sparse", "an axis of classes"),
        ((2, 5, 4), (2, 5), {"axis": 0}, "sparse", "an axis of classes"),
        ((2, 5, 4), (2, 5), {"axis": -4}, "sparse", "an axis of classes"),
        ((2, 5, 4), (2, 3, 4), {"axis": -1}, "categorical", "the same shape"),
        ((2, 5), (2, 4), {"label_smoothing": 0.1}, "categorical", "the same shape"),
    ],
)
def test_impossible_shapes(
    pred: Any, true: Any, settings: Any, form: str, needs: str, built: bool
) -> None:
    op = op_of(built, from_logits=True, **settings)
    with pytest.raises(ValueError, match="CrossEntropy") as caught:
        op.forward([torch.zeros(pred), torch.zeros(true, dtype=torch.int64)], {})
    for part in (pred, true, repr(form), f"axis={settings.get('axis')}", needs):
        assert str(part) in str(caught.value)


def test_ignore_index_of_one_hot_targets() -> None:
    with pytest.raises(ValueError, match="CrossEntropy's ignore_index"):
        op_of(ignore_index=0).forward([torch.zeros(3, 4), torch.eye(3, 4)], {})


def test_an_array() -> None:
    with pytest.raises(TypeError, match="runs on tensors of torch or TensorFlow"):
        op_of(False, axis=-1).forward([np.zeros((2, 3)), np.zeros(2)], {})
