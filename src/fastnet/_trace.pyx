"""Run what was traced: match a batch with its forms, call with flat tensors, lay out results.

A framework that turns ops into graphs traces them once for batches of one form: which values are
tensors, of which types and shapes, and what stands around them. A step then walks its batch along
that form, which takes down the tensors on the way, and calls the traced function with nothing but
these. This module knows no framework: it is told how to read a tensor's type and shape.

What is no tensor is a constant of a trace. It fits another value if that is of the same class and
equal to it, if a mapping has its keys in the same order, and if the attributes are what they were
when the trace was made. Tensors inside sets are constants too, because they have no place to be
found by.

A trace is exact, for one length of each axis, or wide: it leaves some of them open. A wide one is
there for values that no exact one fits. An open length can be one that several tensors share.
"""

import copy
import dataclasses
from collections.abc import MutableMapping

from fastnet.errors import not_a_batch
from fastnet.snapshots import alike, snapshot_of

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from libc.math cimport copysign

from fastnet._nest cimport FROZENSET, PLAIN, SET, NestMap, _Walk, container_kind
from fastnet._threads cimport FREE_THREADED, hold, unhold

cdef extern from "Python.h":
    object PyObject_CallOneArg(object callable, object arg)
    int Py_EnterRecursiveCall(const char* where)
    void Py_LeaveRecursiveCall()

# a batch whose constants differ in every step must not fill the memory with graphs; so many exact
# ones, and so many wide ones
cdef Py_ssize_t MOST_TRACES = 16


cdef inline int enter() except -1:
    # CPython answers 1, not -1, when the recursion goes too deep
    return -1 if Py_EnterRecursiveCall(b" while matching a batch") else 0


@cython.final
cdef class Length:
    """A length that is open, and the same for all axes of a trace's inputs that have it.

    Args:
        admits: Tells whether what was traced is for a length. Asked once for each.
    """

    def __init__(self, admits):
        self._admits = admits
        self._known = {}
        self._now = -1

    def __repr__(self):
        return "Length()"

    cdef int take(self, object length) except -1:
        """Return whether an axis may be this long, beside those that were taken before it."""
        cdef Py_ssize_t wanted = length
        if self._now == -1:
            found = self._known.get(length)
            if found is None:
                found = self._known[length] = bool(self._admits(length))
            if not found:
                return False
            self._now = wanted
        return self._now == wanted


cdef int is_open(object wanted, object length) except -1:
    """Return whether a length is wanted that is open, and can be this one."""
    return type(wanted) is Length and (<Length> wanted).take(length)


@cython.final
cdef class Slot:
    """A place in a form where a tensor stands.

    Args:
        type: The tensor's type, as `TensorKind.type_of` tells it; compared with ``==``.
        shape: The length of each axis as a tuple, None for any, and a `Length` for one that it
            shares with others. None for a tensor without a shape.
    """

    def __init__(self, type=None, tuple shape=None):
        self.type = type
        self.shape = shape

    def __repr__(self):
        return f"Slot({self.type!r}, {self.shape!r})"


@cython.final
cdef class Parts:
    """A place in a form where something stands that is made of several tensors.

    Args:
        kind: What it is, as `TensorKind.split` tells it; compared with ``==``.
        slots: A `Slot` for each of its tensors.

    Raises:
        TypeError: If something else is among the slots.
    """

    def __init__(self, kind, slots):
        self.kind = kind
        self.slots = tuple(slots)
        for slot in self.slots:
            if type(slot) is not Slot:
                raise TypeError(f"slots holds a {type(slot).__name__}, not a Slot")

    def __repr__(self):
        return f"Parts({self.kind!r}, {self.slots!r})"


@cython.final
cdef class Kept:
    """A part of a form that has attributes, with what they were.

    Args:
        form: The form of the part itself.
        state: The attributes, as `snapshot_of` took them down.
    """

    def __init__(self, form, state):
        self.form = form
        self.state = state

    def __repr__(self):
        return f"Kept({self.form!r}, {self.state!r})"


