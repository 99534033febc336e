"""Take down when each part of a step was over.

A `StampLog` is a list of stamps: a time, and the number of the row that the time since the stamp
before it was spent on. What a step took and what its rows add up to are thus the same.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc

cdef enum:
    FIRST_ROOM = 256


@cython.final
cdef class StampLog:
    """Stamps, in the order in which they were made.

    Attributes:
        part: What each stamp has with it from now on: which of several parts of a step it is of.
    """

    def __cinit__(self):
        self._stamps = NULL

    def __dealloc__(self):
        PyMem_Free(self._stamps)

    def __len__(self):
        return self._count

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Make room for so many stamps, so that none of them fails for want of it."""
        if self._room - self._count >= more:
            return 0
        cdef Py_ssize_t room = max(2 * self._room, self._count + more, FIRST_ROOM)
        cdef Stamp* stamps = <Stamp*> PyMem_Realloc(self._stamps, room * sizeof(Stamp))
        if stamps == NULL:
            raise MemoryError()
        self._stamps = stamps
        self._room = room
        return 0

    def stamp(self, int row):
        """Make a stamp.

        Args:
            row: What the time since the last stamp was spent on.
        """
        self.add(row)

    def stamp_at(self, int row, double at):
        """Make a stamp of a time that was.

        Args:
            row: As for `stamp`.
            at: The time, in seconds on the clock of `time.perf_counter`. One before the last
                stamp counts as that.
        """
        self.add(row)
        cdef Stamp* made = &self._stamps[self._count - 1]
        made.at = at
        if self._count > 1 and at < self._stamps[self._count - 2].at:
            made.at = self._stamps[self._count - 2].at

    def stamp_many(self, int row, Py_ssize_t count):
        """Make stamps with nothing in between, to find out what one takes.

        Args:
            row: As for `stamp`.
            count: How many.
        """
        cdef Py_ssize_t _index
        for _index in range(count):
            self.add(row)

    def keep(self, Py_ssize_t count):
        """Forget all but the first stamps, and set `part` to 0.

        Args:
            count: How many are to be left.
        """
        self.part = 0
        if 0 <= count < self._count:
            self._count = count

    def take(self):
        """Take all stamps out.

        Returns:
            The stamps as bytes: for each a double, the time in seconds on the clock of
            `time.perf_counter`, and two ints, the row and the part.
        """
        cdef bytes taken = PyBytes_FromStringAndSize(
            <char*> self._stamps, self._count * sizeof(Stamp)
        )
        self.keep(0)
        return taken
