"""The hand-written loop with parts of it compiled by `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch

from bench.peers.loops import infer_loop, train_loop
from bench.program import Program
from bench.workloads.compiled import Compiled, ElementwiseChain
from bench.workloads.workload import Workload


def make(
    workload: Workload, of_model: bool = False, of_update: bool = False, of_step: bool = False
) -> Program | None:
    """Return the loop with some of its functions compiled.

    Args:
        workload: The workload.
        of_model: Whether the model is compiled, or the chain.
        of_update: Whether the optimizer's step is compiled.
        of_step: Whether the whole step is compiled.
    """
    match workload:
        case Compiled(training=True):
            model = workload.model()
            optimizer = workload.optimizer(model.parameters())
            update: Any = torch.compile(optimizer.step) if of_update else None
            predict = torch.compile(model) if of_model else model
            step: Any = train_loop(predict, optimizer, update=update)
        case Compiled() if not of_update:
            model = workload.model()
            step = infer_loop(torch.compile(model) if of_model else model)
        case ElementwiseChain() if not of_update:
            model = None
            step = _chain(workload, of_model)
        case _:
            return None
    return Program(torch.compile(step) if of_step else step, workload.batch(), model=model)


def _chain(workload: ElementwiseChain, compiled: bool) -> Any:
    functions, last = workload.functions(), workload.keys[-1]

    def chain(value: torch.Tensor) -> torch.Tensor:
        for function in functions:
            value = function(value)
        return value

    run: Any = torch.compile(chain) if compiled else chain

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, last: run(batch["k0"])}

    return step
