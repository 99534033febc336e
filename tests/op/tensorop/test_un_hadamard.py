"""Class probabilities from Hadamard codes."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.hadamard_codes import hadamard_codes
from fastnet.op.tensorop import UnHadamard


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_codes_are_their_classes(classes: int, built: bool) -> None:
    op = UnHadamard("x", "y", n_classes=classes)
    if built:
        op.build("torch", torch.device("cpu"))
    codes = torch.tensor(hadamard_codes(op.code_length)[:classes])
    (found,) = op.forward([codes], {})
    torch.testing.assert_close(found, torch.eye(classes), rtol=0, atol=1e-4)
