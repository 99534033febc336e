"""Some values of each sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Gather

VALUES = torch.tensor([[0.1, 0.9], [0.8, 0.2]])


@pytest.mark.parametrize(("inputs", "outputs"), [(["a", "b"], ["y"]), ([], [])])
def test_count_of_keys(inputs: list[str], outputs: list[str]) -> None:
    with pytest.raises(ValueError, match="Gather") as caught:
        TorchNetwork([Gather(inputs, outputs, indices="i")])
    assert str(caught.value) == (
        f"Gather writes one output for each input, but its inputs are {inputs} and its outputs "
        f"{outputs}."
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

    @pytest.mark.parametrize(("listed", "wanted"), [([], [0.9, 0.8]), ([1, 0], [0.9, 0.8])])
    def test_a_list_in_a_batch(self, built: bool, listed: list[int], wanted: list[float]) -> None:
        (found,) = self.op(built, "i").forward([listed, VALUES], {})
        torch.testing.assert_close(found, torch.tensor(wanted))


def test_an_empty_list_of_keys_is_none() -> None:
    op = Gather("x", "y", indices=[])
    assert (op.inputs, op.num_indices) == (["x"], 0)
    (found,) = op.forward([VALUES], {})
    assert torch.equal(found, VALUES.amax(1))


def test_each_input_with_lists() -> None:
    op = Gather(["a", "b"], ["x", "y"], indices=["i", "j"])
    found = op.forward([[0, 0], [1, 1], VALUES, VALUES], {})
    assert [one.tolist() for one in found] == [VALUES[:, 0].tolist(), VALUES[:, 1].tolist()]


@pytest.mark.tf
class TestInTensorFlow:
    @pytest.mark.parametrize("eager", [True, False])
    @pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32"])
    def test_types_of_indices(self, dtype: str, eager: bool) -> None:
        tf = pytest.importorskip("tensorflow")
        op = Gather("x", "y", indices="i")
        op.build("tf")
        step = op.forward if eager else tf.function(op.forward)
        (found,) = step([tf.cast([1, 0], dtype), tf.constant(VALUES.numpy())], {})
        assert found.numpy().tolist() == [VALUES[0, 1], VALUES[1, 0]]

    @pytest.mark.parametrize("listed", [[], [1, 0]])
    def test_a_list_in_a_batch(self, listed: list[int]) -> None:
        tf = pytest.importorskip("tensorflow")
        op = Gather("x", "y", indices="i")
        op.build("tf")
        (found,) = op.forward([listed, tf.constant(VALUES.numpy())], {})
        np.testing.assert_allclose(found, [0.9, 0.8])
