"""The worker: calls a function of the benchmarks in a process of its own.

Every measurement goes through `call`, `call_ranks` or, under callgrind, `command`: arguments and
results are JSON, and the process computes on one thread unless a function sets more.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from bench.machine import TF_SETTINGS, settings_of_threads

ROOT = Path(__file__).resolve().parent.parent
# Engines that own their loop run many steps a round, and disturbed rounds are repeated.
_TIMEOUT_S = 1800


def call(
    function: str,
    *arguments: Any,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Call a function in a fresh process.

    Args:
        function: The function, as "module:name".
        arguments: Its arguments.
        python: The interpreter.
        variables: Additional environment variables.

    Returns:
        The result of the function.

    Raises:
        RuntimeError: If the process fails or takes too long, with the end of its output.
    """
    return _call(function, arguments, [{**environment(), **(variables or {})}], python)


def call_ranks(function: str, *arguments: Any, ranks: int) -> Any:
    """Call a function in several processes that form a process group, as torchrun starts them.

    Returns:
        The result of the first rank.

    Raises:
        RuntimeError: If one of the processes fails or takes too long.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    environments = []
    for rank in range(ranks):
        settings = {**common, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        named = {name: str(value) for name, value in settings.items()}
        environments.append({**environment(), **named})
    return _call(function, arguments, environments, sys.executable)


def command(
    function: str, arguments: Sequence[Any], output: str = os.devnull, python: str = sys.executable
) -> list[str]:
    """Return the command line that calls a function and writes its result to a file."""
    return [python, "-m", "bench.processes", function, json.dumps(arguments), output]


def environment() -> dict[str, str]:
    """Return the environment of a process, with `bench` and a built checkout on its path."""
    paths = [str(ROOT)]
    source = ROOT / "src"
    # A checkout that is not built would hide an installed fastnet.
    if any(source.glob(f"fastnet/*{suffix}") for suffix in EXTENSION_SUFFIXES):
        paths.append(str(source))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    settings = {**settings_of_threads(1), **TF_SETTINGS}
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)}


def last_lines(text: str, count: int = 15) -> str:
    """Return the end of a process's output."""
    return "\n".join(text.splitlines()[-count:])


def _call(
    function: str, arguments: Sequence[Any], environments: list[dict[str, str]], python: str
) -> Any:
    """Run the processes, and return the result of the first."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [str(Path(folder, str(index))) for index in range(len(environments))]
        processes = [
            subprocess.Popen(
                command(function, arguments, output, python),
                cwd=ROOT,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for output, variables in zip(outputs, environments, strict=True)
        ]
        try:
            for process in processes:
                printed, _ = process.communicate(timeout=_TIMEOUT_S)
                if process.returncode:
                    raise RuntimeError(
                        f"{function}{tuple(arguments)} ended with {process.returncode}:\n"
                        f"{last_lines(printed)}"
                    )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{function}{tuple(arguments)} took too long") from error
        finally:
            for process in processes:
                process.kill()
        return json.loads(Path(outputs[0]).read_text())


def main() -> None:
    """Call the function that the command line names."""
    function, arguments, output = sys.argv[1:]
    module, _, name = function.partition(":")
    result = getattr(import_module(module), name)(*json.loads(arguments))
    Path(output).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
