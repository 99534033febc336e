"""Measure the error rates of `fastnet profile --compare` on a busy machine.

Run it by `python -m bench.verdicts`.

A small training step is profiled beside two busy processes, each time in a process of its own: in
turn unchanged, and with an additional op that takes a tenth of it. A comparison of an unchanged
profile with the next unchanged one should have no verdict on the step, and one with the longer step
should say that it grew. It takes most of an hour.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import pages
from bench.machine import processor, use_one_thread, versions
from bench.tables import markdown_table

_PLANTED = 0.10
_SKIPPED = 100
_BUSY = 2
OP = "LambdaOp(x) -> kept"
# A fork has torch already: importing it takes a hundred times as long as the steps.
_CONTEXT: Any = multiprocessing.get_context("fork")


def measure(path: str, steps: int, turns: int | None) -> None:
    """Profile a training step, with an additional op of that many turns, and save the profile."""
    import torch

    import fastnet
    from fastnet.op.tensorop import LambdaOp
    from fastnet.op.tensorop.loss import CrossEntropy
    from fastnet.op.tensorop.model import ModelOp, UpdateOp

    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    model: Any = fastnet.build(lambda: torch.nn.Sequential(*layers), "sgd")
    ops = [ModelOp(model, "x", "y"), CrossEntropy(("y", "label"), "loss"), UpdateOp(model, "loss")]
    if turns is not None:
        ops.insert(0, LambdaOp(lambda x: _work(turns), "x", "kept"))
    batch = {"x": torch.randn(8, 16), "label": torch.randint(0, 4, (8,))}
    made = fastnet.profile(fastnet.Network(ops), batch, steps=steps, skip=_SKIPPED, update=True)
    made.to_json(path)


def _work(turns: int) -> int:
    total = 0
    for number in range(turns):
        total += number & 3
    return total


def _keep_busy() -> None:
    while True:
        _work(100_000)


@contextmanager
def _busy_processes() -> Iterator[None]:
    processes = [_CONTEXT.Process(target=_keep_busy, daemon=True) for _ in range(_BUSY)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _profile(folder: Path, steps: int, turns: int | None) -> Any:
    from fastnet.profiling import Profile

    path = folder / "profile.json"
    process = _CONTEXT.Process(target=measure, args=(str(path), steps, turns))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a profiled process ended with {process.exitcode}")
    return Profile.from_json(path)


def _turns(folder: Path, steps: int) -> int:
    """Return the length of an op that takes a tenth of the step."""
    tried = 1000
    while True:
        alone, planted = _profile(folder, steps, None), _profile(folder, steps, tried)
        (row,) = [row for row in planted.rows if row.name == OP]
        step = alone.section("train").step
        if step.blocks and row.blocks:
            return round(tried * _PLANTED * min(step.blocks) / min(row.blocks))


def _compared(before: Any, after: Any) -> dict[str, Any]:
    """Compare two profiles; changes are parts of a step."""
    comparison = before.compare(after)
    (step,) = comparison.steps
    both = [row for row in comparison.rows if row.before is not None and row.after is not None]
    return {
        "verdict": step.verdict,
        "change": step.difference / step.before,
        "noise": None if step.noise is None else step.noise / step.before,
        "part_verdicts": sum(row.verdict in ("grew", "shrank") for row in both),
        "parts": len(both),
    }


def run(comparisons: int, steps: int, minutes: float) -> dict[str, Any]:
    """Compare the unchanged step with itself and with the longer one; return plain data."""
    use_one_thread("torch")
    started = time.monotonic()
    same: list[dict[str, Any]] = []
    planted: list[dict[str, Any]] = []
    with TemporaryDirectory() as name, _busy_processes():
        folder = Path(name)
        measure(str(folder / "first.json"), 30, 1)  # imports everything before the forks
        turns = _turns(folder, steps)
        before = _profile(folder, steps, None)
        while len(planted) < comparisons and time.monotonic() - started < 60 * minutes:
            planted.append(_compared(before, _profile(folder, steps, turns)))
            after = _profile(folder, steps, None)
            same.append(_compared(before, after))
            before = after
            print(f"{len(planted)}: {same[-1]}\n   {planted[-1]}", file=sys.stderr, flush=True)
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime()),
        "processor": processor(),
        "versions": versions("torch"),
        "busy_processes": _BUSY,
        "steps": steps,
        "turns": turns,
        "seconds": round(time.monotonic() - started),
        "same": same,
        "planted": planted,
    }


def page(data: dict[str, Any]) -> str:
    """Return the page of the results, in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    kinds = {"is the same": data["same"], "takes 10 % more": data["planted"]}
    columns = ["the later step", "comparisons", "grew", "shrank", "no change", "too noisy"]
    columns += ["change", "noise, median", "parts with a verdict"]
    rows = [_cells(title, found) for title, found in kinds.items() if found]
    return f"""\
# How often a comparison of profiles is right

Measured {data["when"]} on {data["processor"]}, one thread, \
{data["busy_processes"]} busy processes beside it, in {data["seconds"]} s.
- {versions}

Each comparison is of two processes that train a small MLP, {data["steps"]} steps each. The change
is the median of all, with the 5 % and 95 % quantiles; parts are the rows of a step, of which none
but the planted op changed.

{markdown_table(columns, rows, left=1)}
"""


def _cells(title: str, found: Sequence[dict[str, Any]]) -> list[Any]:
    verdicts = Counter(each["verdict"] for each in found)
    low, change, high = np.quantile([each["change"] for each in found], [0.05, 0.5, 0.95])
    noises = [each["noise"] for each in found if each["noise"] is not None]
    return [
        title,
        len(found),
        *(verdicts[name] for name in ("grew", "shrank", "", "too noisy")),
        f"{change:+.1%} ({low:+.1%} to {high:+.1%})",
        f"± {np.median(noises):.1%}" if noises else "-",
        f"{sum(each['part_verdicts'] for each in found)} of {sum(each['parts'] for each in found)}",
    ]


def measured_page(comparisons: int, steps: int, minutes: float) -> tuple[str, dict[str, Any]]:
    """Return the page of new results, and its data."""
    data = run(comparisons, steps, minutes)
    return page(data), data


if __name__ == "__main__":
    options = {
        "comparisons": (100, "comparisons of each kind"),
        "steps": (24_000, "steps of a profile"),
        "minutes": (60.0, "minutes at most"),
    }
    sys.exit(pages.run("verdicts", __doc__, measured_page, **options))