@cython.final
cdef class Readings:
    """Reads several things of a value, called as one function.

    Args:
        gate: Reads what must be `wanted` before anything else is read.
        wanted: What the gate gives for values that have the others.
        readers: Read the others.
    """

    def __init__(self, gate, wanted, *readers):
        self._gate = gate
        self._wanted = wanted
        self._readers = readers

    def __call__(self, value):
        """Read what there is.

        Args:
            value: The value.

        Returns:
            The results in order, as a tuple: the gate's, or those of the others.
        """
        cdef list found = []
        cdef object passed = PyObject_CallOneArg(self._gate, value)
        if passed is not self._wanted:
            return (passed,)
        for reader in self._readers:
            found.append(PyObject_CallOneArg(reader, value))
        return tuple(found)


@cython.final
cdef class TensorKind(_Walk):
    """How to read the tensors of a framework.

    Args:
        cls: The class of its plain tensors; an object of just this class is a tensor at once.
        type_of: Gives the type of a tensor of this class.
        shape_of: Gives its shape as a tuple, or None if it has none.
        convert: Makes a tensor of a value that stands for one, such as an array; gives None for a
            value that does not.
        split: Takes a value apart that is made of several tensors: gives what it is, and the
            tensors as a sequence. Gives None for any other value.
        join: Makes such a value again, of what it is and a list of its tensors.
        others: What gives the type and the shape of a tensor of another class, which `convert` and
            `split` may give; None where `type_of` and `shape_of` do.
        adopt: Makes tensors of what is no tensor of this framework, wherever it is in a value.
            Applied to values that no trace fits: those that need nothing of it pay nothing for it.
            None for nothing.
    """

    def __init__(
        self, cls, type_of, shape_of, convert, split, join, others=None, NestMap adopt=None
    ):
        self.cls = cls
        self.type_of = type_of
        self.shape_of = shape_of
        self.convert = convert
        self.split = split
        self.join = join
        self.type_of_others, self.shape_of_others = others or (type_of, shape_of)
        self.adopt = adopt

    def form_of(self, value):
        """Describe a value: what in it is a tensor, and what stands around.

        Args:
            value: A tensor, a nest of tensors, or anything else.

        Returns:
            The value with a `Slot` or `Parts` in place of each tensor, and a `Kept` around what has
            attributes. Containers are new, so that a form stays as it is when the program changes
            its own.

        Raises:
            RecursionError: If the value holds itself, or is deeper than the interpreter recurses.
            TypeError: If it holds a container that cannot be copied.
        """
        if value is None or type(value) is str:
            return value
        if type(value) is self.cls:
            return self.slot_of(value)
        enter()
        try:
            tensor = self.convert(value)
            if tensor is not None:
                return self.slot_of(tensor)
            found = self.split(value)
            if found is not None:
                kind, tensors = found
                return Parts(kind, [self.slot_of(tensor) for tensor in tensors])
            state = snapshot_of(value)
            form = form_around(self, value)
            return form if state is None else Kept(form, state)
        finally:
            Py_LeaveRecursiveCall()

    cdef object part(self, object value):
        return self.form_of(value)

    cdef Slot slot_of(self, object tensor):
        if type(tensor) is self.cls:
            return Slot(self.type_of(tensor), self.shape_of(tensor))
        return Slot(self.type_of_others(tensor), self.shape_of_others(tensor))

    cdef int take(self, object value, object form, list tensors) except -1:
        """Take down the tensors of a value that fits a form; tell whether it does."""
        cdef object cls = type(form)
        if cls is Slot:
            if type(value) is not self.cls:
                value = PyObject_CallOneArg(self.convert, value)
                if value is None:
                    return False
            return self.take_tensor(value, <Slot> form, tensors)
        if cls is Parts:
            return self.take_parts(value, <Parts> form, tensors)
        if cls is Kept:
            return self.take_kept(value, <Kept> form, tensors)
        if type(value) is not cls:
            return False
        if value is form:
            return True
        if cls is str or cls is int or cls is bool or cls is bytes:
            return PyObject_RichCompareBool(value, form, Py_EQ)
        if cls is float:
            return same_float(PyFloat_AS_DOUBLE(value), PyFloat_AS_DOUBLE(form))
        enter()
        try:
            if cls is list or cls is tuple:
                return self.take_items(tuple(value), tuple(form), tensors)
            if cls is dict:
                return self.take_dict(<dict> value, <dict> form, tensors)
            return self.take_other(value, form, tensors)
        finally:
            Py_LeaveRecursiveCall()

    cdef int take_tensor(self, object tensor, Slot slot, list tensors) except -1:
        cdef bint plain = type(tensor) is self.cls
        cdef object found = PyObject_CallOneArg(
            self.type_of if plain else self.type_of_others, tensor
        )
        cdef tuple wanted = slot.shape
        cdef tuple shape
        cdef Py_ssize_t axis
        if not PyObject_RichCompareBool(found, slot.type, Py_EQ):
            return False
        found = PyObject_CallOneArg(self.shape_of if plain else self.shape_of_others, tensor)
        if wanted is None or found is None:
            if wanted is not found:
                return False
            tensors.append(tensor)
            return True
        shape = <tuple?> found
        if len(shape) != len(wanted):
            return False
        for axis in range(len(wanted)):
            # a length that is open is equal to none
            if (
                wanted[axis] is not None
                and not PyObject_RichCompareBool(shape[axis], wanted[axis], Py_EQ)
                and not is_open(wanted[axis], shape[axis])
            ):
                return False
        tensors.append(tensor)
        return True

    cdef int take_parts(self, object value, Parts parts, list tensors) except -1:
        cdef Slot slot
        cdef object found = PyObject_CallOneArg(self.split, value)
        if found is None:
            return False
        kind, inner = found
        if kind != parts.kind or len(inner) != len(parts.slots):
            return False
        for tensor, slot in zip(inner, parts.slots):
            if not self.take_tensor(tensor, slot, tensors):
                return False
        return True

    cdef int take_kept(self, object value, Kept kept, list tensors) except -1:
        if type(value) is Kept:
            # a form that is matched with another one
            state, value = (<Kept> value).state, (<Kept> value).form
        elif type(value) is not type(kept.form):
            return False
        else:
            state = snapshot_of(value)
        return self.take(value, kept.form, tensors) and alike(state, kept.state)

    # what reads tensors runs foreign code: these walks hold what they are at, whatever it changes

    cdef int take_items(self, tuple items, tuple forms, list tensors) except -1:
        cdef Py_ssize_t index
        if len(items) != len(forms):
            return False
        for index in range(len(forms)):
            if not self.take(items[index], forms[index], tensors):
                return False
        return True

    cdef int take_dict(self, dict value, dict form, list tensors) except -1:
        cdef PyObject* key
        cdef PyObject* part
        cdef PyObject* own_key
        cdef PyObject* own_part
        cdef Py_ssize_t position = 0, own_position = 0, before = len(tensors)
        if FREE_THREADED:
            # to go through what another thread may change takes a copy
            value = value.copy()
        if len(value) != len(form):
            return False
        while PyDict_Next(form, &position, &key, &part):
            if not PyDict_Next(value, &own_position, &own_key, &own_part):
                return False
            form_part, value_part = <object> part, <object> own_part
            if own_key != key:
                name, own_name = <object> key, <object> own_key
                if type(name) is not str or type(own_name) is not str:
                    del tensors[before:]
                    return self.take_mapping(value, form, tensors)
                # an op that goes through a dict sees the order
                if not PyObject_RichCompareBool(own_name, name, Py_EQ):
                    return False
            if not self.take(value_part, form_part, tensors):
                return False
        return True

    cdef int take_mapping(self, object value, object form, list tensors) except -1:
        cdef list none = []
        cdef tuple own_names = tuple(value), names = tuple(form)
        cdef Py_ssize_t index
        if len(own_names) != len(names):
            return False
        for index in range(len(names)):
            # 1 and True are equal, but not alike
            if own_names[index] != names[index] or not self.take(
                own_names[index], names[index], none
            ):
                return False
        for name in own_names:
            if not self.take(value[name], form[name], tensors):
                return False
        return True

    cdef int take_members(self, object value, object form) except -1:
        """Return whether each item of a set is alike: 1 and True are equal, but not that."""
        cdef dict members = {member: member for member in value}
        cdef list none = []
        if len(members) != len(form):
            return False
        for member in form:
            if member not in members or not self.take(members[member], member, none):
                return False
        return True

    cdef int take_other(self, object value, object form, list tensors) except -1:
        if isinstance(form, MutableMapping):
            return self.take_mapping(value, form, tensors)
        if isinstance(form, (list, tuple)):
            return self.take_items(tuple(value), tuple(form), tensors)
        if isinstance(form, (set, frozenset)):
            return self.take_members(value, form)
        if not is_dataclass(form):
            return same_constant(value, form)
        for field in dataclasses.fields(form):
            if hasattr(value, field.name) != hasattr(form, field.name):
                return False
            if hasattr(form, field.name) and not self.take(
                getattr(value, field.name), getattr(form, field.name), tensors
            ):
                return False
        return True

    cdef object fill(self, object form, object tensors):
        """Make what a form describes anew, of the tensors that an iterator gives."""
        def put(part):
            if type(part) is Slot:
                return next(tensors)
            return self.join(part.kind, [next(tensors) for _ in part.slots])

        return map_form(form, put)


