"""Reads the programs of the pages in docs/, and runs them as a reader would: in a process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.subprocesses import run_python

DOCS = Path(__file__).parents[2] / "docs"


def programs(page: str) -> list[str]:
    """Read the blocks of Python of a page.

    Args:
        page: Its name, without its ending.
    """
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(program: str, folder: Path, *words: str, launcher: Sequence[str] = ()) -> str:
    """Run a program in a folder.

    Args:
        program: Its text.
        folder: Where it runs.
        words: Its command line.
        launcher: What comes between Python and the program, such as `-m torch.distributed.run`.

    Returns:
        What it prints.
    """
    (folder / "train.py").write_text(program, encoding="utf-8")
    done = run_python(*launcher, "train.py", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout
