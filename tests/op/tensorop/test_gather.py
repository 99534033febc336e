"""Some values of each sample."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop import Gather

VALUES = torch.tensor([[0.1, 0.9], [0.8, 0.2]])


@pytest.mark.parametrize(("inputs", "outputs"), [(["a", "b"], ["y"]), ([], [])])
def test_count_of_keys(inputs: list[str], outputs: list[str]) -> None:
    with pytest.raises(ValueError, match="Gather") as caught:
        Gather(inputs, outputs, indices="i")
    assert str(caught.value) == (
        f"Gather writes one output for each input, but its inputs are {inputs} and its outputs "
        f"{outputs}."
    )


def test_count_of_indices() -> None:
    with pytest.raises(ValueError, match="Gather") as caught:
        Gather(["a", "b", "c"], ["x", "y", "z"], indices=["i", "j"])
    assert str(caught.value) == (
        "Gather takes one set of indices, or one for each input, but its indices are ['i', 'j'] "
        "and its inputs ['a', 'b', 'c']."
    )


@pytest.mark.parametrize("built", [True, False])
class TestValues:
    def op(self, built: bool, indices: str | None) -> Gather:
        op = Gather("x", "y", indices=indices)
        if built:
            op.build("torch", torch.device("cpu"))
        return op

    def test_at_indices(self, built: bool) -> None:
        (found,) = self.op(built, "i").forward([torch.tensor([1, 1]), VALUES], {})
        assert torch.equal(found, VALUES[:, 1])

    def test_largest(self, built: bool) -> None:
        (found,) = self.op(built, None).forward([VALUES], {})
        assert torch.equal(found, VALUES.amax(1))

    def test_no_indices_in_a_batch(self, built: bool) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        (found,) = self.op(built, "i").forward([none, VALUES], {})
        assert torch.equal(found, VALUES.amax(1))
