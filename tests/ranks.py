"""Processes of one process group, which tests call functions in: as torchrun would start them.

They are started once, and run what each test asks for one after the other. When a call fails, or
takes too long, they are ended, and the next call starts new ones.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["LIMIT", "RankFailed", "Ranks", "ranks"]

LIMIT = 300.0
"""Seconds that a call may take before it counts as one that hangs."""


class RankFailed(AssertionError):
    """A function has raised in some of the processes, or has not come back."""


class Ranks:
    """Processes that are the ranks of one process group.

    Args:
        count: How many.
        backend: What they communicate over.
    """

    def __init__(self, count: int, backend: str = "gloo") -> None:
        self.count = count
        self.backend = backend
        self._processes: list[Any] = []
        self._lines: list[Connection[Any, Any]] = []

    def __call__(self, function: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """Call a function in every process at the same time.

        Args:
            function: A function of a module; it may ask `torch.distributed` for its rank.
            args: What to call it with.
            limit: Seconds to wait.

        Returns:
            What it has returned, by rank.

        Raises:
            RankFailed: If it has raised somewhere, or does not come back.
        """
        if not self._processes:
            self._start()
        for line in self._lines:
            line.send_bytes(pickle.dumps((function, args)))
        ends = time.monotonic() + limit
        results, failures = [], []
        for rank, line in enumerate(self._lines):
            # the first failure leaves the others waiting for their peer
            left = 10.0 if failures else max(ends - time.monotonic(), 0)
            try:
                if not line.poll(left):
                    failures.append(f"rank {rank} has not come back")
                    continue
                done, value = pickle.loads(line.recv_bytes())
            except (EOFError, ConnectionError):
                done, value = False, "the process has ended"
            if done:
                results.append(value)
            else:
                failures.append(f"rank {rank}: {value}")
        if failures:
            self.end()
            raise RankFailed("\n".join(failures))
        return results

    def end(self) -> None:
        """End the processes."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._processes, self._lines = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        # so that what takes seconds to import is imported once
        context.set_forkserver_preload(["fastnet.network.torch", "torch.distributed.fsdp"])
        folder = tempfile.mkdtemp()
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, rank, self.count, os.path.join(folder, "store"), self.backend),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)


def _serve(line: Connection[Any, Any], rank: int, count: int, store: str, backend: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        # as torchrun says it; the whole of what it sets would have tests of one process fail
        os.environ["LOCAL_RANK"] = str(rank)
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=LIMIT),
    )
    while True:
        try:
            function, args = pickle.loads(line.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            reply = True, function(*args)
        except BaseException:
            reply = False, traceback.format_exc()
        line.send_bytes(pickle.dumps(reply))


_pools: dict[tuple[int, str], Ranks] = {}


def ranks(count: int, backend: str = "gloo") -> Ranks:
    """Return the processes of a group of some size; they are started by the first call.

    Args:
        count: How many.
        backend: What they communicate over.
    """
    if (count, backend) not in _pools:
        _pools[count, backend] = Ranks(count, backend)
        atexit.register(_pools[count, backend].end)
    return _pools[count, backend]
