cimport cython

from fastnet._nest cimport _Walk


@cython.final
cdef class TensorSpec:
    cdef readonly object type
    cdef readonly tuple shape


@cython.final
cdef class CompositeSpec:
    cdef readonly object kind
    cdef readonly tuple specs


@cython.final
cdef class WithAttributes:
    cdef readonly object form
    cdef readonly tuple state


@cython.final
cdef class GuardedReaders:
    cdef object _condition
    cdef object _expected
    cdef tuple _readers


@cython.final
cdef class TensorAdapter(_Walk):
    cdef readonly object cls
    cdef readonly object type_of
    cdef readonly object shape_of
    cdef readonly object convert
    cdef readonly object flatten
    cdef readonly object pack
    cdef readonly object type_of_others
    cdef readonly object shape_of_others

    cdef TensorSpec spec_of(self, object tensor)
    cdef int match(self, object value, object form, list tensors) except -1
    cdef int match_tensor(self, object tensor, TensorSpec spec, list tensors) except -1
    cdef int match_composite(self, object value, CompositeSpec parts, list tensors) except -1
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

    cdef dict merge(self, TensorAdapter adapter, object results, object batch)


@cython.final
cdef class Signature:
    cdef readonly tuple keys
    cdef readonly TensorAdapter adapter
    cdef tuple _inputs
    cdef _Outputs _outputs
