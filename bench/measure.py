"""Checks and times the peers of workloads in this process, as `bench.processes` calls it.

Every peer that is installed is timed beside the hand-written loop, in interleaved rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import fits, machine, peers
from bench.program import Program
from bench.timing import Spread, Timing, interleave
from bench.workloads import BY_NAME
from bench.workloads.fit import DigitsFit
from bench.workloads.workload import Workload


@dataclass
class Measured:
    """The measurements of one workload in one process.

    Attributes:
        workload: Its name.
        versions: The versions of everything that matters in this interpreter.
        rounds: The number of rounds of each program.
        times: For each peer the nanoseconds of a step (median and quartiles) and the calls a round.
        ratios: For each peer and each reference the ratio and its quartiles.
        counts: For each peer the count, for a workload that is counted.
        excesses: For each peer the nanoseconds beyond a plain step or beyond an op's calls, with
            quartiles, and the time of the plain step or of the calls, for a workload in that unit.
        absent: Peers that are not installed.
        without: Peers that have no such feature.
        failures: Peers that raised, or whose results differ from the baseline's, with the message.
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


def measure(
    names: Sequence[str],
    only: Sequence[str] | None,
    rounds: int,
    round_ms: float,
    threads: int = 1,
) -> list[dict[str, Any]]:
    """Check and time workloads; those that measure growth in the same rounds.

    Args:
        names: The names of the workloads, all of one framework.
        only: The peers, or None for all. The baselines always take part.
        rounds: The number of rounds of each program; 0 only checks results.
        round_ms: The approximate length of a round of one program, in milliseconds.
        threads: The number of threads on which they compute.

    Returns:
        A `Measured` of each workload, as dicts.
    """
    workloads = [BY_NAME[name] for name in names]
    together = all(workload.grows for workload in workloads)
    groups = [workloads] if together else [[workload] for workload in workloads]
    return [
        asdict(one) for group in groups for one in _measure(group, only, rounds, round_ms, threads)
    ]


def check(workload: Workload, peer: str) -> bool:
    """Run a few steps of `peer` and of the baseline, and compare results and trained weights.

    Returns:
        Whether the peer has a program for the workload.

    Raises:
        AssertionError: If results or weights differ.
    """
    program = peers.make(peer, workload)
    if program is None:
        return False
    try:
        compare(workload, program)
    finally:
        program.close()
    return True


def compare(workload: Workload, program: Program) -> None:
    """Compare a program with the baseline, if there is one.

    Raises:
        AssertionError: If results or weights differ.
    """
    baseline = None
    if peers.PEERS[workload.baseline].available:
        baseline = peers.make(workload.baseline, workload)
    for _ in range(workload.steps_to_check):
        expected: Any = None if baseline is None else baseline.run_once()
        if program.lacks:
            expected = {key: value for key, value in expected.items() if key not in program.lacks}
        workload.check(expected, program.run_once(), program.extra_keys)
    if baseline is not None and baseline.model is not None and program.model is not None:
        workload.check_weights(baseline.model, program.model)


def names_of(workload: Workload, only: Sequence[str] | None = None) -> list[str]:
    """Return the peers that take part in `workload`."""
    return [
        peer
        for peer in peers.BY_FRAMEWORK[workload.framework]
        if (only is None or peer in only or peer in peers.BASELINES) and workload.takes_part(peer)
    ]


def with_plain(programs: Mapping[Any, Program]) -> dict[Any, Program]:
    """Return programs and, under (name, "plain"), the plain steps that they have."""
    plain = {(name, "plain"): program.plain for name, program in programs.items() if program.plain}
    return {**programs, **plain}


