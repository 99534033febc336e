"""Run what was traced: match a batch with its forms, call it with flat tensors, lay out the results.

A framework that turns ops into graphs traces them once for batches of one form: which values are
tensors, of which types and shapes, and what stands around them. A step then walks its batch along
that form, which takes down the tensors on the way, and calls the traced function with nothing but
these. This module knows no framework: it is told how to read a tensor's type and shape.
"""

import dataclasses
from collections.abc import Mapping, MutableMapping

cimport cython
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool

cdef extern from "Python.h":
    object PyObject_CallOneArg(object callable, object arg)
    PyObject* PyDict_GetItemWithError(PyObject*, PyObject*) except? NULL
    int Py_EnterRecursiveCall(const char* where)
    void Py_LeaveRecursiveCall()

# a batch whose constants differ in every step must not fill the memory with graphs
cdef Py_ssize_t MOST_TRACES = 16


cdef inline int enter() except -1:
    # CPython answers 1, not -1, when the recursion goes too deep
    return -1 if Py_EnterRecursiveCall(b" while matching a batch") else 0


@cython.final
cdef class Slot:
    """A place in a form where a tensor stands.

    Args:
        type: The tensor's type, as `TensorKind.type_of` tells it.
        shape: The length of each axis as a tuple, None for any. None for any shape at all.
    """

    def __init__(self, type=None, tuple shape=None):
        self.type = type
        self.shape = shape

    def __repr__(self):
        return f"Slot({self.type!r}, {self.shape!r})"

    cdef int accepts(self, object kind, object shape) except -1:
        cdef Py_ssize_t axis
        cdef tuple lengths
        if not PyObject_RichCompareBool(kind, self.type, Py_EQ):
            return False
        if self.shape is None:
            return True
        if shape is None:
            return False
        lengths = <tuple?> shape
        if len(lengths) != len(self.shape):
            return False
        for axis in range(len(lengths)):
            if self.shape[axis] is not None and not PyObject_RichCompareBool(
                lengths[axis], self.shape[axis], Py_EQ
            ):
                return False
        return True


@cython.final
cdef class Parts:
    """A place in a form where something stands that is made of several tensors.

    Args:
        kind: What it is, as `TensorKind.split` tells it; compared with ``==``.
        slots: A `Slot` for each of its tensors.
    """

    def __init__(self, kind, list slots not None):
        self.kind = kind
        self.slots = slots

    def __repr__(self):
        return f"Parts({self.kind!r}, {self.slots!r})"


