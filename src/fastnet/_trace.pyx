"""Matches batches with the forms of traces and programs, which take a flat list of tensors.

The form of a value is its structure with a `TensorSpec`, the type and shape, in place of each
tensor. Matching a value with a form collects its tensors. A `TensorAdapter` reads the tensors of a
framework; `FORMS` reads specs, and so matches forms with forms.

A `Signature` has the forms of one program: it returns the tensors of a batch that matches them, and
makes values of the tensors that the program returns.

Values other than tensors are constants of a program. A constant matches an equal value of the same
class with the same attributes, and a mapping must have its keys in the same order. A set is a
constant, even if it contains tensors.
"""

import copy
import dataclasses
from collections.abc import MutableMapping
from operator import attrgetter

from fastnet.errors import not_a_batch
from fastnet.trace_constants import attribute_tokens, snapshot_of_constant

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from libc.math cimport copysign

from fastnet._nest cimport FROZENSET, NOT_A_CONTAINER, SET, _Walk, container_kind
from fastnet._threads cimport FREE_THREADED, hold, unhold

cdef extern from "Python.h":
    object PyObject_CallOneArg(object callable, object arg)
    int Py_EnterRecursiveCall(const char* where)
    void Py_LeaveRecursiveCall()


cdef inline int enter() except -1:
    # CPython returns 1 for an error here, but Cython expects -1.
    return -1 if Py_EnterRecursiveCall(b" while matching a batch") else 0


@cython.final
cdef class TensorSpec:
    """The type and shape of a tensor in a form.

    Args:
        type: The result of `TensorAdapter.type_of`, compared with ``==``.
        shape: The length of each axis as a tuple, with None for any length. None for a tensor
            without a shape.
    """

    def __init__(self, type=None, tuple shape=None):
        self.type = type
        self.shape = shape

    def __repr__(self):
        return f"TensorSpec({self.type!r}, {self.shape!r})"


@cython.final
cdef class CompositeSpec:
    """A value in a form that consists of several tensors, such as a sparse tensor.

    `kind` is the first result of `TensorAdapter.flatten`, and `specs` has a `TensorSpec` for each
    tensor.
    """

    def __init__(self, kind, specs):
        self.kind = kind
        self.specs = tuple(specs)
        for spec in self.specs:
            if type(spec) is not TensorSpec:
                raise TypeError(f"specs holds a {type(spec).__name__}, not a TensorSpec")

    def __repr__(self):
        return f"CompositeSpec({self.kind!r}, {self.specs!r})"


@cython.final
cdef class WithAttributes:
    """A part of a form with attributes; `state` is its `snapshot_of_constant`."""

    def __init__(self, form, tuple state not None):
        self.form = form
        self.state = state

    def __repr__(self):
        return f"WithAttributes({self.form!r}, {self.state!r})"


@cython.final
cdef class GuardedReaders:
    """Calls several functions with a value, and returns their results as a tuple.

    They are called only if `condition(value)` is `expected`: tensors that are not strided have no
    strides, for example, so only their layout is read.
    """

    def __init__(self, condition, expected, *readers):
        self._condition = condition
        self._expected = expected
        self._readers = readers

    def __call__(self, value):
        """Return the results of the readers, or that of the condition alone."""
        cdef list results = []
        cdef object actual = PyObject_CallOneArg(self._condition, value)
        if actual is not self._expected:
            return (actual,)
        for reader in self._readers:
            results.append(PyObject_CallOneArg(reader, value))
        return tuple(results)


