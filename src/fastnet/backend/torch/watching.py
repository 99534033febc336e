"""Word of processes that fail, brought to all others, so that none of them waits for ever."""

from __future__ import annotations

import _thread
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from fastnet.backend.torch.meetings import AT_THE_END, Meetings
from fastnet.errors import RankError

__all__ = ["Watch"]

# all in seconds: how often to ask for news; how long a process has to leave by itself before it is
# interrupted, and before it is ended; how long the one that failed waits for the others meanwhile
_PERIOD, _GRACE, _END, _LINGER = 0.2, 2.0, 15.0, 2.0

# begins what is told of an error besides its text
_TRACE = "\n\nThe traceback of rank "
_FAILED, _HEARD, _LEFT, _CLOSED = "failed", "heard", "left", "closed"


class Watch:
    """Listens for processes that fail, beside the program.

    News go by a store of their own, over connections that nothing else waits on: a collective that
    hangs does not hold them up. All processes make their watch at the same place of the program.

    Args:
        rank: The place of this process.
        world_size: How many processes there are.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.failure: str | None = None
        self.is_over = False
        self._store = _connect(rank)
        self.meetings = Meetings(self._store, rank, world_size)
        # the thread's own: one connection serves one question at a time
        self._asking = self._store.clone()
        self._main = threading.current_thread() is threading.main_thread()
        self._over = threading.Event()
        self._leaving = threading.Lock()
        self._has_left = False
        # looked at in each turn: returns what is wrong, or None
        self._checks: list[Callable[[Any], str | None]] = []
        self._thread = threading.Thread(target=self._listen, name="fastnet-watch", daemon=True)
        self._thread.start()

    def check_also(self, check: Callable[[Any], str | None]) -> Callable[[], None]:
        """Have something looked at each time that news are asked for.

        Args:
            check: Called in the watch's thread with its store; says what is wrong, or None.

        Returns:
            The function that ends it.
        """
        self._checks.append(check)

        def end() -> None:
            with suppress(ValueError):
                self._checks.remove(check)

        return end

    @property
    def store(self) -> Any:
        """The store, for the thread that made the watch."""
        return self._store

    def meet(self, place: str, seconds: float) -> None:
        """Wait until all processes have come to a place of the program.

        Args:
            place: What the place is called, such as "in gather".
            seconds: How long to wait.

        Raises:
            RankError: If one of them is at another place, has failed, or does not come.
        """
        wrong = self.meetings.come(place)
        if wrong is not None:
            raise RankError(self.fail(wrong))
        end, pause = monotonic() + seconds, _PERIOD / 1000
        while not self.meetings.is_complete():
            if self.failure is not None:
                raise RankError(self.failure)
            if monotonic() > end:
                raise RankError(
                    self.fail(
                        f"Rank {self.rank} is {place}, and has waited for {seconds:g} seconds for "
                        "other ranks to come there. All ranks call it; "
                        "fastnet.distributed.run(timeout=...) has them wait longer."
                    )
                )
            sleep(pause)
            pause = min(pause * 2, _PERIOD / 4)

    def leave(self, error: BaseException | None, shutdown: Callable[[], None]) -> RankError | None:
        """Leave the program as all others do.

        Args:
            error: What this process ends with, None if nothing has gone wrong.
            shutdown: Leaves the process group.

        Returns:
            What another process has failed with before, None if none has.
        """
        try:
            with suppress(KeyboardInterrupt):  # which may be under way to this thread
                # the watch's own interrupts nobody from here on
                self._leaving.acquire()
            if error is None:
                self._wait_for_all()
            elif self.failure is None:
                self._tell(error)
        finally:
            self.is_over = True
            self._over.set()
            self._thread.join(_PERIOD * 10)
            try:
                if self.failure is not None and error is not None:
                    # it only follows from the other's, and what its frames hold keeps a group open
                    traceback.clear_frames(error.__traceback__)
                self._end_group(error is not None or self.failure is not None, shutdown)
            finally:
                self._let_go()
        return None if self.failure is None else RankError(self.failure)

    def fail(self, text: str) -> str:
        """Tell all processes, this one too, that the run has failed.

        Args:
            text: What has happened.

        Returns:
            What has happened first, in whichever process.
        """
        return str(self._store.compare_set(_FAILED, "", text).decode())

    # ------------------------------------------------------------------ leaving

    def _tell(self, error: BaseException) -> None:
        """Say what this process has failed with, unless another one was first."""
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        # marked, since it is shown among what other ranks print
        trace = "\n".join(f"  | {line}" for line in lines)
        told = (
            f"Rank {self.rank} has failed with {type(error).__name__}: {error}"
            f"{_TRACE}{self.rank}:\n{trace}"
        )
        with suppress(Exception):
            first = self.fail(told)
            if first != told:
                self.failure = first
                return
            # the others are still to read it, from a store that one of the processes keeps
            self._wait_until(lambda: self._count(_HEARD) >= self.world_size - 1, _LINGER)

    def _wait_for_all(self) -> None:
        """Wait until all have left; whoever fails meanwhile fails for this process too."""
        try:
            wrong = self.meetings.come(AT_THE_END)
            if wrong is not None:
                self.failure = self.fail(wrong)
            self._leave()
            while self.failure is None and self._count(_LEFT) < self.world_size:
                sleep(_PERIOD / 4)
            if self.failure is None and self._store.check([_FAILED]):
                self.failure = self._store.get(_FAILED).decode()  # and left since
        except Exception:
            if self.failure is None:
                self.failure = _GONE

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._store.add(_LEFT, 1)

    def _end_group(self, failed: bool, shutdown: Callable[[], None]) -> None:
        if not failed:
            shutdown()
            return
        # Breaks off what others wait for, unless something else holds the group, such as a model in
        # DistributedDataParallel: then the end of the process does.
        with suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
        with suppress(Exception):
            shutdown()
        with suppress(Exception):
            self._leave()
            # until then a launcher could take this one's end for a reason to end them unheard
            self._wait_until(lambda: self._count(_LEFT) >= self.world_size, _LINGER)

    def _let_go(self) -> None:
        """Leave the store, which the first process keeps until all others have."""
        with suppress(Exception):
            if self.rank:
                self._store.add(_CLOSED, 1)
            else:
                self._wait_until(lambda: self._count(_CLOSED) >= self.world_size - 1, _LINGER)

    def _count(self, name: str) -> int:
        return int(self._store.add(name, 0))

    @staticmethod
    def _wait_until(is_so: Callable[[], bool], seconds: float) -> None:
        end = monotonic() + seconds
        while not is_so() and monotonic() < end:
            sleep(_PERIOD / 4)

    # ------------------------------------------------------------------ listening

    def _listen(self) -> None:
        while not self._over.wait(_PERIOD):
            text = self._news()
            if text is not None:
                self._hear(text)
                return

    def _news(self) -> str | None:
        store = self._asking
        try:
            for check in tuple(self._checks):
                wrong = check(store)
                if wrong is not None:
                    return str(store.compare_set(_FAILED, "", wrong).decode())
            if not store.check([_FAILED]):
                return None
            text = store.get(_FAILED).decode()
        except Exception:
            return None if self._over.is_set() else _GONE
        return None if text.startswith(f"Rank {self.rank} has failed") else str(text)

    def _hear(self, text: str) -> None:
        self.failure = text
        with suppress(Exception):
            self._asking.add(_HEARD, 1)
        # where it is known how, what the devices do is broken off; gloo ends when a process leaves
        with suppress(Exception):
            if "nccl" in str(dist.get_backend_config()):
                dist.group.WORLD.abort()  # type: ignore[union-attr]
        if self._over.wait(_GRACE):
            return
        # the error that it stops with tells the rest
        told = text.partition(_TRACE)[0]
        print(f"Rank {self.rank} is to stop. {told}", file=sys.stderr, flush=True)
        if self._main and self._leaving.acquire(blocking=False):
            _thread.interrupt_main()
            self._leaving.release()
        if self._over.wait(_END - _GRACE):
            return
        print(f"Rank {self.rank} is ended: it has not stopped.", file=sys.stderr, flush=True)
        os._exit(1)


_GONE = "Rank 0 has ended without a word: it was killed, or the machine is gone."


def _connect(rank: int) -> Any:
    """Open the store on the first process, and connect the others to it."""
    open_store: Any = getattr(dist, "TCPStore")  # noqa: B009  (which torch's stubs leave out)
    settings = {"wait_for_workers": False, "timeout": timedelta(seconds=60)}
    place: list[Any] = [None]
    store: Any = None
    if rank == 0:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        store = open_store(host, 0, is_master=True, **settings)
        place = [(host, store.port)]
    dist.broadcast_object_list(place, src=0)
    if rank:
        store = open_store(*place[0], is_master=False, **settings)
    return store