@cython.final
cdef class TensorKind:
    """How to read the tensors of a framework.

    Args:
        cls: The class of its plain tensors; an object of just this class is a tensor at once.
        type_of: Gives a tensor's type.
        shape_of: Gives a tensor's shape as a tuple, or None if it has none.
        convert: Makes a tensor of a value that stands for one, such as an array; gives None for a
            value that does not.
        split: Takes a value apart that is made of several tensors: gives a tuple of what it is and
            a list of the tensors. Gives None for any other value.
        join: Makes such a value again, of what it is and its tensors.
    """

    def __init__(self, cls, type_of, shape_of, convert, split, join):
        self.cls = cls
        self.type_of = type_of
        self.shape_of = shape_of
        self.convert = convert
        self.split = split
        self.join = join

    def form_of(self, value):
        """Describe a value: what in it is a tensor, and what stands around.

        Args:
            value: A tensor, a nest of tensors, or anything else.

        Returns:
            The value with a `Slot` or `Parts` in place of each tensor. Containers are new.

        Raises:
            RecursionError: If the value holds itself, or is deeper than the interpreter recurses.
        """
        enter()
        try:
            if type(value) is self.cls:
                return Slot(self.type_of(value), self.shape_of(value))
            if type(value) is str or value is None:
                return value
            tensor = self.convert(value)
            if tensor is not None:
                return Slot(self.type_of(tensor), self.shape_of(tensor))
            parts = self.split(value)
            if parts is not None:
                kind, tensors = parts
                return Parts(kind, [Slot(self.type_of(one), self.shape_of(one)) for one in tensors])
            return rebuild(value, self.form_of)
        finally:
            Py_LeaveRecursiveCall()

    def tensors_of(self, value, form):
        """Take down the tensors of a value.

        Args:
            value: The value.
            form: What it should look like.

        Returns:
            The tensors as a list, in the order of the form; None if the value does not look so.
        """
        cdef list tensors = []
        return tensors if self.take(value, form, tensors) else None

    cdef int take(self, object value, object form, list tensors) except -1:
        cdef object cls = type(form)
        cdef Slot slot
        cdef Parts parts
        if cls is Slot:
            if type(value) is not self.cls:
                value = PyObject_CallOneArg(self.convert, value)
                if value is None:
                    return False
            slot = <Slot> form
            if not slot.accepts(
                PyObject_CallOneArg(self.type_of, value), PyObject_CallOneArg(self.shape_of, value)
            ):
                return False
            tensors.append(value)
            return True
        if cls is Parts:
            found = PyObject_CallOneArg(self.split, value)
            if found is None:
                return False
            parts = <Parts> form
            kind, inner = found
            if kind != parts.kind or len(inner) != len(parts.slots):
                return False
            for one, slot in zip(inner, parts.slots):
                if not slot.accepts(self.type_of(one), self.shape_of(one)):
                    return False
                tensors.append(one)
            return True
        if type(value) is not cls:
            return False
        if value is form:
            return True
        enter()
        try:
            return self.take_parts(value, form, tensors)
        finally:
            Py_LeaveRecursiveCall()

    cdef int take_parts(self, object value, object form, list tensors) except -1:
        cdef Py_ssize_t index
        if isinstance(form, (dict, Mapping)):
            if len(value) != len(form):
                return False
            for key in form:
                if key not in value or not self.take(value[key], form[key], tensors):
                    return False
            return True
        if isinstance(form, (list, tuple)):
            if len(value) != len(form):
                return False
            for index in range(len(form)):
                if not self.take(value[index], form[index], tensors):
                    return False
            return True
        if dataclasses.is_dataclass(form) and not isinstance(form, type):
            for field in dataclasses.fields(form):
                name = field.name
                if hasattr(value, name) != hasattr(form, name):
                    return False
                if hasattr(form, name):
                    if not self.take(getattr(value, name), getattr(form, name), tensors):
                        return False
            return True
        return same_constant(value, form)

    def fill(self, form, tensors):
        """Put tensors into a form.

        Args:
            form: The form.
            tensors: An iterator of the tensors, in the form's order.

        Returns:
            What the form describes. Containers are new.
        """
        if type(form) is Slot:
            return next(tensors)
        if type(form) is Parts:
            return self.join(form.kind, [next(tensors) for _ in (<Parts> form).slots])
        return rebuild(form, lambda part: self.fill(part, tensors))


cdef int same_constant(object value, object form) except -1:
    """Tell whether two values of one class are alike; values that cannot be compared are not."""
    try:
        return bool(value == form)
    except Exception:
        return False


