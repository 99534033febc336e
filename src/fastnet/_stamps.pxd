cimport cython
from cpython.time cimport perf_counter
from libc.math cimport floor

cdef extern from *:
    """
    #ifdef __linux__
    #include <time.h>
    #define FASTNET_LINUX 1
    static inline long long fastnet_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return 1000000000LL * now.tv_sec + now.tv_nsec;
    }
    #else
    #define FASTNET_LINUX 0
    static inline long long fastnet_now(void) { return 0; }
    #endif
    """
    const bint FASTNET_LINUX
    long long fastnet_now() noexcept nogil


cdef struct Stamp:
    long long at  # nanoseconds of time.perf_counter
    int row
    int minibatch


cdef inline long long nanoseconds(double seconds) noexcept nogil:
    return <long long> floor(1e9 * seconds + 0.5)


@cython.final
cdef class StampLog:
    cdef Stamp* _stamps
    cdef Py_ssize_t _count
    cdef Py_ssize_t _capacity
    cdef public int minibatch

    cdef int reserve(self, Py_ssize_t more) except -1
    cdef void keep_locked(self, Py_ssize_t count) noexcept
    cdef int grow(self, Py_ssize_t more) except -1

    cdef inline int add(self, int row) except -1:
        with cython.critical_section(self):
            return self.add_locked(row)

    cdef inline int add_locked(self, int row) except -1:
        if self._count == self._capacity:
            self.grow(1)
        cdef Stamp* stamp = &self._stamps[self._count]
        stamp.row = row
        stamp.minibatch = self.minibatch
        # Read the clock last, so that this function is part of the time that it measures. On Linux
        # clock_gettime is the clock of time.perf_counter, read in two thirds of the time.
        stamp.at = fastnet_now() if FASTNET_LINUX else nanoseconds(perf_counter())
        self._count += 1
        return 0
