"""Tests in a process of their own: for what a process can have only before a framework starts.

A module marked `own_process` is collected like any other, but those of its tests that were chosen
are one item, which runs them in a second pytest, whose import of the module asks for what they need
(see `is_here`).
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.subprocesses import run_python

VARIABLE = "FASTNET_OWN_PROCESS"


def is_here() -> bool:
    """Whether this is the second process, where the tests do run."""
    return VARIABLE in os.environ


class OwnProcess(pytest.Item):
    """Tests of a module, which run in a process of their own."""

    def __init__(self, *, ids: list[str], **rest: Any) -> None:
        super().__init__(**rest)
        self.ids = ids

    def runtest(self) -> None:
        with TemporaryDirectory() as folder:
            ids = Path(folder, "ids")
            ids.write_text("\n".join(self.ids), encoding="utf-8")
            options = ("-q", "-p", "no:cacheprovider", f"@{ids}")
            root = self.config.rootpath
            done = run_python("-m", "pytest", *options, cwd=root, **{VARIABLE: "yes"})
        if done.returncode:
            pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)


def gather(items: list[pytest.Item]) -> None:
    """Put one item in the place of those of each module that is marked."""
    if is_here():
        return
    modules: dict[Any, list[str]] = {}
    for item in items:
        if item.get_closest_marker("own_process") is not None:
            modules.setdefault(item.getparent(pytest.Module), []).append(item.nodeid)
    items[:] = [item for item in items if item.get_closest_marker("own_process") is None]
    for module, ids in modules.items():
        items.append(OwnProcess.from_parent(module, name="in a process of its own", ids=ids))
