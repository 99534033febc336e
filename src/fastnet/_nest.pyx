"""Map a function over the tensors of a nest: detach, device move, conversion.

A nest is any depth of dict, list, tuple, namedtuple, set, frozenset, dataclass and any other
mapping that can be written to, and of classes derived from them. Types survive, with the attributes
of a derived class, whose `__init__` is not called. A `NestMap` always copies a dict, list or set,
so that what comes back can be written to, and returns any other container that holds no tensor as
it is.

What a container is, and how one is made anew, is decided here for every walk over a nest.
"""

import copy
import dataclasses
import types
from collections import ChainMap, UserDict
from collections.abc import MutableMapping

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

# a program has few types; one that makes types without end must not make a cache grow with them
cdef Py_ssize_t MOST_KINDS = 4096
cdef dict KINDS = {}


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


cdef int remember(dict kinds, object cls, int kind) except -1:
    if len(kinds) >= MOST_KINDS:
        kinds.clear()
    kinds[cls] = kind
    return kind


cdef int container_kind(object data) except -1:
    """Return which kind of container a value is, PLAIN for one that is none."""
    cdef object cls = type(data)
    cdef object known = KINDS.get(cls)
    if known is not None:
        return known
    # what stands in for another object may stand in for one of another class next time
    cdef object said = data.__class__
    return remember(KINDS, cls, kind_of_class(cls)) if said is cls else kind_of_class(said)


cdef int kind_of_class(object cls) except -1:
    if issubclass(cls, dict):
        return DICT
    if issubclass(cls, list):
        return LIST
    if issubclass(cls, tuple):
        return STRUCT_SEQUENCE if hasattr(cls, "n_sequence_fields") else TUPLE
    if issubclass(cls, set):
        return SET
    if issubclass(cls, frozenset):
        return FROZENSET
    if issubclass(cls, MutableMapping):
        return MAPPING
    return DATACLASS if dataclasses.is_dataclass(cls) else PLAIN


cdef object copy_of(object data, int kind):
    """Copy a container so that what is put into the copy does not get into the container."""
    if type(data) is dict:
        return (<dict> data).copy()
    if type(data) is list:
        return (<list> data)[:]
    if kind != MAPPING or isinstance(data, UserDict):
        result = copy.copy(data)
    else:
        # a copy may share what any other mapping keeps its items in; the items need no copies
        stores = data.maps if isinstance(data, ChainMap) else [data]
        memo = {id(part): part for store in stores for item in store.items() for part in item}
        result = copy.deepcopy(data, memo)
    if result is data or type(result) is not type(data):
        raise TypeError(
            f"a copy of a {type(data).__name__} is not another {type(data).__name__}: "
            "its copying returns something else"
        )
    return result


cdef list parts_of(object data, int kind):
    """List what a container holds, in the order in which walks go over it."""
    if kind == DICT or kind == MAPPING:
        return list(data.values())
    if kind == DATACLASS:
        names = [field.name for field in dataclasses.fields(data)]
        return [getattr(data, name) for name in names if hasattr(data, name)]
    return list(data)


cdef object tuple_of(object data, int kind, object parts):
    """Make a tuple of the class of another one."""
    cdef object cls = data.__class__
    if cls is tuple:
        return tuple(parts)
    if kind == STRUCT_SEQUENCE:
        # the fields that have a name but no place come along
        return cls(parts, data.__reduce__()[1][1])
    # a derived class may not take its parts as arguments, so its __new__ is not asked
    result = tuple.__new__(cls, parts)
    copy_attributes(data, result)
    return result


cdef object set_of(object data, int kind, list parts):
    """Make a set of the class of another one."""
    cdef object cls = data.__class__
    if kind == FROZENSET:
        result = frozenset.__new__(cls, parts)
    else:
        result = set.__new__(cls)
        set.update(result, parts)
    copy_attributes(data, result)
    return result


cdef int copy_attributes(object data, object result) except -1:
    if hasattr(data, "__dict__"):
        result.__dict__.update(data.__dict__)
    for base in type(data).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(data, name):
                # a frozen dataclass refuses ordinary assignment
                object.__setattr__(result, name, getattr(data, name))
    return 0


