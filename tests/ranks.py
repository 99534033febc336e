"""Processes that train together, in which tests call functions.

They are started once, and run one call after another. When a call fails or takes too long they are
killed, and the next call starts new ones. They are forked from a process that has imported the
frameworks, which takes seconds.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

__all__ = ["Outcome", "Ranks", "join_tensorflow", "ranks", "set_tf_config"]

LIMIT = 300.0
"""The seconds that a call may take."""


class Outcome(NamedTuple):
    """The outcome of a function on one rank: its value, or the text of its error."""

    value: Any = None
    error: str | None = None


class Ranks:
    """The processes of one group.

    Args:
        count: The number of processes.
        join: Called in each process, with its rank, the number of processes, a path and free ports.
    """

    def __init__(self, count: int, join: Callable[[int, int, str, list[int]], object]) -> None:
        self.count = count
        self._join = join
        self._processes: list[Any] = []
        self._pipes: list[Connection[Any, Any]] = []
        self._sockets: list[socket.socket] = []
        atexit.register(self.end)

    def __call__(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what a function of a module returns in each process, by rank."""
        outcomes = self.outcomes(function, *args)
        errors = [f"rank {rank}: {one.error}" for rank, one in enumerate(outcomes) if one.error]
        assert not errors, "\n".join(errors)
        return [one.value for one in outcomes]

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[Outcome]:
        """Return what a function came to in each process; after an error the processes end."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((function, args)))
        end = time.monotonic() + LIMIT
        outcomes = []
        for pipe in self._pipes:
            try:
                in_time = pipe.poll(max(end - time.monotonic(), 0.0))
                found = pickle.loads(pipe.recv_bytes()) if in_time else Outcome(error="No answer.")
            except (EOFError, ConnectionError):
                found = Outcome(error="The process has ended.")
            if found.error is not None:
                # The first failure leaves the others waiting for their peer.
                end = min(end, time.monotonic() + 20)
            outcomes.append(found)
        if any(one.error for one in outcomes):
            self.end()
        return outcomes

    def end(self) -> None:
        """Kill the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        for one in self._sockets:
            one.close()
        self._processes, self._pipes, self._sockets = [], [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        names = ("fastnet.network.torch", "torch.distributed.fsdp")
        if "tensorflow" in sys.modules:
            names = ("h5py", "keras", "tensorflow", "fastnet.network")
        context.set_forkserver_preload(list(names))
        store = os.path.join(tempfile.mkdtemp(), "store")
        self._sockets = [_bind_free_port() for _ in range(self.count)]
        ports = [one.getsockname()[1] for one in self._sockets]
        for rank in range(self.count):
            pipe, other = context.Pipe()
            join = partial(self._join, rank, self.count, store, ports)
            process = context.Process(target=_serve, args=(other, join), daemon=True)
            process.start()
            other.close()
            self._pipes.append(pipe)
            self._processes.append(process)


@cache
def ranks(count: int, backend: str = "gloo") -> Ranks:
    """Return the processes of a torch process group."""
    return Ranks(count, partial(_join_torch, backend))


def _join_torch(backend: str, rank: int, count: int, store: str, ports: list[int]) -> None:
    import torch

    torch.set_num_threads(1)
    if backend == "nccl":
        os.environ["LOCAL_RANK"] = str(rank)
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=LIMIT),
    )


def set_tf_config(rank: int, count: int, store: str, ports: list[int]) -> None:
    """Describe the cluster of this process to TensorFlow."""
    hosts = [f"localhost:{port}" for port in ports]
    task = {"type": "worker", "index": rank}
    os.environ["TF_GRPC_REUSE_PORT"] = "1"
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": task})


def join_tensorflow(rank: int, count: int, store: str, ports: list[int]) -> None:
    """Join the workers of TensorFlow."""
    from fastnet import distributed

    set_tf_config(rank, count, store, ports)
    distributed.init()


def _serve(pipe: Connection[Any, Any], join: Callable[[], object]) -> None:
    join()
    while True:
        try:
            function, args = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            outcome = Outcome(function(*args))
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            outcome = Outcome(error="\n".join([traceback.format_exc(), *notes]))
        pipe.send_bytes(pickle.dumps(outcome))


def _bind_free_port() -> socket.socket:
    """Return a socket that keeps a port from other programs, but not from TensorFlow's servers."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("localhost", 0))
    return bound
