"""Starts a fresh process for each measurement, in this interpreter or in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from bench.machine import ONE_THREAD, TF_SETTINGS
from bench.worker import Measured

ROOT = Path(__file__).resolve().parent.parent
# Engines that own their loop do many steps a round, and a busy machine has rounds timed again.
_TIMEOUT_S = 1800
Expired = subprocess.TimeoutExpired


@dataclass(frozen=True)
class Settings:
    """How thoroughly to measure: rounds of each program, and milliseconds a round."""

    rounds: int = 101
    round_ms: float = 2.0


QUICK = Settings(rounds=15, round_ms=1.0)


def run(
    python: str, workloads: Sequence[str], settings: Settings, only: Sequence[str] | None = None
) -> list[Measured]:
    """Measure workloads in one fresh process.

    Args:
        python: The interpreter to start.
        workloads: The workloads' names, all of one framework.
        settings: How thoroughly.
        only: The peers to take, or None for all that `python` has.

    Returns:
        What that process measured of each.

    Raises:
        RuntimeError: If the process fails, with the end of what it printed.
        Expired: If it takes longer than half an hour.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [python, "-m", "bench.worker", *workloads, "--output", str(output)]
        command += ["--rounds", str(settings.rounds), "--round-ms", str(settings.round_ms)]
        if only is not None:
            command += ["--peers", *only]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not output.exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
        return [Measured(**one) for one in json.loads(output.read_text())]


def answer(module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> Any:
    """Run a module of the benchmarks in a fresh process.

    Args:
        module: The module's name.
        arguments: Its command line.
        variables: The process's environment.

    Returns:
        What the last line that it prints is in JSON.

    Raises:
        RuntimeError: If the process fails, with what it printed.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    """Return the process's environment: one thread, `bench` and a built checkout on the path."""
    paths = [str(ROOT)]
    source = ROOT / "src"
    # A checkout that is not built would hide an installed fastnet.
    if any(source.glob(f"fastnet/*{suffix}") for suffix in EXTENSION_SUFFIXES):
        paths.append(str(source))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        **ONE_THREAD,
        "PYTHONPATH": os.pathsep.join(paths),
        **TF_SETTINGS,
    }
