"""Small programs in torch, each beside the same written by hand; they agree to the bit."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from fastnet import CompileOptions, Network, build, profile
from fastnet.backend import load_model, save_model
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.profiling.preserve import preserved


def run() -> None:
    """Run them all."""
    programs = train, infer, differentiate, keep, switch, measure, fail, capture, scale, spread
    for program in programs:
        program()


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def batches(count: int = 4) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        {
            "x": torch.randn(5, 6, generator=generator),
            "t": torch.randint(4, (5,), generator=generator),
        }
        for _ in range(count)
    ]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def built(make: Callable[[], nn.Module] = net) -> Any:
    return build(model_fn=make, optimizer_fn=adam)


def supervised(model: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss"),
    ]


def require_same(model: nn.Module, twin: nn.Module) -> None:
    for (name, own), other in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(own, other), name


def trained_by_hand(twin: nn.Module, data: list[Any]) -> torch.optim.Optimizer:
    optimizer = adam(twin.parameters())
    for batch in data:
        twin.train()
        functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def train() -> None:
    """Training, with the gradients gone after it."""
    model, twin = built(), net()
    network = Network(supervised(model))
    with network(mode="train", epoch=1):
        for batch in batches():
            network.run_step(batch)
    trained_by_hand(twin, batches())
    require_same(model, twin)
    assert all(parameter.grad is None for parameter in model.parameters())


def infer() -> None:
    """A step that takes no gradients, inside of a program that does."""
    model, twin = built(), net()
    network = Network([ModelOp(model, "x", "y")])
    with network(mode="infer", epoch=1):
        found = network.run_step(batches(1)[0])["y"]
    assert torch.is_grad_enabled()
    assert not found.requires_grad
    assert torch.equal(found, twin.eval()(batches(1)[0]["x"]))


def differentiate() -> None:
    """Gradients by an input."""
    ops = [
        Watch("x"),
        LambdaOp(lambda x: (x**3).sum(), inputs="x", outputs="y"),
        GradientOp(finals="y", outputs="g", inputs="x"),
    ]
    network = Network(ops)
    batch = batches(1)[0]
    with network(mode="train", epoch=1):
        found = network.run_step(dict(batch))["g"]
    x = batch["x"].clone().requires_grad_()
    (expected,) = torch.autograd.grad((x**3).sum(), x)
    assert torch.equal(found, expected)


def keep() -> None:
    """Weights and the optimizer's state, through files and into a copy."""
    model, twin = built(), net()
    network = Network(supervised(model))
    with network(mode="train", epoch=1):
        for batch in batches(2):
            network.run_step(batch)
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(model, folder, "m", save_optimizer=True)
        again = built()
        load_model(again, path, load_optimizer=True)
        assert Path(path).is_file()
    copied = copy.deepcopy(network)
    trained_by_hand(twin, batches(4))
    for one in (Network(supervised(again)), copied):
        with one(mode="train", epoch=2):
            for batch in batches(4)[2:]:
                one.run_step(batch)
        require_same(next(iter(one.models)), twin)


def switch() -> None:
    """A layer that somebody has replaced between two steps."""
    model = built(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)))
    network = Network([ModelOp(model, "x", "y")])
    batch = batches(1)[0]
    with network(mode="infer", epoch=1):
        network.run_step(dict(batch))
        model[1] = nn.Dropout(0.9)
        found = network.run_step(dict(batch))["y"]
    assert torch.equal(found, functional.linear(batch["x"], model[0].weight, model[0].bias))


def measure() -> None:
    """Steps that leave nothing behind."""
    model, twin = built(), net()
    network = Network(supervised(model))
    with network(mode="train", epoch=1), preserved(network):
        for batch in batches():
            network.run_step(batch)
    require_same(model, twin)
    with network(mode="train", epoch=1), profile(network):
        for batch in batches():
            network.run_step(batch)
    trained_by_hand(twin, batches())
    require_same(model, twin)


def fail() -> None:
    """A loss without a graph."""
    model = built()
    network = Network([*supervised(model)[:2], LambdaOp(torch.Tensor.detach, "loss", "loss")])
    network = Network([*network.ops, UpdateOp(model, "loss")])
    text = "has no graph to take the gradients of"
    with network(mode="train", epoch=1), pytest.raises(RuntimeError, match=text):
        network.run_step(batches(1)[0])


def capture() -> None:
    """Steps that are captured where that can be, with a scheduler of rates."""

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    model, twin = build(net, sgd), net()
    optimizers = model.current_optimizer, sgd(twin.parameters())
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in optimizers]
    network = Network(supervised(model), compile=CompileOptions(backend="eager"))
    with warnings.catch_warnings(), network(mode="train", epoch=1):
        warnings.simplefilter("ignore")
        for batch in batches():
            network.run_step(batch)
            functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            for scheduler in schedulers:
                scheduler.step()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def scale() -> None:
    """Captured steps whose losses are scaled, where that can be."""
    model, twin = build(net, adam, mixed_precision="float16"), net()
    optimizer, scaler = adam(twin.parameters()), torch.amp.GradScaler("cpu")
    network = Network(supervised(model), compile=CompileOptions(backend="eager"))
    with warnings.catch_warnings(), network(mode="train", epoch=1):
        warnings.simplefilter("ignore")
        for batch in batches():
            network.run_step(batch)
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-2, atol=1e-2)


def spread() -> None:
    """Merge steps of models with an engine, which is alone in its process group."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            for engine in ("ddp", "fsdp"):
                _spread(engine)
        finally:
            dist.destroy_process_group()


def _spread(engine: str) -> None:
    given = DistributedDataParallel(net()) if engine == "ddp" else net()
    model = build(given, adam, parallel="auto" if engine == "ddp" else engine)
    run_model, loss, _ = supervised(model)
    twin = net()
    optimizer = adam(twin.parameters())
    with Network([run_model, loss, UpdateOp(model, "loss", merge_grad=2)])("train", 1) as network:
        for step, batch in enumerate(batches()):
            network.run_step(batch)
            (functional.cross_entropy(twin(batch["x"]), batch["t"]) / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        whole = own.full_tensor() if hasattr(own, "full_tensor") else own
        assert torch.equal(whole, other)
