"""The calls whose instructions are counted, under pytest-benchmark."""

from __future__ import annotations

from typing import Any

import pytest

measures = pytest.importorskip("bench.kernel.measures", exc_type=ImportError)


@pytest.mark.parametrize("measure", measures.measures(), ids=lambda measure: measure.name)
def test_kernel(benchmark: Any, measure: Any) -> None:
    benchmark.group = f"kernel: {measure.title}"
    benchmark.extra_info["units"] = measure.times
    benchmark(measure.more.function, *measure.more.arguments)
