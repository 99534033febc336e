"""Every workload with every peer: results beside the baseline's, and a benchmark.

`pytest bench --benchmark-only` times; `pytest bench --benchmark-disable` checks that peers do the
work. `-k mlp_train` selects a row, `-k "mlp_train and fastnet"` one of its peers.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from bench import machine, measure, peers
from bench.timing import Spread, interleave
from bench.workloads import ALL, BY_NAME, TOGETHER
from bench.workloads.fit import DigitsFit
from bench.workloads.workload import Workload

# Fewer rounds than those of the report: pytest-benchmark adds its own.
_ROUNDS = 21
_ROUND_NS = 2_000_000


def _pairs(counted: bool) -> list[Any]:
    """Return each workload that is counted, or timed, with each of its peers."""
    return [
        pytest.param(workload, peer, id=f"{workload.name}-{peer}")
        for workload in ALL
        if (workload.unit == "count") == counted and not isinstance(workload, DigitsFit)
        for peer in measure.names_of(workload)
    ]


def _set_up(workload: Workload, peer: str) -> None:
    """Set up the framework of the workload; skip the test if it or the peer is not installed."""
    if not machine.has(workload.framework):
        pytest.skip(f"{workload.framework} is not installed")
    if workload.is_missing_package:
        pytest.skip(f"{workload.package} is not installed")
    machine.use_threads(workload.framework, 1)
    if not peers.PEERS[peer].available:
        pytest.skip(f"{peers.title(peer)} is not installed")


def _check(workload: Workload, peer: str) -> None:
    if not measure.check(workload, peer):
        pytest.skip(f"{peers.title(peer)} has no such feature")


@pytest.mark.parametrize(("workload", "peer"), _pairs(counted=False))
def test_step(benchmark: Any, workload: Workload, peer: str) -> None:
    _set_up(workload, peer)
    benchmark.group = f"{workload.name}: {workload.title}"
    if benchmark.disabled:
        if workload.takes_long and peer not in workload.references:
            pytest.skip("compiling it takes too long for a quick run")
        benchmark(_check, workload, peer)
        return
    _check(workload, peer)
    names = {peer, *workload.references}
    available = [name for name in sorted(names) if peers.PEERS[name].available]
    made = {name: peers.make(name, workload) for name in available}
    programs = {name: program for name, program in made.items() if program is not None}
    timings = interleave(measure.with_plain(programs), _ROUNDS, _ROUND_NS)
    if workload.unit == "ratio":
        for reference in set(workload.references) & set(programs):
            ratio = Spread.of(timings[peer].rounds / timings[reference].rounds)
            benchmark.extra_info[f"ratio to {peers.title(reference)}"] = ratio.median
    else:
        baseline = workload.baseline if workload.unit == "us" else None
        excess = measure.excess(timings, peer, baseline)
        benchmark.extra_info["ns in excess"] = excess["median"]
    program = programs[peer]
    benchmark.extra_info["steps per call"] = program.steps_per_call
    if program.fresh is None:
        loops = timings[peer].loops
        benchmark.pedantic(program.step, (program.argument,), rounds=_ROUNDS, iterations=loops)
    else:
        fresh = program.fresh
        benchmark.pedantic(program.step, setup=lambda: ((fresh(),), {}), rounds=_ROUNDS)
    for program in programs.values():
        program.close()


@pytest.mark.parametrize(("workload", "peer"), _pairs(counted=True))
def test_count(workload: Workload, peer: str) -> None:
    _set_up(workload, peer)
    program = peers.make(peer, workload)
    if program is None:
        pytest.skip(f"{peers.title(peer)} has no such feature")
    count = program.run_once()
    program.close()
    workload.check(None, count)
    if peer == "fastnet":
        assert count <= workload.goals[workload.baseline].limit


def test_each_workload_is_measured_once() -> None:
    assert sorted(name for names in TOGETHER.values() for name in names) == sorted(BY_NAME)
    assert len(BY_NAME) == len(ALL)


@pytest.mark.skipif(not machine.has("torch"), reason="torch is not installed")
def test_a_peer_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("bench.peers.torch_network")
    other = BY_NAME["identity_1"]
    make = module.make
    monkeypatch.setattr(module, "make", lambda workload, package: make(other, package))
    (found,) = measure.measure(["identity_50"], ["fastnet"], 3, 0.1)
    assert found["failures"] == {"fastnet": "AssertionError: keys ['k50'] are not in the result"}
    assert set(found["times"]) == {"bare", "bare_strict"}


def _with_inner(ops: list[Any]) -> Iterator[Any]:
    for op in ops:
        yield op
        yield from _with_inner(
            [*getattr(op, "ops", ()), *filter(None, [getattr(op, "loss", None)])]
        )


@pytest.mark.skipif(not machine.has("torch"), reason="torch is not installed")
def test_every_op_has_a_case() -> None:
    import fastnet
    from fastnet.op import tensorop
    from fastnet.op.tensorop.loss.loss import PairLoss
    from fastnet.op.tensorop.model.following import FollowsUpdates

    packages = [tensorop]
    for found in pkgutil.iter_modules(tensorop.__path__, f"{tensorop.__name__}."):
        packages += [import_module(found.name)] if found.ispkg else []
    offered = {getattr(package, name) for package in packages for name in package.__all__}
    used: set[type] = set()
    for name in TOGETHER["op_cost"]:
        workload: Any = BY_NAME[name]
        ops = workload.case.ops(
            lambda module: import_module(f"fastnet.{module}"),
            lambda workload=workload: fastnet.build(workload.model, "sgd"),
        )
        for op in _with_inner(ops):
            used.update(type(op).__mro__)
    # An op that follows updates is called by them, not by a step. The others take dozens of calls,
    # beside which their overhead vanishes. A loss without settings costs what Hinge costs.
    exempt = {"SuperLoss", "MixUpBatch", "CutMixBatch"}
    missing = {
        one.__name__
        for one in offered - used
        if inspect.isclass(one)
        and issubclass(one, tensorop.TensorOp)
        and not issubclass(one, FollowsUpdates)
        and not (issubclass(one, PairLoss) and one.__init__ is PairLoss.__init__)
    }
    assert missing == exempt


@pytest.mark.skipif(not machine.has("torch"), reason="torch is not installed")
def test_weights_after_adam_are_compared_by_how_far_they_moved() -> None:
    import torch

    workload: Any = BY_NAME["compiled_mlp_adam"]
    programs: list[Any] = [peers.make("bare", workload) for _ in range(2)]
    for program in programs:
        program.run_once()
    expected, model = [program.model for program in programs]
    workload.check_weights(expected, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-6)  # As rounding errors of small gradients do.
    workload.check_weights(expected, model)
    programs[1].run_once()
    with pytest.raises(AssertionError, match="weight 0 is off by"):
        workload.check_weights(expected, model)
