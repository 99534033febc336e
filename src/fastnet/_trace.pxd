cimport cython

from fastnet._nest cimport _Walk


@cython.final
cdef class Slot:
    cdef readonly object type
    cdef readonly tuple shape


@cython.final
cdef class Parts:
    cdef readonly object kind
    cdef readonly tuple slots


@cython.final
cdef class WithAttributes:
    cdef readonly object form
    cdef readonly tuple state


@cython.final
cdef class Readings:
    cdef object _gate
    cdef object _wanted
    cdef tuple _readers


@cython.final
cdef class TensorKind(_Walk):
    cdef readonly object cls
    cdef readonly object type_of
    cdef readonly object shape_of
    cdef readonly object convert
    cdef readonly object split
    cdef readonly object join
    cdef readonly object type_of_others
    cdef readonly object shape_of_others

    cdef Slot slot_of(self, object tensor)
    cdef int match(self, object value, object form, list tensors) except -1
    cdef int match_tensor(self, object tensor, Slot slot, list tensors) except -1
    cdef int match_parts(self, object value, Parts parts, list tensors) except -1
    cdef int match_with_attributes(
        self, object value, WithAttributes expected, list tensors
    ) except -1
    cdef int match_items(self, tuple items, tuple forms, list tensors) except -1
    cdef int match_dict(self, dict value, dict form, list tensors) except -1
    cdef int match_mapping(self, object value, object form, list tensors) except -1
    cdef int match_members(self, object value, object form) except -1
    cdef int match_other(self, object value, object form, list tensors) except -1
    cdef object fill(self, object form, object tensors)


@cython.final
cdef class _Outputs:
    cdef tuple forms
    cdef Py_ssize_t count
    cdef bint are_plain

    cdef dict merge(self, TensorKind kind, object results, object batch)


@cython.final
cdef class Signature:
    cdef readonly tuple keys
    cdef readonly TensorKind kind
    cdef tuple _inputs
    cdef _Outputs _outputs
