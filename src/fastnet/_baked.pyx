"""What objects were like when something was made of them, and whether they still are.

A graph is made of ops, layers and optimizers with hundreds of attributes each, and whoever opens a
network again wants to know, in no time that counts, whether one of them was changed. So the values
are compared by which objects they are: nothing here runs Python code, unless an object has a way of
its own to be read. Whether another object in a place is as good is for the caller to find out.
"""

cimport cython
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

cdef extern from "Python.h":
    PyObject* PyCell_Get(object cell)
    ctypedef PyObject* (*Iterate "getiterfunc")(PyObject*)
    ctypedef struct Class "PyTypeObject":
        Iterate tp_iter
    Class* class_of "Py_TYPE"(object value) noexcept

cdef object UNSET = object()


cdef enum Kind:
    ATTRIBUTES
    MAPPING
    SEQUENCE
    FUNCTION
    OTHER


cdef class Seen:
    """An object that can change, and what it was like.

    Args:
        owner: The object.
        kind: How it is read: by its "attributes", its items as a "mapping" or as a "sequence", or
            as a "function"; a callable that gives a list of values for any other.

    Attributes:
        owner: The object.
        cls: Its class.
        values: What it was like: for attributes and mappings the names, and then their values in
            the same order; for a function its code, its defaults, those by name, and what is in the
            cells of its closure.

    Raises:
        ValueError: If there is no such kind.
    """

    cdef readonly object owner
    cdef readonly object cls
    cdef public tuple values
    cdef Kind kind
    cdef object reader

    def __init__(self, owner, kind):
        self.owner = owner
        self.cls = type(owner)
        self.reader = None
        if kind == "attributes":
            self.kind = ATTRIBUTES
        elif kind == "mapping":
            self.kind = MAPPING
        elif kind == "sequence":
            self.kind = SEQUENCE
        elif kind == "function":
            self.kind = FUNCTION
        elif callable(kind):
            self.kind = OTHER
            self.reader = kind
        else:
            raise ValueError(f"there is no kind {kind!r}")
        self.values = tuple(self.read(owner))

    cpdef list read(self, object owner):
        """Read an object of the same kind.

        Args:
            owner: The object.

        Returns:
            Its values now, as `values` has them.
        """
        cdef list found
        if self.kind == ATTRIBUTES:
            owner = owner.__dict__
            return [*owner, *owner.values()]
        if self.kind == MAPPING:
            return [*owner, *owner.values()]
        if self.kind == SEQUENCE:
            return list(owner)
        if self.kind == FUNCTION:
            found = [owner.__code__, owner.__defaults__, owner.__kwdefaults__]
            for cell in owner.__closure__ or ():
                found.append(inside(cell))
            return found
        return self.reader(owner)

    def same(self):
        """Return whether the owner is of the class, and holds the very objects, of before."""
        return self.is_same()

    cdef bint is_same(self) except -1:
        cdef object now = self.owner
        cdef tuple closure
        cdef Py_ssize_t place
        if <PyObject*> class_of(now) != <PyObject*> self.cls:
            return False
        if self.kind == ATTRIBUTES:
            now = now.__dict__
        if type(now) is dict:
            return same_dict(<dict> now, self.values)
        # a list of Keras or TensorFlow, as long as it is gone through as a list is
        if self.kind == SEQUENCE and isinstance(now, list) and has_iter_of_list(now):
            return same_list(<list> now, self.values)
        if self.kind == FUNCTION:
            closure = now.__closure__ or ()
            if (
                len(self.values) != 3 + len(closure)
                or now.__code__ is not self.values[0]
                or now.__defaults__ is not self.values[1]
                or now.__kwdefaults__ is not self.values[2]
            ):
                return False
            for place in range(len(closure)):
                if inside(closure[place]) is not self.values[3 + place]:
                    return False
            return True
        if type(now) is tuple and self.kind == SEQUENCE:
            return True
        return same_list(self.read(self.owner), self.values)


cdef inline object inside(object cell):
    """Return what is in a cell of a closure."""
    cdef PyObject* found = PyCell_Get(cell)
    value = UNSET if found == NULL else <object> found
    Py_XDECREF(found)
    return value


cdef inline bint has_iter_of_list(object now) noexcept:
    return class_of(now).tp_iter == (<Class*> list).tp_iter


cdef bint same_dict(dict now, tuple values) noexcept:
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0, place = 0, count = len(values) // 2
    with cython.critical_section(now):
        if PyDict_Size(now) != count:
            return False
        while PyDict_Next(now, &position, &key, &value):
            if (
                place == count
                or <PyObject*> values[place] != key
                or <PyObject*> values[count + place] != value
            ):
                return False
            place += 1
    return True


cdef bint same_list(list now, tuple values) noexcept:
    cdef Py_ssize_t place
    with cython.critical_section(now):
        if len(now) != len(values):
            return False
        for place in range(len(values)):
            if now[place] is not values[place]:
                return False
    return True


def first_other(list seen not None, Py_ssize_t start=0):
    """Find the first object of another class, or that holds other objects than before.

    Args:
        seen: A `Seen` for each object.
        start: The place to begin at.

    Returns:
        Its place, or -1 if there is none.
    """
    cdef Py_ssize_t place
    for place in range(start, len(seen)):
        if not (<Seen?> seen[place]).is_same():
            return place
    return -1
