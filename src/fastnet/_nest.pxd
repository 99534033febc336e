cimport cython


@cython.final
cdef class NestMap:
    cdef readonly object leaf_type
    cdef readonly object fn
    cdef readonly object when
    cdef object _method
    cdef dict _kinds

    cdef object map(self, object data)
    cdef object map_leaf(self, object leaf, bint exact)
    cdef object map_dict(self, dict data)
    cdef object map_list(self, list data)
    cdef object map_tuple(self, tuple data)
    cdef object map_other(self, object data, object cls)
    cdef object map_dataclass(self, object data, object cls)
    cdef int kind_of(self, object cls) except -1
    cdef bint holds_leaf(self, object data) except -1
