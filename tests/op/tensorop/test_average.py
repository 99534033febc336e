"""The mean of several tensors."""

from __future__ import annotations

import torch

from fastnet.op.tensorop import Average


def test_inputs_are_left_as_they_are() -> None:
    one, two = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 5.0])
    assert Average(["a", "b"], "y").forward([one, two], {}).tolist() == [1.5, 4.0]
    assert (one.tolist(), two.tolist()) == ([1.0, 3.0], [2.0, 5.0])
