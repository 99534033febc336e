"""Programs run as they are and swapped, each side in a fresh process, and what came of them.

Where both sides make the same tensor calls the results are equal bit for bit. fastnet takes a mean
inside of PyTorch's cross-entropy, where FastEstimator takes it afterwards, and a graph of
TensorFlow may order its sums otherwise: there a loss differs by its rounding, and what follows.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "fastestimator", reason="swaps fastnet into FastEstimator 1.7.0: `make test-fe`"
)

pytestmark = pytest.mark.tf

from tests.subprocesses import run_python

HERE = Path(__file__).parent
LOSS = 1e-6
WEIGHTS = 1e-5

PROGRAMS = ("classify", "explained", "reported", "restored")
FRAMEWORKS = ("torch", "tf")
# Programs whose results are bitwise equal.
EQUAL = {"classify:tf"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each side has made of each program; the sides run at the same time."""
    folder = tmp_path_factory.mktemp("sides")
    wanted = [f"{name}:{framework}" for name in PROGRAMS for framework in FRAMEWORKS]

    def run(side: str) -> dict[str, Any]:
        home = folder / side  # where FastEstimator keeps its history
        home.mkdir()
        command = (HERE / "run_programs.py", side, f"{home}.pkl", *wanted)
        done = run_python(*command, HOME=str(home))
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = pickle.loads((folder / f"{side}.pkl").read_bytes())
        return found

    sides = ("unswapped", "swapped")
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(sides, pool.map(run, sides), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_same_with_and_without(
    outcomes: dict[str, dict[str, Any]], program: str, framework: str
) -> None:
    name = f"{program}:{framework}"
    expected, actual = outcomes["unswapped"][name], outcomes["swapped"][name]
    assert not isinstance(expected, str), f"unswapped:\n{expected}"
    assert not isinstance(actual, str), f"swapped:\n{actual}"
    assert_same(actual, expected, 0 if name in EQUAL else LOSS, name)


def assert_same(actual: Any, expected: Any, rtol: float, path: str) -> None:
    """Compare what a program has returned."""
    assert type(actual) is type(expected), path
    if isinstance(expected, Mapping):
        assert list(actual) == list(expected), path
        for key in expected:
            inner = WEIGHTS if rtol and key in ("weights", "memory") else rtol
            assert_same(actual[key], expected[key], inner, f"{path}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), path
        for place, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, rtol, f"{path}[{place}]")
    elif isinstance(expected, (np.ndarray, float)):
        one, other = np.asarray(actual), np.asarray(expected)
        assert one.dtype == other.dtype, path
        if one.dtype.kind == "f" and rtol:
            # what is near to zero is the sum of what is not
            size = max(1.0, float(np.max(np.abs(other), initial=0.0)))
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * size, err_msg=path)
        else:
            np.testing.assert_array_equal(one, other, err_msg=path)
    else:
        assert actual == expected, path
