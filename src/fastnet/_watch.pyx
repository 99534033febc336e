"""Whether dicts, lists and classes hold the objects that they held, for compiled torch steps."""

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
    PyObject* PyList_GET_ITEM(list, Py_ssize_t)
    PyObject** items_of "PySequence_Fast_ITEMS" (list)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    bint PyLong_Check(object)
    PyTypeObject* Py_TYPE(object)
    PyObject* PyObject_GenericGetDict(PyObject*, void*) except NULL
    PyObject* _PyType_Lookup(PyTypeObject*, PyObject*)

from fastnet._threads cimport FREE_THREADED, hold_of_class, unhold

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    /* each write gives a dict a number that no dict has had before (PEP 509) */
    #define fastnet_version(dict) (((PyDictObject*)(dict))->ma_version_tag)
    #define fastnet_is_version(dict, then) (fastnet_version(dict) == (then))
    #else
    /* there are watchers of dicts, which not all writes to attributes are told to */
    #define fastnet_version(dict) 0
    #define fastnet_is_version(dict, then) 0
    #endif
    /* each write to a class, or to one of its bases, takes its number away */
    #if PY_VERSION_HEX < 0x030D0000
    #define fastnet_tag(cls) \
        (((cls)->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? (cls)->tp_version_tag : 0)
    #else
    #define fastnet_tag(cls) ((cls)->tp_version_tag)
    #endif
    """
    unsigned long long version_of "fastnet_version" (PyObject* table) noexcept
    # whether a dict was not written to since it had a version; False where that cannot be told
    bint is_version "fastnet_is_version" (PyObject* table, unsigned long long version) noexcept
    # of a class as it is a number that no other one has had before; 0 where it has none
    unsigned int tag_of "fastnet_tag" (PyTypeObject* cls) noexcept


@cython.final
cdef class ClassAttributes:
    """Tells whether some attributes of classes are what they were.

    Args:
        classes: The classes.
        names: The names of the attributes.
    """

    cdef list _classes
    cdef tuple _names
    cdef list _values
    # the number of each class when its attributes were last compared
    cdef unsigned int* _tags

    def __cinit__(self, list classes not None, tuple names not None):
        self._classes = [cls for cls in classes if isinstance(cls, type)]
        self._names = names
        self._values = [find(cls, name) for cls in self._classes for name in names]
        self._tags = <unsigned int*> PyMem_Calloc(max(len(self._classes), 1), sizeof(unsigned int))
        if self._tags == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._tags)

    def are_still(self):
        """Return whether each class has the same object under each name."""
        cdef Py_ssize_t place, of_names, of_classes, count = len(self._names)
        cdef PyObject* cls
        cdef PyObject* found
        cdef unsigned int tag
        for of_classes in range(len(self._classes)):
            cls = PyList_GET_ITEM(self._classes, of_classes)
            tag = tag_of(<PyTypeObject*> cls)
            if tag != 0 and tag == self._tags[of_classes]:
                continue
            place = of_classes * count
            for of_names in range(count):
                found = _PyType_Lookup(
                    <PyTypeObject*> cls, PyTuple_GET_ITEM(<PyObject*> self._names, of_names)
                )
                if found == NULL:
                    found = <PyObject*> None
                if found != PyList_GET_ITEM(self._values, place):
                    return False
                place += 1
            if not FREE_THREADED:  # other threads compare by it
                self._tags[of_classes] = tag
        return True


cdef struct Table:
    PyObject* table
    # its keys and values when it was last compared, one after the other, and its version then
    PyObject* pairs
    unsigned long long version


@cython.final
cdef class Contents:
    """Tells whether dicts and lists hold what they held: the very same objects.

    A dict that was not written to is compared by one number, where Python counts such writes.

    Args:
        entries: A dict and a key of it, for each value that counts.
        tables: The dicts of which every value counts, their order, and keys other than numbers.
        lists: The lists of which every item counts, and their order.
        absent: A dict and names that it does not have, for each dict that must have none of them.
        owners: The objects that must keep the dict of their attributes, and their class.

    Raises:
        AttributeError: If an object has no such dict.
        KeyError: If a dict has no such key.
        TypeError: If something is no dict, or no list.
        ValueError: If a dict has a name that it should not have.
    """

    cdef list _entries
    cdef list _lists
    cdef list _absent
    cdef list _owners
    # what `_tables` points to
    cdef list _held
    cdef Table* _tables
    cdef Py_ssize_t _count

    def __cinit__(
        self,
        list entries not None,
        list tables not None,
        list lists=None,
        list absent=None,
        list owners=None,
    ):
        cdef Table* each
        # a value stands right behind where it was found
        self._entries = []
        for table, key in entries:
            self._entries += (as_dict(table), key, table[key])
        # a copy, which nobody makes longer meanwhile
        tables = list(tables)
        self._held = []
        self._tables = <Table*> PyMem_Calloc(max(len(tables), 1), sizeof(Table))
        if self._tables == NULL:
            raise MemoryError
        for table in tables:
            each = &self._tables[self._count]
            each.table = <PyObject*> table
            as_dict(table)
            # what is written while they are listed makes it another version
            each.version = version_of(each.table)
            pairs = pairs_of(table)
            each.pairs = <PyObject*> pairs
            self._held += (table, pairs)
            self._count += 1
        self._lists = []
        for items in lists or ():
            if not isinstance(items, list):
                raise TypeError(f"{type(items).__name__} stands where a list is expected")
            self._lists += (items, tuple(items))
        self._absent = []
        for table, names in absent or ():
            for name in names:
                if name in as_dict(table):
                    raise ValueError(f"{name!r} is in a dict that should not have it")
                self._absent += (table, name)
        self._owners = []
        for owner in owners or ():
            self._owners += (owner, owner.__dict__, type(owner))

    def __dealloc__(self):
        PyMem_Free(self._tables)

    def are_still(self):
        """Return whether they do.

        Returns:
            Whether each entry, each key and value of each table and each item of each list is the
            same object as before, no dict has a name that it had not, and no object another dict
            or class.
        """
        cdef PyObject* found
        cdef Py_ssize_t place
        cdef Table* each = self._tables
        cdef Table* behind = each + self._count
        cdef PyObject** at
        cdef PyObject** end
        at, end = items_of(self._owners), items_of(self._owners) + len(self._owners)
        while at != end:
            found = PyObject_GenericGetDict(at[0], NULL)
            # the one that it was is held here too
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
                if not FREE_THREADED:  # other threads compare by it
                    each.version = version_of(each.table)
            each += 1
        for place in range(0, len(self._lists), 2):
            if not has_items(
                <list> PyList_GET_ITEM(self._lists, place),
                PyList_GET_ITEM(self._lists, place + 1),
            ):
                return False
        for place in range(0, len(self._absent), 2):
            found = PyDict_GetItemWithError(
                PyList_GET_ITEM(self._absent, place), PyList_GET_ITEM(self._absent, place + 1)
            )
            if found != NULL:
                return False
        return True


cdef object as_dict(table):
    if not isinstance(table, dict):
        raise TypeError(f"{type(table).__name__} stands where a dict is expected")
    return table


cdef tuple pairs_of(table):
    """List keys and values of a dict in the order of its entries, whatever a subclass has."""
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
    """Return whether keys and values of a dict are those of a tuple, in this order."""
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
            # hooks have numbers for keys, another one whenever the same is registered again
            if key != PyTuple_GET_ITEM(pairs, index) and not PyLong_Check(<object> key):
                return False
    return True


cdef bint has_items(list items, PyObject* values) noexcept:
    """Return whether the items of a list are those of a tuple."""
    cdef Py_ssize_t place
    with cython.critical_section(items):
        if len(items) != PyTuple_GET_SIZE(values):
            return False
        for place in range(len(items)):
            if PyList_GET_ITEM(items, place) != PyTuple_GET_ITEM(values, place):
                return False
    return True


cdef object find(cls, name):
    cdef PyObject* found = hold_of_class(<PyObject*> cls, <PyObject*> name)
    if found == NULL:
        return None
    value = <object> found
    unhold(found)
    return value
