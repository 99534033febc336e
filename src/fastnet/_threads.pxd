# Reads that the GIL makes safe by itself, and what keeps them safe where Python has none: compiled
# without a GIL they take a reference, or look at a copy; compiled with one they cost nothing.

from cpython.object cimport PyObject

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define FASTNET_FREE_THREADED 1
    static inline PyObject* fastnet_hold(PyObject* table, PyObject* key) {
        PyObject* value;
        PyDict_GetItemRef(table, key, &value);
        return value;
    }
    #define fastnet_unhold(value) Py_DECREF(value)
    #define fastnet_lookup(cls, name) _PyType_LookupRef((PyTypeObject*)(cls), name)
    #else
    #define FASTNET_FREE_THREADED 0
    #define fastnet_hold(table, key) PyDict_GetItemWithError(table, key)
    #define fastnet_unhold(value) ((void)0)
    #define fastnet_lookup(cls, name) _PyType_Lookup((PyTypeObject*)(cls), name)
    #endif
    """
    const bint FREE_THREADED "FASTNET_FREE_THREADED"
    # what a dict has by a key, or NULL; another thread may take it out until it is unheld
    PyObject* hold "fastnet_hold" (PyObject* table, PyObject* key) except? NULL
    # what the classes in the order of a class have by a name, or NULL; likewise
    PyObject* hold_of_class "fastnet_lookup" (PyObject* cls, PyObject* name) noexcept
    void unhold "fastnet_unhold" (PyObject* value) noexcept
