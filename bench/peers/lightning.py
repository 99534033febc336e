"""Lightning's Trainer: an engine that owns the loop, so that a call runs many batches.

It runs in `barebones` mode, which its documentation offers for measuring its overhead: no logging,
no checkpoints, no progress bar.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torch.nn import functional as F

from bench.program import Program
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Workload

# The cost of starting and ending a run, larger than that of other engines, is spread over these.
_STEPS_PER_RUN = 100


def make(workload: Workload) -> Program | None:
    """Return Lightning's program for steps of models."""
    if not isinstance(workload, Supervised):
        return None
    module = _Module(workload)
    one, many = (_Batches(workload.batch(), count) for count in (1, _STEPS_PER_RUN))
    made: dict[str, Any] = {
        "steps_per_call": _STEPS_PER_RUN,
        "result": lambda _: module.result,
        "model": module.model,
    }
    if workload.training:
        # A trainer fits once, so each call has a new one.
        return Program(
            lambda trainer: trainer.fit(module, many),
            fresh=_trainer,
            once=lambda trainer: trainer.fit(module, one),
            **made,
        )
    trainer = _trainer()
    # Predictions of many runs would fill the memory.
    return Program(
        lambda batches: trainer.predict(module, batches, return_predictions=False),
        many,
        once=lambda _: trainer.predict(module, one, return_predictions=False),
        **made,
    )


class _Batches:
    """The same batch many times; Lightning would take a list for several loaders."""

    def __init__(self, batch: dict[str, Any], count: int) -> None:
        self._batch, self._count = batch, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return repeat(self._batch, self._count)


def _trainer() -> Trainer:
    """Return a trainer, without its messages about the machine and missing loggers."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)


class _Module(LightningModule):
    """A classifier that keeps the result of its last step."""

    def __init__(self, workload: Supervised) -> None:
        super().__init__()
        self.model = workload.model()
        self.workload = workload
        self.result: dict[str, Any] = {}

    def training_step(self, batch: dict[str, Any], number: int) -> Any:
        pred = self.model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        self.result = {**batch, "pred": pred.detach(), "loss": loss.detach()}
        return loss

    def predict_step(self, batch: dict[str, Any], number: int) -> Any:
        self.result = {**batch, "pred": self.model(batch["x"])}
        return self.result

    def configure_optimizers(self) -> Any:
        return self.workload.optimizer(self.model.parameters())
