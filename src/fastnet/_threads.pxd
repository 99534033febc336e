# Dict lookups that are safe without a GIL, where they take a reference. With a GIL they cost no
# more than a borrowed reference.

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
    #else
    #define FASTNET_FREE_THREADED 0
    #define fastnet_hold(table, key) PyDict_GetItemWithError(table, key)
    #define fastnet_unhold(value) ((void)0)
    #endif
    """
    const bint FREE_THREADED "FASTNET_FREE_THREADED"
    # Return the value of a key, or NULL, and keep it alive until `unhold`.
    PyObject* hold "fastnet_hold" (PyObject* table, PyObject* key) except? NULL
    void unhold "fastnet_unhold" (PyObject* value) noexcept
