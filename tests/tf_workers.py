"""Two workers of TensorFlow in processes of their own, which run what a test gives them.

A test calls `Workers.run` with a function of its module: each worker imports the module, calls the
function and sends back what it returned. A worker that does not answer in time is ended, and so are
the others.

Workers are forked off a process that has imported TensorFlow, which takes seconds, and started none
of it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# imported, so that what a worker sends is of the same classes here and there
_PROGRAM = "from tests.tf_workers import fork_workers; fork_workers()"
_KEY = b"fastnet"


@dataclass
class Raised:
    """What a worker raised instead of a result."""

    kind: str
    text: str
    notes: list[str]
    trace: str
    seconds: float


class Workers:
    """Processes that are the workers of one cluster on this machine.

    Args:
        count: How many.
        prepare: The name of a function of this module, called before anything else.
    """

    def __init__(self, count: int = 2, prepare: str = "start") -> None:
        self._folder = TemporaryDirectory()
        self._outputs = [Path(self._folder.name, f"output{place}") for place in range(count)]
        hosts = [f"localhost:{port}" for port in _free_ports(count)]
        self._connections: list[Connection] = []
        with Listener(None, authkey=_KEY) as listener:
            self._processes = [
                _forked(
                    prepare,
                    {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": place}},
                    output=str(output),
                    address=str(listener.address),
                )
                for place, output in enumerate(self._outputs)
            ]
            listener._listener._socket.settimeout(120)  # type: ignore[attr-defined]
            found = [listener.accept() for _ in range(count)]
        ranks = [one.recv() for one in found]
        self._connections = [found[ranks.index(place)] for place in range(count)]

    def run(
        self, function: Callable[..., Any], *args: Any, seconds: float = 100, **each: list[Any]
    ) -> list[Any]:
        """Call a function in each worker.

        Args:
            function: A function of a test module.
            args: Its arguments.
            seconds: How long the workers have.
            each: Further arguments, of which each worker gets one of a list.

        Returns:
            What each has returned.

        Raises:
            AssertionError: If one of them raises, ends or does not answer.
        """
        results = self.try_to_run(function, *args, seconds=seconds, **each)
        for place, result in enumerate(results):
            assert not isinstance(result, Raised), f"Worker {place}:\n{result.trace}"
        return results

    def try_to_run(
        self, function: Callable[..., Any], *args: Any, seconds: float = 100, **each: list[Any]
    ) -> list[Any]:
        """Call a function in each worker, which may raise.

        Args:
            function: A function of a test module.
            args: Its arguments.
            seconds: How long the workers have.
            each: Further arguments, of which each worker gets one of a list.

        Returns:
            What each has returned, or `Raised`; None for one whose process has ended.
        """
        assert self._connections, "These workers were ended."
        place_of = function.__module__, function.__qualname__
        for place, connection in enumerate(self._connections):
            own = {name: values[place] for name, values in each.items()}
            connection.send((place_of, args, own))
        end = time.monotonic() + seconds
        results: list[Any] = []
        for place, connection in enumerate(self._connections):
            if not connection.poll(max(0.0, end - time.monotonic())):
                outputs = self.outputs()
                self.end()
                raise AssertionError(f"Worker {place} does not answer:\n{outputs}")
            try:
                results.append(connection.recv())
            except EOFError:
                results.append(None)
        return results

    @property
    def are_there(self) -> bool:
        """Whether all of them are alive: between calls, a worker says nothing but its end."""
        return bool(self._connections) and not any(one.poll() for one in self._connections)

    def outputs(self) -> str:
        """Return what all workers have printed."""
        return "\n".join(one.read_text(errors="replace")[-4000:] for one in self._outputs)

    def end(self) -> None:
        """End all processes."""
        if not self._connections:
            return
        for process in self._processes:
            # one that has ended keeps its number, as nobody has waited for it
            os.kill(process, signal.SIGKILL)
        for connection in self._connections:
            with suppress(EOFError, ConnectionError):
                connection.recv()
            connection.close()
        self._connections = []
        self._folder.cleanup()


_forkers: list[subprocess.Popen[str]] = []


def _forked(prepare: str, config: dict[str, Any], *, output: str, address: str) -> int:
    """Have a worker forked, and return the number of its process."""
    if not _forkers:
        forker = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(forker.communicate)
        _forkers.append(forker)
    told, tells = _forkers[0].stdin, _forkers[0].stdout
    assert told is not None
    assert tells is not None
    print(json.dumps([prepare, config, output, address]), file=told, flush=True)
    return int(tells.readline())


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


# ---------------------------------------------------------------------- in a worker


def start() -> None:
    """Come together as `fastnet.distributed` does it."""
    from fastnet.backend.tf.processes import start

    start()


def start_by_hand() -> None:
    """Come together by a strategy of the program's own."""
    import tensorflow as tf

    strategies.append(tf.distribute.MultiWorkerMirroredStrategy())


strategies: list[Any] = []


def alone() -> None:
    """Do not come together."""


def fork_workers() -> None:
    """Fork a worker for each line that is read, and print the number of its process."""
    for framework in ("h5py", "keras", "tensorflow", "fastnet.network"):
        importlib.import_module(framework)
    # what is never collected is shared with the workers
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            try:
                work(*json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        print(process, flush=True)


def work(prepare: str, config: dict[str, Any], output: str, address: str) -> None:
    """Be a worker."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["TF_CONFIG"] = json.dumps(config)
    connection = Client(address, authkey=_KEY)
    connection.send(config["task"]["index"])
    globals()[prepare]()
    while True:
        try:
            (module, name), args, each = connection.recv()
        except EOFError:
            return
        began = time.monotonic()
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            result = function(*args, **each)
        except BaseException as error:
            notes = list(getattr(error, "__notes__", ()))
            result = Raised(
                type(error).__name__,
                str(error),
                notes,
                traceback.format_exc(),
                time.monotonic() - began,
            )
        connection.send(result)
