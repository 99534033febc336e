"""Shows a result on the terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["show"]


def show(result: object) -> None:
    """Print what has a plain form and one for rich: in colour on a terminal, if rich is there."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        Console().print(result)
    else:
        print(result)
