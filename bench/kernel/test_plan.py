"""The Plan beside the loop by hand and beside an interpreter in Python, on plain objects."""

from __future__ import annotations

from typing import Any

import pytest

from bench import timing
from bench.program import Program

chains = pytest.importorskip("bench.kernel.chains", exc_type=ImportError)

_WAYS = list(chains.WAYS)
_SHAPES = {"1 op": (1, 1), "50 ops": (50, 1), "50 ops, lists": (50, 2), "1,000 ops": (1000, 1)}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("shape", _SHAPES)
def test_every_way_passes_the_values_on(shape: str, way: str) -> None:
    chain = chains.Chain(*_SHAPES[shape])
    result = chains.WAYS[way](chain)(chain.batch)
    for first, last in zip(chain.keys[0], chain.keys[-1], strict=True):
        assert result[last] is chain.batch[first]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("shape", _SHAPES)
def test_chain(benchmark: Any, shape: str, way: str) -> None:
    chain = chains.Chain(*_SHAPES[shape])
    step = chains.WAYS[way](chain)
    benchmark.group = f"kernel: {shape}"
    if not benchmark.disabled:
        programs = {
            "this": Program(step, chain.batch),
            "by hand": Program(chain.by_hand(), chain.batch),
        }
        timings = timing.interleave(programs, rounds=21, round_ns=2_000_000)
        ratio = timings["this"].ratio_to(timings["by hand"])
        benchmark.extra_info["ratio to the loop by hand"] = ratio.median
    benchmark(step, chain.batch)


@pytest.mark.parametrize("length", [50, 1000])
def test_lay_out_a_plan(benchmark: Any, length: int) -> None:
    benchmark.group = f"kernel: resolve and lay out {length:,} ops"
    benchmark(chains.Chain(length).plan)
