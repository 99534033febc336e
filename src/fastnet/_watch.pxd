cdef class Watched:
    cdef unsigned long long stamp  # the count of writes right after the last one to this object