def map_form(form, fn, bint as_form=False):
    """Make what a form describes anew, with other things in the places of its tensors.

    Args:
        form: The form.
        fn: Called with each `Slot` and each `Parts`, in order; returns what stands in its place.
        as_form: Whether the result is to be a form again, which keeps what attributes were.

    Returns:
        The same structure. Containers are new, and of the same classes.

    Raises:
        RecursionError: If the form holds itself, or is deeper than the interpreter recurses.
    """
    cdef _FormMap walk = _FormMap(fn, as_form)
    return walk.part(form)


@cython.final
cdef class _FormMap(_Walk):
    """What `map_form` goes over a form with."""

    cdef object fn
    cdef bint as_form

    def __cinit__(self, fn, bint as_form):
        self.fn = fn
        self.as_form = as_form

    cdef object part(self, object value):
        cdef object cls = type(value)
        if cls is Slot or cls is Parts:
            return PyObject_CallOneArg(self.fn, value)
        if cls is Kept:
            inner = self.part((<Kept> value).form)
            return Kept(inner, (<Kept> value).state) if self.as_form else inner
        if value is None or cls is str or cls is int or cls is float or cls is bool:
            return value
        enter()
        try:
            return form_around(self, value)
        finally:
            Py_LeaveRecursiveCall()


