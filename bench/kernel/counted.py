"""Makes the kernel's calls under callgrind, each a few times and then twice as often.

It imports little, so that a change elsewhere does not move the objects that it counts in memory.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import repeat, starmap

from bench.kernel.measures import Call, measures
from bench.marks import mark

FEW_TIMES, TWICE = 20, 40
# CPython caches attributes by a hash of a class's version and a name's address, and collisions
# depend on the addresses. So everything is counted with several classes, and the least counts.
SETS = 3


def run(call: Call, times: int) -> None:
    """Make a call several times, in a loop written in C."""
    deque(starmap(call.function, repeat(call.arguments, times)), maxlen=0)


def main() -> None:
    """Make each call, with a mark before and after each run."""
    everything = [measure for _ in range(SETS) for measure in measures()]
    # A collection would start elsewhere with one allocation more.
    gc.disable()
    mark()
    for measure in everything:
        for call in filter(None, (measure.more, measure.less)):
            # Fill caches.
            run(call, FEW_TIMES)
            for times in (FEW_TIMES, TWICE):
                mark()
                run(call, times)
                mark()


if __name__ == "__main__":
    main()
