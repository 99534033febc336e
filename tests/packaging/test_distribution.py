"""What a release holds, and that it installs where there is neither a compiler nor a framework."""

from __future__ import annotations

import email
import fnmatch
import os
import re
import sys
import zipfile
from email.message import Message
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.packaging.conftest import KERNEL, ROOT, Distributions, run

pytestmark = pytest.mark.slow

# Run in the empty environment. Every check is here so that Python starts there once.
USE_THE_WHEEL = """
import importlib.util
import sys

import fastnet
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable

assert fastnet.__file__.startswith(sys.prefix), fastnet.__file__
assert fastnet.__version__ == sys.argv[1], fastnet.__version__
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
assert importlib.util.find_spec("torch") is None, "the environment is not empty"

table = KeyTable()
assert [table.intern(key) for key in ("x", "y", "x")] == [0, 1, 0]
assert NestMap(int, lambda leaf: leaf + 1)({"a": [1, (2,)]}) == {"a": [2, (3,)]}
for name in sys.argv[2:]:
    module = importlib.import_module(f"fastnet.{name}")
    assert not module.__file__.endswith(".py"), module.__file__

# the command is there, and says what it lacks
from fastnet.cli import main

assert main(["demo"]) == 2
"""


def names_in_wheel(distributions: Distributions) -> list[str]:
    with zipfile.ZipFile(distributions.wheel) as archive:
        return archive.namelist()


def wheel_metadata(distributions: Distributions) -> Message:
    with zipfile.ZipFile(distributions.wheel) as archive:
        (name,) = fnmatch.filter(archive.namelist(), "*.dist-info/METADATA")
        return email.message_from_bytes(archive.read(name))


def test_wheel_has_the_compiled_and_typed_package_alone(distributions: Distributions) -> None:
    names = names_in_wheel(distributions)
    for name in KERNEL:
        assert f"fastnet/{name}.pyi" in names
        assert any(f"fastnet/{name}{suffix}" in names for suffix in EXTENSION_SUFFIXES)
    source = ROOT / "src"
    for pattern in ("fastnet/**/*.py", "fastnet/*.pxd", "fastnet/py.typed"):
        assert {path.relative_to(source).as_posix() for path in source.glob(pattern)} <= set(names)
    assert not [name for name in names if name.endswith((".pyx", ".c"))]
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fastnet", f"fastnet_runtime-{version('fastnet-runtime')}.dist-info"}


def test_sdist_has_all_that_builds_and_tests_need(
    distributions: Distributions,
) -> None:
    unpacked = distributions.unpacked
    for pattern in ("src/fastnet/*.px[dy]", "src/fastnet/*.pyi", "src/fastnet/**/*.py"):
        for source in ROOT.glob(pattern):
            assert (unpacked / source.relative_to(ROOT)).is_file(), source
    for name in ("LICENSE", "Makefile", "README.md", "constraints/dev.txt", "setup.py"):
        assert (unpacked / name).is_file(), name
    assert (unpacked / Path(__file__).relative_to(ROOT)).is_file()
    # build/ and *.egg-info in the unpacked folder are the wheel's; only the archive is asked.
    listing = run(sys.executable, "-m", "tarfile", "-l", distributions.sdist, cwd=ROOT)
    assert not re.findall(r"\S+\.(?:c|html|so|pyc|pyd)\b", listing)


def test_metadata_names_license_python_and_the_one_hard_dependency(
    distributions: Distributions,
) -> None:
    metadata = wheel_metadata(distributions)
    assert metadata["Name"] == "fastnet-runtime"
    assert metadata["Version"] == version("fastnet-runtime")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.10"
    requires = metadata.get_all("Requires-Dist") or []
    assert [line for line in requires if "extra ==" not in line] == ["numpy>=1.26"]


def test_wheel_works_in_an_empty_environment_without_a_compiler(
    distributions: Distributions, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    python = venv / "bin/python"
    # No compiler is on the path, so that nothing could be built by accident either.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": str(venv / "bin"), "CC": "/bin/false"}
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "-q", "--no-compile", "-c", ROOT / "constraints/dev.txt"]
    run(*install, distributions.wheel, cwd=tmp_path, env=env)
    run(*pip, "check", cwd=tmp_path, env=env)
    run(python, "-c", USE_THE_WHEEL, version("fastnet-runtime"), *KERNEL, cwd=tmp_path, env=env)
    assert "run-fastestimator" in run(venv / "bin/fastnet", "--help", cwd=tmp_path, env=env)
    installed = run(*pip, "list", "--format=freeze", cwd=tmp_path, env=env)
    packages = set(re.findall(r"^([\w.-]+)==", installed, flags=re.MULTILINE))
    assert packages - {"pip", "setuptools"} == {"fastnet-runtime", "numpy"}
