"""The stubs of the compiled modules agree with what was compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import KERNEL, ROOT, run

# What Cython adds by itself, what type checkers alone see, and the signatures of special methods of
# extension types, which cannot be read at run time.
NOT_COMPARED = r"""
fastnet\._\w+\.__(test|pyx_capi)__
fastnet\._\w+\.(\w+\.)?__(reduce|setstate)_cython__
fastnet\._\w+\.\w+\.__\w+__
fastnet\._\w+\.[A-Z]
"""

# The kernel imports nothing but itself; what the package around it imports takes mypy a minute.
SETTINGS = """
[mypy]
mypy_path = src
follow_imports = skip
"""


@pytest.mark.slow
def test_stubs_agree_with_the_compiled_modules(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(NOT_COMPARED)
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    options = ["--mypy-config-file", settings]
    options += ["--ignore-disjoint-bases", "--ignore-unused-allowlist", "--allowlist", allowed]
    modules = [f"fastnet.{name}" for name in KERNEL]
    run(sys.executable, "-m", "mypy.stubtest", "--concise", *options, *modules, cwd=ROOT)
