"""Map a function over the tensors of a nest: detach, device move, conversion.

A nest is any depth of dict, list, tuple, namedtuple, set, frozenset and dataclass, and of classes
derived from them. Types survive. A dict, list or set is always copied, so that what comes back
can be written to; a tuple, frozenset or dataclass that holds no tensor is returned as it is.
"""

import copy
import dataclasses
import types

cimport cython
from cpython.dict cimport PyDict_Next, PyDict_SetItem
from cpython.object cimport (
    Py_EQ,
    PyObject,
    PyObject_GetAttr,
    PyObject_IsTrue,
    PyObject_RichCompareBool,
)

cdef extern from "Python.h":
    object PyObject_CallOneArg(object callable, object arg)
    int Py_EnterRecursiveCall(const char* where)
    void Py_LeaveRecursiveCall()

cdef enum Kind:
    PLAIN = 1  # nothing to look into
    LEAF
    DICT
    LIST
    TUPLE
    STRUCT_SEQUENCE
    SET
    FROZENSET
    DATACLASS

# a program has few types; one that makes types without end must not make the cache grow with them
cdef Py_ssize_t MOST_KINDS = 4096


cdef inline int enter() except -1:
    # CPython answers 1, not -1, when the recursion goes too deep
    return -1 if Py_EnterRecursiveCall(b" while walking a nest") else 0


def unless(leaf_type, str name, value, fn):
    """Make a function of leaves that leaves those alone for which nothing is to be done.

    Args:
        leaf_type: The class of such leaves. One of a derived class, whose attributes may mean
            something else, is given to `fn` in any case.
        name: The name of their attribute.
        value: What the attribute equals if nothing is to be done.
        fn: What to do with all others.

    Returns:
        The function, for a `NestMap`.
    """
    def apply(leaf):
        if type(leaf) is leaf_type and PyObject_RichCompareBool(
            PyObject_GetAttr(leaf, name), value, Py_EQ
        ):
            return leaf
        return PyObject_CallOneArg(fn, leaf)

    return apply


