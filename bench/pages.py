"""The command line of a module that measures one page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.callgrind import NoValgrind


def run(
    module: str, description: str | None, page: Callable[..., tuple[str, Any]], **options: Any
) -> int:
    """Parse the command line, print the page, and save it on request.

    Args:
        module: The name of the module.
        description: Its docstring.
        page: Returns the page in Markdown and its data, or None, given the values of the options.
        options: The default of each option and its description.

    Returns:
        The exit status: 2 without valgrind.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{module}", description=description)
    for name, (default, help) in options.items():
        about = f"{help} (default: {default})"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=about)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write FILE, and data as JSON")
    values = vars(parser.parse_args())
    path = values.pop("save")
    try:
        text, data = page(**values)
    except NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return 2
    print(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
        if data is not None:
            path.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    return 0
