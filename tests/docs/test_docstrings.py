"""The examples in docstrings run, those of compiled modules too."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import fastnet

SOURCE = Path(fastnet.__file__).parents[1]
FILES = [path for path in SOURCE.glob("fastnet/**/*.py*") if path.suffix in (".py", ".pyx")]
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if ">>> " in path.read_text(encoding="utf-8")
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert found.attempted > 0
    assert found.failed == 0
