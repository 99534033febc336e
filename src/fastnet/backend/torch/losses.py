"""Losses on torch tensors; `fastnet.backend` documents the functions of the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastnet.backend.losses import check_class_weights, fractional_label

# torch ignores the label -100 in silence unless it is given another index to ignore. No label has
# this one. It is not the minimum int64, because NaN and overflowing labels convert to that.
_NO_CLASS = -8_236_914_705_318_624_517

# The dtypes in which torch's own mean on the CPU is exact: for others it sums in half precision.
_EXACT_MEANS = (torch.float32, torch.float64)


def binary_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    shape = y_pred.shape
    if y_true.shape != shape:
        y_true = y_true.view(shape)
    labels = y_true * (1 - label_smoothing) + label_smoothing / 2 if label_smoothing else y_true
    loss = _binary_entropy(y_pred, labels, from_logits)
    if class_weights:
        check_class_weights(class_weights, 2)
        weights = torch.ones_like(y_true)
        for index, weight in class_weights.items():
            weights.masked_fill_(y_true == index, weight)
        loss = loss * weights
    if average_loss and loss.numel() == shape[0]:
        # Each sample has one element.
        return loss.mean()
    loss = loss.view(loss.shape[0], -1).mean(1)
    return loss.mean() if average_loss else loss


def categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
    axis: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    if axis is not None:
        y_pred, y_true = y_pred.movedim(axis, 1), y_true.movedim(axis, 1).to(y_pred.dtype)
    elif y_true.dtype is not torch.float:
        y_true = y_true.to(torch.float)
    if from_logits and axis is not None:
        loss = functional.cross_entropy(
            y_pred, y_true, reduction="none", label_smoothing=label_smoothing
        )
    else:
        labels = y_true
        if label_smoothing:
            labels = y_true * (1 - label_smoothing) + label_smoothing / y_pred.shape[1]
        log_probabilities = functional.log_softmax(y_pred, 1) if from_logits else y_pred.log()
        loss = -(labels * log_probabilities).sum(1)
    if class_weights:
        loss = loss * _class_weights_tensor(class_weights, y_true)[y_true.argmax(1)]
    return loss.mean() if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
    axis: int | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    labels = y_true
    is_plain = average_loss and not class_weights
    if y_true.dtype is not torch.int64:
        y_true = _class_indices(y_true)
    if axis is not None:
        is_plain = is_plain and ignore_index is None and not label_smoothing
        if y_true.ndim == y_pred.ndim:
            y_true = y_true.squeeze(axis)
        # The backward pass of `nll_loss` rejects input that is not contiguous.
        y_pred = y_pred.movedim(axis, 1).contiguous()
    elif y_true.ndim == 2 == y_pred.ndim and y_true.shape[1] == 1:
        y_true = y_true.squeeze(1)
    compare: Callable[..., Tensor]
    if from_logits:
        compare = functional.cross_entropy
    else:
        compare, y_pred = functional.nll_loss, y_pred.log()
    try:
        if is_plain and y_pred.is_cpu and y_pred.dtype in _EXACT_MEANS:
            # One kernel computes the loss and its mean.
            return compare(y_pred, y_true, ignore_index=_NO_CLASS)
        ignored = _NO_CLASS if ignore_index is None else ignore_index
        options: dict[str, Any] = {"label_smoothing": label_smoothing} if from_logits else {}
        loss = compare(y_pred, y_true, ignore_index=ignored, reduction="none", **options)
    except IndexError as error:
        _reject_fractions(labels, error)
        raise
    if label_smoothing and not from_logits:
        uniform = -y_pred.mean(1).masked_fill(y_true == ignored, 0)
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform
    if class_weights:
        # An ignored index may be outside of the classes. Its loss is 0, so any class will do.
        classes = y_true.clamp(0, y_pred.shape[1] - 1)
        loss = loss * _class_weights_tensor(class_weights, y_pred).take(classes)
    if not average_loss:
        return loss
    if ignore_index is None:
        return loss.mean()
    # The sum of many elements overflows in half precision.
    total = loss.sum(dtype=torch.promote_types(loss.dtype, torch.float32))
    return (total / (y_true != ignored).sum()).to(loss.dtype)


def _class_indices(labels: Tensor) -> Tensor:
    """Convert labels to int64; one that is no whole number becomes an index that no class has."""
    indices = labels.long()
    if labels.is_floating_point():
        # The loss rejects this index when it runs, so that nothing has to wait for the device here.
        indices = indices.masked_fill(indices != labels, torch.iinfo(torch.int64).min)
    return indices


def _reject_fractions(labels: Tensor, cause: Exception) -> None:
    """Raise an error if a loss failed because class labels are fractional."""
    if not labels.is_floating_point():
        return
    fractions = labels[labels.isfinite() & (labels != labels.trunc())]
    if len(fractions):
        raise fractional_label(labels.dtype, fractions[0].item()) from cause


def mean_squared_error(y_true: Tensor, y_pred: Tensor, average_loss: bool = False) -> Tensor:
    if average_loss:
        return functional.mse_loss(y_pred, y_true)
    return functional.mse_loss(y_pred, y_true, reduction="none").mean(-1)


def hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    return torch.rsub(y_true * y_pred, 1.0).clamp(0).mean(-1)


def l1_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    return functional.l1_loss(y_pred, y_true, reduction="none").mean(-1)


def smooth_l1_loss(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    return functional.smooth_l1_loss(y_pred, y_true, reduction="none", beta=beta).mean(-1)


def huber(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    # torch accepts another dtype of labels, but fails in the backward pass.
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    return functional.huber_loss(y_pred, y_true, reduction="none", delta=beta).mean(-1)


def focal(y_true: Tensor, y_pred: Tensor, gamma: float, alpha: float, from_logits: bool) -> Tensor:
    """Return the focal loss of each element."""
    probability = y_pred.sigmoid() if from_logits else y_pred
    entropy = _binary_entropy(y_pred, y_true, from_logits)
    # `rsub` and `pow` are native calls, while the operators `-` and `**` go through Python.
    negative = torch.rsub(y_true, 1)
    probability_of_label = probability * y_true + torch.rsub(probability, 1) * negative
    if y_true.requires_grad:
        # A second node, so that gradients are accumulated in FastEstimator's order.
        negative = torch.rsub(y_true, 1)
    weight = alpha * y_true + (1 - alpha) * negative
    return weight * (entropy * torch.rsub(probability_of_label, 1).pow(gamma))


def _binary_entropy(y_pred: Tensor, y_true: Tensor, from_logits: bool) -> Tensor:
    if from_logits:
        return functional.binary_cross_entropy_with_logits(y_pred, y_true, reduction="none")
    return functional.binary_cross_entropy(y_pred, y_true, reduction="none")


def _class_weights_tensor(class_weights: Mapping[int, float], like: Tensor) -> Tensor:
    """Return a tensor of the weights of all classes; axis 1 of `like` is that of the classes."""
    if not isinstance(class_weights, ClassWeights):
        class_weights = ClassWeights(class_weights)
    return class_weights.tensor(like)


class ClassWeights(dict[int, float]):
    """The weights of classes by index, with tensors of them that are reused in later steps."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        super().__init__(weights)
        self._tensors: dict[tuple[int, torch.device], Tensor] = {}

    def tensor(self, like: Tensor) -> Tensor:
        """Return a tensor of the weights of all classes on the device of `like`."""
        count, device = like.shape[1], like.device
        key = count, device
        # A trace, whose tensors are of another type, takes the numbers as constants.
        is_traced = type(like) is not Tensor
        tensor = None if is_traced else self._tensors.get(key)
        if tensor is None:
            check_class_weights(self, count)
            weights = [self.get(index, 1.0) for index in range(count)]
            # Autograd cannot use tensors that were created in inference mode.
            with torch.inference_mode(False):
                tensor = torch.tensor(weights, dtype=torch.float, device=device)
            if not is_traced:
                self._tensors[key] = tensor
        return tensor
