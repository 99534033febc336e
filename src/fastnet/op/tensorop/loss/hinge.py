"""Hinge loss."""

from __future__ import annotations

from fastnet.op.tensorop.loss.pair_loss import PairLoss
from fastnet.op.tensorop.of_framework import OfFramework


class Hinge(PairLoss):
    """Compares scores with truth of 1 and -1: what is right by a margin costs nothing.

    Args:
        inputs: Two keys: predictions and truth, of one shape (batch, ...).
        outputs: The key to write the loss under: a scalar, or, without averaging, a loss of the
            shape without its last axis.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        average_loss: Whether to write the mean, rather than a loss for each sample.

    Raises:
        ValueError: In a network, if there are not two inputs and one output.
    """

    _loss = OfFramework("losses.hinge")
    resolved_from = ("average_loss",)
