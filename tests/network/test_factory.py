"""Options of `Network` that only the networks of one framework take."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp


@pytest.fixture
def ops() -> list[Any]:
    from tests.network.keras_models import mlp

    return [ModelOp(fastnet.build(mlp, None), "x", "y")]


@pytest.mark.tf
def test_options_for_torch_are_refused_in_tensorflow(ops: list[Any]) -> None:
    options: dict[str, Any] = {"device": "cpu", "keep_on_device": False, "returns": "device"}
    for name, value in options.items():
        with pytest.raises(TypeError, match=f"TFNetwork.* '{name}'"):
            fastnet.Network(ops, **{name: value})


@pytest.mark.tf
def test_the_fourth_argument_is_the_axes(ops: list[Any]) -> None:
    made = fastnet.Network(ops, None, None, {"x": (0, 1)})
    assert type(made) is fastnet.network.TFNetwork
    with pytest.raises(TypeError, match="dynamic is, or holds, 'no axis'"):
        fastnet.Network(ops, None, None, "no axis")


@pytest.mark.tf
@pytest.mark.parametrize("missing", ["torch", "tensorflow"])
def test_ops_without_models_run_in_the_framework_that_is_imported(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    pytest.importorskip("tensorflow")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, missing, raising=False)
        made = fastnet.Network([LambdaOp(lambda x: x, "x", "y")])
    assert type(made).__name__ == {"torch": "TFNetwork", "tensorflow": "TorchNetwork"}[missing]


@pytest.mark.parametrize(
    ("open_axes", "instead"),
    [
        ((), "dynamic=False."),
        ({"x": (0, 1)}, "dynamic={'x': (0, 1)}."),
        ((0, 1), "dynamic={key: axes}, with the keys of the batch."),
        (0, "dynamic={key: axes}, with the keys of the batch."),
        (np.array([0]), "dynamic={key: axes}, with the keys of the batch."),
    ],
)
def test_open_axes_names_the_argument_that_has_replaced_it(open_axes: Any, instead: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Pass {instead}")):
        fastnet.Network([], open_axes=open_axes)
