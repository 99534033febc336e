"""A line on the terminal for what takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastnet.distributed import is_main

__all__ = ["announced"]

# what takes less long nobody wonders about
_SECONDS = 2.0


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say on the terminal what is going on, if it takes more than two seconds, and how long it did.

    Where standard error is no terminal nothing is said; of several processes the first one speaks.

    Args:
        what: What is going on, such as "compiling a step".
    """
    stream = sys.stderr
    if stream is None or not stream.isatty() or not is_main():
        yield
        return
    said = threading.Event()
    started = time.perf_counter()

    def say() -> None:
        said.set()
        stream.write(f"fastnet: {what} ...")
        stream.flush()

    timer = threading.Timer(_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set():
            stream.write(f" {time.perf_counter() - started:.1f} s\n")
            stream.flush()
