"""Time stamps of profiled steps, and their sums per row, less the cost of a stamp.

`fastnet.profiling.stamp_sums` measures that cost. A stamp assigns the time since the previous stamp
to a row. The rows of a step add up to its time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memset

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    INITIAL_CAPACITY = 256
    BEGIN = -1  # the row of the stamp at the start of a step

# The range in seconds of 64-bit nanoseconds.
cdef double MAX_TIME = 9e9

# A stamp in the result of `take`.
cdef struct Exported:
    double at  # seconds
    int row
    int minibatch


@cython.final
cdef class StampLog:
    """A list of time stamps. New ones get `minibatch`, counted from 1; 0 outside of minibatches."""

    def __cinit__(self):
        self._stamps = NULL

    def __dealloc__(self):
        PyMem_Free(self._stamps)

    def __len__(self):
        return self._count

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Allocate memory for more stamps."""
        with cython.critical_section(self):
            return self.grow(more)

    cdef int grow(self, Py_ssize_t more) except -1:
        if self._capacity - self._count >= more:
            return 0
        cdef Py_ssize_t capacity = max(2 * self._capacity, self._count + more, INITIAL_CAPACITY)
        cdef Stamp* stamps = <Stamp*> PyMem_Realloc(self._stamps, capacity * sizeof(Stamp))
        if stamps == NULL:
            raise MemoryError()
        self._stamps = stamps
        self._capacity = capacity
        return 0

    def stamp(self, int row):
        """Add a stamp that assigns the time since the previous one to a row."""
        self.add(row)

    def stamp_at(self, int row, double at):
        """Add a stamp with the time `at` of `time.perf_counter`, or of the last stamp if later."""
        if not -MAX_TIME < at < MAX_TIME:
            raise ValueError(f"{at!r} is no time of time.perf_counter")
        cdef Stamp* stamp
        with cython.critical_section(self):
            self.add_locked(row)
            stamp = &self._stamps[self._count - 1]
            stamp.at = nanoseconds(at)
            if self._count > 1 and stamp.at < self._stamps[self._count - 2].at:
                stamp.at = self._stamps[self._count - 2].at

    def stamp_many(self, int row, Py_ssize_t count):
        """Add stamps in a loop, to measure how long one takes."""
        cdef Py_ssize_t _index
        for _index in range(count):
            self.add(row)

    def keep(self, Py_ssize_t count):
        """Drop all but the first `count` stamps, and set `minibatch` to 0."""
        with cython.critical_section(self):
            self.keep_locked(count)

    cdef void keep_locked(self, Py_ssize_t count) noexcept:
        self.minibatch = 0
        if 0 <= count < self._count:
            self._count = count

    @cython.critical_section
    def sum_up(self, bytes costs not None, bytes once not None, bytes outside_minibatches not None):
        """Sum up the time of each row in each step. The stamps are kept.

        A step starts at the first stamp, and at each stamp with row -1. The time before such a
        stamp belongs to no step.

        Args:
            costs: The seconds that a stamp takes, which are subtracted; a double for each row.
            once: Whether a row is counted once in a step with several stamps; a byte for each row.
            outside_minibatches: Whether a row belongs to no minibatch; a byte for each row.

        Returns:
            The number of steps, and three tables as bytes: for each step the seconds of each row
            (doubles), the number of times that each row occurred (64-bit ints), and for each step
            the seconds of each minibatch (doubles).

        Raises:
            ValueError: If there are no stamps, the arguments have different numbers of rows, or
                a stamp has a row or minibatch out of range.
        """
        cdef Py_ssize_t width = PyBytes_GET_SIZE(once)
        cdef Py_ssize_t size = sizeof(double)
        cdef Py_ssize_t steps = 1
        cdef Py_ssize_t n_minibatches = 0
        cdef Py_ssize_t index, step
        cdef Stamp* stamp
        if (
            PyBytes_GET_SIZE(costs) != width * size
            or PyBytes_GET_SIZE(outside_minibatches) != width
        ):
            raise ValueError(
                f"costs has {len(costs) / size:g} rows, once has {width}, outside_minibatches has "
                f"{len(outside_minibatches)}"
            )
        if not self._count:
            raise ValueError("there are no stamps to sum up")
        for index in range(1, self._count):
            stamp = &self._stamps[index]
            if stamp.row == BEGIN:
                steps += 1
            elif not 0 <= stamp.row < width:
                raise ValueError(f"stamp {index} has row {stamp.row} of {width} rows")
            if stamp.minibatch > n_minibatches:
                n_minibatches = stamp.minibatch
            elif stamp.minibatch < 0:
                raise ValueError(f"stamp {index} has the negative minibatch {stamp.minibatch}")

        cdef bytes times = zeros(steps, width)
        cdef bytes counts = zeros(1, width)
        cdef bytes minibatches = zeros(steps, n_minibatches)
        cdef bytes latest = zeros(1, width)
        cdef const double* cost = <const double*> PyBytes_AS_STRING(costs)
        cdef const char* counts_once = PyBytes_AS_STRING(once)
        cdef const char* is_outside = PyBytes_AS_STRING(outside_minibatches)
        cdef double* row_times = <double*> PyBytes_AS_STRING(times)
        cdef double* minibatch_times = <double*> PyBytes_AS_STRING(minibatches)
        cdef long long* count = <long long*> PyBytes_AS_STRING(counts)
        # The last step in which a row occurred, counted from 1.
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
                minibatch_times += n_minibatches
                continue
            span = at - before - cost[row]
            row_times[row] += span
            if not counts_once[row]:
                count[row] += 1
            elif seen[row] != step:
                seen[row] = step
                count[row] += 1
            if stamp.minibatch and not is_outside[row]:
                minibatch_times[stamp.minibatch - 1] += span
        return steps, times, counts, minibatches

    @cython.critical_section
    def take(self):
        """Remove all stamps, and return their seconds, rows and minibatches as bytes ("dii")."""
        cdef bytes result = PyBytes_FromStringAndSize(NULL, self._count * sizeof(Exported))
        cdef Exported* exported = <Exported*> PyBytes_AS_STRING(result)
        cdef Py_ssize_t index
        for index in range(self._count):
            exported[index].at = seconds(self._stamps[index].at)
            exported[index].row = self._stamps[index].row
            exported[index].minibatch = self._stamps[index].minibatch
        self.keep_locked(0)
        return result


@cython.cdivision(True)
cdef inline double seconds(long long nanoseconds) noexcept nogil:
    # The same conversion as in time.perf_counter.
    return <double> nanoseconds / 1e9


cdef bytes zeros(Py_ssize_t rows, Py_ssize_t columns):
    """Return a table of 64-bit zeros as bytes."""
    if columns and rows > PY_SSIZE_T_MAX // columns // 8:
        raise MemoryError()
    cdef bytes table = PyBytes_FromStringAndSize(NULL, 8 * rows * columns)
    memset(PyBytes_AS_STRING(table), 0, 8 * rows * columns)
    return table
