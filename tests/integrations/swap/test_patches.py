"""Patches of FastEstimator's network module still work when it is swapped.

Each case runs in FastEstimator as it is and swapped. docs/fastestimator.md lists the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = pytest.mark.tf

import torch

from tests.integrations import sides, tf_sides

HERE = "fastestimator.network"
Fe = Any


def build(fe: Fe, fw: Any = sides, **settings: Any) -> Any:
    dense = fw.dense
    return fe.build(lambda: dense(2, 1), **{"optimizer_fn": "sgd", **settings})


def run(fe: Fe, fw: Any = sides) -> Any:
    model_op = fe.op.tensorop.model.ModelOp(build(fe, fw), "x", "y")
    return fe.Network([model_op]).transform({"x": [[1.0, 2.0]]}, mode="infer")


CASES: dict[str, Callable[[Fe], Any]] = {
    "load_model": lambda fe: build(fe, weights_path="nowhere"),
    "gdown.download": lambda fe: build(fe, weights_path="https://drive.google.com/file"),
    "_build_optimizer": build,
    "_fe_compile": build,
    "trace_model": build,
    "get_num_gpus": build,
    "get_device": run,
    "to_tensor": run,
    "TorchNetwork": run,
    "TFNetwork": lambda fe: run(fe, tf_sides),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_patched_is_called(fe: Fe, name: str) -> None:
    with (
        patch(f"{HERE}.{name}", side_effect=ArithmeticError("patched")),
        pytest.raises(ArithmeticError, match="patched"),
    ):
        CASES[name](fe)


def test_what_it_returns_counts(fe: Fe) -> None:
    with patch(f"{HERE}.get_num_gpus", return_value=2):
        model = build(fe, model_name="spread")
    assert isinstance(model, torch.nn.DataParallel)
    assert (model.model_name, model.fe_compiled) == ("spread", True)
    with patch(f"{HERE}._build_optimizer", return_value=None):
        assert build(fe).current_optimizer is None
    ops = [fe.op.tensorop.LambdaOp(abs, "x", "y")]
    with patch(f"{HERE}.get_device", return_value=torch.device("meta")):
        assert sys.modules[HERE].TorchNetwork(ops).device == torch.device("meta")
