"""Matrix products of any size are compiled by Inductor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import built, captured
from tests.network.torch.compiled.test_inductor import by_inductor


@by_inductor
@pytest.mark.parametrize("bias", [True, False])
def test_products_above_and_below_the_size_of_loops(bias: bool) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(16, 128, bias), nn.Linear(128, 64, bias)))
    other = copy.deepcopy(model).eval()
    network = TorchNetwork(ModelOp(model, "x", "y"), compile=True)
    x = torch.randn(8, 16)
    with network("infer", 1):
        found = [network.run_step({"x": x})["y"] for _ in range(2)]
    assert captured(network) == 1
    with torch.no_grad():
        for one in found:
            torch.testing.assert_close(one, other(x), rtol=1e-5, atol=1e-6)
