"""What fastnet costs in processes that train together: `python -m bench.ranks`.

A train step of the small MLP and of 120 modules, on two ranks over gloo on this machine, one thread
each: fastnet beside the loop by hand, Fabric and Accelerate in DistributedDataParallel, and beside
the loop by hand in FSDP2. Rounds are interleaved, and a ratio is of neighbouring rounds; a round is
that of the slowest rank. The collectives of a step are counted, and its weights compared.

Then what fastnet adds to the work of a rank's own program in a step, in microseconds of processor
time, on one rank and on more: it does not grow with them. Waiting for others is left out, so that a
machine with fewer cores than ranks will do.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine, peers
from bench.rank_process import BY_HAND, FASTNET, MAKERS
from bench.timing import Spread

FOLDER = Path(__file__).parent / "results"
WORKLOADS = ("mlp_train", "modules120_train")
GOAL = 1.02
_PACKAGES = {"Fabric": "lightning_fabric", "Accelerate": "accelerate"}
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Line:
    """What one peer did.

    Attributes:
        workload: What a step is of.
        engine: What spreads the model.
        ranks: How many processes there were.
        peer: Who ran it.
        microseconds: Its step, the median of rounds.
        ratio: To the loop by hand, of each round: the median and the quartiles.
        worked: The microseconds of a step in which the first rank's program did not wait.
        added: How many more these are than those of the loop by hand, likewise.
        collectives: How many of each a step has.
        distance: How far its weights are from those of the loop by hand after some steps.
    """

    workload: str
    engine: str
    ranks: int
    peer: str
    microseconds: float
    ratio: Spread
    worked: float
    added: Spread
    collectives: dict[str, int]
    distance: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and save them if that is asked for.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status: 1 if a peer communicates otherwise than the loop by hand, or has other
        weights. A goal that is missed is no failure.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--ranks", type=int, default=2, help="of the comparison with peers")
    parser.add_argument("--most-ranks", type=int, default=4, help="for what fastnet adds")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--loops", type=int, default=20, help="steps of a round")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run, and agree?")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write ranks.json and ranks.md")
    options = parser.parse_args(arguments)
    rounds, loops = (3, 2) if options.quick else (options.rounds, options.loops)
    lines = [
        line
        for workload in options.workloads
        for engine in MAKERS
        for line in measure(workload, engine, options.ranks, rounds, loops)
    ]
    growing = [
        line
        for count in range(1, options.most_ranks + 1)
        for line in measure("mlp_train", "ddp", count, rounds, loops, [FASTNET])
        if line.peer == FASTNET
    ]
    text = table(lines) + "\n" + growth_table(growing)
    print(text)
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        told = {
            "versions": machine.versions("torch"),
            "lines": [asdict(line) for line in lines],
            "growing": [asdict(line) for line in growing],
        }
        (options.save / "ranks.json").write_text(json.dumps(told, indent=1) + "\n")
        (options.save / "ranks.md").write_text(text)
    return int(bool(disagreements(lines)))


def measure(
    workload: str,
    engine: str,
    ranks: int,
    rounds: int,
    loops: int,
    chosen: Sequence[str] | None = None,
) -> list[Line]:
    """Measure one workload under one engine, in processes of their own.

    Args:
        workload: The workload.
        engine: "ddp" or "fsdp".
        ranks: How many processes.
        rounds: How many rounds there are.
        loops: How many steps a round has.
        chosen: The peers besides the loop by hand; None for all that are installed.

    Returns:
        A line for each peer, the loop by hand first.

    Raises:
        RuntimeError: If one of the processes failed.
    """
    if chosen is None:
        chosen = [
            peer
            for peer in MAKERS[engine]
            if peer not in _PACKAGES or peers.installed(_PACKAGES[peer])
        ]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "told.json")
        command = [sys.executable, "-m", "bench.rank_process", workload, engine]
        command += ["--rounds", str(rounds), "--loops", str(loops), "--output", str(output)]
        _run([*command, "--peers", *(chosen or [FASTNET])], ranks)
        told: dict[str, Any] = json.loads(output.read_text())
    hand = told[BY_HAND]["times"]
    lines = []
    for peer, found in told.items():
        pairs = list(zip(found["times"], hand, strict=True))
        own = list(zip(found["worked"], told[BY_HAND]["worked"], strict=True))
        lines.append(
            Line(
                workload,
                engine,
                ranks,
                peer,
                statistics.median(found["times"]) / 1000,
                Spread.of([mine / other for mine, other in pairs]),
                statistics.median(found["worked"]) / 1000,
                Spread.of([(mine - other) / 1000 for mine, other in own]),
                found["collectives"],
                found["distance"],
            )
        )
    return lines


def _run(command: Sequence[str], ranks: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        settings = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in settings.items()}
        environment = {**os.environ, **machine.ONE_THREAD, **environment}
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    try:
        errors = [process.communicate(timeout=_TIMEOUT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [error for process, error in zip(processes, errors, strict=True) if process.returncode]
    if failed:
        raise RuntimeError("\n".join(failed))


def disagreements(lines: Sequence[Line]) -> list[str]:
    """Say who does not do what the loop by hand does.

    Args:
        lines: What was measured, the loop by hand before its peers.

    Returns:
        A sentence for each.
    """
    found = []
    hand = None
    for line in lines:
        if line.peer == BY_HAND:
            hand = line
        where = f"{line.peer}, {line.workload} in {line.engine}"
        if hand is not None and line.collectives != hand.collectives:
            found.append(f"{where}: {line.collectives} where it is {hand.collectives} by hand.")
        if line.distance > 1e-6:
            found.append(f"{where}: weights are {line.distance:.1e} from those by hand.")
    return found


def table(lines: Sequence[Line]) -> str:
    """Return the comparison in Markdown.

    Args:
        lines: What was measured.
    """
    rows = [
        "| step | engine | ranks | peer | µs | ratio | middle half | collectives | goal |",
        "|---|---|---:|---|---:|---:|---|---|---|",
    ]
    for line in lines:
        calls = ", ".join(f"{count} {name}" for name, count in line.collectives.items())
        goal = ""
        if line.peer == FASTNET:
            close = line.ratio.low <= GOAL <= line.ratio.high
            goal = "close" if close else "met" if line.ratio.median <= GOAL else "missed"
            goal += f" ({GOAL})"
        rows.append(
            f"| {line.workload} | {line.engine} | {line.ranks} | {line.peer} | "
            f"{line.microseconds:.0f} | {line.ratio.median:.3f} | {line.ratio.low:.3f} to "
            f"{line.ratio.high:.3f} | {calls or 'none'} | {goal} |"
        )
    return "\n".join([*rows, *(f"\n{one}" for one in disagreements(lines)), ""])


def growth_table(lines: Sequence[Line]) -> str:
    """Return in Markdown what fastnet adds to a step on one rank and on more.

    Args:
        lines: What was measured of fastnet.
    """
    rows = [
        "| ranks | a rank's own work in a step by hand, µs | fastnet adds, µs | middle half |",
        "|---:|---:|---:|---|",
    ]
    for line in lines:
        rows.append(
            f"| {line.ranks} | {line.worked - line.added.median:.0f} | "
            f"{line.added.median:+.1f} | {line.added.low:+.1f} to {line.added.high:+.1f} |"
        )
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
