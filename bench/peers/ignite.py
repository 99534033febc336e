"""Ignite: an engine that owns the loop, so that a call runs many batches."""

from __future__ import annotations

from typing import Any

from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.utils import apply_to_tensor
from torch.nn import functional as F

from bench.peers.loops import nest_map
from bench.program import Program
from bench.workloads.nests import Nest
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Workload

# The cost of starting and ending a run is spread over this many steps, as over an epoch.
_STEPS_PER_RUN = 50


def make(workload: Workload) -> Program | None:
    """Return Ignite's program for steps of models and for nests."""
    if isinstance(workload, Supervised):
        return _supervised(workload)
    return nest_map(workload, apply_to_tensor) if isinstance(workload, Nest) else None


def _prepare(batch: dict[str, Any], device: Any, non_blocking: bool) -> tuple[Any, Any]:
    return batch["x"], batch["y"]


def _supervised(workload: Supervised) -> Program:
    """Return an engine's run over a list of batches."""
    model = workload.model()
    if workload.training:
        engine = create_supervised_trainer(
            model,
            workload.optimizer(model.parameters()),
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
