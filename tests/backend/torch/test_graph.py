"""What a backward pass ends at."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastnet.backend.torch.graph import reached


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


def ids(leaves: list[torch.Tensor]) -> list[int]:
    return sorted(map(id, leaves))


def test_leaves_once_each() -> None:
    one, two, three = (torch.ones(2, requires_grad=True) for _ in range(3))
    fixed = torch.ones(2)
    loss = ((one * two + one + fixed).exp() + one).sum() + three.detach().sum()
    leaves, hidden = reached(loss)
    assert ids(leaves) == ids([one, two])
    assert not hidden


def test_a_loss_that_is_a_leaf() -> None:
    loss = torch.ones((), requires_grad=True)
    leaves, hidden = reached(loss)
    assert ids(leaves) == [id(loss)]
    assert not hidden


def test_functions_of_python() -> None:
    one = torch.ones(2, requires_grad=True)
    leaves, hidden = reached(Double.apply(one).sum())  # type: ignore[no-untyped-call]
    assert ids(leaves) == [id(one)]
    assert hidden


def test_what_a_checkpoint_hides() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    leaves, hidden = reached(checkpoint(layer, x, use_reentrant=True).sum())
    assert ids(leaves) == [id(x)]
    assert hidden
    leaves, hidden = reached(checkpoint(layer, x, use_reentrant=False).sum())
    assert ids(leaves) == ids([x, *layer.parameters()])
    assert not hidden
