"""The calls that a thread makes, told to a function of Python where they may matter.

A profiler in Python is called for each call and each return, which takes longer than most of what
is called. Here a call is told once for its code, or for its function, if that is enough.
"""

from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    ctypedef int (*Py_tracefunc)(PyObject*, PyFrameObject*, int, PyObject*) except -1
    void PyEval_SetProfile(Py_tracefunc, PyObject*)
    void* PyFrame_GetCode(PyFrameObject*)
    void Py_DECREF(PyObject*)
    int PyTrace_CALL
    int PyTrace_C_CALL


cdef class Calls:
    """Looks on at the calls of a thread."""

    cdef object see, is_quiet
    # by the ids of what is held here: an id stands for nothing else meanwhile
    cdef dict always, seen, quiet
    # what was found in `seen` lately, and the places where something of `always` would be
    cdef PyObject* recent[4096]
    cdef bint maybe_always[4096]
    # the code that has called a function of C last
    cdef PyObject* last
    cdef bint last_is_quiet

    def __init__(self, object see, object is_quiet, list always):
        self.see = see
        self.is_quiet = is_quiet
        self.always = {<size_t> <PyObject*> one: one for one in always}
        self.seen = {}
        self.quiet = {}
        self.last = NULL
        for one in always:
            self.maybe_always[place_of(<PyObject*> one)] = True

    def watch(self):
        """Look on at the calls of this thread from now on."""
        PyEval_SetProfile(tell, <PyObject*> self)


cdef inline size_t place_of(PyObject* one) noexcept:
    return (<size_t> one >> 5) & 4095


cdef int tell(PyObject* me, PyFrameObject* frame, int what, PyObject* called) except -1:
    if what != PyTrace_CALL and what != PyTrace_C_CALL:
        return 0
    cdef Calls self = <Calls> me
    cdef PyObject* code = <PyObject*> PyFrame_GetCode(frame)
    Py_DECREF(code)  # its frame holds it
    cdef PyObject* subject = code if what == PyTrace_CALL else called
    cdef size_t place = place_of(subject)
    if what == PyTrace_C_CALL:
        if code != self.last:
            look_at(self, code)
        if self.last_is_quiet and not (
            self.maybe_always[place] and <size_t> subject in self.always
        ):
            return 0
    if self.recent[place] == subject:
        return 0
    if <size_t> subject in self.seen:
        self.recent[place] = subject
        return 0
    try:
        if self.see(<object> <PyObject*> frame, <object> subject, what == PyTrace_C_CALL):
            self.seen[<size_t> subject] = <object> subject
    except BaseException:
        # as Python does with profilers that raise
        PyEval_SetProfile(NULL, NULL)
        raise
    return 0


cdef int look_at(Calls self, PyObject* code) except -1:
    known = self.quiet.get(<size_t> code)
    if known is None:
        known = <object> code, bool(self.is_quiet(<object> code))
        self.quiet[<size_t> code] = known
    self.last = code
    self.last_is_quiet = known[1]
    return 0
