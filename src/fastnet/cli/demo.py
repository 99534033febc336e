"""`fastnet demo`: a small network, trained on real data."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from fastnet.cli.arguments import at_least, one_of
from fastnet.cli.usage import UsageError

SUMMARY = "train a small network on real data, and show what a step costs"
DESCRIPTION = """\
Train a small convolutional network to read handwritten digits, in about half a minute, and time a
step of it beside the same step written by hand. Ends with status 1 if it reads less than 97 % of
the digits that it was not trained on. The program is fastnet.demo.digits: written to be read."""
EXAMPLES = """\
examples:
  fastnet demo
  fastnet demo --framework tf
  fastnet demo --epochs 30 --seed 7

What it needs: pip install 'fastnet[demo]', or 'fastnet[demo-tf]'.
"""

# What the program imports, by the name that it is installed by.
_NEEDS = {
    "torch": {"torch": "torch"},
    "tf": {"tensorflow": "tensorflow"},
}
_NEEDS_ALWAYS = {"sklearn": "scikit-learn", "rich": "rich", "tqdm": "tqdm"}
_EXTRAS = {"torch": "demo", "tf": "demo-tf"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.add_argument(
        "--framework",
        type=one_of("framework", _NEEDS),
        default="torch",
        metavar="NAME",
        help="torch or tf (default: torch)",
    )
    command.add_argument(
        "--epochs", type=at_least(1), default=20, metavar="N", help="how long to train (20)"
    )
    command.add_argument(
        "--rounds", type=at_least(1), default=30, metavar="N", help="rounds to time a step in (30)"
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of weights, order and split (0)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program; give its exit status."""
    _check(arguments.framework)
    from fastnet.demo import digits

    return digits.run(arguments.framework, arguments.epochs, arguments.rounds, arguments.seed)


def _check(framework: str) -> None:
    needs = {**_NEEDS[framework], **_NEEDS_ALWAYS}
    missing = [name for module, name in needs.items() if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"the demo needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed. Install: pip install 'fastnet[{_EXTRAS[framework]}]'"
        )
