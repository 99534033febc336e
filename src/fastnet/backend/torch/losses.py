"""Losses on torch tensors.

Arguments and results are those of the functions of the same names in `fastnet.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from fastnet.backend.torch.reductions import mean_of as mean_of_losses

__all__ = [
    "ClassWeights",
    "binary_crossentropy",
    "categorical_crossentropy",
    "class_indices",
    "focal",
    "hinge",
    "huber",
    "l1_loss",
    "mean_of_losses",
    "mean_squared_error",
    "refuse_fractions",
    "row_of",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
    "weights_of_indices",
]

# What no label is: too odd to stand for anything, and for no number that is NaN, infinite or too
# large for an index, all of which become the least index. So none is passed over in silence.
_NO_CLASS = -8_236_914_705_318_624_517

# Types that torch's mean of a cross entropy is right in on the CPU: of halves it adds up halves.
_EXACT_MEANS = frozenset((torch.float32, torch.float64))


def binary_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Compare yes-or-no predictions with the truth."""
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    compare: Callable[..., torch.Tensor] = (
        functional.binary_cross_entropy_with_logits
        if from_logits
        else functional.binary_cross_entropy
    )
    shape = y_pred.shape
    if y_true.shape != shape:
        y_true = y_true.view(shape)
    truth = y_true * (1 - label_smoothing) + label_smoothing / 2 if label_smoothing else y_true
    loss = compare(y_pred, truth, reduction="none")
    if class_weights:
        weights = torch.ones_like(y_true)
        for index, weight in class_weights.items():
            weights.masked_fill_(y_true == index, weight)
        loss = loss * weights
    if average_loss and loss.numel() == shape[0]:
        # a mean of means of one element each
        return loss.mean()
    loss = loss.view(loss.shape[0], -1).mean(1)
    return loss.mean() if average_loss else loss


def categorical_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """Compare class predictions with one-hot truth."""
    if y_true.dtype is not torch.float:
        y_true = y_true.to(torch.float)
    log_probabilities = functional.log_softmax(y_pred, 1) if from_logits else y_pred.log()
    loss = -(y_true * log_probabilities).sum(1)
    if class_weights:
        loss = loss * row_of(class_weights, y_true)[y_true.argmax(1)]
    return loss.mean() if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """Compare class predictions with class indices."""
    labels = y_true
    if y_true.dtype is not torch.int64:
        y_true = class_indices(y_true)
    if y_true.dim() == 2 == y_pred.dim() and y_true.shape[1] == 1:
        y_true = y_true.squeeze(1)
    compare = functional.cross_entropy if from_logits else functional.nll_loss
    if not from_logits:
        y_pred = y_pred.log()
    if average_loss and not class_weights and y_pred.is_cpu and y_pred.dtype in _EXACT_MEANS:
        # One kernel for loss and mean, where a mean over all elements is the mean over the batch.
        # The CPU's kernel says so when it meets an index that is none, such as -100.
        try:
            return compare(y_pred, y_true, ignore_index=_NO_CLASS)
        except IndexError:
            pass
    try:
        loss = compare(y_pred, y_true, reduction="none")
    except IndexError as error:
        refuse_fractions(labels, error)
        raise
    if class_weights:
        loss = loss * weights_of_indices(y_true, class_weights, y_pred)
    return loss.mean() if average_loss else loss


def class_indices(labels: torch.Tensor) -> torch.Tensor:
    """Convert labels to int64; one that is no whole number becomes an index that no class has."""
    indices = labels.long()
    if labels.is_floating_point():
        # The loss rejects this index when it runs, so that nothing has to wait for the device here.
        indices = indices.masked_fill(indices != labels, torch.iinfo(torch.int64).min)
    return indices


def refuse_fractions(labels: torch.Tensor, cause: Exception) -> None:
    """Raise an error if a loss failed because class labels are fractional."""
    if labels.is_floating_point() and (labels.isfinite() & (labels != labels.trunc())).any():
        raise ValueError(
            f"Class labels must be whole numbers, but labels of dtype {labels.dtype} have "
            "fractions. Cast them to an integer dtype if they are to be truncated."
        ) from cause


