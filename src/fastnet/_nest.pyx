"""Maps functions over the leaves of nested containers.

Containers are dicts and other mutable mappings, lists, tuples, namedtuples, sets, frozensets,
dataclasses, and instances of classes derived from them. A result has the classes and attributes of
the original containers; no `__init__` is called.
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

# A program that keeps creating classes must not make a cache grow without bound.
cdef Py_ssize_t MAX_KINDS = 4096
cdef dict KINDS = {}


cdef inline int enter() except -1:
    # CPython returns 1 for an error here, but Cython expects -1.
    return -1 if Py_EnterRecursiveCall(b" while walking a nest") else 0


def unless(leaf_type, str name, value, fn):
    """Return a function that calls `fn` unless a leaf's attribute `name` equals `value`.

    Leaves of a class derived from `leaf_type` are always passed to `fn`.
    """
    def apply(leaf):
        if type(leaf) is leaf_type and PyObject_RichCompareBool(
            PyObject_GetAttr(leaf, name), value, Py_EQ
        ):
            return leaf
        return PyObject_CallOneArg(fn, leaf)

    return apply


cdef int remember(dict kinds, object cls, int kind) except -1:
    if len(kinds) >= MAX_KINDS:
        kinds.clear()
    kinds[cls] = kind
    return kind


cdef int container_kind(object data) except -1:
    """Return the kind of a container; NOT_A_CONTAINER for any other value."""
    cdef object cls = type(data)
    cdef object known = KINDS.get(cls)
    if known is not None:
        return known
    # Proxies of the same type can have different values of __class__.
    cdef object claimed = data.__class__
    return remember(KINDS, cls, kind_of_class(cls)) if claimed is cls else kind_of_class(claimed)


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
    return DATACLASS if dataclasses.is_dataclass(cls) else NOT_A_CONTAINER


cdef object copy_of(object data, int kind):
    """Return a shallow copy of a container that shares no storage with it."""
    if type(data) is dict:
        return (<dict> data).copy()
    if type(data) is list:
        return (<list> data)[:]
    if kind != MAPPING or isinstance(data, UserDict):
        result = copy.copy(data)
    else:
        # A shallow copy of a mapping may share the storage of its items; the memo keeps the items.
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
    """List the values in a container, in the order in which they are mapped."""
    if kind == DICT or kind == MAPPING:
        return list(data.values())
    if kind == DATACLASS:
        names = [field.name for field in dataclasses.fields(data)]
        return [getattr(data, name) for name in names if hasattr(data, name)]
    return list(data)


cdef object tuple_of(object data, int kind, object parts):
    """Return a tuple of the class of `data`."""
    cdef object cls = data.__class__
    if cls is tuple:
        return tuple(parts)
    if kind == STRUCT_SEQUENCE:
        # Pass on the fields that are attributes but not items.
        return cls(parts, data.__reduce__()[1][1])
    # The __new__ of a derived class may have any signature.
    result = tuple.__new__(cls, parts)
    copy_attributes(data, result)
    return result


cdef object set_of(object data, int kind, list parts):
    """Return a set of the class of `data`."""
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
                # Frozen dataclasses refuse ordinary assignment.
                object.__setattr__(result, name, getattr(data, name))
    return 0


cdef class _Walk:
    """Rebuilds containers; derived classes define the function of each item."""

    cdef object map_item(self, object value):
        raise NotImplementedError

    cdef object remake(self, object data, int kind):
        """Return a container of the same class with each item replaced."""
        # The function of the items may change the container, so iterate over a list of its items.
        cdef Py_ssize_t index
        cdef list items
        if kind == DICT or kind == MAPPING:
            items = list(data.items())
            result = copy_of(data, kind)
            for key, value in items:
                result[key] = self.map_item(value)
            return result
        if kind == LIST:
            items = list(data)
            # Another thread may change the length of the list, so copy the items.
            result = copy_of(items if type(data) is list else data, kind)
            for index in range(len(items)):
                result[index] = self.map_item(items[index])
            return result
        if kind == TUPLE or kind == STRUCT_SEQUENCE:
            return tuple_of(data, kind, [self.map_item(value) for value in tuple(data)])
        if kind == SET or kind == FROZENSET:
            return set_of(data, kind, [self.map_item(value) for value in list(data)])
        return self.remake_dataclass(data)

    cdef object remake_dataclass(self, object data):
        # copy.copy cannot copy a frozen dataclass with slots.
        result = object.__new__(type(data))
        copy_attributes(data, result)
        for field in dataclasses.fields(data):
            if hasattr(data, field.name):
                object.__setattr__(result, field.name, self.map_item(getattr(data, field.name)))
        return result


@cython.final
cdef class _LeafMap(_Walk):
    cdef object fn

    def __cinit__(self, fn):
        self.fn = fn

    cdef object map_item(self, object value):
        cdef int kind = container_kind(value)
        if kind == NOT_A_CONTAINER:
            return PyObject_CallOneArg(self.fn, value)
        enter()
        try:
            return self.remake(value, kind)
        finally:
            Py_LeaveRecursiveCall()


def map_leaves(data, fn):
    """Return `data` with new containers and `fn(value)` for each value that is no container."""
    cdef _LeafMap walk = _LeafMap(fn)
    return walk.map_item(data)


def leaves_of(data, bint builtin_only=False):
    """List the values in `data` that are no containers, in the order of `map_leaves`.

    With `builtin_only` only lists, tuples and dicts are containers, and no subclasses of list and
    dict.
    """
    cdef list found = []
    add_leaves(data, found, builtin_only)
    return found


cdef int add_leaves(object data, list found, bint builtin_only) except -1:
    cdef int kind = container_kind(data)
    if builtin_only and not (
        type(data) is list or type(data) is dict or isinstance(data, tuple)
    ):
        kind = NOT_A_CONTAINER
    if kind == NOT_A_CONTAINER:
        found.append(data)
        return 0
    enter()
    try:
        for part in parts_of(data, kind):
            add_leaves(part, found, builtin_only)
    finally:
        Py_LeaveRecursiveCall()
    return 0


@cython.final
cdef class NestMap(_Walk):
    """Maps a function over the leaves of nested containers.

    A dict, list or set, also inside a tuple, is always copied, so that the result can be modified.
    Other containers are returned as they are if nothing in them changes.

    Args:
        leaf_type: The class of the leaves, such as `torch.Tensor`.
        fn: The function of a leaf. For a leaf of a derived class, a method of `leaf_type`, such as
            `torch.Tensor.detach`, is looked up on the leaf, so that it may be overridden.
        when: The name of an attribute; leaves for which it is false are not replaced.
    """

    def __init__(self, leaf_type, fn, str when=None):
        if not isinstance(leaf_type, type):
            raise TypeError(f"leaf_type must be a class, not {leaf_type!r}")
        self.leaf_type = leaf_type
        self.fn = fn
        self.when = when
        self._method = fn.__name__ if isinstance(fn, types.MethodDescriptorType) else None
        self._kinds = {}

    def __call__(self, data):
        """Return `data` with each leaf replaced."""
        return self.map(data)

    cdef object map_item(self, object value):
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
        # `fn` may change `data`, so iterate over the copy.
        cdef dict result = data.copy()
        cdef PyObject* key
        cdef PyObject* value
        cdef Py_ssize_t index = 0
        while PyDict_Next(result, &index, &key, &value):
            PyDict_SetItem(result, <object> key, self.map(<object> value))
        return result

    cdef object map_list(self, list data):
        cdef list result = data[:]
        cdef Py_ssize_t index
        for index in range(len(result)):
            result[index] = self.map(result[index])
        return result

    cdef object map_tuple(self, tuple data):
        """Return the tuple itself if no part of it changes."""
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
        if kind == NOT_A_CONTAINER:
            return data
        if kind == LEAF:
            return self.map_leaf(data, False)
        if kind == TUPLE or kind == STRUCT_SEQUENCE:
            items = tuple(data)
            mapped = self.map_tuple(items)
            return data if mapped is items else tuple_of(data, kind, mapped)
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

    cpdef bint holds_leaf(self, object data) except -1:
        """Return whether there is a leaf in `data`."""
        cdef int kind = self.kind_of(data, type(data))
        if kind == NOT_A_CONTAINER:
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
