"""Networks on a GPU, where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.programs import (
    Image,
    batches,
    built,
    losses,
    mlp,
    run,
    run_all,
    sgd,
    supervised,
    twins,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def close(model: Any, twin: Any, **tolerance: float) -> None:
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.cpu(), other.cpu(), **tolerance)


def places(model: Any) -> set[str]:
    return {value.device.type for value in model.state_dict().values()}


class TestWhere:
    def test_the_device_is_the_first_gpu(self) -> None:
        assert TorchNetwork([]).device == torch.device("cuda:0")

    @pytest.mark.parametrize("keep", [True, False])
    def test_model_and_optimizer_go_there_and_stay_or_come_back(self, keep: bool) -> None:
        model = built(Image, "adam")
        network = fastnet.Network(supervised(model), keep_on_device=keep)
        (batch,) = batches(1, (1, 8, 8))

        def states() -> list[dict[str, Any]]:
            return list(model.current_optimizer.state.values())

        for epoch in (1, 2):
            with network(mode="train", epoch=epoch):
                assert places(model) == {"cuda"}
                assert len(states()) == (0 if epoch == 1 else 6)
                for _ in range(2):
                    network.run_step(batch)
                    for state in states():
                        assert state["exp_avg"].device.type == "cuda"
                        assert state["step"].device.type == "cpu"  # as torch's own Adam wants it
            after = "cuda" if keep else "cpu"
            assert places(model) == {after}
            assert {state["exp_avg"].device.type for state in states()} == {after}
        assert float(states()[0]["step"]) == 4

    def test_one_that_the_program_names(self) -> None:
        for device in ("cuda:0", 0, torch.device("cuda")):
            model = built(mlp, "adam", device=device)
            assert next(model.parameters()).device == torch.device("cuda:0")
            assert fastnet.Network(supervised(model)).device == torch.device("cuda:0")
        network = fastnet.Network(supervised(model), device="cpu")
        (result,) = run_all(network, batches(1))
        assert places(model) == {"cpu"}
        assert result["y"].device.type == "cpu"


def test_results_are_whole() -> None:
    """Work that takes long, then copies that are only queued: nothing is read too early."""
    network = TorchNetwork([LambdaOp(lambda x: slow(x), "x", "y")])
    x = torch.full((2048, 2048), 2.0**-11)
    for pinned in (False, True):
        batch = {"x": x.pin_memory() if pinned else x}
        for _ in range(5):
            result = run(network, batch)["y"].clone()
            assert torch.equal(result, torch.full_like(x, 2.0**-11))


def slow(x: torch.Tensor) -> torch.Tensor:
    """Return the same values, late: a row of 2048 times 2**-11 sums up to 1."""
    for _ in range(50):
        x = x @ torch.full_like(x, 2.0**-11)
    return x


@pytest.mark.parametrize(
    ("update", "precision"),
    [
        ({}, None),
        ({"merge_grad": 2}, None),
        ({"defer": True}, None),
        ({}, True),
        ({"merge_grad": 2}, "fp16"),
    ],
)
def test_training_is_like_a_hand_written_loop(update: dict[str, Any], precision: Any) -> None:
    model, twin = twins(mlp)
    built(model, sgd(0.1), mixed_precision=precision)
    scales = precision is not None
    assert isinstance(model.current_optimizer.scaler, torch.amp.GradScaler) is scales
    network = fastnet.Network(supervised(model, **update))
    data = batches(20)
    results = run_all(network, data[:10]) + run_all(network, data[10:], epoch=2)
    assert results[0]["y"].dtype is (torch.float16 if scales else torch.float32)
    twin.cuda()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=scales)
    merge = update.get("merge_grad", 1)
    expected = []
    for step, batch in enumerate(data, start=1):
        with torch.autocast("cuda", enabled=scales):
            loss = functional.cross_entropy(twin(batch["x"].cuda()), batch["t"].cuda())
        scaler.scale(loss / merge).backward()
        expected.append(float(loss.detach()))
        if step % merge == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert losses(results) == pytest.approx(expected, rel=1e-2 if scales else 1e-4)
    close(model, twin, rtol=1e-2, atol=1e-3)