def mean_squared_error(
    y_true: torch.Tensor, y_pred: torch.Tensor, average_loss: bool = False
) -> torch.Tensor:
    """Average squared differences over the last axis."""
    if average_loss:
        return functional.mse_loss(y_pred, y_true)
    return functional.mse_loss(y_pred, y_true, reduction="none").mean(-1)


def hinge(y_true: torch.Tensor, y_pred: torch.Tensor) -> torch.Tensor:
    """Average over the last axis how far predictions are from the right side of the margin."""
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    return torch.rsub(y_true * y_pred, 1.0).clamp(0).mean(-1)


def l1_loss(y_true: torch.Tensor, y_pred: torch.Tensor) -> torch.Tensor:
    """Average absolute differences over the last axis."""
    return functional.l1_loss(y_pred, y_true, reduction="none").mean(-1)


def smooth_l1_loss(y_true: torch.Tensor, y_pred: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    """Average differences over the last axis, small ones squared and divided by `beta`."""
    return functional.smooth_l1_loss(y_pred, y_true, reduction="none", beta=beta).mean(-1)


def huber(y_true: torch.Tensor, y_pred: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    """Average differences over the last axis, small ones squared, large ones times `beta`."""
    # torch takes no other type of truth, and only says so when gradients are taken
    if y_true.dtype is not y_pred.dtype:
        y_true = y_true.to(y_pred.dtype)
    return functional.huber_loss(y_pred, y_true, reduction="none", delta=beta).mean(-1)


def focal(
    y_true: torch.Tensor, y_pred: torch.Tensor, gamma: float, alpha: float, from_logits: bool
) -> torch.Tensor:
    """Compare each yes-or-no prediction with the truth, those nearly right counting less."""
    if from_logits:
        probability = y_pred.sigmoid()
        entropy = functional.binary_cross_entropy_with_logits(y_pred, y_true, reduction="none")
    else:
        probability = y_pred
        entropy = functional.binary_cross_entropy(y_pred, y_true, reduction="none")
    # `rsub` and `pow`, because torch's operators for them go through Python
    untrue = torch.rsub(y_true, 1)
    right = probability * y_true + torch.rsub(probability, 1) * untrue
    if y_true.requires_grad:
        # two of them, so that its gradients are added up in FastEstimator's order
        untrue = torch.rsub(y_true, 1)
    weight = alpha * y_true + (1 - alpha) * untrue
    return weight * (entropy * torch.rsub(right, 1).pow(gamma))


def weights_of_indices(
    indices: torch.Tensor, class_weights: Mapping[int, float], y_pred: torch.Tensor
) -> torch.Tensor:
    """Look weights up by indices that a loss has been computed with."""
    if indices.is_cpu:
        # an index that is none, such as -100, is found out here; a GPU only tells when it is late
        try:
            return row_of(class_weights, y_pred)[indices]
        except IndexError:
            pass
    weights = torch.ones_like(indices, dtype=torch.float)
    for index, weight in class_weights.items():
        weights.masked_fill_(indices == index, weight)
    return weights


def row_of(class_weights: Mapping[int, float], like: torch.Tensor) -> torch.Tensor:
    """Make a tensor of the weights of all classes, of which `like` has an entry on axis 1 each."""
    rows = getattr(class_weights, "rows", None)
    place = like.shape[1], like.device
    row: torch.Tensor | None = None if rows is None else rows.get(place)
    if row is None:
        count, device = place
        # what inference mode makes, no later step could take gradients of
        with torch.inference_mode(False):
            row = torch.ones(count, dtype=torch.float)
            for index, weight in class_weights.items():
                if 0 <= index < count:
                    row[index] = weight
            row = row.to(device)
        if rows is not None:
            rows[place] = row
    return row


class ClassWeights(dict[int, float]):
    """Weights of classes by index, which are the same in every step.

    Attributes:
        rows: A tensor of them for each number of classes, and device, that has been met.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        super().__init__(weights)
        self.rows: dict[tuple[int, torch.device], torch.Tensor] = {}
