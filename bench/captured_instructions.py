"""Count the instructions of calling a captured step: `python -m bench.captured_instructions`.

The program that is called does nothing, so that what is left is the matching of the batch, the
comparison of all that the step was captured for, and the call. Each is counted of a model of few
tensors and of one of many, so that what a tensor adds is told apart. Two numbers each, as in
`bench.instructions`: all instructions, and those of the compiled kernel itself.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import callgrind, machine
from bench.marks import mark, start_counting
from bench.tables import Table

BASE, EACH = 3000, 60
"""The bar for the kernel's own instructions: of a step, and of each of its tensors."""

_FEW, _MANY = 1, 21
_WARM_UP_STEPS, _STEPS, _RUNS = 20, 20, 4


@dataclass(frozen=True)
class Case:
    """A step whose calls are counted.

    Attributes:
        title: How the table calls it.
        training: Whether it trains, with SGD.
        layers: How many layers the model has, of two tensors each.
    """

    title: str
    training: bool
    layers: int

    @property
    def tensors(self) -> int:
        """How many tensors the program is called with: the batch's, and those of the model."""
        return 2 * self.layers + (2 if self.training else 1)


CASES = [
    Case(f"{mode} step, {layers} layer{'s' * (layers > 1)}", training, layers)
    for mode, training in (("infer", False), ("train", True))
    for layers in (_FEW, _MANY)
]


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
        compile=fastnet.CompileOptions(backend=nothing),
    )
    return network, {"x": torch.rand(4, 2), "y": torch.zeros(4, dtype=torch.int64)}


def _run() -> None:
    """Run all that is counted, with a mark at each end of it; this is what callgrind watches."""
    machine.use_one_thread("torch")
    steps = []
    for case in CASES:
        network, batch = _network(case)
        opened = network("train" if case.training else "infer", 1)
        opened.__enter__()
        for _ in range(_WARM_UP_STEPS):
            network.run_step(batch)
        assert [one.fallback for one in network.traces] == [None]
        steps.append((network.run_step, batch, opened))
    start_counting()
    gc.disable()
    mark()
    for step, batch, _ in steps:
        for length in (0, *[_STEPS] * _RUNS):
            for _ in range(length):
                step(batch)
            mark()


def counted() -> list[callgrind.Count]:
    """Return the instructions of a step of each case.

    Raises:
        NoValgrind: If there is no valgrind.
        RuntimeError: If the process fails.
    """
    command = [sys.executable, "-m", "bench.captured_instructions", "--child"]
    runs = iter(callgrind.count(command, within="/fastnet/_", late=True))
    found = []
    for _ in CASES:
        nothing = next(runs)
        steps = [(next(runs) - nothing) / _STEPS for _ in range(_RUNS)]
        found.append(min(steps, key=lambda one: one.total))
    return found


def table(figures: list[callgrind.Count]) -> Table:
    """Tabulate what was counted, with what each tensor adds and the bar."""
    rows = []
    for case, figure in zip(CASES, figures, strict=True):
        bar = BASE + EACH * case.tensors
        verdict = "met" if figure.own <= bar else "missed"
        numbers = [f"{case.tensors}", f"{figure.own:,.0f}", f"{bar:,}", verdict]
        rows.append([case.title, *numbers, f"{figure.total:,.0f}"])
    for few, many in ((0, 1), (2, 3)):
        each = (figures[many] - figures[few]) / (CASES[many].tensors - CASES[few].tensors)
        mode = CASES[few].title.partition(",")[0]
        rows.append([f"{mode}, each tensor", "1", f"{each.own:,.1f}", f"{EACH}", "", ""])
        rows[-1][-1] = f"{each.total:,.1f}"
    columns = ["what", "tensors", "own", "bar", "verdict", "all"]
    versions = machine.versions("torch")
    note = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "fastnet"))
    return Table("Instructions of calling a captured step", f"Counted with {note}.", columns, rows)


def main(arguments: list[str] | None = None) -> int:
    """Count, and print the table.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status: 2 without valgrind.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.captured_instructions", description=__doc__
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write Markdown there too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        _run()
        return 0
    try:
        found = table(counted()).to_markdown()
    except callgrind.NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return 2
    print(found)
    if options.save is not None:
        options.save.write_text(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
