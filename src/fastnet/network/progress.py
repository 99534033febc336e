"""Progress on the terminal: bars over batches, and a line for slow work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastnet.distributed import is_main
from fastnet.errors import add_note

__all__ = ["bar_class", "report_if_slow"]

_SLOW_SECONDS = 2.0


def bar_class(caller: str) -> Any:
    """Import tqdm's progress bar."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        add_note(error, f"{caller} with progress=True needs tqdm. Install it: pip install tqdm")
        raise
    return tqdm


@contextmanager
def report_if_slow(what: str) -> Iterator[None]:
    """Print a line if the body takes over two seconds and the standard error is a terminal."""
    stream = sys.stderr
    if stream is None or not stream.isatty() or not is_main():
        yield
        return
    timer = threading.Timer(_SLOW_SECONDS, print, [f"fastnet: {what} ..."], {"file": stream})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
