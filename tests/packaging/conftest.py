"""The distributions, built once for all tests of this folder and outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNEL = sorted(source.stem for source in (ROOT / "src/fastnet").glob("_*.pyx"))


@dataclass(frozen=True)
class Distributions:
    """The two files that a release consists of, and the folder that the sdist unpacks to."""

    sdist: Path
    unpacked: Path
    wheel: Path


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; what it printed is the message where it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout


def build(kind: str, source: Path, target: Path, env: dict[str, str] | None = None) -> Path:
    """Build one distribution of `source` into `target` with the tools of this environment."""
    command = (sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", target)
    run(*command, cwd=source, env=env)
    (made,) = target.iterdir()
    return made


def unoptimised(folder: Path) -> dict[str, str]:
    """Have the C compiler optimise nothing: what a wheel holds does not depend on it."""
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {sysconfig.get_config_var("CC") or "cc"} "$@" -O0\n')
    compiler.chmod(0o755)
    return {**os.environ, "CC": str(compiler)}


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """An sdist of the checkout, and a wheel that is built from the unpacked sdist alone."""
    for tool in ("build", "Cython", "setuptools"):
        pytest.importorskip(tool, reason=f"{tool} is needed to build without a network")
    folder = tmp_path_factory.mktemp("distributions")
    sdist = build("--sdist", ROOT, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = build("--wheel", unpacked, folder / "wheel", env=unoptimised(folder))
    return Distributions(sdist, unpacked, wheel)
