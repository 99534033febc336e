"""Captured updates are those of torch's own optimizers, with whatever settings these have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from fastnet import build
from fastnet.backend.model_metadata import set_metadata
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    batches,
    built,
    by_hand,
    captured,
    falls_back,
)

Make = Callable[[Any], optim.Optimizer]

MORE: dict[str, Make] = {
    "adam_of_gans": lambda ps: optim.Adam(ps, lr=1e-3, betas=(0.0, 0.9)),
    "adam_fused": lambda ps: optim.Adam(ps, lr=1e-2, fused=True),
    "adamw_foreach": lambda ps: optim.AdamW(ps, lr=1e-2, foreach=True, amsgrad=True),
    "adadelta": lambda ps: optim.Adadelta(ps, lr=1.0, weight_decay=1e-2),
    "adamax": lambda ps: optim.Adamax(ps, lr=1e-2, weight_decay=1e-2, maximize=True),
    "nadam": lambda ps: optim.NAdam(ps, lr=1e-2, weight_decay=1e-2, maximize=True),
    "nadam_decoupled": lambda ps: optim.NAdam(
        ps, lr=1e-2, weight_decay=1e-2, decoupled_weight_decay=True
    ),
    "radam": lambda ps: optim.RAdam(ps, lr=1e-2, weight_decay=1e-2),
    "radam_decoupled": lambda ps: optim.RAdam(
        ps, lr=1e-2, betas=(0.9, 0.99), weight_decay=1e-2, decoupled_weight_decay=True
    ),
    "asgd": lambda ps: optim.ASGD(ps, lr=1e-2, t0=20, weight_decay=1e-2),
    "rprop": lambda ps: optim.Rprop(ps, lr=1e-3),
    "adagrad_begun": lambda ps: optim.Adagrad(
        ps, lr=1e-2, weight_decay=1e-2, initial_accumulator_value=0.1, maximize=True
    ),
}
if hasattr(optim, "Adafactor"):
    MORE["adafactor"] = lambda ps: optim.Adafactor(ps, lr=1e-2, weight_decay=1e-2)
    MORE["adafactor_plain"] = lambda ps: optim.Adafactor(
        ps, lr=0.05, eps=(1e-6, 1e-2), d=1.5, weight_decay=0.0
    )

# which update matrices alone
OF_MATRICES: dict[str, Make] = {}
if hasattr(optim, "Muon"):
    OF_MATRICES["muon"] = lambda ps: optim.Muon(ps, lr=1e-2)
    OF_MATRICES["muon_plain"] = lambda ps: optim.Muon(
        ps, lr=1e-2, nesterov=False, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )

EVERY = {**OPTIMIZERS, **MORE, **OF_MATRICES}


def _net(bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias))


def _assert_near(one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-6) -> None:
    """Compare by the largest of the numbers: single ones may be what is left of larger ones."""
    atol = rtol * float(other.detach().abs().max())
    torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


def _pair(make: Make, bias: bool = True) -> Pair:
    return Pair(lambda: _net(bias), make)


def _assert_near_weights(pair: Pair, rtol: float = 1e-6) -> None:
    for one, expected in zip(pair.model.parameters(), pair.other.parameters(), strict=True):
        _assert_near(one, expected, rtol)


@pytest.mark.parametrize("name", {**OPTIMIZERS, **MORE})
def test_updates_are_those_of_torch(name: str) -> None:
    pair = _pair(EVERY[name])
    with pair.network("train", 1):
        for batch in batches(30):
            pair.step(batch)
    assert captured(pair.network) == 1
    assert all(parameter.grad is None for parameter in pair.model.parameters())
    # what it divides by is the difference of two averages
    _assert_near_weights(pair, 3e-6 if name == "rmsprop_centered" else 1e-6)
    own = pair.model.current_optimizer.state_dict()["state"]
    for place, state in pair.optimizer.state_dict()["state"].items():
        assert own[place].keys() == state.keys()
        for key, value in state.items():
            _assert_near(own[place][key], value, 1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw_foreach", "adam_of_gans", "radam"])
def test_updates_of_large_parameters_are_those_of_torch(name: str) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 800), nn.Tanh(), nn.Linear(800, 3))

    pair = Pair(net, EVERY[name])
    with pair.network("train", 1):
        for batch in batches(30):
            pair.step(batch)
    assert captured(pair.network) == 1
    _assert_near_weights(pair)


@pytest.mark.parametrize("name", OF_MATRICES)
def test_updates_in_bfloat16_are_those_of_torch_one_by_one(name: str) -> None:
    pair = _pair(OF_MATRICES[name], bias=False)
    with pair.network("train", 1):
        for batch in batches(30):
            pair.network.run_step(batch)
            by_hand(pair.other, pair.optimizer, batch)
            _assert_near_weights(pair)
            # half a last place, which its bfloat16 would make much of in later steps
            pair.model.load_state_dict(pair.other.state_dict())
    assert captured(pair.network) == 1


NUMBERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.01, "weight_decay": 0.1},
    "momentum": {"momentum": 0.5, "dampening": 0.2},
    "adam": {"betas": (0.5, 0.9), "eps": 1e-3},
    "rmsprop": {"alpha": 0.5, "lr": 0.1},
    "adagrad": {"lr_decay": 0.5},
    "adadelta": {"rho": 0.5, "eps": 1e-3},
    "adamax": {"betas": (0.5, 0.9), "lr": 0.05},
    "nadam": {"momentum_decay": 0.1, "lr": 0.05},
    "radam": {"betas": (0.5, 0.9), "lr": np.float64(0.05)},
    "asgd": {"lambd": 0.1, "alpha": 0.5, "t0": 2},
    "rprop": {"etas": (0.3, 1.5), "step_sizes": (1e-4, 0.1)},
    "adafactor": {"d": 2.0, "lr": 0.001, "eps": (1e-4, 0.1), "beta2_decay": -0.5},
    "muon": {"momentum": 0.5, "ns_steps": 3, "lr": 0.1, "eps": 1e-3},
}


@pytest.mark.parametrize("name", [name for name in NUMBERS if name in EVERY])
def test_settings_that_are_written_count_in_the_next_step(name: str) -> None:
    pair = _pair(EVERY[name], bias=name not in OF_MATRICES)
    with pair.network("train", 1):
        for place, batch in enumerate(batches(15)):
            for _, optimizer in pair.sides():
                if place == 6:
                    optimizer.param_groups[0].update(NUMBERS[name])
                if place == 10:
                    optimizer.param_groups[0]["maximize"] = True
            pair.step(batch)
    captured(pair.network)
    _assert_near_weights(pair)


@pytest.mark.parametrize("name", list(NUMBERS))
def test_learning_rate_of_zero_needs_no_program_of_its_own(name: str) -> None:
    if name not in EVERY:
        pytest.skip("not in this release of torch")
    pair = _pair(EVERY[name], bias=name not in OF_MATRICES)
    usual = pair.optimizer.param_groups[0]["lr"]
    with pair.network("train", 1):
        for place, batch in enumerate(batches(10)):
            for _, optimizer in pair.sides():
                # A warm-up from 0, and a 0 between other rates.
                optimizer.param_groups[0]["lr"] = usual * min(place, 4) / 4 * (place != 7)
            pair.step(batch)
    assert captured(pair.network) == 1
    _assert_near_weights(pair)


def _freeze(model: nn.Module) -> None:
    next(model.parameters()).requires_grad_(False)


def _move(model: nn.Module) -> None:
    parameter = next(model.parameters())
    parameter.data = parameter.detach() * 2


def _hook(model: nn.Module) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient * 3)


@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad"])
@pytest.mark.parametrize("change", [_freeze, _move, _hook])
def test_change_of_parameter_beside_loaded_state_counts(
    change: Callable[[nn.Module], None], name: str
) -> None:
    pair = _pair(EVERY[name])
    with pair.network("train", 1):
        for place, batch in enumerate(batches(12)):
            if place == 6:
                for model, optimizer in pair.sides():
                    # The program adopts the new tensors of the state.
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                    change(model)
            pair.step(batch)
    _assert_near_weights(pair)


def test_groups_lists_of_betas_and_notes_of_the_programs_own() -> None:
    def make(parameters: Any) -> optim.Optimizer:
        first, *rest = parameters
        groups = [
            {"params": [first], "lr": 0.1, "notes": np.zeros(3), "betas": [0.9, 0.999]},
            {"params": rest, "amsgrad": True, "weight_decay": 0.1},
        ]
        return optim.Adam(groups, lr=0.01)

    pair = _pair(make)
    with pair.network("train", 1):
        for place, batch in enumerate(batches(10)):
            for _, optimizer in pair.sides():
                optimizer.param_groups[0]["betas"][0] = 0.9 - 0.05 * place
            # No setting of the optimizer.
            pair.model.current_optimizer.param_groups[0]["notes"] = np.ones(3)
            pair.step(batch)
    assert captured(pair.network) == 1
    _assert_near_weights(pair)


@pytest.mark.parametrize("name", ["adam", "asgd", "adamax"])
def test_parameters_of_half_precision(name: str) -> None:
    networks = []
    for compile in (QUICK, False):
        model = built(lambda: _net().bfloat16(), EVERY[name])
        loss = LambdaOp(lambda p: p.float().square().mean(), "pred", "loss")
        ops = [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss")]
        networks.append(TorchNetwork(ops, compile=compile))
        with networks[-1]("train", 1) as network:
            for batch in batches(10):
                network.run_step({"x": batch["x"].bfloat16()})
    assert captured(networks[0]) == 1
    parameters = (network.models[0].parameters() for network in networks)
    for one, expected in zip(*parameters, strict=True):
        assert one.dtype == torch.bfloat16
        _assert_near(one, expected, 3e-2)


def test_sparse_gradients_run_eagerly_with_the_reason() -> None:
    model = build(lambda: nn.Embedding(5, 3, sparse=True), optimizer_fn=optim.SparseAdam)
    other = copy.deepcopy(model)
    optimizer = optim.SparseAdam(other.parameters())
    network = TorchNetwork(
        [
            ModelOp(model, "x", "pred"),
            LambdaOp(lambda p: p.square().sum(), "pred", "loss"),
            UpdateOp(model, "loss"),
        ],
        compile=QUICK,
    )
    x = torch.tensor([0, 2])
    with falls_back(network, "SparseAdam, which updates by sparse gradients; with Adam, "):
        for _ in range(4):
            network.run_step({"x": x})
            optimizer.zero_grad()
            other(x).square().sum().backward()
            optimizer.step()
    assert torch.equal(model.weight, other.weight)


class Own(optim.SGD):
    """An optimizer of the program's own."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda ps: Own(ps, lr=0.1), "the optimizer is Own; only SGD, Adam, "),
    ],
)
def test_other_optimizers_run_eagerly_with_the_reason(make: Make, reason: str) -> None:
    pair = _pair(make)
    with falls_back(pair.network, reason):
        for batch in batches(4):
            pair.step(batch)
    pair.assert_same_weights()


