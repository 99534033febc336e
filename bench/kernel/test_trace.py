"""A TracedStep beside the call by hand and beside a look-up by signature, on plain objects."""

from __future__ import annotations

from typing import Any

import pytest

from bench import timing
from bench.program import Program

batches = pytest.importorskip("bench.kernel.batches", exc_type=ImportError)

_WAYS = ["by hand", "signature in Python", "TracedStep"]
_BATCHES = ["2 tensors", "20 tensors", "nest of 12", "constants"]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("name", _BATCHES)
def test_every_way_calls_with_the_same_tensors(
    monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(batches, "call", lambda tensors: called.append(tensors) or [batches.RESULT])
    batch = batches.BATCHES[name]
    for each in ("by hand", way):
        result = batches.WAYS[each](batch)(batch)
        assert result == {**batch, "out": batches.RESULT}
    assert called[0] == called[1]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("name", _BATCHES)
def test_traced(benchmark: Any, name: str, way: str) -> None:
    batch = batches.BATCHES[name]
    step = batches.WAYS[way](batch)
    benchmark.group = f"kernel: a traced function of {name}"
    if not benchmark.disabled:
        programs = {
            "this": Program(step, batch),
            "by hand": Program(batches.by_hand(batch), batch),
        }
        timings = timing.interleave(programs, rounds=21, round_ns=2_000_000)
        ratio = timings["this"].ratio_to(timings["by hand"])
        benchmark.extra_info["ratio to the call by hand"] = ratio.median
    benchmark(step, batch)


@pytest.mark.parametrize("traces", [1, 2, 16])
def test_find_the_last_of_several_traces(benchmark: Any, traces: int) -> None:
    benchmark.group = f"kernel: turn by turn through {traces} traces"
    tensor = batches.Tensor("float32", (8, 16))
    turns = [{"x": tensor, "number": number} for number in range(traces)]
    step = batches.by_traced_step(turns[0])

    def run() -> None:
        for batch in turns:
            step(batch)

    benchmark(run)
