"""Take down when each part of a step was over.

A `StampLog` is a list of stamps: a time, and the number of the row that the time since the stamp
before it was spent on. What a step took and what its rows add up to are thus the same.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memset

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    FIRST_ROOM = 256
    BEGIN = -1  # the row of the stamp that a step begins with

# in seconds: a clock of 64 bits ends after 292 years
cdef double LATEST = 9e9

# a stamp as it is handed out
cdef struct Taken:
    double at  # seconds
    int row
    int part


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
        with cython.critical_section(self):
            return self.grow(more)

    cdef int grow(self, Py_ssize_t more) except -1:
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

        Raises:
            ValueError: If it is no time of that clock.
        """
        if not -LATEST < at < LATEST:
            raise ValueError(f"no time in seconds on the clock of time.perf_counter: {at!r}")
        cdef Stamp* made
        with cython.critical_section(self):
            self.add_alone(row)
            made = &self._stamps[self._count - 1]
            made.at = nanoseconds(at)
            if self._count > 1 and made.at < self._stamps[self._count - 2].at:
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
        with cython.critical_section(self):
            self.keep_alone(count)

    cdef void keep_alone(self, Py_ssize_t count) noexcept:
        self.part = 0
        if 0 <= count < self._count:
            self._count = count

    @cython.critical_section
    def sum_up(self, bytes costs not None, bytes once not None, bytes beside not None):
        """Add up what each row took, step by step. The stamps stay.

        The first stamp is where the first step begins, and each of the row -1 is where another one
        does: the time before it is part of no step.

        Args:
            costs: What a stamp takes and is left out, in seconds: a double for each row.
            once: Whether a row counts once in a step, however many stamps it has: a byte for each
                row.
            beside: Whether what a row takes is no part of a minibatch: a byte for each row.

        Returns:
            How many steps there are, and three tables as bytes: doubles of what each row took, with
            a line for each step; a 64-bit int for each row of how often it happened; and doubles of
            what each minibatch took, part 1 being the first, with a line for each step.

        Raises:
            ValueError: If there are no stamps, the arguments are not for the same number of rows,
                or a stamp is of a row that they do not have or of a negative part.
        """
        cdef Py_ssize_t width = PyBytes_GET_SIZE(once)
        cdef Py_ssize_t size = sizeof(double)
        cdef Py_ssize_t steps = 1
        cdef Py_ssize_t minibatches = 0
        cdef Py_ssize_t index, step
        cdef Stamp* stamp
        if PyBytes_GET_SIZE(costs) != width * size or PyBytes_GET_SIZE(beside) != width:
            raise ValueError(
                f"costs are of {len(costs) / size:g} rows, once of {width} and beside of "
                f"{len(beside)}"
            )
        if not self._count:
            raise ValueError("there are no stamps to sum up")
        for index in range(1, self._count):
            stamp = &self._stamps[index]
            if stamp.row == BEGIN:
                steps += 1
            elif not 0 <= stamp.row < width:
                raise ValueError(f"stamp {index} is of row {stamp.row}, but there are {width}")
            if stamp.part > minibatches:
                minibatches = stamp.part
            elif stamp.part < 0:
                raise ValueError(f"stamp {index} is of part {stamp.part}, which is negative")

        cdef bytes times = zeros(steps, width)
        cdef bytes counts = zeros(1, width)
        cdef bytes parts = zeros(steps, minibatches)
        cdef bytes latest = zeros(1, width)
        cdef const double* cost = <const double*> PyBytes_AS_STRING(costs)
        cdef const char* counts_once = PyBytes_AS_STRING(once)
        cdef const char* is_beside = PyBytes_AS_STRING(beside)
        cdef double* row_times = <double*> PyBytes_AS_STRING(times)
        cdef double* part_times = <double*> PyBytes_AS_STRING(parts)
        cdef long long* count = <long long*> PyBytes_AS_STRING(counts)
        # the last step in which a row was, counted from 1
        cdef long long* seen = <long long*> PyBytes_AS_STRING(latest)
        cdef double at = seconds(self._stamps[0].at)
        cdef double before, span
        cdef int row
        step = 1
        for index in range(1, self._count):
            stamp = &self._stamps[index]
            row = stamp.row
            before = at
            at = seconds(stamp.at)
            if row == BEGIN:
                step += 1
                row_times += width
                part_times += minibatches
                continue
            span = at - before - cost[row]
            row_times[row] += span
            if not counts_once[row]:
                count[row] += 1
            elif seen[row] != step:
                seen[row] = step
                count[row] += 1
            if stamp.part and not is_beside[row]:
                part_times[stamp.part - 1] += span
        return steps, times, counts, parts

    @cython.critical_section
    def take(self):
        """Take all stamps out.

        Returns:
            The stamps as bytes: for each a double, the time in seconds on the clock of
            `time.perf_counter`, and two ints, the row and the part.
        """
        cdef bytes taken = PyBytes_FromStringAndSize(NULL, self._count * sizeof(Taken))
        cdef Taken* made = <Taken*> PyBytes_AS_STRING(taken)
        cdef Py_ssize_t index
        for index in range(self._count):
            made[index].at = seconds(self._stamps[index].at)
            made[index].row = self._stamps[index].row
            made[index].part = self._stamps[index].part
        self.keep_alone(0)
        return taken


@cython.cdivision(True)
cdef inline double seconds(long long nanoseconds) noexcept nogil:
    # as time.perf_counter does it
    return <double> nanoseconds / 1e9


cdef bytes zeros(Py_ssize_t lines, Py_ssize_t columns):
    """Make a table of numbers of 64 bits, as bytes."""
    if columns and lines > PY_SSIZE_T_MAX // columns // 8:
        raise MemoryError()
    cdef bytes table = PyBytes_FromStringAndSize(NULL, 8 * lines * columns)
    memset(PyBytes_AS_STRING(table), 0, 8 * lines * columns)
    return table
