"""How often `fastnet profile --compare` is right, on a busy machine.

    python -m bench.verdicts

profiles a small training step in a process of its own again and again, while two other processes
keep the machine busy: each time twice as it is, and once with an op that takes a tenth of the step
beside it. A comparison of the first two should have no verdict on the step; that of the first and
the third should say that it grew. Where a comparison says that it is too noisy to tell, both sides
are measured again with twice the steps, as it asks for; what is still too noisy then counts as not
found. It takes some minutes, and is no part of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import processor, use_one_thread, versions

FOLDER = Path(__file__).parent / "results"
_PLANTED = 0.10
_MOST_TRIES = 4
_SKIPPED = 100
_BUSY = 2
_OP = "LambdaOp(x) -> kept"


@dataclass(frozen=True)
class Found:
    """What a comparison said of the step.

    Attributes:
        verdict: Its verdict.
        change: By how much the step grew, as a part of it.
        noise: How far the 95 % interval goes to either side of that; None where there is none.
        part_verdicts: How many of the step's parts were said to have grown or shrunk.
        parts: How many parts there were in both.
        tries: How often it was measured until it was not too noisy.
        steps: How many steps each side measured at last.
    """

    verdict: str
    change: float
    noise: float | None
    part_verdicts: int
    parts: int
    tries: int
    steps: int


def measure(path: str, steps: int, turns: int | None) -> None:
    """Profile a training step in this process, and save the profile.

    Args:
        path: The file to save it in.
        steps: How many steps to measure.
        turns: How many turns an op more takes; None for no such op, as it is.
    """
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
        ops.insert(0, LambdaOp(lambda x: work(turns), "x", "kept"))
    batch = {"x": torch.randn(8, 16), "label": torch.randint(0, 4, (8,))}
    made = fastnet.profile(fastnet.Network(ops), batch, steps=steps, skip=_SKIPPED, update=True)
    made.to_json(path)


def work(turns: int) -> int:
    """Take as long as so many turns of a loop."""
    total = 0
    for number in range(turns):
        total += number & 3
    return total


def keep_busy() -> None:
    """Do something for ever."""
    while True:
        work(100_000)


@contextmanager
def _beside(target: Callable[[], None]) -> Iterator[None]:
    processes = [_context().Process(target=target, daemon=True) for _ in range(_BUSY)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _context() -> Any:
    # torch is loaded once: it takes a hundred times as long as the steps
    return multiprocessing.get_context("fork")


def _profile(folder: Path, steps: int, turns: int | None) -> Any:
    from fastnet.profiling import Profile

    path = folder / "profile.json"
    process = _context().Process(target=measure, args=(str(path), steps, turns))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a process that measures ended with {process.exitcode}")
    return Profile.from_json(path)


def _turns(folder: Path, steps: int) -> int:
    """Find how many turns of work take a tenth of the step."""
    before = after = None
    tried = 1000
    while before is None or after is None:
        alone, planted = _profile(folder, steps, None), _profile(folder, steps, tried)
        (row,) = [row for row in planted.rows if row.name == _OP]
        if alone.section("train").step.blocks and row.blocks:
            before, after = alone.section("train").step.blocks, row.blocks
    return round(tried * _PLANTED * (sum(before) / len(before)) / (sum(after) / len(after)))


def _compared(folder: Path, steps: int, turns: int | None, before: Any) -> Found:
    """Measure and compare, with more steps where that is too noisy."""
    for tries in range(1, _MOST_TRIES + 1):
        first = before if tries == 1 else _profile(folder, steps, None)
        comparison = first.compare(_profile(folder, steps, turns))
        (step,) = comparison.steps
        if step.verdict != "too noisy" or tries == _MOST_TRIES:
            break
        steps *= 2
    both = [row for row in comparison.rows if row.before is not None and row.after is not None]
    return Found(
        step.verdict,
        step.difference / step.before,
        None if step.noise is None else step.noise / step.before,
        sum(row.verdict in ("grew", "shrank") for row in both),
        len(both),
        tries,
        steps,
    )


def run(comparisons: int, steps: int, minutes: float) -> dict[str, Any]:
    """Make comparisons of the same step, and of one with a tenth more.

    Args:
        comparisons: How many of each.
        steps: How many steps to measure at first.
        minutes: After how many minutes to stop, with fewer comparisons.

    Returns:
        What was found, as plain data.
    """
    use_one_thread("torch")
    started = time.monotonic()
    same: list[Found] = []
    planted: list[Found] = []
    with TemporaryDirectory() as name, _beside(keep_busy):
        folder = Path(name)
        # all that is imported on the way is there before the processes are made
        measure(str(folder / "first.json"), 30, 1)
        turns = _turns(folder, steps)
        while len(planted) < comparisons and time.monotonic() - started < 60 * minutes:
            before = _profile(folder, steps, None)
            same.append(_compared(folder, steps, None, before))
            planted.append(_compared(folder, steps, turns, before))
            print(f"{len(planted)}: {same[-1]}\n   {planted[-1]}", file=sys.stderr, flush=True)
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime()),
        "processor": processor(),
        "versions": versions("torch"),
        "busy_processes": _BUSY,
        "turns": turns,
        "seconds": round(time.monotonic() - started),
        "same": [asdict(found) for found in same],
        "planted": [asdict(found) for found in planted],
    }


def table(data: dict[str, Any]) -> str:
    """Write down what was found, in Markdown."""
    about = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    lines = [
        "# How often a comparison of profiles is right",
        "",
        f"Measured {data['when']} on {data['processor']}, one thread, "
        f"{data['busy_processes']} busy processes beside it, in {data['seconds']} s.",
        f"- {about}",
        "",
        "Each comparison is of two processes that train a small MLP. The verdict is that on the "
        "step; the change is the median of all, with the middle nine tenths; parts are the rows of "
        "a step, and those with a verdict that did not change.",
        "",
        "| the later step | comparisons | grew | shrank | no change | too noisy | change | 95 % "
        "interval, median | tries, mean | parts with a verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, found in (("is the same", data["same"]), ("takes 10 % more", data["planted"])):
        if not found:
            continue
        verdicts = Counter(each["verdict"] for each in found)
        changes = sorted(each["change"] for each in found)
        noises = sorted(each["noise"] for each in found if each["noise"] is not None)
        least, most = changes[len(changes) // 20], changes[-1 - len(changes) // 20]
        cells = [
            title,
            str(len(found)),
            *(str(verdicts[name]) for name in ("grew", "shrank", "", "too noisy")),
            f"{changes[len(changes) // 2]:+.1%} ({least:+.1%} to {most:+.1%})",
            f"± {noises[len(noises) // 2]:.1%}" if noises else "-",
            f"{sum(each['tries'] for each in found) / len(found):.1f}",
            f"{sum(each['part_verdicts'] for each in found)} of "
            f"{sum(each['parts'] for each in found)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and save what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.verdicts")
    parser.add_argument("--comparisons", type=int, default=100, help="of each sort (default: 100)")
    parser.add_argument("--steps", type=int, default=2000, help="of a profile (default: 2000)")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most (default: 30)")
    parser.add_argument("--save", type=Path, default=FOLDER, help="the folder for what is found")
    arguments = parser.parse_args()
    data = run(arguments.comparisons, arguments.steps, arguments.minutes)
    arguments.save.mkdir(parents=True, exist_ok=True)
    (arguments.save / "verdicts.json").write_text(json.dumps(data, indent=1) + "\n")
    (arguments.save / "verdicts.md").write_text(table(data))
    print(table(data))


if __name__ == "__main__":
    main()
