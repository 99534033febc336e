"""Functions run in several processes that come together: ranks, on the loopback.

The processes are forked from one that has imported torch already, so that a test pays for that
once. Each test has a time by which all of them have ended, or are killed and told of.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import pytest

__all__ = ["Ended", "ended", "free_port", "in_ranks", "rank_count"]

SECONDS = 120.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "fastnet.network.torch"])


@dataclass
class Ended:
    """What a rank came to: what its function returned, or the text of its error."""

    rank: int
    value: Any = None
    error: str | None = None
    exitcode: int | None = None


def in_ranks(
    count: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS, **settings: Any
) -> list[Any]:
    """Call a function in each of several processes, and return what each of them returned.

    Args:
        count: How many.
        function: A function of a module; it finds in its environment what torchrun sets.
        args: Its arguments.
        seconds: By when all are to have ended.
        settings: Variables for the environment.
    """
    ranks = ended(count, function, *args, seconds=seconds, **settings)
    failed = [one for one in ranks if one.error is not None]
    if failed:
        texts = [f"rank {one.rank}, exit code {one.exitcode}:\n{one.error}" for one in failed]
        pytest.fail("\n".join(texts))
    return [one.value for one in ranks]


def ended(
    count: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS, **settings: Any
) -> list[Ended]:
    """As `in_ranks`, but what ranks fail with is returned as well."""
    port = free_port()
    processes, pipes = [], []
    for rank in range(count):
        ours, theirs = _context.Pipe(duplex=False)
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": count,
            "LOCAL_WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **settings,
        }
        process = _context.Process(
            target=_serve, args=(theirs, environment, list(sys.path), function, args), daemon=True
        )
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        return _await(processes, pipes, monotonic() + seconds)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _await(processes: Sequence[Any], pipes: Sequence[Connection], end: float) -> list[Ended]:
    ranks = [Ended(rank) for rank in range(len(processes))]
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes:
        left = end - monotonic()
        ready = wait(list(open_pipes), timeout=max(left, 0.0))
        if not ready:
            pytest.fail(f"Ranks {sorted(open_pipes.values())} have not ended in time.")
        for pipe in ready:
            rank = open_pipes[pipe]  # type: ignore[index]
            try:
                ranks[rank].value, ranks[rank].error = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                del open_pipes[pipe]  # type: ignore[arg-type]
                processes[rank].join(max(end - monotonic(), 1.0))
                ranks[rank].exitcode = processes[rank].exitcode
                if ranks[rank].exitcode and ranks[rank].error is None:
                    ranks[rank].error = "It has ended without a word."
    return ranks


def _serve(
    pipe: Connection,
    environment: dict[str, Any],
    path: list[str],
    function: Callable[..., Any],
    args: Any,
) -> None:
    # Ctrl-C is for the process that waits
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update({name: str(value) for name, value in environment.items()})
    sys.path[:] = path
    try:
        came_to = pickle.dumps((function(*args), None))
    except BaseException:
        came_to = pickle.dumps((None, traceback.format_exc()))
    try:
        # whole, where torch would have a tensor fetched from a process that has ended by then
        pipe.send_bytes(came_to)
    finally:
        pipe.close()


def rank_count() -> tuple[int, int]:
    """Return this process's rank, and how many there are."""
    import torch.distributed as dist

    return dist.get_rank(), dist.get_world_size()
