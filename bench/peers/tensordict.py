"""tensordict: modules that read keys from a TensorDict and write keys into it.

It is timed at its best: on a TensorDict that exists already and keeps the intermediate keys.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch.nn import functional as F

from bench.program import Program, unchanged
from bench.workloads.chains import Census, IdentityChain, LiveTensors
from bench.workloads.torch_models import ForeignBatch, Supervised
from bench.workloads.workload import Workload


def make(workload: Workload) -> Program | None:
    """Return tensordict's program. It has no epochs, and no nests with lists or tuples."""
    match workload:
        case ForeignBatch():
            return None
        case IdentityChain():
            return _without_gradients(workload, _chain(workload.keys, unchanged), extra_keys=True)
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            model = workload.model()
            return _without_gradients(workload, TensorDictModule(model, ["x"], ["pred"]))
        case LiveTensors():
            return _live_tensors(workload)
    return None


def _batch(workload: Any) -> Any:
    batch = workload.batch()
    return TensorDict(batch, batch_size=[len(next(iter(batch.values())))])


def _chain(keys: list[str], function: Any) -> Any:
    """Return a sequence of modules, each of which reads a key and writes the next."""
    return TensorDictSequential(
        *[TensorDictModule(function, [key], [after]) for key, after in pairwise(keys)]
    )


def _without_gradients(workload: Any, module: Any, extra_keys: bool = False) -> Program:
    """Return a program that calls a module as an infer step must."""

    def step(batch: Any) -> Any:
        with torch.no_grad():
            return module(batch)

    return Program(step, _batch(workload), extra_keys=extra_keys)


def _train(workload: Supervised) -> Program:
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    sequence = TensorDictSequential(
        TensorDictModule(model, ["x"], ["pred"]),
        TensorDictModule(F.cross_entropy, ["pred", "y"], ["loss"]),
    )

    def step(batch: Any) -> Any:
        result = sequence(batch)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        return result.detach()

    # The loss has no batch dimension, so the TensorDict has none either.
    return Program(step, TensorDict(workload.batch(), batch_size=[]), model=model)


def _live_tensors(workload: LiveTensors) -> Program:
    def step(batch: Any) -> int:
        census = Census()
        with torch.no_grad():
            _chain(workload.keys, census.grow)(batch)
        return census.most

    return Program(step, _batch(workload))