@cython.final
cdef class TensorAdapter(_Walk):
    """Functions that read and create the tensors of a framework.

    Args:
        cls: The class of most tensors. An instance of this very class needs no conversion.
        type_of: Returns the type of such a tensor.
        shape_of: Returns its shape as a tuple, or None if the shape is unknown.
        convert: Converts a value such as an array to a tensor, or returns None.
        flatten: Returns the kind and the tensors of a value that consists of several, or None.
        pack: Creates such a value from its kind and a list of tensors.
        others: `type_of` and `shape_of` for tensors of other classes, if different.
    """

    def __init__(
        self, cls, type_of, shape_of, convert, flatten, pack, others=None
    ):
        self.cls = cls
        self.type_of = type_of
        self.shape_of = shape_of
        self.convert = convert
        self.flatten = flatten
        self.pack = pack
        self.type_of_others, self.shape_of_others = others or (type_of, shape_of)

    def form_of(self, value):
        """Return the form of a value: its containers with a spec in place of each tensor."""
        if value is None or type(value) is str:
            return value
        if type(value) is self.cls:
            return self.spec_of(value)
        enter()
        try:
            tensor = self.convert(value)
            if tensor is not None:
                return self.spec_of(tensor)
            found = self.flatten(value)
            if found is not None:
                kind, tensors = found
                return CompositeSpec(kind, [self.spec_of(tensor) for tensor in tensors])
            state = snapshot_of_constant(value)
            form = form_around(self, value)
            return form if state is None else WithAttributes(form, state)
        finally:
            Py_LeaveRecursiveCall()

    cdef object map_item(self, object value):
        return self.form_of(value)

    def matches(self, form, value):
        """Return whether a value matches a form."""
        return bool(self.match(value, form, []))

    cdef TensorSpec spec_of(self, object tensor):
        if type(tensor) is self.cls:
            return TensorSpec(self.type_of(tensor), self.shape_of(tensor))
        return TensorSpec(self.type_of_others(tensor), self.shape_of_others(tensor))

    cdef int match(self, object value, object form, list tensors) except -1:
        """Return whether a value matches a form, and append its tensors to a list."""
        cdef object cls = type(form)
        if cls is TensorSpec:
            if type(value) is not self.cls:
                value = PyObject_CallOneArg(self.convert, value)
                if value is None:
                    return False
            return self.match_tensor(value, <TensorSpec> form, tensors)
        if cls is CompositeSpec:
            return self.match_composite(value, <CompositeSpec> form, tensors)
        if cls is WithAttributes:
            return self.match_with_attributes(value, <WithAttributes> form, tensors)
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
                return self.match_items(tuple(value), tuple(form), tensors)
            if cls is dict:
                return self.match_dict(<dict> value, <dict> form, tensors)
            return self.match_other(value, form, tensors)
        finally:
            Py_LeaveRecursiveCall()

    cdef int match_tensor(self, object tensor, TensorSpec spec, list tensors) except -1:
        cdef bint plain = type(tensor) is self.cls
        cdef object found = PyObject_CallOneArg(
            self.type_of if plain else self.type_of_others, tensor
        )
        cdef tuple expected = spec.shape
        cdef tuple shape
        cdef Py_ssize_t axis
        if not PyObject_RichCompareBool(found, spec.type, Py_EQ):
            return False
        found = PyObject_CallOneArg(self.shape_of if plain else self.shape_of_others, tensor)
        if expected is None or found is None:
            if expected is not found:
                return False
            tensors.append(tensor)
            return True
        shape = <tuple?> found
        if len(shape) != len(expected):
            return False
        for axis in range(len(expected)):
            if expected[axis] is not None and not PyObject_RichCompareBool(
                shape[axis], expected[axis], Py_EQ
            ):
                return False
        tensors.append(tensor)
        return True

    cdef int match_composite(self, object value, CompositeSpec composite, list tensors) except -1:
        cdef TensorSpec spec
        cdef object found = PyObject_CallOneArg(self.flatten, value)
        if found is None:
            return False
        kind, inner = found
        if kind != composite.kind or len(inner) != len(composite.specs):
            return False
        for tensor, spec in zip(inner, composite.specs):
            if not self.match_tensor(tensor, spec, tensors):
                return False
        return True

    cdef int match_with_attributes(
        self, object value, WithAttributes expected, list tensors
    ) except -1:
        cdef tuple state = expected.state
        if type(value) is WithAttributes:
            # Two forms can be matched too.
            tokens, value = (<WithAttributes> value).state[0], (<WithAttributes> value).form
        elif type(value) is not type(expected.form):
            return False
        else:
            tokens = attribute_tokens(value)
        return (
            tokens == state[0]
            and state[1].is_unchanged()
            and self.match(value, expected.form, tensors)
        )

    # Reading tensors runs other code, which may change containers, so these methods own references
    # to the parts that they match.

    cdef int match_items(self, tuple items, tuple forms, list tensors) except -1:
        cdef Py_ssize_t index
        if len(items) != len(forms):
            return False
        for index in range(len(forms)):
            if not self.match(items[index], forms[index], tensors):
                return False
        return True

    cdef int match_dict(self, dict value, dict form, list tensors) except -1:
        cdef PyObject* key
        cdef PyObject* part
        cdef PyObject* own_key
        cdef PyObject* own_part
        cdef Py_ssize_t index = 0, own_index = 0, before = len(tensors)
        if FREE_THREADED:
            # Another thread may change the dict during the iteration.
            value = value.copy()
        if len(value) != len(form):
            return False
        while PyDict_Next(form, &index, &key, &part):
            if not PyDict_Next(value, &own_index, &own_key, &own_part):
                return False
            form_part, value_part = <object> part, <object> own_part
            if own_key != key:
                name, own_name = <object> key, <object> own_key
                if type(name) is not str or type(own_name) is not str:
                    del tensors[before:]
                    return self.match_mapping(value, form, tensors)
                # An op that iterates over a dict depends on the order of its keys.
                if not PyObject_RichCompareBool(own_name, name, Py_EQ):
                    return False
            if not self.match(value_part, form_part, tensors):
                return False
        return True

    cdef int match_mapping(self, object value, object form, list tensors) except -1:
        cdef list unused = []
        cdef tuple own_names = tuple(value), names = tuple(form)
        cdef Py_ssize_t index
        if len(own_names) != len(names):
            return False
        for index in range(len(names)):
            # Keys such as 1 and True are equal, but do not match.
            if own_names[index] != names[index] or not self.match(
                own_names[index], names[index], unused
            ):
                return False
        for name in own_names:
            if not self.match(value[name], form[name], tensors):
                return False
        return True

    cdef int match_members(self, object value, object form) except -1:
        # Members such as 1 and True are equal, but do not match.
        cdef dict members = {member: member for member in value}
        cdef list unused = []
        if len(members) != len(form):
            return False
        for member in form:
            if member not in members or not self.match(members[member], member, unused):
                return False
        return True

    cdef int match_other(self, object value, object form, list tensors) except -1:
        if isinstance(form, MutableMapping):
            return self.match_mapping(value, form, tensors)
        if isinstance(form, (list, tuple)):
            return self.match_items(tuple(value), tuple(form), tensors)
        if isinstance(form, (set, frozenset)):
            return self.match_members(value, form)
        if not is_dataclass(form):
            return same_constant(value, form)
        for field in dataclasses.fields(form):
            if hasattr(value, field.name) != hasattr(form, field.name):
                return False
            if hasattr(form, field.name) and not self.match(
                getattr(value, field.name), getattr(form, field.name), tensors
            ):
                return False
        return True

    cdef object fill(self, object form, object tensors):
        """Return the value that a form describes, with tensors from an iterator."""
        def replace(part):
            if type(part) is TensorSpec:
                return next(tensors)
            return self.pack(part.kind, [next(tensors) for _ in part.specs])

        return map_form(form, replace)


