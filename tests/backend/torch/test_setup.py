"""Models made ready: what depends on the machine. The rest is tested with `fastnet.build`."""

from __future__ import annotations

import pytest
import torch

from fastnet.backend.torch import setup
from tests.network.programs import line


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