cdef object rebuild(object data, object fn):
    """Make a container anew with a function applied to its items; anything else is itself."""
    if isinstance(data, dict) and type(data) is dict:
        return {key: fn(value) for key, value in data.items()}
    if isinstance(data, MutableMapping):
        mapped = data.copy() if hasattr(data, "copy") else type(data)()
        for key in list(data):
            mapped[key] = fn(data[key])
        return mapped
    if type(data) is list:
        return [fn(value) for value in data]
    if type(data) is tuple:
        return tuple([fn(value) for value in data])
    if isinstance(data, list):
        result = data.copy()
        if type(result) is not type(data):
            return data
        result[:] = [fn(value) for value in data]
        return result
    if isinstance(data, tuple) and hasattr(data, "_make"):
        return data._make([fn(value) for value in data])
    if isinstance(data, (set, frozenset)):
        return type(data)(data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return rebuild_dataclass(data, fn)
    return data


cdef object rebuild_dataclass(object data, object fn):
    # a frozen dataclass refuses ordinary assignment, and copy.copy with it
    result = object.__new__(type(data))
    if hasattr(data, "__dict__"):
        result.__dict__.update(data.__dict__)
    for field in dataclasses.fields(data):
        if hasattr(data, field.name):
            object.__setattr__(result, field.name, fn(getattr(data, field.name)))
    return result


@cython.final
cdef class Trace:
    """A function that was traced for values of certain forms.

    Args:
        call: Takes the tensors as a list, and returns tensors as a sequence.
        inputs: The form of each input, in the order of the keys.
        outputs: The keys that it writes, each with the form of its value, as a dict. The tensors of
            the forms are those that `call` returns, in order.
    """

    def __init__(self, call, list inputs not None, dict outputs not None):
        self.call = call
        self.inputs = inputs
        self.outputs = list(outputs.items())
        self.plain = all([type(form) is Slot for form in outputs.values()])


@cython.final
cdef class TracedStep:
    """Runs steps through traced functions, and has one traced where none fits.

    Args:
        keys: The keys that ops read from the batch.
        kind: How to read tensors.
        trace: Given the values of the keys as a list, returns a `Trace` for them.
        context: The entries of the step's state, all tensors, that come before the batch's.

    Attributes:
        traces: What was traced, the last used first. The least used is dropped if there are many.
    """

    def __init__(self, keys, TensorKind kind not None, trace, context=()):
        self.keys = list(keys)
        self.kind = kind
        self.context = list(context)
        self.traces = []
        self._trace = trace

    def step(self, batch, dict state not None):
        """Run a step and lay its outputs over its batch.

        Args:
            batch: A mapping that has every key that ops read before one writes it.
            state: The step's context.

        Returns:
            A new dict of the batch's own entries and, over them, the outputs.

        Raises:
            KeyError: If a key is missing. Its text names only the key.
            Exception: Whatever tracing, or the traced function, raises.
        """
        cdef list values = self.read(batch)
        cdef list tensors = []
        cdef Trace trace = self.find(values, state, tensors)
        if trace is None:
            trace = self.add(values)
            tensors = []
            if not self.matches(trace, values, state, tensors):
                raise RuntimeError("what was traced for a batch does not fit it")
        return self.lay_out(trace, PyObject_CallOneArg(trace.call, tensors), batch)

    def fits(self, batch):
        """Tell whether something was traced that a batch fits.

        Args:
            batch: The batch.

        Returns:
            True if a step with it would trace nothing.
        """
        for key in self.keys:
            if key not in batch:
                return False
        cdef list values = self.read(batch)
        return self.find(values, None, []) is not None

    cdef list read(self, object batch):
        cdef list values = []
        cdef PyObject* found
        if type(batch) is dict:
            for key in self.keys:
                found = PyDict_GetItemWithError(<PyObject*> batch, <PyObject*> key)
                if found == NULL:
                    raise KeyError(key)
                values.append(<object> found)
        else:
            for key in self.keys:
                values.append(batch[key])
        return values

    cdef Trace find(self, list values, dict state, list tensors):
        cdef Py_ssize_t index
        cdef Trace trace
        for index in range(len(self.traces)):
            trace = <Trace> self.traces[index]
            if self.matches(trace, values, state, tensors):
                if index:
                    del self.traces[index]
                    self.traces.insert(0, trace)
                return trace
            tensors.clear()
        return None

    cdef int matches(self, Trace trace, list values, dict state, list tensors) except -1:
        cdef Py_ssize_t index
        if state is not None:
            for key in self.context:
                tensors.append(state[key])
        for index in range(len(values)):
            if not self.kind.take(values[index], trace.inputs[index], tensors):
                return False
        return True

    cdef Trace add(self, list values):
        cdef Trace trace = <Trace?> self._trace(values)
        self.traces.insert(0, trace)
        if len(self.traces) > MOST_TRACES:
            del self.traces[MOST_TRACES:]
        return trace

    cdef dict lay_out(self, Trace trace, object results, object batch):
        cdef dict result = (<dict> batch).copy() if type(batch) is dict else dict(batch)
        cdef Py_ssize_t index
        cdef tuple output
        if trace.plain:
            index = 0
            for output in trace.outputs:
                result[output[0]] = results[index]
                index += 1
        else:
            tensors = iter(results)
            for key, form in trace.outputs:
                result[key] = self.kind.fill(form, tensors)
        return result
