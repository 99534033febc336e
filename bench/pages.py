"""The command line of a module that measures one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.callgrind import NoValgrind


def run(module: str, description: str | None, page: Callable[..., str], **options: Any) -> int:
    """Parse the command line, print the page, and save it on request.

    Args:
        module: The name of the module.
        description: Its docstring.
        page: Returns the page, given the values of the options.
        options: The settings of each option, for `ArgumentParser.add_argument`.

    Returns:
        The exit status: 2 without valgrind.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{module}", description=description)
    for name, settings in options.items():
        positional = "nargs" in settings
        parser.add_argument(name if positional else f"--{name}", **settings)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the Markdown there")
    values = vars(parser.parse_args())
    path = values.pop("save")
    try:
        text = page(**values)
    except NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return 2
    print(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
    return 0
