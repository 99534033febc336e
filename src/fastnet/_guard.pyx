"""Take a network into use and give it back, whole or not at all.

An interrupt, a user's Ctrl-C say, is raised between two steps of Python's own. One that came right
after a lock was taken, and before the ``try`` that would give it back, would leave the network in
use for good. What is compiled here has no such gaps: from taking the lock to watching over it, and
from leaving to giving it back, nothing of Python runs.
"""


def enter(self):
    """Take the network into use, as it was configured.

    Returns:
        The network itself.

    Raises:
        ValueError: If it is in use.
    """
    if not self._lock.acquire(False):
        raise self._in_use()
    try:
        opening = getattr(self._configured, "opening", None)
        self._configured.opening = None
        # without one run_step will say what is missing
        if opening is not None:
            self._opening = opening
            self._open(opening)
    except BaseException:
        give_back(self)
        raise
    return self


def leave(self, kind=None, error=None, trace=None):
    """Release the network, ready to be opened again.

    Args:
        kind: The class of the exception that ends the block, or None.
        error: The exception, or None.
        trace: Its traceback, or None.
    """
    give_back(self)


def begin(self):
    """Begin to profile, which ends again if it is broken off.

    Returns:
        The profile, which has its rows when the block is left.

    Raises:
        ValueError: If the network is being profiled already.
    """
    try:
        return self._begin()
    except BaseException:
        stop_measuring(self)
        raise


def end(self, kind=None, error=None, trace=None):
    """End the profile, and sum up what was measured.

    Args:
        kind: The class of the exception that ends the block, or None.
        error: The exception, or None.
        trace: Its traceback, or None.
    """
    try:
        self._end()
    finally:
        stop_measuring(self)


def call_within(context, function, *args):
    """Call a function while a context is entered, such as a lock.

    Args:
        context: The context.
        function: The function.
        args: Its arguments.

    Returns:
        What it returns.

    Raises:
        Exception: Whatever it raises.
    """
    with context:
        return function(*args)


cdef int stop_measuring(object profiling) except -1:
    network = profiling._network
    # another profile may be under way
    if network._meter is not None and network._meter is profiling._recorder:
        network._meter = None
    return 0


cdef int give_back(object network) except -1:
    opening = network._opening
    network._opening = None
    try:
        if opening is not None:
            opening.runner.close()
    finally:
        if network._lock.locked():
            network._lock.release()
    return 0
