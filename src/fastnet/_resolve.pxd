from libc.stdint cimport uint64_t


cdef class KeyTable:
    cdef dict _ids
    cdef list _names

    cpdef Py_ssize_t intern(self, object key) except -1
    cdef Py_ssize_t _add(self, object key) except -1
    cdef Py_ssize_t size(self) noexcept


cdef class KeySet:
    cdef readonly KeyTable table
    cdef uint64_t* words
    cdef Py_ssize_t n_words

    cdef int reserve(self, Py_ssize_t n_words) except -1
    cdef int set_bit(self, Py_ssize_t key_id) except -1
    cdef void clear_bit(self, Py_ssize_t key_id) noexcept
    cdef bint has_bit(self, Py_ssize_t key_id) noexcept
    cdef int unite(self, KeySet other) except -1
    cdef void intersect(self, KeySet other) noexcept
    cdef void subtract(self, KeySet other) noexcept
    cdef bint is_empty(self) noexcept


cdef class Spec:
    cdef readonly object item
    cdef set _mode
    cdef set _ds_id
    cdef bint _ds_id_excludes

    cdef bint _has_current_mode_and_ds_id(self) except -1
    cdef bint is_active(self, object mode, object ds_id) except -1


cdef class OpSpec(Spec):
    cdef readonly bint in_list
    cdef readonly bint out_list
    cdef readonly bint deletes
    cdef readonly object forward
    cdef readonly tuple models
    cdef readonly bint takes_gradients
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_outputs
    cdef Py_ssize_t* ids  # of the inputs, then of the outputs
    cdef KeyTable _table
    cdef object _read_models

    cdef tuple _models_now(self)
    cdef bint _has_current_models(self) except -1
    cdef bint _has_keys(self, object keys, Py_ssize_t first, Py_ssize_t count) except -1


cdef class SlicerSpec(Spec):
    cdef readonly KeySet slices
    cdef readonly KeySet unslices


cdef class Resolution:
    cdef readonly KeySet inputs
    cdef readonly KeySet device_inputs
    cdef readonly KeySet outputs
    cdef readonly KeySet returned
