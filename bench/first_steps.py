"""Time first steps that compile, cold and warm, and their memory: `python -m bench.first_steps`.

Each time is of a process of its own: from making the program to the end of its second step, with
what the compilers import. Cold ones have an empty cache on disk, warm ones that of the process
before. Memory is weights and states, and what a step has at its peak beside them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine, peers
from bench.runner import answer, environment
from bench.tables import Table
from bench.workloads import BY_NAME
from bench.workloads.compiled import Compiled

PEERS = ("fastnet", "compiled_update", "compiled_loop")
WORKLOADS = ("compiled_mlp_adam", "compiled_modules120_sgd")
COLD, WARM, MEMORY = 1.5, 0.5, 1.1
"""The bars: beside `torch.compile` of model and optimizer, beside cold, and beside eager steps."""

_STEPS = 10


def _large() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


LARGE = Compiled("large_mlp", "MLP of 1.3 M weights", True, _large, (4096, 256), 10, adam=True)


def _time(peer: str, name: str) -> dict[str, float]:
    """Return the seconds of the first steps of this process."""
    workload = BY_NAME[name]
    machine.use_one_thread("torch")
    load = peers.load(peer)
    started = time.perf_counter()
    program = load.make(workload)
    assert program is not None, f"{peer} has no {name}"
    for _ in range(2):
        program.run_once()
    return {"seconds": time.perf_counter() - started}


def _weigh(peer: str) -> dict[str, float]:
    """Return the bytes that a step of this process has at its peak."""
    machine.use_one_thread("torch")
    program = peers.load(peer).make(LARGE)
    assert program is not None
    weights = sum(one.nbytes for one in program.model.parameters())
    # with both states of Adam
    return {"bytes": _peak_of(program.run_once) + 3 * weights}


def _peak_of(step: Callable[[], Any]) -> int:
    """Return the bytes that a step has at its peak, beside what stays."""
    for _ in range(4):
        step()
    gc.collect()
    before = _of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(_STEPS):
        step()
    return _of_process("VmHWM") - before


def _of_process(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(found.split()[1]) * 1024


def _child(arguments: list[str], cache: str) -> dict[str, float]:
    # large tensors are given back to the system as soon as they are freed
    variables = {**environment(), "TORCHINDUCTOR_CACHE_DIR": cache}
    variables["MALLOC_MMAP_THRESHOLD_"] = "65536"
    found: dict[str, float] = answer("bench.first_steps", ["--child", *arguments], variables)
    return found


def times(rounds: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the median seconds of each workload and peer, cold and warm."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name in WORKLOADS * rounds:
        for peer in PEERS:
            with tempfile.TemporaryDirectory() as cache:
                cold, warm = (_child([peer, name], cache)["seconds"] for _ in range(2))
            found.setdefault(name, {}).setdefault(peer, []).append((cold, warm))
    return {
        name: {
            peer: tuple(map(statistics.median, zip(*pairs, strict=True)))
            for peer, pairs in by_peer.items()
        }
        for name, by_peer in found.items()
    }  # type: ignore[return-value]


def _judged(ratio: float, bar: float) -> list[str]:
    return [f"{ratio:.2f}", f"{bar:g}", "met" if ratio <= bar else "missed"]


def tables(rounds: int) -> list[Table]:
    """Measure, and return the tables."""
    rows = []
    for name, by_peer in times(rounds).items():
        usual = by_peer["compiled_update"][0]
        for peer, (cold, warm) in by_peer.items():
            row = [BY_NAME[name].title, peers.title(peer), f"{cold:.1f}", f"{warm:.1f}"]
            own = peer == "fastnet"
            row += _judged(cold / usual, COLD) if own else [f"{cold / usual:.2f}", "", ""]
            row += _judged(warm / cold, WARM) if own else [f"{warm / cold:.2f}", "", ""]
            rows.append(row)
    columns = ["work", "peer", "cold, s", "warm, s", "beside torch.compile", "bar", "verdict"]
    columns += ["warm beside cold", "bar", "verdict"]
    note = f"Medians of {rounds}, from making the program to the end of the second step; "
    note += "beside the cold one of torch.compile of model and optimizer."
    first = Table("First steps", note, columns, rows, left=2)
    with tempfile.TemporaryDirectory() as cache:
        peaks = {peer: _child([peer], cache)["bytes"] for peer in ("bare", *PEERS)}
    rows = []
    for peer, peak in peaks.items():
        row = [peers.title(peer), f"{peak / 1e6:.0f}", f"{peak / peaks['bare']:.2f}"]
        row += _judged(peak / peaks["bare"], MEMORY)[1:] if peer == "fastnet" else ["", ""]
        rows.append(row)
    note = f"{LARGE.title}, batches of {LARGE.shape[0]}, Adam: weights, states and a step's peak."
    columns = ["peer", "MB", "beside eager", "bar", "verdict"]
    return [first, Table("Peak memory", note, columns, rows)]


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the tables.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.first_steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (default: 3)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write Markdown there too")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        what, *names = options.child
        found = _time(what, *names) if names else _weigh(what)
        print(json.dumps(found))
        return 0
    versions = machine.versions("torch")
    note = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "fastnet"))
    pages = [
        f"# First steps that compile, and memory\n\nMeasured on {machine.processor()}: {note}."
    ]
    pages += [one.to_markdown() for one in tables(options.rounds)]
    print("\n\n".join(pages))
    if options.save is not None:
        options.save.write_text("\n\n".join(pages) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
