"""What a test of a program patches in FastEstimator's network module counts swapped, too.

Each test runs in FastEstimator as it is and swapped.
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

from tests.integrations.swap.running import gradient_descent, linear, matrix_of, network

Fe = Any
X = np.float32([[1, 2], [3, 4]])
HERE = "fastestimator.network"


def built(fe: Fe, framework: str, **settings: Any) -> Any:
    return fe.build(lambda: linear(framework), **{"optimizer_fn": "sgd", **settings})


def test_load_model(fe: Fe, framework: str, tmp_path: Path) -> None:
    with patch(f"{HERE}.load_model") as load:
        model = built(fe, framework, weights_path="nowhere")
    load.assert_called_once_with(model, "nowhere")
    assert type(model.optimizer).__name__ == "SGD"
    with patch(f"{HERE}.load_model", side_effect=OSError("as it was told to")):
        with pytest.raises(OSError, match="as it was told to"):
            built(fe, framework, weights_path="nowhere")
        assert built(fe, framework).model_name  # nothing to load
    with patch(f"{HERE}.load_model", wraps=sys.modules[HERE].load_model) as load:
        path = fe.backend.save_model(model, str(tmp_path), "saved")
        again = fe.build(lambda: linear(framework, [[0.0, 0.0]]), "sgd", weights_path=path)
    assert load.call_count == 1
    np.testing.assert_array_equal(matrix_of(again), matrix_of(model))


def test_load_model_of_one_of_two(fe: Fe) -> None:
    with patch(f"{HERE}.load_model") as load:
        models = fe.build(
            lambda: [linear("torch"), linear("torch")],
            ["sgd", "adam"],
            weights_path=[None, "second.pt"],
            model_name=["one", "two"],
        )
        with pytest.raises(AssertionError):
            fe.build(lambda: [linear("torch"), linear("torch")], ["sgd"])
    load.assert_called_once_with(models[1], "second.pt")
    assert [model.model_name for model in models] == ["one", "two"]


def test_get_num_gpus(fe: Fe) -> None:
    with patch(f"{HERE}.get_num_gpus", return_value=2):
        model = built(fe, "torch", model_name="spread")
    assert isinstance(model, torch.nn.DataParallel)
    assert (model.model_name, model.fe_compiled) == ("spread", True)
    with patch(f"{HERE}.get_num_gpus", return_value=1):
        assert isinstance(built(fe, "torch"), torch.nn.Linear)


def test_get_device(fe: Fe) -> None:
    with patch(f"{HERE}.get_device", return_value=torch.device("meta")):
        made = network(fe, "torch", [fe.op.tensorop.LambdaOp(abs, "x", "y")])
    assert made.device == torch.device("meta")
    assert network(fe, "torch", made.ops).device != made.device


def test_to_tensor(fe: Fe, framework: str) -> None:
    made = network(fe, framework, [fe.op.tensorop.LambdaOp(abs, "x", "y")])
    real = sys.modules[HERE].to_tensor
    with patch(f"{HERE}.to_tensor", wraps=real) as convert:
        results = made.transform([{"x": X, "more": 1}] * 2, mode="infer")
    assert convert.call_count == 2
    assert convert.call_args.kwargs == {"target_type": framework}
    assert convert.call_args.args[0].keys() == {"x", "more"}
    np.testing.assert_array_equal(np.asarray(results[1]["y"]), X)


def test_optimizers(fe: Fe, framework: str) -> None:
    real = gradient_descent(framework, 0.25)
    with patch(f"{HERE}._build_optimizer", return_value=Mock(name="of its own")) as make:
        model = built(fe, framework, optimizer_fn=real)
        assert make.call_args.args == (real, model, framework, False)
        assert model.optimizer is model.current_optimizer is make.return_value
        make.return_value = None
        scheduler = fe.schedule.EpochScheduler({1: real, 3: "adam"})
        model = built(fe, framework, optimizer_fn=scheduler)
    assert [call.args[0] for call in make.call_args_list[1:]] == [real, "adam"]
    assert model.current_optimizer is None


def test_compiling(fe: Fe, framework: str) -> None:
    real = sys.modules[HERE]._fe_compile
    with patch(f"{HERE}._fe_compile", wraps=real) as fe_compile:
        model = built(fe, framework, model_name="known")
    assert fe_compile.call_args.args == (model, "sgd", None, "known", False)
    assert (model.model_name, model.fe_compiled) == ("known", True)


def test_tracing_of_models(fe: Fe) -> None:
    with patch(f"{HERE}.trace_model", side_effect=lambda model, **settings: model) as trace:
        model = built(fe, "torch")
    assert trace.call_args.args == (model,)
    assert trace.call_args.kwargs["optimizer_fn"] == "sgd"
    assert trace.call_args.kwargs["model_idx"] == -1


def test_downloads(fe: Fe) -> None:
    link = "https://drive.google.com/file"
    with patch(f"{HERE}.gdown") as gdown, patch(f"{HERE}.load_model") as load:
        gdown.download.side_effect = OSError("no network")
        with pytest.raises(OSError, match="no network"):
            built(fe, "torch", weights_path=link)
    assert gdown.download.call_args.args[0] == link
    assert not load.called


@pytest.mark.parametrize("name", ["TFNetwork", "TorchNetwork"])
def test_classes_of_networks(fe: Fe, name: str) -> None:
    model = built(fe, "tf" if name == "TFNetwork" else "torch")
    ops = [fe.op.tensorop.model.ModelOp(model, "x", "y")]
    with patch(f"{HERE}.{name}") as make:
        assert fe.Network(ops) is make.return_value
    make.assert_called_once_with(ops, None, None)
    assert isinstance(fe.Network(ops), getattr(sys.modules[HERE], name))