def excess(timings: Mapping[Any, Timing], name: Any, baseline: Any = None) -> dict[str, float]:
    """Return how much longer a program takes than its plain step, or than the baseline's calls.

    Args:
        timings: The timings of the program and the baseline, and of their plain steps.
        name: The program.
        baseline: The baseline; plain steps are subtracted from both.

    Returns:
        Nanoseconds: the median and quartiles of the rounds' differences; under "least" the
        difference of the shortest rounds, if there is a baseline; under "step" the time of the
        plain step or of the calls.
    """
    own = timings[name].rounds
    if baseline is None:
        plain = timings[name, "plain"].rounds
        return {**asdict(Spread.of(own - plain)), "step": Spread.of(plain).median}
    differences, shortest = [], []
    for one in (name, baseline):
        rounds, plain_timing = timings[one].rounds, timings.get((one, "plain"))
        plain = rounds * 0 if plain_timing is None else plain_timing.rounds
        differences.append(rounds - plain)
        shortest.append(float(rounds.min() - plain.min()))
    spread = Spread.of(differences[0] - differences[1])
    return {**asdict(spread), "least": shortest[0] - shortest[1], "step": shortest[1]}


def _measure(
    workloads: Sequence[Workload],
    only: Sequence[str] | None,
    rounds: int,
    round_ms: float,
    threads: int,
) -> list[Measured]:
    """Measure workloads in the same rounds."""
    first = workloads[0]
    if not machine.has(first.framework) or first.is_missing_package:
        return [Measured(one.name, absent=names_of(one, only)) for one in workloads]
    if isinstance(first, DigitsFit):
        return [_measure_fits(first, only, rounds)]
    machine.use_threads(first.framework, threads)
    rounds = min(rounds, first.most_rounds or rounds)
    made, programs = [], {}
    for workload in workloads:
        measured = Measured(workload.name, machine.versions(workload.framework), rounds)
        made.append(measured)
        for peer, program in _prepare(measured, workload, only).items():
            programs[workload.name, peer] = program
    if first.unit == "count":
        made[0].counts = {peer: int(one.run_once()) for (_, peer), one in programs.items()}
    elif rounds and programs:
        timings = interleave(with_plain(programs), rounds, round_ms * 1e6)
        for measured, workload in zip(made, workloads, strict=True):
            _record(
                measured, workload, timings, [key for key in programs if key[0] == workload.name]
            )
    for program in programs.values():
        program.close()
    return made


def _prepare(
    measured: Measured, workload: Workload, only: Sequence[str] | None
) -> dict[str, Program]:
    """Check every installed peer, and return the programs of those that agree."""
    programs = {}
    for peer in names_of(workload, only):
        if not peers.PEERS[peer].available:
            measured.absent.append(peer)
            continue
        try:
            if check(workload, peer) and (program := peers.make(peer, workload)):
                programs[peer] = program
            else:
                measured.without.append(peer)
        except Exception as error:
            # A peer that fails is reported, and the others are measured.
            first_line = (str(error).strip().splitlines() or ["(no message)"])[0]
            measured.failures[peer] = f"{type(error).__name__}: {first_line}"
    return programs


def _record(
    measured: Measured, workload: Workload, timings: Mapping[Any, Timing], keys: list[Any]
) -> None:
    """Record the timings of some programs, which are keyed by workload and peer."""
    for key in keys:
        peer, timed = key[1], timings[key]
        measured.times[peer] = {**asdict(Spread.of(timed.rounds)), "loops": timed.loops}
        if workload.unit == "ratio":
            measured.ratios[peer] = {
                reference: asdict(Spread.of(timed.rounds / timings[key[0], reference].rounds))
                for reference in workload.references
                if (key[0], reference) in timings
            }
        else:
            baseline = (key[0], workload.baseline) if workload.unit == "us" else None
            measured.excesses[peer] = excess(timings, key, baseline)


def _measure_fits(workload: DigitsFit, only: Sequence[str] | None, rounds: int) -> Measured:
    """Measure a figure of fits; a pair of fits, each in a fresh process, is one round."""
    measured = Measured(workload.name, machine.versions(workload.framework))
    if not peers.PEERS[workload.baseline].available:
        measured.absent = [workload.baseline]
        measured.without = [name for name in names_of(workload, only) if name != workload.baseline]
        return measured
    measured.rounds = fits.count(rounds)
    try:
        found = fits.in_turn(workload.framework, workload.optimizer, measured.rounds)
    except (AssertionError, RuntimeError) as error:
        measured.failures["fastnet"] = f"{type(error).__name__}: {error}"
        return measured
    if rounds:
        timings = {
            (workload.name, name): fits.timing(each, workload.figure)
            for name, each in found.items()
        }
        _record(measured, workload, timings, list(timings))
    return measured
