"""Models made ready: what depends on the machine. The rest is tested with `fastnet.build`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend.torch import setup
from fastnet.network import TorchNetwork
from tests.network.programs import (
    batches,
    line,
    losses,
    mlp,
    no_gradients,
    run_all,
    same_weights,
    supervised,
    twins,
)


class TestPrepare:
    @pytest.mark.parametrize("count", [0, 1])
    def test_for_one_device(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.setattr(setup, "get_num_gpus", lambda: count)
        model = line()
        assert setup.prepare(model) is model

    def test_for_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup, "get_num_gpus", lambda: 2)
        model = line()
        prepared = setup.prepare(model)
        assert type(prepared) is nn.DataParallel
        assert prepared.module is model

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the wrapper would use the GPUs")
    def test_a_wrapped_model_trains_like_the_model_in_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: twin, "adam")
        monkeypatch.setattr(setup, "get_num_gpus", lambda: 2)
        wrapped = fastnet.build(lambda: model, "adam")
        assert type(wrapped) is nn.DataParallel
        data = batches(5)
        seen = losses(run_all(TorchNetwork(supervised(wrapped)), data))
        assert seen == losses(run_all(TorchNetwork(supervised(twin)), data))
        assert same_weights(model, twin)
        assert no_gradients(wrapped)


class TestScaler:
    @pytest.mark.parametrize("gpu", [True, False])
    @pytest.mark.parametrize("mixed", [True, False])
    def test_only_for_mixed_precision_on_a_gpu(
        self, monkeypatch: pytest.MonkeyPatch, gpu: bool, mixed: bool
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        optimizer = setup.make_optimizer("adam", line(), "m", mixed_precision=mixed)
        assert type(optimizer) is torch.optim.Adam
        assert isinstance(optimizer.scaler, torch.amp.GradScaler) == (gpu and mixed)
        assert (gpu and mixed) or optimizer.scaler is None
