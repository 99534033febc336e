"""Makes the kernel's calls, each a few times and then twice as often; callgrind watches it.

It imports little, so that a change elsewhere does not move what it counts about in memory.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import repeat, starmap

from bench.kernel.measures import Call, measures
from bench.marks import mark

FEW_TIMES, TWICE = 20, 40
# CPython caches attributes by a hash of a class's number and a name's place in memory. Where two
# collide, each look-up takes long, and which do is chance: so everything is counted with several
# classes, and the least counts.
SETS = 3


def run(call: Call, times: int) -> None:
    """Make a call again and again, in a loop that is written in C."""
    deque(starmap(call.function, repeat(call.arguments, times)), maxlen=0)


def main() -> None:
    """Make each call, with a mark before and after each run."""
    everything = [measure for _ in range(SETS) for measure in measures()]
    # It would run at another time whenever anything allocates one object more.
    gc.disable()
    mark()
    for measure in everything:
        for call in filter(None, (measure.more, measure.less)):
            # The first calls fill caches.
            run(call, FEW_TIMES)
            for times in (FEW_TIMES, TWICE):
                mark()
                run(call, times)
                mark()


if __name__ == "__main__":
    main()
