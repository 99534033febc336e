"""Ops that do the same to each input: how they are made, and that they work outside a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Argmax, Normalize, Permute, Reshape, Resize3D, UnHadamard
from fastnet.op.tensorop.per_tensor import PerTensor

MAKERS: dict[str, Callable[..., Any]] = {
    "Argmax": Argmax,
    "Normalize": Normalize,
    "Permute": Permute,
    "Reshape": lambda *keys: Reshape(*keys, shape=(-1,)),
    "Resize3D": lambda *keys: Resize3D(*keys, output_shape=(1, 1, 1)),
    "UnHadamard": lambda *keys: UnHadamard(*keys, n_classes=2),
}


@pytest.mark.parametrize("name", list(MAKERS))
class TestKeys:
    @pytest.mark.parametrize(
        ("inputs", "outputs"), [(["a", "b"], ["y"]), (["a"], ["y", "z"]), ([], [])]
    )
    def test_of_other_counts(self, name: str, inputs: list[str], outputs: list[str]) -> None:
        with pytest.raises(ValueError, match="writes one output") as caught:
            TorchNetwork([MAKERS[name](inputs, outputs)])
        assert str(caught.value) == (
            f"{name} writes one output for each input, but its inputs are {inputs} and its outputs "
            f"{outputs}."
        )

    def test_bare_ones_come_as_lists(self, name: str) -> None:
        op = MAKERS[name]("a", "y")
        assert (op.inputs, op.outputs) == (["a"], ["y"])
        # Permute takes bare ones, as FastEstimator's does
        assert op.in_list is op.out_list is (name != "Permute")


def test_apply_must_be_defined() -> None:
    class Own(PerTensor):
        function_name = "abs"

    with pytest.raises(NotImplementedError) as caught:
        Own("a", "y").forward([torch.ones(1)], {})
    assert str(caught.value) == "Own must define apply."
