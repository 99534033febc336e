cimport cython


@cython.final
cdef class Slot:
    cdef readonly object type
    cdef readonly tuple shape

    cdef int accepts(self, object kind, object shape) except -1


@cython.final
cdef class Parts:
    cdef readonly object kind
    cdef readonly list slots


@cython.final
cdef class TensorKind:
    cdef readonly object cls
    cdef readonly object type_of
    cdef readonly object shape_of
    cdef readonly object convert
    cdef readonly object split
    cdef readonly object join

    cdef int take(self, object value, object form, list tensors) except -1
    cdef int take_parts(self, object value, object form, list tensors) except -1


@cython.final
cdef class Trace:
    cdef readonly object call
    cdef readonly list inputs
    cdef readonly list outputs
    cdef bint plain


@cython.final
cdef class TracedStep:
    cdef readonly list keys
    cdef readonly TensorKind kind
    cdef readonly list context
    cdef public list traces
    cdef object _trace

    cdef list read(self, object batch)
    cdef Trace find(self, list values, dict state, list tensors)
    cdef int matches(self, Trace trace, list values, dict state, list tensors) except -1
    cdef Trace add(self, list values)
    cdef dict lay_out(self, Trace trace, object results, object batch)
