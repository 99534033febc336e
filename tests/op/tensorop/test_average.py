"""The mean of several tensors."""

from __future__ import annotations

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Average


@pytest.mark.parametrize(("inputs", "outputs"), [([], "y"), (["a"], ["y", "z"]), (["a", "b"], [])])
def test_keys(inputs: list[str], outputs: str | list[str]) -> None:
    with pytest.raises(ValueError, match="Average") as caught:
        TorchNetwork([Average(inputs, outputs)])  # type: ignore[arg-type]
    listed = [outputs] if isinstance(outputs, str) else outputs
    assert str(caught.value) == (
        f"Average writes one output, the mean of its inputs, but its inputs are {inputs} and its "
        f"outputs {listed}."
    )


def test_inputs_are_left_as_they_are() -> None:
    one, two = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 5.0])
    assert Average(["a", "b"], "y").forward([one, two], {}).tolist() == [1.5, 4.0]
    assert (one.tolist(), two.tolist()) == ([1.0, 3.0], [2.0, 5.0])
