"""Gradients as values."""

from __future__ import annotations

from typing import Any

from tests.network.toy import Model, Tensor


def trainable(model: Model) -> list[Tensor]:
    return model.weights


def watch(tensor: Tensor, tape: Any = None) -> Tensor:
    return tensor
