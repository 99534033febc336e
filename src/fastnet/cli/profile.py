"""`fastnet profile`: where a step's microseconds go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastnet.cli.arguments import NETWORK, add_opening, at_least
from fastnet.cli.files import new_file
from fastnet.cli.progress import shown
from fastnet.cli.show import show
from fastnet.cli.usage import UsageError

if TYPE_CHECKING:
    from fastnet.network import BaseNetwork

SUMMARY = "measure where a step's microseconds go: each op, and what is around the ops"
DESCRIPTION = f"""\
Open a network, run steps of it, and print what of a step each op takes and what fastnet itself
takes around the ops.

{NETWORK}

--batch says what the steps are run on. It is one of
  random data     KEY:TYPE:SHAPE for each key, with commas between them. A shape is written
                  32x1x8x8, a type like numpy's: float32, int64, bool. Floats are normal, and whole
                  numbers 0 or 1, or from 0 to below a number after the shape: label:int64:32:10.
  MODULE:NAME     a batch (a dict), an iterable of batches, or a function without arguments that
                  gives either. Arrays become tensors of the network's framework.
  a file.npz      of numpy arrays: its names are the keys.
Batches are made before the first step, so that what a loader is waited for is not measured: go
through it with fastnet.steps, or hand it to fastnet.profile. If there are fewer batches than steps,
they are used again.

The steps are real ones: in mode train they train the network's models, in this process."""
EXAMPLES = """\
examples:
  fastnet profile networks.py:make_network --batch image:float32:32x1x8x8,label:int64:32:10
  fastnet profile networks.py:make_network --batch networks.py:batches --mode eval --steps 500
  fastnet profile networks.py:make_network --batch batch.npz --json before.json --trace before.trace
  fastnet profile networks.py:make_network --batch batch.npz --compare before.json --plot gain.png
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_opening(command)
    command.add_argument("--batch", required=True, metavar="BATCH", help="what steps are run on")
    command.add_argument(
        "--steps",
        type=at_least(1),
        default=100,
        metavar="N",
        help="steps to measure (default: 100)",
    )
    command.add_argument(
        "--skip",
        type=at_least(0),
        default=5,
        metavar="N",
        help="steps to run before these, which are not measured (default: 5)",
    )
    command.add_argument(
        "--eager", action="store_true", help="op by op, where TensorFlow would run a graph"
    )
    command.add_argument(
        "--no-update",
        action="store_true",
        help="put back what the steps change: weights, optimizers, averages, random numbers",
    )
    command.add_argument(
        "--json", type=new_file, metavar="FILE", help="save the profile, to compare with later"
    )
    command.add_argument(
        "--trace",
        type=new_file,
        metavar="FILE",
        help="write the steps on a timeline, for https://ui.perfetto.dev or chrome://tracing",
    )
    command.add_argument(
        "--plot",
        type=new_file,
        metavar="FILE",
        help="draw a step, or with --compare both (.png, .svg or .pdf; needs matplotlib)",
    )
    command.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with a profile that --json has saved"
    )
    command.add_argument(
        "--least",
        type=_percentage,
        default=5.0,
        metavar="PERCENT",
        help="with --compare: the least change that has a verdict (default: 5)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, and write the files that were asked for."""
    if arguments.plot is not None:
        _check_picture(arguments.plot)
    before = None if arguments.compare is None else _saved(arguments)

    import fastnet
    from fastnet.cli.batches import load_batches
    from fastnet.cli.loading import load_network
    from fastnet.errors import MissingKeyError

    network = load_network(arguments.network)
    _check(network, arguments)
    count = arguments.skip + arguments.steps
    batches = load_batches(arguments.batch, network.target_type, count)
    try:
        profile = fastnet.profile(
            network,
            _Made(batches, count),
            mode=arguments.mode,
            epoch=arguments.epoch,
            ds_id=arguments.ds_id,
            steps=arguments.steps,
            skip=arguments.skip,
            eager=arguments.eager,
            desired_output_keys=arguments.outputs,
            update=not arguments.no_update,
        )
    except MissingKeyError as error:
        raise UsageError(f"--batch: {error}") from error
    show(profile)
    drawn: Any = profile
    if before is not None:
        drawn = before.compare(profile, arguments.least / 100)
        print()
        show(drawn)
    if arguments.json is not None:
        profile.to_json(arguments.json)
    if arguments.trace is not None:
        profile.to_trace(arguments.trace)
    if arguments.plot is not None:
        drawn.plot(arguments.plot)
    return 0


class _Made(list[Any]):
    """Batches that are there already, gone through as often as it takes, with a bar.

    Args:
        batches: The batches.
        count: How many steps there will be.
    """

    def __init__(self, batches: list[Any], count: int) -> None:
        super().__init__(batches)
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return shown(islice(cycle(super().__iter__()), self._count), self._count, "steps")


def _percentage(text: str) -> float:
    percent = float(text)
    if not 0 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage from 0 to 100")
    return percent


def _check_picture(path: Path) -> None:
    """See to it that a picture can be drawn, before anything is measured."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib. Install: pip install 'fastnet[profile]'")
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = [f".{kind}" for kind in FigureCanvasBase.get_supported_filetypes()]
    if path.suffix.lower() not in suffixes:
        raise UsageError(
            f"--plot: the suffix of {str(path)!r} is not that of a picture. Use .png, .svg or .pdf."
        )


def _check(network: BaseNetwork, arguments: argparse.Namespace) -> None:
    # explained, not opened: what the first opening has to work out is to be measured
    explanation = network.explain(
        arguments.mode, arguments.epoch, arguments.ds_id, arguments.outputs
    )
    if explanation.error is not None:
        raise UsageError(f"the network cannot be opened like this: {explanation.error}")
    for finding in explanation.findings:
        if (
            finding.kind == "unwritten_output"
        ):  # a batch may have it, but most often it is a typing error
            print(f"fastnet: --outputs: {finding.text}", file=sys.stderr)


def _saved(arguments: argparse.Namespace) -> Any:
    from fastnet.profiling import Profile

    path = arguments.compare
    try:
        profile = Profile.from_json(path)
    except FileNotFoundError:
        raise UsageError(f"--compare: there is no file {str(path)!r}.") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--compare: {str(path)!r} is no profile that --json has saved: {error}"
        ) from error
    asked = arguments.mode, arguments.eager
    there = [(section.mode, section.eager) for section in profile.sections]
    if asked not in there:
        raise UsageError(
            f"--compare: {str(path)!r} is of {', '.join(_way(*one) for one in there)}, not of "
            f"{_way(*asked)}: there would be nothing to compare."
        )
    return profile


def _way(mode: str, eager: bool) -> str:
    return f"--mode {mode} --eager" if eager else f"--mode {mode}"
