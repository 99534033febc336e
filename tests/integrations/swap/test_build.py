"""Models from `build` while fastnet is installed."""

from __future__ import annotations

from types import ModuleType

import pytest

pytest.importorskip(
    "fastestimator", reason="swaps fastnet into FastEstimator 1.7.0: `make test-fe`"
)

pytestmark = pytest.mark.tf

import torch

from fastnet.integrations.fastestimator import build as build_module
from fastnet.integrations.fastestimator import install


def test_several_gpus_wrap_torch_models(
    fastestimator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "get_num_gpus", lambda: 2)
    with install():
        model = fastestimator.build(lambda: torch.nn.Linear(2, 1), "sgd", model_name="line")
    assert isinstance(model, torch.nn.DataParallel)
    assert (model.model_name, model.fe_compiled) == ("line", True)
