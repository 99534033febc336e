"""That what is left behind is found, where it is left each time."""

from __future__ import annotations

import sys

import pytest

from tests.leaks import left_behind

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="counts blocks of memory as CPython does"
)


def test_what_leaks() -> None:
    kept: list[list[str]] = []
    objects, blocks = left_behind(lambda: kept.extend([str(n)] for n in range(10_000, 20_000)))
    # Not all of them: what threads of the process free meanwhile is counted too.
    assert objects > 9_000
    assert blocks > 18_000


def test_a_cache_that_fills() -> None:
    cache: dict[int, list[int]] = {}

    def work() -> None:
        for n in range(300):
            cache.setdefault(n, [n])

    objects, blocks = left_behind(work)
    assert objects < 20
    assert blocks < 200