@cython.final
cdef class NestMap:
    """A function over every leaf of a nest.

    Args:
        leaf_type: The class of the leaves, such as `torch.Tensor`.
        fn: What to do with a leaf: called with it, returns what stands in its place. A method of
            `leaf_type` (such as `torch.Tensor.detach`) is looked up anew on a derived class, so
            that overrides hold.
        when: The name of an attribute of a leaf; a leaf for which it is false is left as it is.
            None to take every leaf.
    """

    def __init__(self, leaf_type, fn, str when=None):
        if not isinstance(leaf_type, type):
            raise TypeError(f"leaf_type is a class, not {leaf_type!r}")
        self.leaf_type = leaf_type
        self.fn = fn
        self.when = when
        self._method = fn.__name__ if isinstance(fn, types.MethodDescriptorType) else None
        self._kinds = {}

    def __call__(self, data):
        """Map the function over a nest.

        Args:
            data: The nest: a leaf, a container of leaves, or anything else.

        Returns:
            The same structure with each leaf replaced.

        Raises:
            RecursionError: If the nest holds itself, or is deeper than the interpreter recurses.
        """
        return self.map(data)

    cdef object map(self, object data):
        cdef object cls = type(data)
        if cls is self.leaf_type:
            return self.map_leaf(data, True)
        if cls is str or cls is int or cls is float or data is None:
            return data
        enter()
        try:
            if cls is dict:
                return self.map_dict(<dict> data)
            if cls is list:
                return self.map_list(<list> data)
            if cls is tuple:
                return self.map_tuple(<tuple> data)
            return self.map_other(data, cls)
        finally:
            Py_LeaveRecursiveCall()

    cdef object map_leaf(self, object leaf, bint exact):
        if self.when is not None and not PyObject_IsTrue(PyObject_GetAttr(leaf, self.when)):
            return leaf
        if exact or self._method is None:
            return PyObject_CallOneArg(self.fn, leaf)
        return getattr(leaf, self._method)()

    cdef object map_dict(self, dict data):
        # `fn` runs foreign code, so the walk is over the copy, which nobody else can change
        cdef dict result = data.copy()
        cdef PyObject* key
        cdef PyObject* value
        cdef Py_ssize_t position = 0
        while PyDict_Next(result, &position, &key, &value):
            PyDict_SetItem(result, <object> key, self.map(<object> value))
        return result

    cdef object map_list(self, list data):
        cdef list result = data[:]
        cdef Py_ssize_t index
        for index in range(len(result)):
            result[index] = self.map(result[index])
        return result

    cdef object map_tuple(self, tuple data):
        """Return the tuple itself where nothing in it changed."""
        cdef list parts = None
        cdef Py_ssize_t index
        cdef object part
        for index in range(len(data)):
            part = self.map(data[index])
            if part is not data[index]:
                if parts is None:
                    parts = list(data)
                parts[index] = part
        return data if parts is None else tuple(parts)

    cdef object map_other(self, object data, object cls):
        cdef int kind = self.kind_of(cls)
        if kind == PLAIN:
            return data
        if kind == LEAF:
            return self.map_leaf(data, False)
        if kind == DICT:
            result = copy.copy(data)
            for key, value in list(data.items()):
                result[key] = self.map(value)
            return result
        if kind == LIST:
            result = copy.copy(data)
            for index, value in enumerate(list(data)):
                result[index] = self.map(value)
            return result
        if kind == TUPLE or kind == STRUCT_SEQUENCE:
            plain = tuple(data)
            mapped = self.map_tuple(plain)
            if mapped is plain:
                return data
            if kind == STRUCT_SEQUENCE:
                # the fields that have a name but no place come along
                return cls(mapped, data.__reduce__()[1][1])
            # a derived class may not take its parts as arguments, so its __new__ is not asked
            result = tuple.__new__(cls, mapped)
            if hasattr(data, "__dict__"):
                result.__dict__.update(data.__dict__)
            return result
        if kind == SET:
            result = copy.copy(data)
            result.clear()
            result.update([self.map(value) for value in data])
            return result
        if kind == FROZENSET:
            return cls([self.map(value) for value in data]) if self.holds_leaf(data) else data
        if not self.holds_leaf(data):
            return data
        return self.map_dataclass(data, cls)

    cdef object map_dataclass(self, object data, object cls):
        # a frozen dataclass refuses ordinary assignment, and copy.copy with it
        result = object.__new__(cls)
        if hasattr(data, "__dict__"):
            result.__dict__.update(data.__dict__)
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(data, name):
                    object.__setattr__(result, name, getattr(data, name))
        for field in dataclasses.fields(data):
            name = field.name
            if hasattr(data, name):
                object.__setattr__(result, name, self.map(getattr(data, name)))
        return result

    cdef int kind_of(self, object cls) except -1:
        cdef object known = self._kinds.get(cls)
        if known is not None:
            return known
        cdef int kind = PLAIN
        if issubclass(cls, self.leaf_type):
            kind = LEAF
        elif issubclass(cls, dict):
            kind = DICT
        elif issubclass(cls, list):
            kind = LIST
        elif issubclass(cls, tuple):
            kind = STRUCT_SEQUENCE if hasattr(cls, "n_sequence_fields") else TUPLE
        elif issubclass(cls, set):
            kind = SET
        elif issubclass(cls, frozenset):
            kind = FROZENSET
        elif dataclasses.is_dataclass(cls):
            kind = DATACLASS
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[cls] = kind
        return kind

    cdef bint holds_leaf(self, object data) except -1:
        cdef int kind = self.kind_of(type(data))
        if kind == PLAIN:
            return False
        if kind == LEAF:
            return True
        if kind == DICT:
            parts = list(data.values())
        elif kind == DATACLASS:
            parts = [getattr(data, field.name, None) for field in dataclasses.fields(data)]
        else:
            parts = list(data)
        enter()
        try:
            for part in parts:
                if self.holds_leaf(part):
                    return True
        finally:
            Py_LeaveRecursiveCall()
        return False
