"""Count the instructions of one dispatched op with callgrind: `python -m bench.instructions`.

Instructions, unlike time, are the same on a busy machine. Each count is a difference: of two runs
of different lengths, so that starting Python cancels out, and of two chains, so that what a step
costs once does too. Every way calls the same `forward`, written in Python, whose instructions are
included.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys

from bench.runner import environment

_WAYS = ("by hand", "dict in Python", "Plan.predict", "Plan.step")
_SHORT, _LONG = 1, 41
_STEPS = 1000


def _run(way: str, length: int, steps: int) -> None:
    """Run steps of a chain; this is what callgrind watches."""
    from bench.kernel.chains import WAYS, Chain

    chain = Chain(length)
    step = WAYS[way](chain)
    batch = chain.batch
    for _ in range(steps):
        step(batch)


def _count(way: str, length: int, steps: int) -> int:
    """Return how many instructions a whole process takes for `steps` steps."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "bench.instructions", "--child", way, str(length), str(steps)]
    # With hashes that differ from run to run, so do the dicts' collisions.
    variables = {**environment(), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return int(found.group(1))


def _per_step(way: str, length: int) -> float:
    """Return the instructions of one step."""
    more, fewer = _count(way, length, 2 * _STEPS), _count(way, length, _STEPS)
    return (more - fewer) / _STEPS


def main(arguments: list[str] | None = None) -> int:
    """Count, and print a line for each way of running a chain."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        way, length, steps = options.child
        _run(way, int(length), int(steps))
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted", file=sys.stderr)
        return 2
    print(f"{'':16}{'per op':>10}{'per step':>10}")
    # The first run writes byte code, which the others find.
    _count(_WAYS[0], _SHORT, 1)
    for way in _WAYS:
        short, long = _per_step(way, _SHORT), _per_step(way, _LONG)
        per_op = (long - short) / (_LONG - _SHORT)
        print(f"{way:16}{per_op:10.0f}{short - per_op * _SHORT:10.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