cdef object form_around(_Walk walk, object value):
    """Make a container anew of the forms of its parts; keep anything else as it is.

    A set is kept too: what is in it has no place to be found by.
    """
    cdef int kind = container_kind(value)
    if kind == PLAIN or kind == SET or kind == FROZENSET:
        return constant(value)
    return walk.remake(value, kind)


cdef int is_dataclass(object value) except -1:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


cdef object constant(object value):
    """Keep a value as it is now: one that can change, as its lack of a hash tells, as a copy."""
    if type(value).__hash__ is not None:
        return value
    try:
        kept = copy.copy(value)
    except Exception:
        return value
    return kept if type(kept) is type(value) and same_constant(value, kept) else value


cdef int same_constant(object value, object form) except -1:
    """Return whether two values of one class are alike; values that cannot be compared are not."""
    if type(form) is complex:
        return same_float(value.real, form.real) and same_float(value.imag, form.imag)
    try:
        equal = value == form
        # arrays compare item by item, which is no answer
        return not getattr(equal, "shape", None) and bool(equal)
    except Exception:
        return False


cdef bint same_float(double value, double form) noexcept:
    # a graph that divides by the one would be wrong for the other
    if value == form:
        return copysign(1, value) == copysign(1, form)
    return value != value and form != form


@cython.final
cdef class Trace:
    """A function that was traced for values of certain forms.

    Args:
        call: Takes the tensors as a list, and returns tensors as a sequence.
        inputs: The form of each input, in the order of the keys.
        outputs: The keys that it writes, each with the form of its value, as a dict. The tensors of
            the forms are those that `call` returns, in order.
        wide: Whether it is only for values that no other trace fits.
        length: The one that axes of the inputs share, None where they do not.
    """

    def __init__(self, call, inputs, dict outputs not None, bint wide=False, Length length=None):
        cdef list places = []
        self.call = call
        self.wide = wide
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs.items())
        map_form(list(outputs.values()), places.append)
        self._length = length
        self._count = sum([len(part.slots) if type(part) is Parts else 1 for part in places])
        self._plain = all([type(form) is Slot for form in outputs.values()])

    @property
    def inputs(self):
        """The form of each input, as a list."""
        return list(self._inputs)

    @property
    def outputs(self):
        """The form of each key that it writes, as a dict."""
        return dict(self._outputs)


