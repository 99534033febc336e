"""`fastnet profile`: measure where the time of a step goes."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastnet.cli.arguments import NETWORK, UsageError, add_context, integer_from, new_file

SUMMARY = "measure the time of each op in a step, and of everything around the ops"
DESCRIPTION = f"""\
Run steps of a network, and print the time of each op and of everything around the ops. Models,
optimizers and random number generators are restored afterwards, unless --update is given.

{NETWORK}

--batch is one of
  random data     KEY:DTYPE:SHAPE for each key, separated by commas, such as image:float32:32x1x8x8.
                  Floats are normal. Integers are 0 or 1, or from 0 to below a number after the
                  shape: label:int64:32:10.
  MODULE:NAME     a batch (a dict), an iterable of batches, or a function without arguments that
                  returns either. Arrays become tensors of the network's framework.
  a file.npz      of numpy arrays, whose names are the keys.
Batches are made before the first step, and used again if there are fewer than steps."""
EXAMPLES = """\
examples:
  fastnet profile networks.py:make_network --batch image:float32:32x1x8x8,label:int64:32:10
  fastnet profile networks.py:make_network --batch networks.py:batches --mode eval --steps 500
  fastnet profile networks.py:make_network --batch batch.npz --json before.json --trace before.trace
  fastnet profile networks.py:make_network --batch batch.npz --compare before.json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_context(command)
    command.add_argument("--batch", required=True, metavar="BATCH", help="the batches to run")
    command.add_argument(
        "--steps",
        type=integer_from(1),
        default=100,
        metavar="N",
        help="steps to measure (default: 100)",
    )
    command.add_argument(
        "--skip",
        type=integer_from(0),
        default=5,
        metavar="N",
        help="steps to run before these, unmeasured (default: 5)",
    )
    command.add_argument("--eager", action="store_true", help="run eagerly, not as a graph")
    command.add_argument(
        "--update", action="store_true", help="keep what the steps change, as in training"
    )
    command.add_argument("--json", type=new_file, metavar="FILE", help="save the profile")
    command.add_argument(
        "--trace",
        type=new_file,
        metavar="FILE",
        help="write a timeline for https://ui.perfetto.dev or chrome://tracing",
    )
    command.add_argument(
        "--plot",
        type=new_file,
        metavar="FILE",
        help="draw the profile (.png, .svg or .pdf; needs matplotlib)",
    )
    command.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with a profile saved by --json"
    )


def run(arguments: argparse.Namespace) -> int:
    """Profile the network, print the profile, and write the files."""
    if arguments.plot is not None and find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib. Run: pip install matplotlib")
    if arguments.plot is not None and arguments.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot: {str(arguments.plot)!r} does not end in .png, .svg or .pdf.")
    before = None if arguments.compare is None else _load_profile(arguments)

    import fastnet
    from fastnet.cli.loading import load_batches, load_network
    from fastnet.errors import MissingKeyError

    network = load_network(arguments.network)
    batches = load_batches(arguments.batch, network.target_type, arguments.skip + arguments.steps)
    try:
        profile = fastnet.profile(
            network,
            batches,
            mode=arguments.mode,
            epoch=arguments.epoch,
            ds_id=arguments.ds_id,
            steps=arguments.steps,
            skip=arguments.skip,
            eager=arguments.eager,
            desired_output_keys=arguments.outputs,
            update=arguments.update,
        )
    except MissingKeyError as error:
        raise UsageError(f"--batch: {error}") from error
    except Exception:
        request = arguments.mode, arguments.epoch, arguments.ds_id, arguments.outputs
        problem = network.explain(*request).error
        if problem is None:
            raise
        raise UsageError(f"the network cannot be entered: {problem}") from None
    print(profile)
    if before is not None:
        print(f"\n{before.compare(profile)}")
    if arguments.json is not None:
        profile.to_json(arguments.json)
    if arguments.trace is not None:
        profile.to_trace(arguments.trace)
    if arguments.plot is not None:
        profile.plot(arguments.plot)
    return 0


def _load_profile(arguments: argparse.Namespace) -> Any:
    from fastnet.profiling import Profile

    path = arguments.compare
    try:
        profile = Profile.from_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--compare: {str(path)!r} is not a file of --json: {error}") from error
    saved = [(section.mode, section.eager) for section in profile.sections]
    if (arguments.mode, arguments.eager) not in saved:
        saved_names = ", ".join(section.name for section in profile.sections)
        name = f"{arguments.mode}, eager" if arguments.eager else arguments.mode
        raise UsageError(f"--compare: {str(path)!r} is of {saved_names}, not of {name}.")
    return profile
