"""Lightning Fabric: a hand-written loop around a wrapped model and optimizer."""

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

NAME = "Fabric"


def available() -> bool:
    """Return whether Fabric is installed, by itself or as a part of Lightning."""
    return installed("lightning_fabric")


def version() -> str | None:
    """Return Fabric's version."""
    return version_of("lightning-fabric") or version_of("lightning")


def make(workload: Workload) -> Program | None:
    """Return Fabric's program. It runs no ops and opens no epochs."""
    match workload:
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            return _infer(workload)
        case Nest():
            return _nest(workload)
    return None


def _fabric() -> Any:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def _train(workload: Supervised) -> Program:
    fabric = _fabric()
    raw = workload.model()
    model, optimizer = fabric.setup(raw, workload.optimizer(raw))

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return Program(step, workload.batch(), model=raw)


def _infer(workload: Supervised) -> Program:
    raw = workload.model()
    model = _fabric().setup(raw)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "pred": model(batch["x"])}

    return Program(step, workload.batch(), model=raw)


def _nest(workload: Nest) -> Program:
    """Return Fabric's own move, or for a detach the function that Fabric's move is made of."""
    from lightning_fabric.utilities.apply_func import move_data_to_device
    from lightning_utilities.core.apply_func import apply_to_collection

    if workload.action == "move":
        return Program(lambda nest: move_data_to_device(nest, DEVICE), workload.nest())
    detach = torch.Tensor.detach
    return Program(lambda nest: apply_to_collection(nest, torch.Tensor, detach), workload.nest())
