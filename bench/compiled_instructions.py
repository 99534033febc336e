"""Count the instructions of calling a compiled step: `python -m bench.compiled_instructions`.

The program that is called does nothing, so the count is that of matching the batch, of the guards,
and of the call, for a model of few tensors and one of many. It needs valgrind.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

from bench import callgrind, machine, pages, processes
from bench.callgrind import Count
from bench.tables import markdown_table

BASE, EACH = 3000, 60
"""The goal for the kernel's own instructions: of a step, and of each of its tensors."""

_FEW, _MANY = 1, 21
_WARM_UP_STEPS, _STEPS, _RUNS = 20, 20, 4


@dataclass(frozen=True)
class Case:
    """A step whose calls are counted, of a model of linear layers."""

    training: bool
    layers: int

    @property
    def mode(self) -> str:
        """The mode of the step."""
        return "train" if self.training else "infer"

    @property
    def tensors(self) -> int:
        """The number of tensors of the program: those of the batch and of the model."""
        return 2 * self.layers + (2 if self.training else 1)


CASES = [Case(training, layers) for training in (False, True) for layers in (_FEW, _MANY)]


def _network(case: Case) -> tuple[Any, dict[str, Any]]:
    import torch
    from torch import nn
    from torch.nn import functional

    import fastnet
    from fastnet.op.tensorop import LambdaOp
    from fastnet.op.tensorop.model import ModelOp, UpdateOp

    def nothing(graph: Any, examples: list[Any]) -> Any:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        results = [torch.empty(one.meta["val"].shape) for one in outputs]
        return lambda *tensors: results

    model = fastnet.build(
        lambda: nn.Sequential(*[nn.Linear(2, 2) for _ in range(case.layers)]),
        optimizer_fn=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    network = fastnet.Network(
        [
            ModelOp(model, "x", "pred"),
            LambdaOp(functional.cross_entropy, ["pred", "y"], "loss", mode="train"),
            UpdateOp(model, "loss"),
        ],
        compile=fastnet.CompileOptions(backend=nothing, verify=None),
    )
    return network, {"x": torch.rand(4, 2), "y": torch.zeros(4, dtype=torch.int64)}


def run_all() -> None:
    """Run everything that is counted, with a mark at each end of it, under callgrind."""
    machine.use_threads("torch", 1)
    steps = []
    for case in CASES:
        network, batch = _network(case)
        context = network(case.mode, 1)
        context.__enter__()
        for _ in range(_WARM_UP_STEPS):
            network.run_step(batch)
        assert [one.fallback for one in network.traces] == [None]
        steps.append((network.run_step, batch, context))
    callgrind.start_counting()
    gc.disable()
    callgrind.mark()
    for step, batch, _ in steps:
        for length in (0, *[_STEPS] * _RUNS):
            for _ in range(length):
                step(batch)
            callgrind.mark()


def counted() -> list[Count]:
    """Return the instructions of a step of each case.

    Raises:
        NoValgrind: If valgrind is not installed.
        RuntimeError: If the process fails.
    """
    command = processes.command("bench.compiled_instructions:run_all", [])
    runs = iter(callgrind.count(command, within="/fastnet/_", late=True))
    return [callgrind.least_of(runs, _RUNS, _STEPS) for _ in CASES]


def page() -> tuple[str, None]:
    """Return the page of the counts, with those of each tensor and the goals."""
    figures = counted()
    rows = []
    for case, figure in zip(CASES, figures, strict=True):
        goal = BASE + EACH * case.tensors
        title = f"{case.mode} step, {case.layers} layer{'s' * (case.layers > 1)}"
        verdict = "met" if figure.own <= goal else "missed"
        rows.append([title, case.tensors, f"{figure.own:,.0f}", f"{goal:,}", verdict])
        rows[-1].append(f"{figure.total:,.0f}")
    for few, many in ((0, 1), (2, 3)):
        each = (figures[many] - figures[few]) / (CASES[many].tensors - CASES[few].tensors)
        title = f"{CASES[few].mode} step, each tensor"
        rows.append([title, 1, f"{each.own:,.1f}", EACH, "", f"{each.total:,.1f}"])
    columns = ["step", "tensors", "kernel's own", "goal", "verdict", "all"]
    text = (
        "# Instructions of calling a compiled step\n\n"
        f"Counted with {machine.version_note('torch')}.\n\n"
        f"{markdown_table(columns, rows, left=1)}\n"
    )
    return text, None


if __name__ == "__main__":
    sys.exit(pages.run("compiled_instructions", __doc__, page))
