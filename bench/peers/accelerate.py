"""Accelerate: a hand-written loop around a prepared model and optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from bench.peers import installed, version_of
from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.nest import Nest
from bench.workloads.supervised import Supervised
from bench.workloads.workload import Workload

NAME = "Accelerate"


def available() -> bool:
    """Return whether Accelerate is installed."""
    return installed("accelerate")


def version() -> str | None:
    """Return Accelerate's version."""
    return version_of("accelerate")


def make(workload: Workload) -> Program | None:
    """Return Accelerate's program. It runs no ops and opens no epochs."""
    match workload:
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            return _infer(workload)
        case Nest():
            return _nest(workload)
    return None


def _train(workload: Supervised) -> Program:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    raw = workload.model()
    model, optimizer = accelerator.prepare(raw, workload.optimizer(raw))

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return Program(step, workload.batch(), model=raw)


def _infer(workload: Supervised) -> Program:
    from accelerate import Accelerator

    raw = workload.model()
    model = Accelerator(cpu=True).prepare(raw)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "pred": model(batch["x"])}

    return Program(step, workload.batch(), model=raw)


def _nest(workload: Nest) -> Program:
    """Return Accelerate's own functions over nests."""
    from accelerate.utils import send_to_device
    from accelerate.utils.operations import recursively_apply

    if workload.action == "move":
        return Program(lambda nest: send_to_device(nest, DEVICE), workload.nest())
    detach = torch.Tensor.detach
    return Program(lambda nest: recursively_apply(detach, nest), workload.nest())
