"""Invalid input that concerns torch, or networks of any framework alike."""

from __future__ import annotations

import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.compat import v1
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.schedule import EpochScheduler
from tests.network.programs import is_free, run


def first(x: Any, *more: Any) -> Any:
    return x


def test_a_model_of_no_known_framework() -> None:
    class Holding(TensorOp):
        def get_fe_models(self) -> Any:
            return [types.SimpleNamespace(model_name="mystery", mixed_precision=False)]

    with pytest.raises(ValueError, match=r"\['mystery'\] are of no known framework"):
        fastnet.Network([Holding()])


class TestOps:
    @pytest.mark.parametrize("module", [torch.nn.MSELoss(), torch.nn.Flatten()])
    def test_a_module_without_parameters(self, module: torch.nn.Module) -> None:
        name = type(module).__name__
        with pytest.raises(AssertionError, match=rf"op 0 is {name}, .* LambdaOp\({name}\(\), "):
            fastnet.Network([module])

    @pytest.mark.parametrize("ops", [{"a": 1}, [[1]], (one for one in [1])], ids=["dict", "", ""])
    def test_a_container(self, ops: Any) -> None:
        with pytest.raises(AssertionError, match="in one flat list"):
            fastnet.Network(ops)

    @pytest.mark.parametrize("name", ["foward", "call"])
    def test_a_forward_that_is_missing(self, name: str) -> None:
        op = type("Own", (TensorOp,), {name: first})("x", "y")
        advice = "Rename 'foward'" if name == "foward" else "Define `def forward"
        with pytest.warns(UserWarning, match=rf"Own \(op 0.* does not define forward.* {advice}"):
            network = TorchNetwork([op])
        assert run(network, {"x": 1})["y"] == 1

    def test_a_loss_of_keras(self) -> None:
        keras = pytest.importorskip("keras")
        with pytest.raises(AssertionError, match=r'LambdaOp\(.*inputs=\["label", "scores"\]'):
            fastnet.Network([keras.losses.MeanSquaredError()])

    def test_a_batch_to_call_the_network_with(self) -> None:
        with pytest.raises(ValueError, match=r"network\.transform\(batch"):
            TorchNetwork([LambdaOp(first, "x", "y")])({"x": 1})  # type: ignore[arg-type]


class TestEpoch:
    @pytest.mark.parametrize(
        ("epoch", "error", "text"),
        [
            (0, ValueError, "0 of type int"),
            (np.int64(-3), ValueError, f"{np.int64(-3)!r} of type int64"),
            (1.0, TypeError, "1.0 of type float"),
            ("2", TypeError, "'2' of type str"),
            (True, TypeError, "True of type bool"),
            (np.True_, TypeError, f"{np.True_!r} of type {type(np.True_).__name__}"),
            (None, TypeError, "None of type NoneType"),
            ([1, 2], TypeError, "[1, 2] of type list"),
            (np.ones(2), TypeError, "<ndarray of shape (2,), float64> of type ndarray"),
        ],
    )
    def test_that_is_invalid(self, epoch: Any, error: type[Exception], text: str) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "y")])
        older = v1.TorchNetwork([LambdaOp(first, "x", "y")])
        for call in (
            lambda: network("train", epoch),
            lambda: network.transform({"x": 1}, "train", epoch),
            lambda: older.load_epoch("train", epoch),
            lambda: older.get_effective_input_keys("train", epoch),
            lambda: older.get_all_output_keys("train", epoch),
        ):
            with pytest.raises(error) as caught:
                call()
            assert type(caught.value) is error
            assert str(caught.value).endswith(f"at least 1, not {text}.")
        assert network.explain("train", epoch).error == f"{error.__name__}: {caught.value}"
        assert is_free(network)
        assert is_free(older)

    @pytest.mark.parametrize("epoch", [4, np.int32(4), np.uint8(4)])
    def test_is_a_plain_int_from_then_on(self, epoch: Any) -> None:
        seen: list[Any] = []

        class Look(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                seen.append(state["epoch"])
                return data

        run(TorchNetwork([EpochScheduler({4: Look("x", "y")})]), {"x": 1}, epoch=epoch)
        assert seen == [4]
        assert type(seen[0]) is int

    def test_that_is_left_out_is_the_first(self) -> None:
        ops = {epoch: LambdaOp(lambda x, epoch=epoch: epoch, "x", "y") for epoch in (1, 2)}
        network = TorchNetwork([EpochScheduler(ops)])
        with network("infer"):
            assert network.run_step({"x": 0})["y"] == 1
        assert network.transform({"x": 0}, "infer")["y"] == 1
        ((_, result),) = fastnet.steps(network, [{"x": 0}], "infer")
        assert result["y"] == 1


def test_a_misspelled_desired_key() -> None:
    network = TorchNetwork([LambdaOp(first, "x", "loss"), LambdaOp(first, "x", "view1")])
    with pytest.warns(UserWarning, match="'los' .* Did you mean 'loss'"):
        assert run(network, {"x": 1}, desired_output_keys="los") == {"x": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(network, {"x": 1, "lost": 1}, desired_output_keys=["x", "view2", "loss", "lost"])
