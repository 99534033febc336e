"""Ignite: an engine that owns the loop, so that a call of it runs many batches."""

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

NAME = "Ignite"

# What starting and ending a run costs is spread over this many steps, as over an epoch.
_STEPS_PER_RUN = 50


def available() -> bool:
    """Return whether Ignite is installed."""
    return installed("ignite")


def version() -> str | None:
    """Return Ignite's version."""
    return version_of("pytorch-ignite")


def make(workload: Workload) -> Program | None:
    """Return Ignite's program. It runs no ops and opens no epochs of them."""
    match workload:
        case Supervised():
            return _supervised(workload)
        case Nest():
            return _nest(workload)
    return None


def _prepare(batch: dict[str, Any], device: Any, non_blocking: bool) -> tuple[Any, Any]:
    """Return what the engine calls x and y."""
    return batch["x"], batch["y"]


def _supervised(workload: Supervised) -> Program:
    """Return an engine's run over a list of batches."""
    from ignite.engine import create_supervised_evaluator, create_supervised_trainer

    model = workload.model()
    if workload.training:
        engine = create_supervised_trainer(
            model,
            workload.optimizer(model),
            F.cross_entropy,
            prepare_batch=_prepare,
            output_transform=lambda x, y, pred, loss: {
                "x": x,
                "y": y,
                "pred": pred.detach(),
                "loss": loss.detach(),
            },
        )
    else:
        engine = create_supervised_evaluator(
            model,
            prepare_batch=_prepare,
            output_transform=lambda x, y, pred: {"x": x, "y": y, "pred": pred},
        )
    batch = workload.batch()
    return Program(
        engine.run,
        [batch] * _STEPS_PER_RUN,
        steps_per_call=_STEPS_PER_RUN,
        once=lambda _: engine.run([batch]),
        result=lambda state: state.output,
        model=model,
    )


def _nest(workload: Nest) -> Program:
    """Return Ignite's own functions over nests."""
    from ignite.utils import apply_to_tensor, convert_tensor

    if workload.action == "move":
        return Program(lambda nest: convert_tensor(nest, DEVICE), workload.nest())
    detach = torch.Tensor.detach
    return Program(lambda nest: apply_to_tensor(nest, detach), workload.nest())
