"""Gradients, and the updates they make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastnet import backend
from fastnet.backend.torch import update
from fastnet.backend.torch.update import (
    OptimizerStep,
    accumulate_gradients,
    backward,
    clear_gradients,
)
from tests.kernel.ops import shown
from tests.network.programs import built, line, no_gradients, raising, same_weights, sgd, weights


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

    def test_adds_up(self) -> None:
        model = line()
        for times in (1, 2):
            backward(model(torch.ones(1, 2)).sum(), list(model.parameters()), False)
            assert model.bias.grad.tolist() == [float(times)]

    def test_other_leaves_get_nothing(self) -> None:
        model, other = line(), line()
        x = torch.ones(1, 2, requires_grad=True)
        backward((model(x) * other(x)).sum(), list(model.parameters()), False)
        assert no_gradients(other)
        assert x.grad is None
        assert model.weight.grad is not None

    def test_parameters_that_have_no_part(self) -> None:
        model, other = line(), line()
        both = [*model.parameters(), *other.parameters()]
        backward(model(torch.ones(1, 2)).sum(), both, False)
        assert no_gradients(other)
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

    def test_a_derived_tensor(self) -> None:
        class Own(torch.Tensor):
            pass

        model = line()
        loss = model(torch.ones(1, 2)).sum().as_subclass(Own)
        backward(loss, list(model.parameters()), False)
        assert model.bias.grad.tolist() == [1.0]


class TestApplyGradients:
    def test_adds_and_passes_nones(self) -> None:
        first, second = (nn.Parameter(torch.zeros(2)) for _ in range(2))
        given = [torch.ones(2), None]
        accumulate_gradients([first, second], given)
        accumulate_gradients([first, second], given)
        assert first.grad.tolist() == [2.0, 2.0]
        assert second.grad is None
        assert given[0].tolist() == [1.0, 1.0]
        assert first.grad is not given[0]

    def test_a_gradient_with_a_graph(self) -> None:
        parameter = nn.Parameter(torch.zeros(1))
        accumulate_gradients([parameter], [torch.ones(1, requires_grad=True) * 2])
        assert not parameter.grad.requires_grad


class TestUpdateModel:
    def ready(self) -> tuple[Any, dict[str, torch.Tensor], list[torch.Tensor]]:
        model = built(line, sgd(1.0), model_name="m")
        return model, weights(model), [torch.ones(1, 2), torch.ones(1)]

    def test_at_once(self) -> None:
        model, before, given = self.ready()
        backend.update_model(model, given)
        assert torch.equal(model.weight, before["weight"] - 1)
        assert no_gradients(model)

    def test_frozen_parameters_are_not_counted(self) -> None:
        model, before, given = self.ready()
        model.weight.requires_grad_(False)
        backend.update_model(model, given[1:])
        assert torch.equal(model.weight, before["weight"])
        assert torch.equal(model.bias, before["bias"] - 1)

    def test_put_off(self) -> None:
        model, before, given = self.ready()
        deferred: dict[str, list[Any]] = {}
        for _ in range(2):
            backend.update_model(model, given, defer=True, deferred=deferred)
        assert same_weights(model, before)
        assert list(deferred) == ["m"]
        (step,) = deferred["m"]
        step()
        assert torch.equal(model.weight, before["weight"] - 2)
        assert no_gradients(model)

    def test_at_once_with_what_was_put_off(self) -> None:
        model, before, given = self.ready()
        deferred: dict[str, list[Any]] = {"other": []}
        backend.update_model(model, given, defer=True, deferred=deferred)
        backend.update_model(model, given, deferred=deferred)
        assert torch.equal(model.weight, before["weight"] - 2)
        assert list(deferred) == ["other"]
        # a dict that has nothing of this model is fine too
        backend.update_model(model, given, deferred=deferred)
        assert list(deferred) == ["other"]

    def test_a_model_that_was_not_built(self) -> None:
        model = line()
        with raising(
            AssertionError,
            "Linear has no current_optimizer. Make the model with fastnet.build.",
        ):
            backend.update_model(model, [torch.ones(1, 2), torch.ones(1)])
        assert no_gradients(model)

    def test_no_optimizer(self) -> None:
        model = built(line, None, model_name="m")
        with raising(
            ValueError,
            "Model 'm' is to be updated, but it has no optimizer in this epoch. Give fastnet.build "
            "an optimizer_fn (a scheduler's None means none), or let no UpdateOp run.",
        ):
            backend.update_model(model, [torch.ones(1, 2), torch.ones(1)])
        assert no_gradients(model)

    def test_nowhere_to_put_it_off_to(self) -> None:
        model, before, given = self.ready()
        with raising(
            ValueError,
            "An update of model 'm' is to be deferred, but no dict to defer it into was given. "
            "Pass `deferred`, or defer=False.",
        ):
            backend.update_model(model, given, defer=True)
        assert no_gradients(model)
        assert same_weights(model, before)

    def test_what_is_no_model(self) -> None:
        with raising(
            ValueError,
            "Unrecognized model instance int: expected a torch.nn.Module or a Keras model.",
        ):
            backend.update_model(3, [])


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

    def test_without_the_attribute(self) -> None:
        model = line()
        OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), "m")()

    def test_one_that_raises_drops_the_gradients_and_says_whose(self) -> None:
        class Bad(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                raise RuntimeError("as told")

        model = line()
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError) as caught:
            OptimizerStep(Bad(model.parameters(), lr=0.1), "m")()
        assert shown(caught.value) == "as told\nRaised by the update of model 'm'."
        assert no_gradients(model)

    def test_one_that_will_not_come(self) -> None:
        model = line()
        model(torch.ones(1, 2)).sum().backward()
        before = weights(model)
        OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), "m").discard()
        assert no_gradients(model)
        assert same_weights(model, before)

    def test_a_zero_grad_that_is_patched_on_the_instance(self) -> None:
        model = line()
        model(torch.ones(1, 2)).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own, log = optimizer.zero_grad, list[str]()

        def patched() -> None:
            log.append("patched")
            own()

        optimizer.zero_grad = patched  # type: ignore[method-assign, assignment]
        clear_gradients(optimizer)
        assert log == ["patched"]
        assert no_gradients(model)

    def test_gradients_of_all_groups_are_dropped(self) -> None:
        one, two = line(), line()
        optimizer = torch.optim.SGD(
            [{"params": one.parameters()}, {"params": two.parameters(), "lr": 1.0}], lr=0.1
        )
        (one(torch.ones(1, 2)) + two(torch.ones(1, 2))).sum().backward()
        clear_gradients(optimizer)
        assert no_gradients(one, two)
