"""Measures workloads in this process, one after the other, and writes the results as JSON.

`bench.runner` starts it in a fresh process, perhaps in another interpreter. Every
peer that is installed here is timed beside the bare loop, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import agreement, fits, machine, peers, timing, turns
from bench.program import Program
from bench.workloads import BY_NAME
from bench.workloads.fit import DigitsFit
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
    if isinstance(workload, DigitsFit) and machine.has(workload.framework):
        return _measure_fits(workload, _names(workload, only), rounds)
    measured, ready = _prepare(workload, only, rounds)
    if workload.counts:
        measured.counts = {peer: int(program.run_once()) for peer, program in ready.items()}
    elif rounds and ready:
        _time(measured, workload, ready, rounds, round_ns)
    for program in ready.values():
        program.close()
    return measured


def measure_growth(
    names: list[str], only: list[str] | None, rounds: int, round_ns: int
) -> list[Measured]:
    """Check and time peers on workloads that differ in one number, in rounds of all of them.

    A machine that gets slower for a while would otherwise bend the lines.

    Args:
        names: The workloads' names.
        only: As for `measure`.
        rounds: As for `measure`.
        round_ns: As for `measure`.

    Returns:
        What was measured of each.
    """
    prepared = {name: _prepare(BY_NAME[name], only, rounds) for name in names}
    programs = {
        (name, peer): program
        for name, (_, ready) in prepared.items()
        for peer, program in ready.items()
    }
    timings = timing.interleave(programs, rounds, round_ns) if rounds else {}
    for name, (measured, ready) in prepared.items():
        own = {peer: timed for (of, peer), timed in timings.items() if of == name}
        _write_down(measured, BY_NAME[name], own, list(own))
        for program in ready.values():
            program.close()
    return [measured for measured, _ in prepared.values()]


def _names(workload: Workload, only: list[str] | None) -> list[str]:
    """Return the peers to ask for `workload`."""
    return [
        peer
        for peer in peers.BY_FRAMEWORK[workload.framework]
        if (only is None or peer in only or peer in peers.BASELINES)
        and (workload.only is None or peer in workload.only)
    ]


def _prepare(
    workload: Workload, only: list[str] | None, rounds: int
) -> tuple[Measured, dict[str, Program]]:
    """Check every peer that is installed here, and return the programs of those that agree."""
    names = _names(workload, only)
    if not machine.has(workload.framework):
        return Measured(workload.name, rounds=rounds, absent=names), {}
    machine.use_one_thread(workload.framework)
    rounds = _rounds_of(workload, rounds)
    measured = Measured(workload.name, machine.versions(workload.framework), rounds)
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
    return measured, {peer: program for peer, program in programs.items() if program is not None}


def _rounds_of(workload: Workload, rounds: int) -> int:
    """Return how many rounds `workload` has, of which somebody asked for `rounds`."""
    return rounds if workload.most_rounds is None else min(rounds, workload.most_rounds)


def _measure_fits(workload: DigitsFit, names: list[str], rounds: int) -> Measured:
    """Measure a figure of fits, each of which is a fresh process: that is one round."""
    measured = Measured(workload.name, machine.versions(workload.framework))
    if not peers.load(workload.baseline).available():
        measured.absent = [workload.baseline]
        measured.without = [name for name in names if name != workload.baseline]
        return measured
    measured.rounds = fits.count(rounds)
    try:
        found = fits.in_turn(workload.framework, workload.optimizer, measured.rounds)
    except (AssertionError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        measured.failures["fastnet"] = f"{type(error).__name__}: {error}"
        return measured
    if rounds:
        timings = {
            name: timing.Timing(len(each[0].later_steps), tuple(workload.of(fit) for fit in each))
            for name, each in found.items()
        }
        _write_down(measured, workload, timings, list(timings))
    return measured


def _time(
    measured: Measured,
    workload: Workload,
    programs: dict[str, Program],
    rounds: int,
    round_ns: int,
) -> None:
    """Time `programs` and their plain steps."""
    plain = {peer: program.plain for peer, program in programs.items() if program.plain}
    both = {**programs, **{f"{peer}, plain": program for peer, program in plain.items()}}
    rounds = _rounds_of(workload, rounds)
    _write_down(measured, workload, timing.interleave(both, rounds, round_ns), list(programs))
    if workload.in_turns:
        quiet = turns.quiet_steps(both, rounds * round_ns, workload.before_a_step)
        for peer in programs:
            measured.excesses[peer] |= turns.over_calls(quiet, peer, workload.baseline)


def _write_down(
    measured: Measured, workload: Workload, timings: dict[str, timing.Timing], names: list[str]
) -> None:
    """Write down what comes of the timings of some peers, and of their plain steps."""
    for peer in names:
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
    if all(BY_NAME[name].grows for name in options.workloads):
        measured = measure_growth(options.workloads, options.peers, options.rounds, round_ns)
    else:
        measured = [
            measure(name, options.peers, options.rounds, round_ns) for name in options.workloads
        ]
    options.output.write_text(json.dumps([asdict(one) for one in measured], indent=2))


if __name__ == "__main__":
    main()
