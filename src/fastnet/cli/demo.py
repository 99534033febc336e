"""`fastnet demo`: train a small network on real data."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from fastnet.cli.arguments import UsageError, integer_from

SUMMARY = "train a small network on real data, and time a step beside a hand-written loop"
DESCRIPTION = """\
Train a small convolutional network to classify handwritten digits, in about half a minute, and
time a step of it beside a hand-written loop. The exit status is 1 if the accuracy on held-out
digits is below 97 %. The program is fastnet.demo.digits."""
EXAMPLES = """\
examples:
  fastnet demo
  fastnet demo --framework tf
  fastnet demo --epochs 30 --seed 7

It needs scikit-learn, and torch or tensorflow.
"""

# The modules that the program imports, and the packages that contain them.
_NEEDS = {
    "torch": {"torch": "torch", "sklearn": "scikit-learn"},
    "tf": {"tensorflow": "tensorflow", "sklearn": "scikit-learn"},
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("--framework", choices=tuple(_NEEDS), default="torch", help="(torch)")
    command.add_argument(
        "--epochs", type=integer_from(1), default=20, metavar="N", help="epochs to train (20)"
    )
    command.add_argument("--seed", type=integer_from(0), default=0, metavar="N", help="seed (0)")


def run(arguments: argparse.Namespace) -> int:
    """Run the program."""
    needs = _NEEDS[arguments.framework]
    missing = [package for module, package in needs.items() if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"the demo needs {' and '.join(missing)}. Run: pip install {' '.join(missing)}"
        )
    from fastnet.demo import digits

    return digits.run(arguments.framework, arguments.epochs, arguments.seed)
