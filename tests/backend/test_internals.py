"""No private name of a framework is needed: each program does the same without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.backend.without_names import EVERYTHING, NOTHING, names_of

ROOT = Path(__file__).parents[2]


@lru_cache
def outcomes(framework: str) -> dict[str, str | None]:
    """Run the programs of a framework without each of its private names."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("FASTNET_PUBLIC_ONLY", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.without_names", framework],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", [NOTHING, *names_of("torch"), EVERYTHING])
def test_torch_without(name: str) -> None:
    assert outcomes("torch")[name] is None
