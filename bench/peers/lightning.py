"""Lightning's Trainer: an engine that owns the loop, so that a call of it runs many batches.

It is timed in the mode that its documentation offers for measuring its overhead, `barebones`,
which turns off logging, checkpoints, the progress bar and all else that a step can do without.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

from bench.peers import installed, version_of
from bench.program import Program
from bench.workloads.supervised import Supervised
from bench.workloads.workload import Workload

if TYPE_CHECKING:
    from pytorch_lightning import Trainer

NAME = "Lightning"

# What starting and ending a run costs is spread over this many steps, as over an epoch. There is
# more of it than in other engines, so there are more steps.
_STEPS_PER_RUN = 100


def available() -> bool:
    """Return whether Lightning is installed."""
    return installed("pytorch_lightning")


def version() -> str | None:
    """Return Lightning's version."""
    return version_of("pytorch-lightning")


def make(workload: Workload) -> Program | None:
    """Return Lightning's program. It runs no ops and opens no epochs of them."""
    match workload:
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            return _infer(workload)
    return None


class _Batches:
    """The same batch many times, ready in memory.

    Args:
        batch: The batch.
        count: How many times.
    """

    def __init__(self, batch: dict[str, Any], count: int) -> None:
        self._batch = batch
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return repeat(self._batch, self._count)


def _trainer() -> Trainer:
    """Return a trainer, which says nothing of the machine, nor that it logs nothing."""
    from pytorch_lightning import Trainer

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)


def _module(workload: Supervised) -> Any:
    """Return the model with its steps, as a person would write it for Lightning."""
    from pytorch_lightning import LightningModule

    class Module(LightningModule):
        """A classifier that keeps what its last step came to."""

        def __init__(self) -> None:
            super().__init__()
            self.model = workload.model()
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
            return workload.optimizer(self.model)

    return Module()


def _train(workload: Supervised) -> Program:
    """Return a run of a trainer that is made outside the clock: each fits once."""
    module = _module(workload)
    batch = workload.batch()
    one, many = _Batches(batch, 1), _Batches(batch, _STEPS_PER_RUN)
    return Program(
        lambda trainer: trainer.fit(module, many),
        fresh=_trainer,
        steps_per_call=_STEPS_PER_RUN,
        once=lambda trainer: trainer.fit(module, one),
        result=lambda _: module.result,
        model=module.model,
    )


def _infer(workload: Supervised) -> Program:
    """Return a run of one trainer, which throws predictions away: they would pile up."""
    module = _module(workload)
    trainer = _trainer()
    batch = workload.batch()
    one, many = _Batches(batch, 1), _Batches(batch, _STEPS_PER_RUN)
    return Program(
        lambda batches: trainer.predict(module, batches, return_predictions=False),
        many,
        steps_per_call=_STEPS_PER_RUN,
        once=lambda _: trainer.predict(module, one, return_predictions=False),
        result=lambda _: module.result,
        model=module.model,
    )
