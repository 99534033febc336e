"""Gradients, and the updates they make."""

from __future__ import annotations

import pytest
import torch

from fastnet.backend.torch import update
from fastnet.backend.torch.update import backward
from tests.network.programs import line


@pytest.fixture(params=["engine", "torch.autograd"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients by the engine itself, and by torch's public function where there is no engine."""
    if request.param == "engine":
        assert update.run_backward is not None
    else:
        monkeypatch.setattr(update, "run_backward", None)


@pytest.mark.usefixtures("way")
class TestBackward:
    def test_is_torch_s(self) -> None:
        model, twin = line(), line()
        twin.load_state_dict(model.state_dict())
        x = torch.ones(3, 2)
        backward(model(x).pow(2).mean(), list(model.parameters()), False)
        twin(x).pow(2).mean().backward()
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(own.grad, other.grad)

    @pytest.mark.parametrize("retain", [True, False])
    def test_the_graph(self, retain: bool) -> None:
        model = line()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        backward(loss, list(model.parameters()), retain)
        if retain:
            backward(loss, list(model.parameters()), False)
        with pytest.raises(RuntimeError, match="second time"):
            backward(loss, list(model.parameters()), False)
