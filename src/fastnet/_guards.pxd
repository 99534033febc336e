# The nodes of a snapshot, and the parts of CPython's own structs that they are read from.

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* tp_dict
        PyObject* tp_mro
        Py_ssize_t tp_dictoffset
        unsigned long tp_flags
    ctypedef struct PyFunctionObject:
        PyObject* func_code
        PyObject* func_defaults
        PyObject* func_kwdefaults
        PyObject* func_closure
        PyObject* func_dict
    ctypedef struct PyCellObject:
        PyObject* ob_ref
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member
    ctypedef struct PyGetSetDef:
        PyObject* (*get)(PyObject*, void*) except NULL
        void* closure
    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef* d_getset
    ctypedef struct PyMethodDef:
        PyObject* (*ml_meth)(PyObject*, PyObject*) except NULL
        int ml_flags
    ctypedef struct PyMethodDescrObject:
        PyMethodDef* d_method
    const int METH_NOARGS
    ctypedef struct setentry:
        PyObject* key
        Py_hash_t hash
    ctypedef struct PySetObject:
        Py_ssize_t mask
        setentry* table
    const unsigned long Py_TPFLAGS_HEAPTYPE
    const unsigned long Py_TPFLAGS_IMMUTABLETYPE
    PyTypeObject* Py_TYPE(PyObject*)
    bint PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**)
    Py_ssize_t PyDict_GET_SIZE(PyObject*)
    Py_ssize_t PySet_GET_SIZE(PyObject*)
    PyObject* PyObject_GenericGetDict(PyObject*, void*) except NULL
    object get_attributes "PyObject_GenericGetDict" (object, void*)
    PyObject** items_of "PySequence_Fast_ITEMS" (PyObject*)

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    #define fastnet_version_of(cls) \
        (((cls)->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? (cls)->tp_version_tag : 0)
    #else
    #define fastnet_version_of(cls) ((cls)->tp_version_tag)
    #endif
    """
    # A number that no class had before, or 0.
    unsigned int version_of "fastnet_version_of" (PyTypeObject* cls) noexcept

cdef extern from *:
    """
    /* Up to Python 3.12, each change of a dict gives it a number that no dict had before. */
    #if PY_VERSION_HEX < 0x030D0000
    #define fastnet_dict_version_of(items) (((PyDictObject *)(items))->ma_version_tag)
    #else
    #define fastnet_dict_version_of(items) ((uint64_t)0)
    #endif
    """
    uint64_t dict_version_of "fastnet_dict_version_of" (PyObject* items) noexcept


cdef struct Node:
    int kind
    # Of a CLASS: its version when it was last compared; of a DICT or an OBJECT, that of the dict.
    # 0 if there is none.
    uint64_t version
    PyObject* owner
    # A tuple of the names to skip, or NULL.
    PyObject* skip
    # The weak reference to the owner, if the snapshot does not keep it alive, or NULL.
    PyObject* reference
    # The node that led here, and the index of this one among its values; -1 if both are of the
    # same object. The parents of the roots are -1, -2, and so on.
    Py_ssize_t parent
    Py_ssize_t position
    # The range of the values. For a LINK, `first` is the node that it leads to.
    Py_ssize_t first
    Py_ssize_t end


cdef class BaseSnapshot:
    cdef Node* nodes
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    # The values of all nodes. They and `kept` keep everything alive that nodes point to.
    cdef tuple values
    cdef list kept
    # During the walk: the values up to now, the nodes by address, the functions, the nodes of weak
    # references that are not followed, the referents of others, and how many values may follow.
    cdef list walked_values
    cdef dict seen
    cdef list functions
    cdef list unfollowed
    cdef list live_referents
    cdef Py_ssize_t remaining_entries
    cdef object rules
    cdef dict skip
    cdef dict layouts
    cdef bint shallow
    # The node at which the walk ended early, or -1.
    cdef readonly Py_ssize_t _stopped_at

    cdef int add(self, int kind, owner, Py_ssize_t parent, Py_ssize_t position) except -1
    cdef bint enter(
        self, key, int kind, owner, Py_ssize_t parent, Py_ssize_t position
    ) except -1
    cdef int visit(self, value, Py_ssize_t parent, Py_ssize_t position) except -1
    cdef object layout_of(self, cls)
    cdef bint expand(self, Py_ssize_t index) except -1
    cdef int enter_class(self, cls, Py_ssize_t index, Py_ssize_t position) except -1
    cdef int enter_globals(self, function, Py_ssize_t index) except -1
    cdef bint follow_references(self) except -1
    cdef object hold_owner(self, Py_ssize_t index)
    cdef int read(self, Node* node, list values) except -1
    cpdef Py_ssize_t next_change(self, Py_ssize_t start) except -2
    cpdef object _difference_in(self, Py_ssize_t index)


cdef struct Member:
    # Calls one of both: an attribute is compared by identity, a method's result as a number.
    PyGetSetDef* attribute
    PyMethodDef* method
    PyObject* owner
    PyObject* value
    unsigned long long number


cdef class MemberGuard:
    cdef Member* members
    cdef Py_ssize_t count
    # They keep everything alive that members point to.
    cdef list kept

    cdef int add(self, owner, str name, bint is_method) except -1


cpdef object referent_of(reference)
