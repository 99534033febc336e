"""Detection of installed packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastnet.backend.packages import is_installed


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", True),
        ("C:\\Python\\Lib\\site-packages\\yaml\\__init__.py", True),
        ("/home/me/site-packages-of-mine/program.py", False),
        ("", False),
    ],
)
def test_paths(file: str, installed: bool) -> None:
    assert is_installed(file) is installed


def test_this_interpreter() -> None:
    assert is_installed(str(pytest.__file__))
    assert not is_installed(str(json.__file__))
    assert not is_installed(str(Path(__file__)))
