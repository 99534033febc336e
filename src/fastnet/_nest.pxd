cimport cython


cdef enum Kind:
    NOT_A_CONTAINER = 1  # and no leaf
    LEAF
    DICT
    LIST
    TUPLE
    STRUCT_SEQUENCE
    SET
    FROZENSET
    MAPPING  # a mutable mapping that is no dict
    DATACLASS


cdef int container_kind(object data) except -1


cdef class _Walk:
    cdef object map_item(self, object value)
    cdef object remake(self, object data, int kind)
    cdef object remake_dataclass(self, object data)


@cython.final
cdef class NestMap(_Walk):
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
    cdef int kind_of(self, object data, object cls) except -1
    cpdef bint holds_leaf(self, object data) except -1