cdef tuple first_of(Trace trace, tuple traces):
    others = [other for other in traces if other is not trace]
    return (trace, *others[: MOST_TRACES - 1])


@cython.final
cdef class TracedStep:
    """Runs steps through traced functions, and has one traced where none fits.

    Args:
        keys: The keys that ops read from the batch.
        kind: How to read tensors.
        trace: Given the values of the keys as a list, returns a `Trace` for them.
        context: The entries of the step's state, all tensors, that come before the batch's.
    """

    def __init__(self, keys, TensorKind kind not None, trace, context=()):
        self.keys = tuple(keys)
        self.kind = kind
        self.context = tuple(context)
        self._trace = trace
        self._exact = ()
        self._wide = ()

    @property
    def traces(self):
        """What was traced as a list: exact ones, then wide ones, of both the last used first.

        Of more than 16 exact ones the first 16 are kept, and of more than 16 wide ones.
        """
        return [*self.exact(), *self.wide()]

    @traces.setter
    def traces(self, traces):
        cdef tuple checked = tuple(traces)
        for trace in checked:
            if type(trace) is not Trace:
                raise TypeError(f"traces holds a {type(trace).__name__}, not a Trace")
        cdef tuple exact = tuple([one for one in checked if not (<Trace> one).wide])[:MOST_TRACES]
        cdef tuple wide = tuple([one for one in checked if (<Trace> one).wide])[:MOST_TRACES]
        with cython.critical_section(self):
            self._exact = exact
            self._wide = wide

    # threads that step one network put others in the place of these tuples

    cdef inline tuple exact(self):
        with cython.critical_section(self):
            return self._exact

    cdef inline tuple wide(self):
        with cython.critical_section(self):
            return self._wide

    def step(self, batch, dict state not None):
        """Run a step and lay its outputs over its batch.

        Args:
            batch: A mapping that has every key that ops read before one writes it.
            state: The step's context.

        Returns:
            A new dict of the batch's own entries and, over them, the outputs. What `kind` has made
            tensors of is there as these tensors.

        Raises:
            KeyError: If a key is missing. Its text names only the key.
            TypeError: If the batch is no mapping.
            RuntimeError: If what was traced does not fit the values that it was traced for, or does
                not return what it should.
            Exception: Whatever tracing, or the traced function, raises.
        """
        cdef list values = self.read(batch)
        cdef list tensors = []
        cdef Trace trace = self.find(values, state, tensors)
        if trace is None:
            return self.step_anew(batch, values, state, tensors)
        return self.lay_out(trace, PyObject_CallOneArg(trace.call, tensors), batch)

    cdef dict step_anew(self, object batch, list values, dict state, list tensors):
        """Run a step that no trace fits as it is."""
        cdef Trace trace = None
        cdef list adopted = self.adopted(values)
        if adopted is not None:
            values = adopted
            batch = {**batch, **dict(zip(self.keys, values))}
            trace = self.find(values, state, tensors)
        if trace is None:
            trace = self.add(values)
            if not self.matches(trace, values, state, tensors):
                raise self.misfit(trace, values)
        return self.lay_out(trace, PyObject_CallOneArg(trace.call, tensors), batch)

    def fits(self, batch):
        """Return whether something was traced that a batch fits.

        Args:
            batch: The batch.

        Returns:
            True if a step with it would trace nothing.
        """
        for key in self.keys:
            if key not in batch:
                return False
        cdef list values = self.read(batch)
        if self.find(values, None, []) is not None:
            return True
        values = self.adopted(values)
        return values is not None and self.find(values, None, []) is not None

    cdef list read(self, object batch):
        cdef list values = []
        cdef PyObject* found
        if type(batch) is dict:
            for key in self.keys:
                found = hold(<PyObject*> batch, <PyObject*> key)
                if found == NULL:
                    raise KeyError(key)
                value = <object> found
                unhold(found)
                values.append(value)
        elif not hasattr(batch, "keys"):
            raise not_a_batch(batch)
        else:
            for key in self.keys:
                # some mappings make up what they lack
                if key not in batch:
                    raise KeyError(key)
                values.append(batch[key])
        return values

    cdef Trace find(self, list values, dict state, list tensors):
        """Find a trace that values fit, and take down their tensors; None if there is none."""
        cdef Trace trace
        for trace in self.exact():
            if self.matches(trace, values, state, tensors):
                self.put_first(trace)
                return trace
            tensors.clear()
        for trace in self.wide():
            if self.matches(trace, values, state, tensors):
                self.put_first(trace)
                return trace
            tensors.clear()
        return None

    cdef list adopted(self, list values):
        """Make tensors of what is foreign in values; None where nothing is."""
        cdef NestMap adopt = self.kind.adopt
        cdef list result = None
        cdef Py_ssize_t index
        if adopt is None:
            return None
        for index in range(len(values)):
            try:
                if not adopt.holds_leaf(values[index]):
                    continue
            except RecursionError:
                continue  # tracing says which key it is
            if result is None:
                result = values[:]
            result[index] = adopt.map(values[index])
        return result

    cdef int matches(self, Trace trace, list values, dict state, list tensors) except -1:
        cdef tuple inputs = trace._inputs
        cdef Py_ssize_t index
        if len(values) != len(inputs):
            return False
        if trace._length is not None:
            trace._length._now = -1
        if state is not None:
            for key in self.context:
                tensors.append(state[key])
        for index in range(len(inputs)):
            if not self.kind.take(values[index], inputs[index], tensors):
                return False
        return True

    cdef Trace add(self, list values):
        # tracing runs foreign code, which may change the list that it is given
        cdef object trace = self._trace(values[:])
        if type(trace) is not Trace:
            raise TypeError(f"tracing returned a {type(trace).__name__}, not a Trace")
        self.put_first(<Trace> trace)
        return <Trace> trace

    cdef int put_first(self, Trace trace) except -1:
        with cython.critical_section(self):
            if trace.wide:
                if not self._wide or self._wide[0] is not trace:
                    self._wide = first_of(trace, self._wide)
            elif not self._exact or self._exact[0] is not trace:
                self._exact = first_of(trace, self._exact)
        return 0

    cdef object misfit(self, Trace trace, list values):
        """Word the error of a trace that does not fit the values that it was made for."""
        if len(trace._inputs) != len(values):
            return RuntimeError(
                f"A trace has {len(trace._inputs)} inputs, but its step reads {len(values)} keys."
            )
        if trace._length is not None:
            trace._length._now = -1
        for key, value, form in zip(self.keys, values, trace._inputs):
            if not self.kind.take(value, form, []):
                return RuntimeError(
                    f"The value of '{key}', of type {type(value).__name__}, does not fit what was "
                    "just traced for it: it changed meanwhile, or does not equal itself."
                )

    cdef dict lay_out(self, Trace trace, object results, object batch):
        cdef dict result = (<dict> batch).copy() if type(batch) is dict else dict(batch)
        cdef tuple tensors = tuple(results)
        cdef tuple output
        cdef Py_ssize_t index = 0
        if len(tensors) != trace._count:
            raise RuntimeError(
                f"A traced function returned {len(tensors)} tensors, but its outputs are made of "
                f"{trace._count}."
            )
        if trace._plain:
            for output in trace._outputs:
                result[output[0]] = tensors[index]
                index += 1
        else:
            waiting = iter(tensors)
            for key, form in trace._outputs:
                result[key] = self.kind.fill(form, waiting)
        return result
