"""Detects whether dicts still hold the same objects, for the training flags of torch modules."""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

cdef extern from "Python.h":
    int PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**)
    PyObject* PyDict_GetItemWithError(PyObject*, PyObject*) except? NULL
    Py_ssize_t PyDict_GET_SIZE(PyObject*)
    ctypedef struct PyTypeObject:
        pass
    PyObject* PyTuple_GET_ITEM(PyObject*, Py_ssize_t)
    PyObject** items_of "PySequence_Fast_ITEMS" (list)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    bint PyLong_Check(object)
    PyTypeObject* Py_TYPE(object)
    PyObject* PyObject_GenericGetDict(PyObject*, void*) except NULL

from fastnet._threads cimport FREE_THREADED

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    /* Each write gives a dict a new version, unique among all dicts (PEP 509). */
    #define fastnet_version(dict) (((PyDictObject*)(dict))->ma_version_tag)
    #define fastnet_is_version(dict, then) (fastnet_version(dict) == (then))
    #else
    /* Dict watchers are not notified of all writes to attributes, so compare every entry. */
    #define fastnet_version(dict) 0
    #define fastnet_is_version(dict, then) 0
    #endif
    """
    unsigned long long version_of "fastnet_version" (PyObject* table) noexcept
    # Whether a dict was not written to since it had a version; False if that is unknown.
    bint is_version "fastnet_is_version" (PyObject* table, unsigned long long version) noexcept


cdef struct Table:
    PyObject* table
    # Its keys and values, alternating, and its version when it was last compared.
    PyObject* pairs
    unsigned long long version


@cython.final
cdef class Contents:
    """Detects whether dicts still hold the same objects.

    A dict that was not written to is compared by its version, where Python has versions of dicts.

    Args:
        entries: A dict and a key of it, for each value to compare.
        tables: The dicts to compare as a whole: values, order, and keys other than integers.
        owners: Objects that must keep their `__dict__` and their class.

    Raises:
        AttributeError: If an object has no `__dict__`.
        KeyError: If a dict lacks the key.
        TypeError: If a table is not a dict.
    """

    cdef list _entries
    cdef list _owners
    # Keeps alive what `_tables` points to.
    cdef list _held
    cdef Table* _tables
    cdef Py_ssize_t _count

    def __cinit__(self, list entries not None, list tables not None, list owners=None):
        cdef Table* each
        # Flat triples of dict, key and value.
        self._entries = []
        for table, key in entries:
            self._entries += (as_dict(table), key, table[key])
        # A copy that no other thread can extend.
        tables = list(tables)
        self._held = []
        self._tables = <Table*> PyMem_Calloc(max(len(tables), 1), sizeof(Table))
        if self._tables == NULL:
            raise MemoryError
        for table in tables:
            each = &self._tables[self._count]
            each.table = <PyObject*> table
            as_dict(table)
            # Read the version first: a write during the listing changes it.
            each.version = version_of(each.table)
            pairs = pairs_of(table)
            each.pairs = <PyObject*> pairs
            self._held += (table, pairs)
            self._count += 1
        self._owners = []
        for owner in owners or ():
            self._owners += (owner, owner.__dict__, type(owner))

    def __dealloc__(self):
        PyMem_Free(self._tables)

    def are_still(self):
        """Return whether every entry, table, `__dict__` and class is the same as before."""
        cdef PyObject* found
        cdef Table* each = self._tables
        cdef Table* behind = each + self._count
        cdef PyObject** at
        cdef PyObject** end
        at, end = items_of(self._owners), items_of(self._owners) + len(self._owners)
        while at != end:
            found = PyObject_GenericGetDict(at[0], NULL)
            # `_owners` holds the expected dict, so it stays alive.
            Py_XDECREF(found)
            if found != at[1] or <PyObject*> Py_TYPE(<object> at[0]) != at[2]:
                return False
            at += 3
        at, end = items_of(self._entries), items_of(self._entries) + len(self._entries)
        while at != end:
            found = PyDict_GetItemWithError(at[0], at[1])
            if found != at[2]:
                return False
            at += 3
        while each != behind:
            if not is_version(each.table, each.version):
                if not holds(each.table, each.pairs):
                    return False
                if not FREE_THREADED:  # Other threads may read it.
                    each.version = version_of(each.table)
            each += 1
        return True


cdef object as_dict(table):
    if not isinstance(table, dict):
        raise TypeError(f"{type(table).__name__} found where a dict is expected")
    return table


cdef tuple pairs_of(table):
    """Return the keys and values of a dict in order, ignoring overrides of a subclass."""
    cdef list pairs = []
    cdef Py_ssize_t place = 0
    cdef PyObject* key
    cdef PyObject* value
    with cython.critical_section(table):
        while PyDict_Next(<PyObject*> table, &place, &key, &value):
            pairs.append(<object> key)
            pairs.append(<object> value)
    return tuple(pairs)


cdef bint holds(PyObject* table, PyObject* pairs) noexcept:
    """Return whether a dict has the keys and values of a tuple, in this order."""
    cdef Py_ssize_t place = 0, index
    cdef PyObject* key = NULL
    cdef PyObject* value = NULL
    cdef Py_ssize_t size = PyTuple_GET_SIZE(pairs)
    with cython.critical_section(<object> table):
        if 2 * PyDict_GET_SIZE(table) != size:
            return False
        for index in range(0, size, 2):
            if not PyDict_Next(table, &place, &key, &value):
                return False
            if value != PyTuple_GET_ITEM(pairs, index + 1):
                return False
            # Hooks have integer keys that change when the same hook is registered again.
            if key != PyTuple_GET_ITEM(pairs, index) and not PyLong_Check(<object> key):
                return False
    return True