def map_form(form, fn, bint as_form=False):
    """Return a form with new containers and `fn(part)` for each `TensorSpec` and `CompositeSpec`.

    With `as_form` the result is a form again: each `WithAttributes` stays.
    """
    cdef _FormMap walk = _FormMap(fn, as_form)
    return walk.map_item(form)


@cython.final
cdef class _FormMap(_Walk):
    cdef object fn
    cdef bint as_form

    def __cinit__(self, fn, bint as_form):
        self.fn = fn
        self.as_form = as_form

    cdef object map_item(self, object value):
        cdef object cls = type(value)
        if cls is TensorSpec or cls is CompositeSpec:
            return PyObject_CallOneArg(self.fn, value)
        if cls is WithAttributes:
            inner = self.map_item((<WithAttributes> value).form)
            return WithAttributes(inner, (<WithAttributes> value).state) if self.as_form else inner
        if value is None or cls is str or cls is int or cls is float or cls is bool:
            return value
        enter()
        try:
            return form_around(self, value)
        finally:
            Py_LeaveRecursiveCall()


cdef object form_around(_Walk walk, object value):
    """Rebuild a container of the forms of its parts; sets and other values are constants."""
    cdef int kind = container_kind(value)
    if kind == NOT_A_CONTAINER or kind == SET or kind == FROZENSET:
        return constant(value)
    return walk.remake(value, kind)


cdef int is_dataclass(object value) except -1:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


cdef object constant(object value):
    """Return a value, or a copy of an unhashable one, which may change."""
    if type(value).__hash__ is not None:
        return value
    try:
        copied = copy.copy(value)
    except Exception:
        return value
    return copied if type(copied) is type(value) and same_constant(value, copied) else value


