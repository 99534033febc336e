"""Measures workloads in this process, one after the other, and writes the results as JSON.

`bench.runner` starts it in a fresh process, perhaps in another interpreter. Every
peer that is installed here is timed beside the bare loop, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import agreement, machine, peers, timing
from bench.program import Program
from bench.workloads import BY_NAME
from bench.workloads.workload import Workload


@dataclass
class Measured:
    """What one process found out about one workload.

    Attributes:
        workload: Its name.
        versions: Of all that matters in this interpreter.
        rounds: How many rounds each program had.
        times: For each peer, the median nanoseconds of a step, the quartiles, the calls a round.
        ratios: For each peer and each reference, the ratio and its quartiles.
        counts: For each peer, the count, for a workload that is counted and not timed.
        excesses: For each peer, by how many nanoseconds a step is longer than a plain one, or than
            an op's calls, with the quartiles, and the median of the plain step, or of the calls;
            for a workload that asks for just this.
        absent: Peers that are not installed here.
        without: Peers that are here and have no such thing.
        failures: Peers that raised, or whose results are not the baseline's, and what they said.
    """

    workload: str
    versions: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    ratios: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    excesses: dict[str, dict[str, float]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def measure(name: str, only: list[str] | None, rounds: int, round_ns: int) -> Measured:
    """Check and time every peer that is installed here on one workload.

    Args:
        name: The workload's name.
        only: The peers to take, or None for all. The baselines always take part.
        rounds: How many rounds each program is timed; 0 checks results and times nothing.
        round_ns: About how long a round of one program lasts.

    Returns:
        What was measured.
    """
    workload = BY_NAME[name]
    names = [
        peer
        for peer in peers.BY_FRAMEWORK[workload.framework]
        if (only is None or peer in only or peer in peers.BASELINES)
        and (workload.only is None or peer in workload.only)
    ]
    if not machine.has(workload.framework):
        return Measured(name, rounds=rounds, absent=names)
    machine.use_one_thread(workload.framework)
    measured = Measured(name, machine.versions(workload.framework), rounds)
    programs = {}
    for peer in names:
        module = peers.load(peer)
        if not module.available():
            measured.absent.append(peer)
            continue
        try:
            if not agreement.check(workload, peer):
                measured.without.append(peer)
                continue
            programs[peer] = module.make(workload)
        except Exception as error:
            # A peer that cannot do its work is a finding: it is reported, and the others go on.
            first_line = (str(error).strip().splitlines() or ["(no message)"])[0]
            measured.failures[peer] = f"{type(error).__name__}: {first_line}"
    ready = {peer: program for peer, program in programs.items() if program is not None}
    if workload.counts:
        measured.counts = {peer: int(program.run_once()) for peer, program in ready.items()}
    elif rounds:
        _time(measured, workload, ready, rounds, round_ns)
    for program in ready.values():
        program.close()
    return measured


def _time(
    measured: Measured,
    workload: Workload,
    programs: dict[str, Program],
    rounds: int,
    round_ns: int,
) -> None:
    """Time `programs`, and write down what comes of it."""
    plain = {peer: program.plain for peer, program in programs.items() if program.plain}
    both = {**programs, **{f"{peer}, plain": program for peer, program in plain.items()}}
    timings = timing.interleave(both, rounds, round_ns)
    for peer in programs:
        timed = timings[peer]
        measured.times[peer] = {**asdict(timed.spread), "loops": timed.loops}
        if workload.over_calls:
            measured.excesses[peer] = over_calls(timings, peer, workload.baseline)
            continue
        if workload.over_a_step:
            step = timings[f"{peer}, plain"]
            excess = asdict(timed.excess_over(step))
            measured.excesses[peer] = {**excess, "step": step.spread.median}
            continue
        measured.ratios[peer] = {
            reference: asdict(timed.ratio_to(timings[reference]))
            for reference in workload.references
            if reference in timings
        }


def over_calls(timings: dict[str, timing.Timing], peer: str, baseline: str) -> dict[str, float]:
    """Return by how much a step of a peer is longer than the calls of the baseline.

    Args:
        timings: The timings of both, and of a plain step of either, as "NAME, plain".
        peer: The peer.
        baseline: The baseline.

    Returns:
        Nanoseconds: the median and the quartiles of the rounds' differences, under "least" the
        difference of the shortest rounds, and under "step" the shortest round of the calls.
    """
    spans: list[timing.Timing] = []
    shortest: list[float] = []
    for name in (peer, baseline):
        whole, plain = timings[name], timings.get(f"{name}, plain")
        spans.append(whole if plain is None else whole.less(plain))
        shortest.append(min(whole.rounds) - (0 if plain is None else min(plain.rounds)))
    own, calls = spans
    # What is sought is small beside the step, and all that a machine does meanwhile adds to that.
    least = shortest[0] - shortest[1]
    return {**asdict(own.excess_over(calls)), "least": least, "step": shortest[1]}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write JSON to a file: libraries print what they like on the standard streams."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--output", type=Path, required=True, help="where to write the JSON")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--round-ms", type=float, default=2.0)
    parser.add_argument("--peers", nargs="*", help="only these (default: all that are installed)")
    options = parser.parse_args(arguments)
    round_ns = int(options.round_ms * 1e6)
    measured = [
        asdict(measure(workload, options.peers, options.rounds, round_ns))
        for workload in options.workloads
    ]
    options.output.write_text(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
