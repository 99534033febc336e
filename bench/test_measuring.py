"""What measuring costs: the step that is timed is really measured, and does the loop's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bench import agreement, machine
from bench.peers import bare
from bench.peers import fastnet as peer
from bench.program import Program
from bench.workloads.measuring import WORKLOADS

if not machine.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import fastnet

WORKLOAD = WORKLOADS[0]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The networks that were profiled, each with its profile."""
    found: list[tuple[Any, Any]] = []
    profile = fastnet.profile

    @contextmanager
    def seen(network: Any) -> Iterator[Any]:
        with profile(network) as one:
            found.append((network, one))
            yield one

    monkeypatch.setattr(fastnet, "profile", seen)
    return found


def _program(make: Any) -> Program:
    program = make(WORKLOAD)
    assert isinstance(program, Program)
    return program


def test_the_profile_has_every_op_of_every_step(made: list[tuple[Any, Any]]) -> None:
    program = _program(peer.make)
    assert program.plain is not None
    for _ in range(3):
        program.step(program.argument)
        program.plain.step(program.argument)
    program.close()
    ((network, profile),) = made
    ops = [row for row in profile.rows if row.kind == "op"]
    assert [row.count for row in ops] == [3] * WORKLOAD.ops_measured
    with fastnet.profile(network):  # which it refuses where a profile was never left
        pass


def test_rounds_that_go_on_begin_fresh_profiles(made: list[tuple[Any, Any]]) -> None:
    program = _program(peer.make)
    for _ in range(25):
        program.before_a_round()
        program.step(program.argument)
    program.close()
    steps = [sum(section.steps for section in profile.sections) for _, profile in made]
    assert len(steps) > 1
    assert sum(steps) == 25
    assert max(steps) <= 10


def test_by_hand_the_time_is_noted_before_each_op_and_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[float] = []

    def clock() -> float:
        notes.append(0.0)
        return 0.0

    monkeypatch.setattr(bare, "perf_counter", clock)
    program = _program(bare.make)
    assert program.plain is not None
    program.plain.step(program.argument)
    assert not notes
    program.step(program.argument)
    assert len(notes) == WORKLOAD.ops_measured + 1


def test_results_of_the_measured_step_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agreement.check(WORKLOAD, "fastnet")
    make = peer.make
    last = WORKLOAD.chain.keys[-1]

    def wrong(workload: Any) -> Program:
        program = make(workload)
        assert program is not None
        step = program.step
        return replace(program, step=lambda batch: {**step(batch), last: torch.zeros(8, 16)})

    monkeypatch.setattr(peer, "make", wrong)
    with pytest.raises(AssertionError, match=f"{last}: "):
        agreement.check(WORKLOAD, "fastnet")