cdef int same_constant(object value, object form) except -1:
    """Return whether two values of one class are equal; False if they cannot be compared."""
    if type(form) is complex:
        return same_float(value.real, form.real) and same_float(value.imag, form.imag)
    try:
        equal = value == form
        # Arrays compare element by element, so the result is no truth value.
        return not getattr(equal, "shape", None) and bool(equal)
    except Exception:
        return False


cdef bint same_float(double value, double form) noexcept:
    # Dividing by 0.0 and -0.0 gives different results.
    if value == form:
        return copysign(1, value) == copysign(1, form)
    return value != value and form != form


def _flatten_form(form):
    return (form.kind, form.specs) if type(form) is CompositeSpec else None


def _convert_form(form):
    return None


FORMS = TensorAdapter(
    TensorSpec, attrgetter("type"), attrgetter("shape"), _convert_form, _flatten_form, CompositeSpec
)
"""Matches forms with forms.

`FORMS.matches(wide, narrow)` returns whether every value of the form `narrow` also matches `wide`.
"""


cdef inline list read_values(tuple keys, object batch):
    """Return the values of a batch under some keys; the error for a missing key names only it."""
    cdef list values = []
    cdef PyObject* found
    if type(batch) is dict:
        for key in keys:
            found = hold(<PyObject*> batch, <PyObject*> key)
            if found == NULL:
                raise KeyError(key)
            value = <object> found
            unhold(found)
            values.append(value)
    elif not hasattr(batch, "keys"):
        raise not_a_batch(batch)
    else:
        for key in keys:
            # A defaultdict would create a missing value.
            if key not in batch:
                raise KeyError(key)
            values.append(batch[key])
    return values


cdef inline int match_values(
    TensorAdapter adapter, tuple forms, list values, list tensors
) except -1:
    """Return whether values match forms, and append their tensors to a list."""
    cdef Py_ssize_t index
    if len(values) != len(forms):
        return False
    for index in range(len(forms)):
        if not adapter.match(values[index], forms[index], tensors):
            return False
    return True


@cython.final
cdef class _Outputs:
    """The forms of the outputs of a program, whose specs its tensors fill in order."""

    def __cinit__(self, dict forms not None):
        cdef list parts = []
        self.forms = tuple(forms.items())
        map_form(list(forms.values()), parts.append)
        self.count = sum([len(part.specs) if type(part) is CompositeSpec else 1 for part in parts])
        self.are_plain = all([type(form) is TensorSpec for form in forms.values()])

    cdef dict merge(self, TensorAdapter adapter, object results, object batch):
        """Return a new dict of a batch updated with the outputs."""
        cdef dict merged = (<dict> batch).copy() if type(batch) is dict else dict(batch)
        cdef tuple tensors = tuple(results)
        cdef tuple output
        cdef Py_ssize_t index = 0
        if len(tensors) != self.count:
            raise RuntimeError(
                f"The program returned {len(tensors)} tensors, but its outputs have {self.count}."
            )
        if self.are_plain:
            for output in self.forms:
                merged[output[0]] = tensors[index]
                index += 1
        else:
            remaining = iter(tensors)
            for key, form in self.forms:
                merged[key] = adapter.fill(form, remaining)
        return merged


@cython.final
cdef class Signature:
    """The forms of the inputs and outputs of a program.

    Args:
        keys: The keys that the program reads from a batch.
        adapter: Reads and creates the tensors of the framework.
        inputs: The form of the value of each key.
        outputs: A dict of the form of each output. The tensors that the program returns fill the
            specs of these forms in order.
    """

    def __init__(self, keys, TensorAdapter adapter not None, inputs, dict outputs not None):
        self.keys = tuple(keys)
        self.adapter = adapter
        self._inputs = tuple(inputs)
        self._outputs = _Outputs(outputs)

    @property
    def inputs(self):
        """The form of each input, as a list."""
        return list(self._inputs)

    @property
    def outputs(self):
        """The form of each output, as a dict."""
        return dict(self._outputs.forms)

    def match(self, batch):
        """Return the tensors of a batch as a list, or None if the batch does not match.

        The error for a missing key names only the key.
        """
        cdef list tensors = []
        cdef list values = read_values(self.keys, batch)
        return tensors if match_values(self.adapter, self._inputs, values, tensors) else None

    def merge(self, results, batch):
        """Return a new dict of a batch updated with the outputs, of the tensors of a program."""
        return self._outputs.merge(self.adapter, results, batch)
