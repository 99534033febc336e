"""tensordict: modules that read keys from a TensorDict and write keys into it.

It is timed at its best: on a TensorDict that exists already, writing into it, which leaves the
intermediate keys there too. (Asking it to return only the wanted keys costs it more.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

from bench.peers import installed, version_of
from bench.program import Program
from bench.workloads.growth import Fused, ManyKeys
from bench.workloads.identity_chain import IdentityChain
from bench.workloads.live_tensors import Census, LiveTensors
from bench.workloads.slicing import AXIS, Slicing
from bench.workloads.supervised import Supervised
from bench.workloads.workload import Workload

NAME = "tensordict"


def available() -> bool:
    """Return whether tensordict is installed."""
    return installed("tensordict")


def version() -> str | None:
    """Return tensordict's version."""
    return version_of("tensordict")


def make(workload: Workload) -> Program | None:
    """Return tensordict's program. It has no epochs to open, and no nests with lists or tuples."""
    match workload:
        case IdentityChain():
            return _identity_chain(workload)
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            return _infer(workload)
        case Slicing():
            return _slicing(workload)
        case Fused():
            return _fused(workload)
        case ManyKeys():
            return _many_keys(workload)
        case LiveTensors():
            return _live_tensors(workload)
    return None


def _identity(x: torch.Tensor) -> torch.Tensor:
    """Return `x`."""
    return x


def _batch(workload: Any) -> Any:
    """Return the workload's batch as a TensorDict."""
    from tensordict import TensorDict

    batch = workload.batch()
    return TensorDict(batch, batch_size=[len(next(iter(batch.values())))])


def _chain(keys: list[str], fn: Any) -> Any:
    """Return a sequence of modules that call `fn`, each reading a key and writing the next."""
    from tensordict.nn import TensorDictModule, TensorDictSequential

    modules = [
        TensorDictModule(fn, in_keys=[key], out_keys=[after]) for key, after in pairwise(keys)
    ]
    return TensorDictSequential(*modules)


def _identity_chain(workload: IdentityChain) -> Program:
    sequence = _chain(workload.keys, _identity)

    def step(batch: Any) -> Any:
        with torch.no_grad():
            return sequence(batch)

    return Program(step, _batch(workload), extra_keys=True)


def _train(workload: Supervised) -> Program:
    from tensordict.nn import TensorDictModule, TensorDictSequential

    model = workload.model()
    optimizer = workload.optimizer(model)
    sequence = TensorDictSequential(
        TensorDictModule(model, in_keys=["x"], out_keys=["pred"]),
        TensorDictModule(F.cross_entropy, in_keys=["pred", "y"], out_keys=["loss"]),
    )

    def step(batch: Any) -> Any:
        result = sequence(batch)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        return result.detach()

    from tensordict import TensorDict

    # The loss has no batch dimension, so the TensorDict has none either.
    return Program(step, TensorDict(workload.batch(), batch_size=[]), model=model)


def _infer(workload: Supervised) -> Program:
    from tensordict.nn import TensorDictModule

    model = workload.model()
    module = TensorDictModule(model, in_keys=["x"], out_keys=["pred"])

    def step(batch: Any) -> Any:
        with torch.no_grad():
            return module(batch)

    return Program(step, _batch(workload), model=model)


def _slicing(workload: Slicing) -> Program:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule

    module = TensorDictModule(_identity, in_keys=["x"], out_keys=["y"])

    def step(batch: Any) -> Any:
        with torch.no_grad():
            return torch.stack([module(part) for part in batch.unbind(AXIS)], AXIS)

    return Program(step, TensorDict(workload.batch(), batch_size=[8, workload.slices]))


def _without_gradients(module: Any, batch: Any) -> Program:
    """Return a program that calls a module as an infer step must."""

    def step(batch: Any) -> Any:
        with torch.no_grad():
            return module(batch)

    return Program(step, batch)


def _fused(workload: Fused) -> Program:
    """Put a sequence into a sequence, where others put a meta op into a meta op."""
    from tensordict.nn import TensorDictModule, TensorDictSequential

    module: Any = TensorDictModule(_identity, in_keys=["k0"], out_keys=["k1"])
    for _ in range(workload.depth):
        module = TensorDictSequential(module)
    return _without_gradients(module, _batch(workload))


def _many_keys(workload: ManyKeys) -> Program:
    from tensordict.nn import TensorDictModule

    module = TensorDictModule(
        lambda *values: values, in_keys=workload.inputs, out_keys=workload.outputs
    )
    return _without_gradients(module, _batch(workload))


def _live_tensors(workload: LiveTensors) -> Program:
    def step(batch: Any) -> int:
        census = Census()
        with torch.no_grad():
            _chain(workload.keys, census.grow)(batch)
        return census.most

    return Program(step, _batch(workload))
