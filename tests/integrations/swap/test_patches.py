"""Patches of FastEstimator's network module still work when it is swapped.

Each test runs in FastEstimator as it is and swapped. docs/fastestimator.md lists the names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = pytest.mark.tf

import torch

from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides

HERE = "fastestimator.network"
Fe = Any


def build(fe: Fe, fw: Any = torch_sides, **settings: Any) -> Any:
    dense = fw.dense
    return fe.build(lambda: dense(2, 1), **{"optimizer_fn": "sgd", **settings})


def test_load_model(fe: Fe, fw: Any, tmp_path: Path) -> None:
    with patch(f"{HERE}.load_model") as load:
        model = build(fe, fw, weights_path="nowhere")
        build(fe, fw)  # There is nothing to load.
    load.assert_called_once_with(model, "nowhere")
    with patch(f"{HERE}.load_model", wraps=sys.modules[HERE].load_model) as load:
        path = fe.backend.save_model(model, str(tmp_path), "saved")
        torch_sides.assert_same(build(fe, fw, weights_path=path), model)
    assert load.call_count == 1


def test_downloads(fe: Fe) -> None:
    link = "https://drive.google.com/file"
    with patch(f"{HERE}.gdown") as gdown, patch(f"{HERE}.load_model") as load:
        gdown.download.side_effect = OSError("no network")
        with pytest.raises(OSError, match="no network"):
            build(fe, weights_path=link)
    assert gdown.download.call_args.args[0] == link
    assert not load.called


def test_optimizers(fe: Fe, fw: Any) -> None:
    adam = fw.adam(0.25)
    with patch(f"{HERE}._build_optimizer", return_value=Mock(name="optimizer")) as make:
        model = build(fe, fw, optimizer_fn=adam)
        assert make.call_args.args == (adam, model, fw.NAME, False)
        assert model.optimizer is model.current_optimizer is make.return_value
        make.return_value = None
        scheduler = fe.schedule.EpochScheduler({1: adam, 3: "adam"})
        model = build(fe, fw, optimizer_fn=scheduler)
    assert [call.args[0] for call in make.call_args_list[1:]] == [adam, "adam"]
    assert model.current_optimizer is None


def test_compile_and_trace(fe: Fe) -> None:
    with (
        patch(f"{HERE}._fe_compile", wraps=sys.modules[HERE]._fe_compile) as compiles,
        patch(f"{HERE}.trace_model", side_effect=lambda model, **settings: model) as trace,
    ):
        model = build(fe, model_name="known")
    assert compiles.call_args.args == (model, "sgd", None, "known", False)
    assert trace.call_args.args == (model,)
    assert trace.call_args.kwargs["optimizer_fn"] == "sgd"
    assert trace.call_args.kwargs["model_idx"] == -1


def test_get_num_gpus(fe: Fe) -> None:
    with patch(f"{HERE}.get_num_gpus", return_value=2):
        model = build(fe, model_name="spread")
    assert isinstance(model, torch.nn.DataParallel)
    assert (model.model_name, model.fe_compiled) == ("spread", True)
    with patch(f"{HERE}.get_num_gpus", return_value=1):
        assert not isinstance(build(fe), torch.nn.DataParallel)


def test_get_device(fe: Fe) -> None:
    ops = [fe.op.tensorop.LambdaOp(abs, "x", "y")]
    with patch(f"{HERE}.get_device", return_value=torch.device("meta")):
        assert sys.modules[HERE].TorchNetwork(ops).device == torch.device("meta")


def test_to_tensor(fe: Fe, fw: Any) -> None:
    network = getattr(sys.modules[HERE], f"{'TF' if fw is tf_sides else 'Torch'}Network")(
        [fe.op.tensorop.LambdaOp(abs, "x", "y")]
    )
    x = np.float32([[1, 2], [3, 4]])
    with patch(f"{HERE}.to_tensor", wraps=sys.modules[HERE].to_tensor) as convert:
        results = network.transform([{"x": -x, "more": 1}] * 2, mode="infer")
    assert convert.call_count == 2
    assert convert.call_args.kwargs == {"target_type": fw.NAME}
    assert convert.call_args.args[0].keys() == {"x", "more"}
    np.testing.assert_array_equal(np.asarray(results[1]["y"]), x)


def test_classes_of_networks(fe: Fe, fw: Any) -> None:
    ops = [fe.op.tensorop.model.ModelOp(build(fe, fw), "x", "y")]
    name = f"{'TF' if fw is tf_sides else 'Torch'}Network"
    with patch(f"{HERE}.{name}") as make:
        assert fe.Network(ops) is make.return_value
    make.assert_called_once_with(ops, None, None)
