"""Calls to the loader of an epoch, in both frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp


class Sampler:
    """Has the interface of a sampler that shuffles by epoch."""

    def __init__(self) -> None:
        self.epochs: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Loader:
    """A loader with a sampler, like torch's DataLoader."""

    def __init__(self) -> None:
        self.sampler = Sampler()

    def __iter__(self) -> Any:
        return iter([{"x": np.ones(2, np.float32)}])


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_sampler_gets_epoch_as_int(framework: str) -> None:
    pytest.importorskip("tensorflow" if framework == "tf" else "torch")
    make = fastnet.TFNetwork if framework == "tf" else fastnet.TorchNetwork
    network: Any = make([LambdaOp(lambda x: x + 1, "x", "y")])
    loader = Loader()
    list(fastnet.steps(network, loader, "infer", epoch=3))
    list(network.iter_transform(loader, "infer", epoch=np.int64(4)))
    network.transform(loader, "infer", epoch=5)
    assert loader.sampler.epochs == [3, 4, 5]
    assert {type(epoch) for epoch in loader.sampler.epochs} == {int}