def adversarial_networks(compile: Any) -> tuple[list[Any], list[TorchNetwork]]:
    """Return a generator and a critic, and a network that trains each."""
    torch.manual_seed(0)
    adam = partial(optim.Adam, lr=1e-2)
    generator = build(lambda: nn.Linear(4, 8), adam, model_name="generator")
    critic = build(lambda: nn.Linear(8, 1), adam, model_name="critic")
    judged = [ModelOp(generator, "z", "fake"), ModelOp(critic, "fake", "on_fake")]
    of_critic = [
        *judged,
        ModelOp(critic, "x", "on_real"),
        LambdaOp(lambda fake, real: fake.mean() - real.mean(), ["on_fake", "on_real"], "loss"),
        UpdateOp(critic, "loss"),
    ]
    of_generator = [
        *judged,
        LambdaOp(lambda fake: -fake.mean(), "on_fake", "loss"),
        UpdateOp(generator, "loss"),
    ]
    networks = [TorchNetwork(ops, compile=compile) for ops in (of_critic, of_generator)]
    return [generator, critic], networks


@pytest.mark.parametrize("change", ["state", "load", "lr", "group", "replace"])
def test_optimizer_of_another_network_changes_no_program(change: str) -> None:
    """The critic's program does not use the generator's optimizer, whatever happens to that."""
    weights = []
    for compile in (QUICK, False):
        (generator, critic), (of_critic, of_generator) = adversarial_networks(compile)
        batch = {"z": torch.randn(16, 4), "x": torch.randn(16, 8)}
        with of_critic("train", 1), of_generator("train", 1):
            for step in range(4):
                of_critic.run_step(batch)
                of_generator.run_step(batch)
                optimizer = generator.current_optimizer
                if change == "load" and step:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                elif change == "lr":
                    optimizer.param_groups[0]["lr"] = 0.1 * (step + 1)
                elif change == "group" and step:
                    optimizer.param_groups[0]["weight_decay"] = 0.1
                elif change == "replace" and step == 2:
                    other = optim.SGD(generator.parameters(), lr=0.1)
                    set_metadata(generator, "current_optimizer", other)
        if compile:
            assert captured(of_critic) == 1
        weights.append([one.detach() for one in (*generator.parameters(), *critic.parameters())])
    for compiled, eager in zip(*weights, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
