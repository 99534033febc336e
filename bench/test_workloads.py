"""Every workload with every peer: results beside the baseline's, and a benchmark.

`pytest bench` times; `pytest bench --benchmark-disable` only checks that peers do the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench import agreement, machine, peers, timing, worker
from bench.program import Program
from bench.workloads import ALL
from bench.workloads.fit import DigitsFit
from bench.workloads.workload import Workload

# Fewer rounds than the report: pytest-benchmark times each of these a second time.
_ROUNDS = 21
_ROUND_NS = 2_000_000


def _pairs(counts: bool) -> list[Any]:
    """Return each workload that is counted, or timed, with each peer of its framework."""
    return [
        pytest.param(workload, peer, id=f"{workload.name}-{peer}")
        for workload in ALL
        if workload.counts == counts and not isinstance(workload, DigitsFit)
        for peer in peers.BY_FRAMEWORK[workload.framework]
        if workload.only is None or peer in workload.only
    ]


@pytest.fixture(autouse=True)
def framework(request: pytest.FixtureRequest) -> None:
    """Set the framework of the workload up, or skip the test if it is not installed."""
    workload = request.getfixturevalue("workload")
    if not machine.has(workload.framework):
        pytest.skip(f"{workload.framework} is not installed")
    machine.use_one_thread(workload.framework)


def _checked(workload: Workload, peer: str) -> None:
    """Check that `peer` does `workload`; skip the test if it is not here, or cannot."""
    module = peers.load(peer)
    if not module.available():
        pytest.skip(f"{module.NAME} is not installed")
    if not agreement.check(workload, peer):
        pytest.skip(f"{module.NAME} has no such thing")


@contextmanager
def _programs(workload: Workload, names: set[str]) -> Iterator[dict[str, Program]]:
    """Make the programs of those of `names` that are here and can do `workload`."""
    made: dict[str, Program] = {}
    try:
        for name in names:
            peer = peers.load(name)
            program = peer.make(workload) if peer.available() else None
            if program is not None:
                made[name] = program
        yield made
    finally:
        for program in made.values():
            program.close()


@pytest.mark.parametrize(("workload", "peer"), _pairs(counts=False))
def test_step(benchmark: Any, workload: Workload, peer: str) -> None:
    benchmark.group = f"{workload.name}: {workload.title}"
    if benchmark.disabled and workload.takes_long and peer not in workload.references:
        pytest.skip("compiling it takes too long for a quick look")
    if benchmark.disabled:
        benchmark(_checked, workload, peer)
        return
    _checked(workload, peer)
    with _programs(workload, {peer, *workload.references}) as programs:
        program = programs[peer]
        plain = {f"{name}, plain": made.plain for name, made in programs.items() if made.plain}
        timings = timing.interleave({**programs, **plain}, _ROUNDS, _ROUND_NS)
        for reference in workload.references:
            if reference in timings and not (workload.over_a_step or workload.over_calls):
                ratio = timings[peer].ratio_to(timings[reference])
                benchmark.extra_info[f"ratio to {peers.load(reference).NAME}"] = ratio.median
        if workload.over_calls:
            added = worker.over_calls(timings, peer, workload.baseline)
            benchmark.extra_info["us added to the calls"] = added["median"] / 1e3
        if workload.over_a_step:
            excess = timings[peer].excess_over(timings[f"{peer}, plain"])
            benchmark.extra_info["ms more than a step"] = excess.median / 1e6
        if program.steps_per_call > 1:
            benchmark.name += f" x {program.steps_per_call} steps"
        if program.fresh is None:
            loops = timings[peer].loops
            benchmark.pedantic(program.step, (program.argument,), rounds=_ROUNDS, iterations=loops)
        else:
            fresh = program.fresh
            benchmark.pedantic(program.step, setup=lambda: ((fresh(),), {}), rounds=_ROUNDS)


@pytest.mark.parametrize(("workload", "peer"), _pairs(counts=True))
def test_count(workload: Workload, peer: str) -> None:
    module = peers.load(peer)
    if not module.available():
        pytest.skip(f"{module.NAME} is not installed")
    with _programs(workload, {peer}) as programs:
        if not programs:
            pytest.skip(f"{module.NAME} has no such thing")
        count = programs[peer].run_once()
    workload.check(None, count, extra_keys=False)
    if peer == "fastnet":
        assert count <= workload.goals[workload.baseline].limit
