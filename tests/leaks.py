"""How much memory some work leaves behind, each time that it is done."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

__all__ = ["left_behind"]


def left_behind(work: Callable[[], None]) -> tuple[int, int]:
    """Do some work three times, and count what the middle one has left behind.

    What leaks does so each time. A cache that fills does not, nor does what another thread makes
    or frees, which is counted too.

    Args:
        work: The work.

    Returns:
        Objects that the collector tracks, and blocks of memory.
    """
    grown = []
    collect()
    # what there is already need not be gone through each time
    gc.freeze()
    for _ in range(3):
        collect()
        objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        work()
        collect()
        grown.append((len(gc.get_objects()) - objects, sys.getallocatedblocks() - blocks))
    objects, blocks = (sorted(counts)[1] for counts in zip(*grown, strict=True))
    return objects, blocks


def collect() -> None:
    """Collect garbage until none is left: what is freed may be all that held on to more of it."""
    for _ in range(10):
        if not gc.collect():
            return
