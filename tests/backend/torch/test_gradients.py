"""Gradients, and the updates they make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastnet import backend
from fastnet.backend.torch import update
from fastnet.backend.torch.parameters import accumulate_gradients, reached
from fastnet.backend.torch.update import OptimizerStep, backward, clear_gradients
from tests.network.programs import built, line, no_gradients, sgd, weights


class TestGetGradient:
    def test_of_one_tensor(self) -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        gradient = backend.get_gradient(x**2, x)
        assert gradient.tolist() == [2.0, 4.0]
        assert not gradient.requires_grad
        assert x.grad is None

    @pytest.mark.parametrize("kind", [list, tuple, iter])
    def test_of_several(self, kind: Any) -> None:
        x, y, z = (torch.tensor(value, requires_grad=True) for value in (1.0, 2.0, 3.0))
        found = backend.get_gradient(x * y, kind([x, y, z]))
        assert isinstance(found, tuple)
        assert found == (2.0, 1.0, None)

    def test_of_a_tensor_that_has_no_part(self) -> None:
        x, y = (torch.tensor(1.0, requires_grad=True) for _ in range(2))
        assert backend.get_gradient(x * 2, y) is None

    def test_in_turn(self) -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        first = backend.get_gradient(x**3, x, higher_order=True)
        assert backend.get_gradient(first, x).tolist() == [6.0, 12.0]

    def test_the_graph_is_kept_unless_told(self) -> None:
        x = torch.tensor([1.0], requires_grad=True)
        y = x**2
        for _ in range(2):
            assert backend.get_gradient(y, x).tolist() == [2.0]
        assert backend.get_gradient(y, x, retain_graph=False).tolist() == [2.0]
        with pytest.raises(RuntimeError, match="second time"):
            backend.get_gradient(y, x)


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

    def test_other_leaves_get_nothing(self) -> None:
        model, other = line(), line()
        x = torch.ones(1, 2, requires_grad=True)
        backward((model(x) * other(x)).sum(), list(model.parameters()), False)
        assert no_gradients(other)
        assert x.grad is None
        assert model.weight.grad is not None

    def test_a_loss_with_nothing_to_do_with_any(self) -> None:
        model, other = line(), line()
        backward(other(torch.ones(1, 2)).sum(), list(model.parameters()), False)
        assert no_gradients(model, other)

    @pytest.mark.parametrize("retain", [True, False])
    def test_the_graph(self, retain: bool) -> None:
        model = line()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        backward(loss, list(model.parameters()), retain)
        if retain:
            backward(loss, list(model.parameters()), False)
        with pytest.raises(RuntimeError, match="second time"):
            backward(loss, list(model.parameters()), False)


class TestStep:
    def test_through_a_scaler(self) -> None:
        log: list[Any] = []

        class Scaler:
            def step(self, optimizer: Any) -> None:
                log.append(optimizer)
                optimizer.step()

            def update(self) -> None:
                log.append("update")

        model = built(line, sgd(1.0))
        before = weights(model)
        optimizer = model.current_optimizer
        optimizer.scaler = Scaler()
        accumulate_gradients(model.parameters(), [torch.ones(1, 2), None])
        OptimizerStep(optimizer, "m")()
        assert log == [optimizer, "update"]
        assert torch.equal(model.weight, before["weight"] - 1)
        assert no_gradients(model)

    def test_gradients_of_all_groups_are_dropped(self) -> None:
        one, two = line(), line()
        optimizer = torch.optim.SGD(
            [{"params": one.parameters()}, {"params": two.parameters(), "lr": 1.0}], lr=0.1
        )
        (one(torch.ones(1, 2)) + two(torch.ones(1, 2))).sum().backward()
        clear_gradients(optimizer)
        assert no_gradients(one, two)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


def ids(leaves: list[torch.Tensor]) -> list[int]:
    return sorted(map(id, leaves))


def test_leaves_once_each() -> None:
    one, two, three = (torch.ones(2, requires_grad=True) for _ in range(3))
    fixed = torch.ones(2)
    loss = ((one * two + one + fixed).exp() + one).sum() + three.detach().sum()
    leaves, hidden = reached(loss)
    assert ids(leaves) == ids([one, two])
    assert not hidden


def test_a_loss_that_is_a_leaf() -> None:
    loss = torch.ones((), requires_grad=True)
    leaves, hidden = reached(loss)
    assert ids(leaves) == [id(loss)]
    assert not hidden


def test_functions_of_python() -> None:
    one = torch.ones(2, requires_grad=True)
    leaves, hidden = reached(Double.apply(one).sum())  # type: ignore[no-untyped-call]
    assert ids(leaves) == [id(one)]
    assert hidden


def test_what_a_checkpoint_hides() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    leaves, hidden = reached(checkpoint(layer, x, use_reentrant=True).sum())
    assert ids(leaves) == [id(x)]
    assert hidden
    leaves, hidden = reached(checkpoint(layer, x, use_reentrant=False).sum())
    assert ids(leaves) == ids([x, *layer.parameters()])
    assert not hidden