cdef class _Walk:
    """A walk over a nest. A class derived from it says what becomes of each part."""

    cdef object part(self, object value):
        raise NotImplementedError

    cdef object remake(self, object data, int kind):
        """Make a container anew, with what becomes of each of its parts in its place."""
        # what becomes of them is decided by foreign code, which may change the container
        cdef Py_ssize_t index
        cdef list items
        if kind == DICT or kind == MAPPING:
            items = list(data.items())
            result = copy_of(data, kind)
            for key, value in items:
                result[key] = self.part(value)
            return result
        if kind == LIST:
            items = list(data)
            # of the items, so that there is a place for each, whatever another thread does
            result = copy_of(items if type(data) is list else data, kind)
            for index in range(len(items)):
                result[index] = self.part(items[index])
            return result
        if kind == TUPLE or kind == STRUCT_SEQUENCE:
            return tuple_of(data, kind, [self.part(value) for value in tuple(data)])
        if kind == SET or kind == FROZENSET:
            return set_of(data, kind, [self.part(value) for value in list(data)])
        return self.remake_dataclass(data)

    cdef object remake_dataclass(self, object data):
        # copy.copy cannot copy a frozen one with slots
        result = object.__new__(type(data))
        copy_attributes(data, result)
        for field in dataclasses.fields(data):
            if hasattr(data, field.name):
                object.__setattr__(result, field.name, self.part(getattr(data, field.name)))
        return result


@cython.final
cdef class _LeafMap(_Walk):
    """A function over whatever in a nest is no container."""

    cdef object fn

    def __cinit__(self, fn):
        self.fn = fn

    cdef object part(self, object value):
        cdef int kind = container_kind(value)
        if kind == PLAIN:
            return PyObject_CallOneArg(self.fn, value)
        enter()
        try:
            return self.remake(value, kind)
        finally:
            Py_LeaveRecursiveCall()


def map_leaves(data, fn):
    """Apply a function to whatever in a nest is no container.

    Args:
        data: The nest.
        fn: Called with each value that is no container; returns what stands in its place.

    Returns:
        The same structure. Containers are new, and of the same classes.

    Raises:
        RecursionError: If the nest holds itself, or is deeper than the interpreter recurses.
        TypeError: If it holds a container that cannot be copied.
    """
    cdef _LeafMap walk = _LeafMap(fn)
    return walk.part(data)


def leaves_of(data):
    """List whatever in a nest is no container.

    Args:
        data: The nest.

    Returns:
        The values, in the order in which `map_leaves` goes over them.

    Raises:
        RecursionError: If the nest holds itself, or is deeper than the interpreter recurses.
    """
    cdef list found = []
    add_leaves(data, found)
    return found


cdef int add_leaves(object data, list found) except -1:
    cdef int kind = container_kind(data)
    if kind == PLAIN:
        found.append(data)
        return 0
    enter()
    try:
        for part in parts_of(data, kind):
            add_leaves(part, found)
    finally:
        Py_LeaveRecursiveCall()
    return 0


@cython.final
cdef class NestMap(_Walk):
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

    cdef object part(self, object value):
        return self.map(value)

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
        cdef int kind = self.kind_of(data, cls)
        if kind == PLAIN:
            return data
        if kind == LEAF:
            return self.map_leaf(data, False)
        if kind == TUPLE or kind == STRUCT_SEQUENCE:
            plain = tuple(data)
            mapped = self.map_tuple(plain)
            return data if mapped is plain else tuple_of(data, kind, mapped)
        if kind == FROZENSET or kind == MAPPING or kind == DATACLASS:
            if not self.holds_leaf(data):
                return data
        return self.remake(data, kind)

    cdef int kind_of(self, object data, object cls) except -1:
        cdef object known = self._kinds.get(cls)
        if known is not None:
            return known
        if issubclass(cls, self.leaf_type):
            return remember(self._kinds, cls, LEAF)
        cdef int kind = container_kind(data)
        return remember(self._kinds, cls, kind) if data.__class__ is cls else kind

    cdef bint holds_leaf(self, object data) except -1:
        cdef int kind = self.kind_of(data, type(data))
        if kind == PLAIN:
            return False
        if kind == LEAF:
            return True
        enter()
        try:
            for part in parts_of(data, kind):
                if self.holds_leaf(part):
                    return True
        finally:
            Py_LeaveRecursiveCall()
        return False
