"""Reads docs/overhead.md: its commands, and what it shows of what they print.

    python -m tests.docs.overhead_page

runs the commands, writes the rows that the page shows with new numbers, and makes its pictures
again. Nothing else should be running then.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "overhead.md"

_BLOCK = re.compile(r"(```console\n(.*?)```\n)(\n```text\n(.*?)```\n)?", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of the page.

    Attributes:
        words: The command, without `fastnet`.
        output: What the page shows of what it prints, or None.
    """

    words: list[str]
    output: str | None

    def __str__(self) -> str:
        return shlex.join(self.words)


def read(text: str) -> list[Shown]:
    """Read the commands, in order."""
    found = []
    for block in _BLOCK.finditer(text):
        program, *words = shlex.split(block[2].replace("\\\n", ""))
        assert program == "fastnet", program
        found.append(Shown(words, block[4]))
    return found


def pictures(text: str) -> list[str]:
    """List the pictures that the page shows, as paths from the root."""
    return [f"docs/{name}" for name in re.findall(r"!\[[^]]*\]\((pictures/[^)]*)\)", text)]


def first_column(line: str) -> str:
    """Read what a line of a table is about, without the number of steps."""
    return re.sub(r"\b\d+ steps", "steps", re.split(r"\s{2,}", line)[0])


def excerpt(printed: str, shown: str) -> str:
    """Take the lines of what was printed that are shown, with "..." for lines left out."""
    names = {first_column(line) for line in shown.splitlines()}
    if "..." not in names:
        return printed
    lines = [line if first_column(line) in names else "..." for line in printed.splitlines()]
    kept = [
        line
        for line, before in zip(lines, ["", *lines], strict=False)
        if line != "..." or before != "..."
    ]
    return "\n".join(kept) + "\n"


def renew(text: str) -> str:
    """Run the commands; return the page with what they printed."""

    def run(block: re.Match[str]) -> str:
        _, *words = shlex.split(block[2].replace("\\\n", ""))
        print(shlex.join(words), file=sys.stderr)
        variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "fastnet", *words],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        if block[3] is None:
            return block[1]
        return f"{block[1]}\n```text\n{excerpt(done.stdout, block[4])}```\n"

    return _BLOCK.sub(run, text)


if __name__ == "__main__":
    PAGE.write_text(renew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
