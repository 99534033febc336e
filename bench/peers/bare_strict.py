"""The least that could be counted as the work itself: stricter baselines than the bare loop.

They leave out what a step needs and a microbenchmark does not: `torch.no_grad()` around a chain of
ops that make no tensors, and the containers around a nest's tensors. A ratio to these is harsher.
"""

from __future__ import annotations

from typing import Any

from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.identity_chain import Identity, IdentityChain
from bench.workloads.nest import Nest
from bench.workloads.workload import Workload

NAME = "strict loop"


def available() -> bool:
    """It only needs torch."""
    return True


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the strict loop of `workload`, where there is one."""
    match workload:
        case IdentityChain():
            return _identity_chain(workload)
        case Nest(action="detach"):
            return _nest(workload, _detach_calls)
        case Nest():
            return _nest(workload, _move_calls)
    return None


def _identity_chain(workload: IdentityChain) -> Program:
    """Do as the bare loop does, gradients left as they are."""
    forwards = [Identity().forward for _ in range(workload.length)]
    state: dict[str, Any] = {"mode": "infer"}
    last = workload.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        x = batch["k0"]
        for forward in forwards:
            x = forward(x, state)
        return {**batch, last: x}

    return Program(step, workload.batch())


def _detach_calls(tensors: list[Any]) -> list[Any]:
    """Make the 12 calls over a flat list, and keep their results."""
    return [tensor.detach() for tensor in tensors]


def _move_calls(tensors: list[Any]) -> list[Any]:
    """Make the 12 calls over a flat list, and keep their results."""
    return [tensor.to(DEVICE) for tensor in tensors]


def _nest(workload: Nest, calls: Any) -> Program:
    """Return the calls alone; to be checked, their results are put into the nest's shape."""
    nest = workload.nest()

    def rebuilt(tensors: list[Any]) -> dict[str, Any]:
        image, label, b0, b1, b2, p0, p1, p2, scale, shift, inner, outer = tensors
        masks = {"inner": [inner], "outer": (outer,)}
        meta = {"scale": scale, "shift": shift, "masks": masks}
        return {
            "image": image,
            "label": label,
            "boxes": [b0, b1, b2],
            "pyramid": (p0, p1, p2),
            "meta": meta,
        }

    meta, masks = nest["meta"], nest["meta"]["masks"]
    flat = [nest["image"], nest["label"], *nest["boxes"], *nest["pyramid"]]
    flat += [meta["scale"], meta["shift"], *masks["inner"], *masks["outer"]]
    return Program(calls, flat, result=rebuilt)
