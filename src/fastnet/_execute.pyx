"""Runs the active ops of a network in a loop over an array of slots.

A `KernelPlan` gives each key a slot when it is built. A step copies the batch's values into the
slots, calls each op's `forward` with values from its slots, drops each value after its last
reader, and returns the output slots. The loop over the ops hashes no key.
"""

import copy
from collections import namedtuple
from collections.abc import Mapping

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_IsTrue
from cpython.ref cimport Py_CLEAR, Py_INCREF, Py_XDECREF
from libc.string cimport memset

from fastnet._nest cimport NestMap
from fastnet._resolve cimport KeyTable, OpSpec, Resolution
from fastnet._stamps cimport StampLog
from fastnet._threads cimport hold, unhold
from fastnet.errors import (
    add_note,
    describe_op,
    missing_key,
    not_a_batch,
    not_a_sequence,
    note_failure,
    other_keys,
    wrong_count,
)

cdef extern from "Python.h":
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject**, size_t, PyObject*) except NULL
    PyObject* PyObject_Vectorcall(PyObject*, PyObject**, size_t, PyObject*) except NULL
    vectorcallfunc PyVectorcall_Function(PyObject*)
    void* Py_TYPE(object)
    bint PyMethod_Check(object)
    PyObject* PyMethod_GET_FUNCTION(object)
    PyObject* PyMethod_GET_SELF(object)
    bint PyObject_IsInstance(object, object) except -1
    PyObject* PyObject_CallNoArgs(object) except NULL
    object PyObject_CallOneArg(object, object)
    PyObject* PyDict_GetItemWithError(PyObject*, PyObject*) except? NULL
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET

# Plans with fewer keys keep their slots on the C stack, so that a step allocates no memory.
cdef enum:
    STACK_SLOTS = 64

# The keys of the state that ops get: for functions that are due at the end of a step, in lists by
# the names of models, and for those that undo what it has done if it fails, by what they restore.
DEFERRED = "deferred"
UNDO = "undo"
cdef str DEFERRED_KEY = DEFERRED
cdef str UNDO_KEY = UNDO

# The rows that each timed step has once, in their order.
cdef enum Span:
    DISPATCH   # read the slots for an op, write its outputs, drop dead values
    GRAD_MODE  # set and restore the grad mode
    DEFERRALS
    MERGE      # copy the batch into the result
    RELEASE    # drop the remaining values
    MEASURING  # the functions called before and after ops
    N_SPANS

# `ROW_KINDS` of `fastnet.profiling.rows` has them, too.
cdef tuple SPANS = ("dispatch", "grad_mode", "deferred", "merge", "release", "measuring")

cdef enum Read:
    READ_NONE  # forward(None, state)
    READ_ONE   # forward(value, state)
    READ_FIRST  # forward(first value, state); the other inputs must exist too
    READ_LIST  # forward([value, ...], state)

cdef enum Write:
    WRITE_NONE
    WRITE_ONE
    WRITE_LIST

# An op's call fits into a cache line.
cdef struct OpCall:
    vectorcallfunc call
    PyObject* callee   # the function of a bound method, or any other callable
    PyObject* owner    # the object that the method is bound to, or NULL
    int* inputs        # slots
    int* outputs
    int* dead          # the slots that no later op reads
    int n_inputs
    int n_outputs
    int n_dead
    unsigned char read    # a Read
    unsigned char write   # a Write
    unsigned char deletes


# The loop is compiled twice: with and without time stamps.
cdef struct Timing:
    PyObject* log
    int first
    PyObject* before  # or NULL
    PyObject* after

cdef struct NoTiming:
    char unused

ctypedef Timing* Timed
ctypedef NoTiming* Untimed

ctypedef fused Times:
    Timed
    Untimed


cdef inline Timing timing_of(StampLog log, int first, object before, object after) noexcept:
    cdef Timing timing
    timing.log = <PyObject*> log
    timing.first = first
    timing.before = NULL if before is None else <PyObject*> before
    timing.after = <PyObject*> after
    return timing


cdef inline void stamp(Times times, Py_ssize_t row) noexcept:
    """Add a stamp to the log of a timed step."""
    if Times is Timed:
        (<StampLog> times.log).add(times.first + <int> row)


cdef inline bint before_op(Times times, Py_ssize_t index) except -1:
    """Call the `before` function, and return whether `after` must be called."""
    if Times is Timed:
        if times.before != NULL:
            (<object> times.before)(index)
            stamp(times, MEASURING)
            return True
    return False


cdef inline int after_op(Times times, Py_ssize_t index) except -1:
    if Times is Timed:
        (<object> times.after)(index)
    return 0


cdef inline bint contains(int* slots, int count, int slot) noexcept:
    cdef int i
    for i in range(count):
        if slots[i] == slot:
            return True
    return False


cdef inline bint reads(OpCall* op_call, Py_ssize_t slot) noexcept:
    return contains(op_call.inputs, op_call.n_inputs, slot)


cdef inline bint writes(OpCall* op_call, Py_ssize_t slot) noexcept:
    return contains(op_call.outputs, op_call.n_outputs, slot)


# Converts inputs to tensors: the class of tensors that need no conversion, a map for values that
# are converted also in the returned batch, and one for values that are converted for ops only.
InputConversion = namedtuple("InputConversion", ["tensor_type", "foreign", "arrays"])


@cython.final
cdef class KernelPlan:
    """The active ops of a network, ready to run steps.

    Args:
        table: The table of the network's keys.
        specs: The `OpSpec` of each active op, in order.
        forwards: For each op the function `forward(data, state)`, usually its bound method.
        resolution: The result of `resolve` for these ops.
        to_device: Applied to each input value.
        detach: Applied to each returned value; it may also move it to the CPU.
        grad_mode: The grad mode while ops run, which is then restored: a tuple of a function that
            reads it, one that sets it, and the value.
        on_failure: Functions that are called after a failed step, such as one that clears
            gradients. A plan that has any also calls, before them, those that ops have put into the
            dict in the state's "undo" entry, the last one first.
        conversion: An `InputConversion`, which converts inputs to tensors before `to_device`.

    Attributes:
        find_inactive_writer: A function from a missing key to the description of the inactive op
            that writes it, or to None. It may itself be None.
    """

    cdef OpCall* _calls
    cdef int* _slot_lists  # the memory of all lists of slots
    cdef Py_ssize_t _n_calls
    cdef Py_ssize_t _n_slots
    cdef list _forwards  # keeps alive the objects that the calls point to
    cdef list _specs
    cdef list _keys  # the key of each slot
    cdef Py_ssize_t _n_inputs
    cdef Py_ssize_t _n_outputs
    cdef int* _inputs  # slots that are read from the batch
    cdef int* _outputs  # slots that are returned
    cdef NestMap _to_device
    cdef NestMap _detach
    cdef object _tensor_type
    cdef NestMap _foreign
    cdef NestMap _arrays
    cdef object _read_grad_mode
    cdef object _set_grad_mode
    cdef object _needed_grad_mode
    cdef tuple _on_failure
    cdef bint _can_undo
    cdef readonly object resolution
    cdef public object find_inactive_writer

    def __cinit__(self):
        self._calls = NULL
        self._slot_lists = NULL

    def __init__(
        self,
        KeyTable table not None,
        list specs not None,
        list forwards not None,
        Resolution resolution not None,
        NestMap to_device=None,
        NestMap detach=None,
        tuple grad_mode=None,
        on_failure=(),
        conversion=None,
    ):
        if self._calls != NULL:
            raise RuntimeError("a KernelPlan cannot be initialized twice")
        if len(specs) != len(forwards):
            raise ValueError(f"{len(specs)} ops, but {len(forwards)} forwards")
        self._to_device = to_device
        self._detach = detach
        if conversion is not None:
            self._tensor_type, self._foreign, self._arrays = conversion
        if grad_mode is not None:
            self._read_grad_mode, self._set_grad_mode, self._needed_grad_mode = grad_mode
        self._on_failure = tuple(on_failure)
        self._can_undo = bool(self._on_failure)
        self.resolution = resolution
        self._lay_out(table, specs, forwards, resolution)

    def __dealloc__(self):
        PyMem_Free(self._calls)
        PyMem_Free(self._slot_lists)

    cdef int _lay_out(
        self, KeyTable table, list specs, list forwards, Resolution resolution
    ) except -1:
        cdef Py_ssize_t n_ops = len(specs)
        cdef Py_ssize_t n_keys = table.size()
        cdef Py_ssize_t n_listed_slots = 2 * n_keys
        cdef Py_ssize_t index, i, key_id, n_slots
        cdef int* free
        cdef OpSpec spec
        cdef OpCall* op_call

        for item in specs:
            spec = <OpSpec?> item
            if spec is None:
                raise TypeError("a spec cannot be None")
            # A slot can be in `dead` once for each time that an op reads or writes it.
            n_listed_slots += 2 * (spec.n_inputs + spec.n_outputs)
        self._calls = <OpCall*> PyMem_Malloc(max(n_ops, 1) * sizeof(OpCall))
        self._slot_lists = <int*> PyMem_Malloc(max(n_listed_slots, 1) * sizeof(int))
        cdef int* slot_of = <int*> PyMem_Malloc(max(n_keys, 1) * sizeof(int))
        cdef char* live = <char*> PyMem_Malloc(max(n_keys, 1))
        if self._calls == NULL or self._slot_lists == NULL or slot_of == NULL or live == NULL:
            PyMem_Free(slot_of)
            PyMem_Free(live)
            raise MemoryError()
        try:
            free = self._slot_lists
            self._keys = [None] * n_keys
            n_slots = 0
            for key_id in range(n_keys):
                slot_of[key_id] = -1
            self._forwards = list(forwards)
            self._specs = list(specs)
            for index in range(n_ops):
                spec = <OpSpec> specs[index]
                op_call = &self._calls[index]
                op_call.deletes = spec.deletes
                self._set_callee(op_call, self._forwards[index])
                op_call.n_inputs = spec.n_inputs
                op_call.n_outputs = spec.n_outputs
                op_call.inputs = free
                op_call.outputs = free + spec.n_inputs
                free += spec.n_inputs + spec.n_outputs
                for i in range(spec.n_inputs + spec.n_outputs):
                    key_id = spec.ids[i]
                    if key_id >= n_keys:
                        raise ValueError(
                            f"{describe_op(spec.item, index)} was read with another table of keys"
                        )
                    if slot_of[key_id] < 0:
                        slot_of[key_id] = n_slots
                        self._keys[n_slots] = table._names[key_id]
                        n_slots += 1
                    op_call.inputs[i] = slot_of[key_id]
                if spec.in_list:
                    op_call.read = READ_LIST
                else:
                    op_call.read = READ_ONE if spec.n_inputs else READ_NONE
                    if spec.n_inputs > 1:
                        op_call.read = READ_FIRST
                if not spec.n_outputs:
                    op_call.write = WRITE_NONE
                elif spec.out_list:
                    op_call.write = WRITE_LIST
                elif spec.n_outputs == 1:
                    op_call.write = WRITE_ONE
                else:
                    raise ValueError(
                        f"{describe_op(spec.item, index)} has {spec.n_outputs} outputs, but its "
                        "out_list is False: it says that forward returns one bare value. Set "
                        "out_list to True, or name one output."
                    )
            del self._keys[n_slots:]
            self._n_slots = n_slots

            self._inputs = free
            for key_id in range(n_keys):
                if slot_of[key_id] >= 0 and resolution.device_inputs.has_bit(key_id):
                    free[0] = slot_of[key_id]
                    free += 1
            self._n_inputs = free - self._inputs
            self._outputs = free
            memset(live, 0, max(n_keys, 1))
            for key_id in range(n_keys):
                if slot_of[key_id] >= 0 and resolution.returned.has_bit(key_id):
                    free[0] = slot_of[key_id]
                    live[slot_of[key_id]] = 1
                    free += 1
            self._n_outputs = free - self._outputs

            self._n_calls = n_ops
            self._find_dead(live, free)
        finally:
            PyMem_Free(slot_of)
            PyMem_Free(live)
        return 0

    cdef void _find_dead(self, char* live, int* free) noexcept:
        """Fill the `dead` lists, given the slots that are live after the last op."""
        cdef Py_ssize_t i, slot
        cdef OpCall* op_call = self._calls + self._n_calls
        while op_call != self._calls:
            op_call -= 1
            op_call.dead = free
            for i in range(op_call.n_outputs):
                slot = op_call.outputs[i]
                if not live[slot]:
                    free[0] = slot
                    free += 1
                    live[slot] = True
            # An input that is also an output is live here, as its slot has a new value.
            for i in range(op_call.n_inputs):
                slot = op_call.inputs[i]
                if op_call.deletes or not live[slot]:
                    free[0] = slot
                    free += 1
            for i in range(op_call.n_outputs):
                live[op_call.outputs[i]] = False
            for i in range(op_call.n_inputs):
                live[op_call.inputs[i]] = True
            op_call.n_dead = free - op_call.dead

    cdef void _set_callee(self, OpCall* op_call, object forward) noexcept:
        # Calling a bound method's function directly saves an indirection in each step.
        if PyMethod_Check(forward):
            op_call.callee = PyMethod_GET_FUNCTION(forward)
            op_call.owner = PyMethod_GET_SELF(forward)
        else:
            op_call.callee = <PyObject*> forward
            op_call.owner = NULL
        op_call.call = PyVectorcall_Function(op_call.callee)
        if op_call.call == NULL:
            op_call.call = PyObject_Vectorcall

    @property
    def ops(self):
        """The ops, in order, as a tuple."""
        return tuple([spec.item for spec in self._specs])

    cdef object _op(self, Py_ssize_t index):
        return (<OpSpec> self._specs[index]).item

    cdef str _describe(self, Py_ssize_t index):
        return describe_op(self._op(index), index)

    @property
    def flow(self):
        """For each op the keys that it reads, that it writes, and that are dropped after it."""
        cdef Py_ssize_t index
        cdef list flow = []
        for index in range(self._n_calls):
            op_call = &self._calls[index]
            flow.append(
                (
                    self._names(op_call.inputs, op_call.n_inputs),
                    self._names(op_call.outputs, op_call.n_outputs),
                    # An op that reads a slot twice has it twice in `dead`.
                    tuple(dict.fromkeys(self._names(op_call.dead, op_call.n_dead))),
                )
            )
        return tuple(flow)

    cdef tuple _names(self, int* slots, Py_ssize_t count):
        cdef Py_ssize_t index
        return tuple([self._keys[slots[index]] for index in range(count)])

    def missing_key_error(self, batch):
        """Return the error that a step would raise for a key that the batch lacks, or None."""
        cdef Py_ssize_t index
        if type(batch) is not dict:
            check_batch(batch)
        for index in range(self._n_inputs):
            if self._keys[self._inputs[index]] not in batch:
                return self._missing_input(self._inputs[index], batch)
        return None

    def run(self, batch, dict state not None):
        """Run a step, and return a dict of the outputs.

        Ops get `state`, and may append functions to the lists in its "deferred" entry, which run
        after the last op. An error of an op gets a note that names the op.
        """
        return self._run(batch, state, False, <Untimed> NULL)

    def step(self, batch, dict state not None):
        """Run a step, and return a new dict of the batch updated with the outputs."""
        return self._run(batch, state, True, <Untimed> NULL)

    @property
    def spans(self):
        """For each row of a timed step its kind, and the key or the index of an op, or None."""
        inputs = [("input", self._keys[self._inputs[index]]) for index in range(self._n_inputs)]
        outputs = [("output", self._keys[self._outputs[index]]) for index in range(self._n_outputs)]
        ops = [("op", index) for index in range(self._n_calls)]
        once = [(kind, None) for kind in SPANS]
        return tuple(once + inputs + outputs + ops)

    cdef object _run(self, object batch, dict state, bint merge, Times times):
        cdef PyObject* on_stack[STACK_SLOTS]
        cdef PyObject** slots = on_stack
        cdef Py_ssize_t index = -1
        cdef PyObject* previous_mode = NULL
        cdef bint inside = False
        cdef PyObject* found
        cdef PyObject* value
        cdef OpCall* op_call
        cdef dict result
        if Times is Timed:
            # A stamp that failed for lack of memory would lose a result that is half written.
            (<StampLog> times.log).reserve(
                4 * self._n_calls + self._n_inputs + self._n_outputs + 2 * N_SPANS
            )
        if self._n_slots >= STACK_SLOTS:
            slots = <PyObject**> PyMem_Malloc((self._n_slots + 1) * sizeof(PyObject*))
            if slots == NULL:
                raise MemoryError()
        memset(slots, 0, (self._n_slots + 1) * sizeof(PyObject*))
        try:
            stamp(times, DISPATCH)
            if self._set_grad_mode is not None:
                previous_mode = PyObject_CallNoArgs(self._read_grad_mode)
                if previous_mode != <PyObject*> self._needed_grad_mode:
                    PyObject_CallOneArg(self._set_grad_mode, self._needed_grad_mode)
                stamp(times, GRAD_MODE)
            if self._arrays is None:
                self._fill(slots, batch, times)
            else:
                batch = self._fill_converting(slots, batch, times)
            op_call = self._calls
            for index in range(self._n_calls):
                value = self._read(op_call, index, slots)
                stamp(times, DISPATCH)
                inside = before_op(times, index)
                value = self._invoke(op_call, value, slots, <PyObject*> state)
                stamp(times, N_SPANS + self._n_inputs + self._n_outputs + index)
                if inside:
                    inside = False
                    # The last slot owns the value in case `after` raises.
                    slots[self._n_slots] = value
                    after_op(times, index)
                    slots[self._n_slots] = NULL
                    stamp(times, MEASURING)
                self._write(op_call, index, slots, value)
                op_call += 1
            index = -1
            stamp(times, DISPATCH)
            # No other context uses this dict, so a borrowed reference is safe.
            found = PyDict_GetItemWithError(<PyObject*> state, <PyObject*> DEFERRED_KEY)
            if found != NULL and PyObject_IsTrue(<object> found):
                inside = before_op(times, self._n_calls)
                run_deferred(<object> found)
                stamp(times, DEFERRALS)
                if inside:
                    inside = False
                    after_op(times, self._n_calls)
                    stamp(times, MEASURING)
            result = self._collect(slots, batch, merge, times)
            if self._can_undo:
                # The step has succeeded, so there is nothing to undo.
                found = PyDict_GetItemWithError(<PyObject*> state, <PyObject*> UNDO_KEY)
                if found != NULL and isinstance(<object> found, dict):
                    (<dict> found).clear()
        except BaseException as error:
            clean_up(state, self._on_failure, error)
            if index >= 0:
                note_failure(error, self._op(index), index, self._reads_of(index, slots))
            if inside:
                after_op(times, index if index >= 0 else self._n_calls)
            raise
        finally:
            self._clear(slots, on_stack)
            stamp(times, RELEASE)
            if previous_mode != NULL:
                # An op may have changed the mode, even if it was the right one before.
                self._restore_grad_mode(previous_mode)
                stamp(times, GRAD_MODE)
        # A result returned inside the try would leak if the finally clause raised.
        return result

    cdef int _restore_grad_mode(self, PyObject* mode) except -1:
        try:
            PyObject_CallOneArg(self._set_grad_mode, <object> mode)
        finally:
            Py_XDECREF(mode)
        return 0

    cdef int _fill(self, PyObject** slots, object batch, Times times) except -1:
        cdef Py_ssize_t index
        cdef bint is_dict = type(batch) is dict
        for index in range(self._n_inputs):
            self._fill_one(slots, self._inputs[index], batch, is_dict, False)
            stamp(times, N_SPANS + index)
        return 0

    cdef object _fill_converting(self, PyObject** slots, object batch, Times times):
        """Fill the input slots with tensors, and return the batch with the converted values."""
        cdef Py_ssize_t index
        cdef bint is_dict = type(batch) is dict
        cdef object filled = batch
        for index in range(self._n_inputs):
            if self._fill_one(slots, self._inputs[index], batch, is_dict, True):
                filled = self._fill_converted(slots, self._inputs[index], batch, filled)
            stamp(times, N_SPANS + index)
        return filled

    cdef bint _needs_conversion(self, object value) except -1:
        try:
            return self._arrays.holds_leaf(value)
        except RecursionError:
            return False  # Ops may read a value that contains itself.

    cdef object _fill_converted(
        self, PyObject** slots, Py_ssize_t slot, object batch, object filled
    ):
        cdef object key = self._keys[slot]
        cdef object value = batch[key]
        if self._foreign.holds_leaf(value):
            value = self._foreign.map(value)
            filled = dict(batch) if filled is batch else filled
            filled[key] = value
        value = self._arrays.map(value)
        if self._to_device is not None:
            value = self._to_device.map(value)
        Py_INCREF(value)
        slots[slot] = <PyObject*> value
        return filled

    cdef inline int _fill_one(
        self, PyObject** slots, Py_ssize_t slot, object batch, bint is_dict, bint converts
    ) except -1:
        """Fill a slot, or return True if its value must be converted first."""
        cdef PyObject* found
        cdef object value
        cdef object key = self._keys[slot]
        if is_dict:
            found = hold(<PyObject*> batch, <PyObject*> key)
            if found == NULL:
                raise self._missing_input(slot, batch)
            value = <object> found
            unhold(found)
        else:
            value = self._read_mapping(slot, batch)
        if converts and <PyObject*> Py_TYPE(value) != <PyObject*> self._tensor_type:
            if self._needs_conversion(value):
                return True
        if self._to_device is not None:
            value = self._to_device.map(value)
        Py_INCREF(value)
        slots[slot] = <PyObject*> value
        return False

    cdef object _read_mapping(self, Py_ssize_t slot, object batch):
        cdef object key = self._keys[slot]
        check_batch(batch)
        if key not in batch:
            raise self._missing_input(slot, batch)
        return batch[key]

    cdef inline PyObject* _read(
        self, OpCall* op_call, Py_ssize_t index, PyObject** slots
    ) except NULL:
        """Return an op's data as a borrowed reference; the last slot owns a list of values."""
        cdef PyObject* value
        if op_call.read == READ_ONE:
            value = slots[op_call.inputs[0]]
            if value == NULL:
                raise self._deleted_input(op_call, index, slots)
            return value
        if op_call.read == READ_NONE:
            return <PyObject*> None
        values = self._gather(op_call, index, slots)
        if op_call.read == READ_FIRST:
            return slots[op_call.inputs[0]]
        Py_INCREF(values)
        slots[self._n_slots] = <PyObject*> values
        return <PyObject*> values

    cdef inline PyObject* _invoke(
        self, OpCall* op_call, PyObject* value, PyObject** slots, PyObject* state
    ) except NULL:
        # Vectorcall may write to the entry before the arguments, which also holds the owner.
        cdef PyObject* arguments[4]
        cdef PyObject* result
        arguments[2] = value
        arguments[3] = state
        if op_call.owner != NULL:
            arguments[1] = op_call.owner
            result = op_call.call(
                op_call.callee, &arguments[1], 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL
            )
        else:
            result = op_call.call(
                op_call.callee, &arguments[2], 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL
            )
        if op_call.read == READ_LIST:
            Py_CLEAR(slots[self._n_slots])
        return result

    cdef inline int _write(
        self, OpCall* op_call, Py_ssize_t index, PyObject** slots, PyObject* result
    ) except -1:
        cdef PyObject* previous = NULL
        cdef Py_ssize_t i, slot
        if op_call.write == WRITE_ONE:
            slot = op_call.outputs[0]
            previous = slots[slot]
            slots[slot] = result
            Py_XDECREF(previous)
        elif op_call.write == WRITE_NONE:
            Py_XDECREF(result)
        else:
            try:
                self._scatter(op_call, index, slots, <object> result)
            finally:
                Py_XDECREF(result)

        for i in range(op_call.n_dead):
            slot = op_call.dead[i]
            previous = slots[slot]
            slots[slot] = NULL
            Py_XDECREF(previous)
        return 0

    cdef list _gather(self, OpCall* op_call, Py_ssize_t index, PyObject** slots):
        cdef list values = []
        cdef Py_ssize_t i
        cdef PyObject* value
        for i in range(op_call.n_inputs):
            value = slots[op_call.inputs[i]]
            if value == NULL:
                raise self._deleted_input(op_call, index, slots)
            values.append(<object> value)
        return values

    cdef int _scatter(
        self, OpCall* op_call, Py_ssize_t index, PyObject** slots, object result
    ) except -1:
        cdef Py_ssize_t i, slot
        cdef PyObject* previous
        cdef tuple values = None
        if type(result) is list or type(result) is tuple:
            # Dropping a value can run code that changes the op's list.
            values = tuple(result)
        if values is None or len(values) != op_call.n_outputs:
            keys = self._names(op_call.outputs, op_call.n_outputs)
            values = values_for(keys, result, self._op(index), index)
        for i in range(op_call.n_outputs):
            slot = op_call.outputs[i]
            previous = slots[slot]
            value = values[i]
            Py_INCREF(value)
            slots[slot] = <PyObject*> value
            Py_XDECREF(previous)
        return 0

    cdef dict _collect(self, PyObject** slots, object batch, bint merge, Times times):
        cdef dict result = {}
        cdef Py_ssize_t index
        if merge:
            result = (<dict> batch).copy() if type(batch) is dict else dict_of(batch)
        stamp(times, MERGE)
        for index in range(self._n_outputs):
            self._collect_one(slots, self._outputs[index], result)
            stamp(times, N_SPANS + self._n_inputs + index)
        return result

    cdef inline int _collect_one(
        self, PyObject** slots, Py_ssize_t slot, dict result
    ) except -1:
        cdef object value
        if slots[slot] == NULL:
            return 0  # An op has deleted the key.
        value = <object> slots[slot]
        if self._detach is not None:
            value = self._detach.map(value)
        result[self._keys[slot]] = value
        return 0

    cdef inline void _clear(self, PyObject** slots, PyObject** on_stack) noexcept:
        cdef Py_ssize_t index
        for index in range(self._n_slots + 1):
            Py_XDECREF(slots[index])
        if slots != on_stack:
            PyMem_Free(slots)

    cdef list _reads_of(self, Py_ssize_t index, PyObject** slots):
        """List an op's inputs: key, value, and the op that wrote it with its index, or None."""
        cdef OpCall* op_call = &self._calls[index]
        cdef Py_ssize_t i, earlier, slot
        cdef list found = []
        for i in range(op_call.n_inputs):
            slot = op_call.inputs[i]
            if slots[slot] == NULL:
                continue
            writer = writer_index = None
            for earlier in range(index - 1, -1, -1):
                if writes(&self._calls[earlier], slot):
                    writer, writer_index = self._op(earlier), earlier
                    break
            found.append((self._keys[slot], <object> slots[slot], writer, writer_index))
        return found

    cdef object _missing_input(self, Py_ssize_t slot, object batch):
        """Return the error for a key that the batch lacks; it names the key's first reader."""
        cdef Py_ssize_t index
        cdef object deleted_by = None
        cdef dict written = {}
        cdef OpCall* op_call
        key = self._keys[slot]
        for index in range(self._n_calls):
            op_call = &self._calls[index]
            if reads(op_call, slot) and key not in written:
                return missing_key(
                    self._op(index),
                    key,
                    batch,
                    index,
                    deleted_by,
                    reason=self._find_other_writer(slot, index),
                    written=written,
                )
            described = self._describe(index)
            if op_call.deletes:
                for name in self._names(op_call.inputs, op_call.n_inputs):
                    written.pop(name, None)
                if reads(op_call, slot):
                    deleted_by = described
            for name in self._names(op_call.outputs, op_call.n_outputs):
                written[name] = described

    cdef object _find_other_writer(self, Py_ssize_t slot, Py_ssize_t reader):
        """Describe an op that writes a key, but is inactive or runs after the reader; or None."""
        cdef Py_ssize_t index
        if self.find_inactive_writer is not None:
            reason = self.find_inactive_writer(self._keys[slot])
            if reason is not None:
                return reason
        for index in range(reader + 1, self._n_calls):
            if writes(&self._calls[index], slot):
                return f"{self._describe(index)} writes it later."
        return None

    cdef object _deleted_input(self, OpCall* op_call, Py_ssize_t index, PyObject** slots):
        """Return the error for a key that an earlier op has deleted."""
        cdef Py_ssize_t i, slot, earlier
        keys = [self._keys[slot] for slot in range(self._n_slots) if slots[slot] != NULL]
        for i in range(op_call.n_inputs):
            slot = op_call.inputs[i]
            if slots[slot] == NULL:
                deleted_by = None
                for earlier in range(index):
                    if self._calls[earlier].deletes and reads(&self._calls[earlier], slot):
                        deleted_by = self._describe(earlier)
                return missing_key(self._op(index), self._keys[slot], keys, index, deleted_by)


@cython.final
cdef class BoundPlan:
    """A kernel plan with the state that its steps give to ops.

    A step calls ops from C, because TensorFlow records the Python call stack of each of its ops.

    Args:
        kernel: The plan.
        state: The state that ops get.
        make_context: Returns the context manager that is entered around the ops of each step, such
            as a gradient tape or autocast.
        context_key: The key under which a copy of `state` holds the entered context manager's
            value.
    """

    cdef readonly KernelPlan kernel
    cdef readonly dict state
    cdef object _make_context
    cdef object _context_key

    def __cinit__(
        self, KernelPlan kernel not None, dict state not None, make_context=None, context_key=None
    ):
        self.kernel = kernel
        self.state = state
        self._make_context = make_context
        self._context_key = context_key

    def run(self, batch):
        """Run a step like `KernelPlan.run`."""
        if self._make_context is None:
            return self.kernel._run(batch, self.state, False, <Untimed> NULL)
        return self._run_within(batch, False)

    def step(self, batch):
        """Run a step like `KernelPlan.step`."""
        if self._make_context is None:
            return self.kernel._run(batch, self.state, True, <Untimed> NULL)
        return self._run_within(batch, True)

    def step_timed(
        self, batch, StampLog log not None, int first=0, before=None, after=None, int context_row=0
    ):
        """Run a step like `KernelPlan.step`, and add a stamp to `log` at the end of each part.

        `first` is the row of the first of `KernelPlan.spans`, and `context_row` that of the context
        manager. `before` and `after` are called with the index of each op before and after it runs,
        and with the number of ops around deferred functions.
        """
        cdef Timing timing = timing_of(log, first, before, after)
        if self._make_context is None:
            return self.kernel._run(batch, self.state, True, &timing)
        with self._make_context() as entered:
            log.stamp(context_row)
            result = self.kernel._run(batch, self._state_with(entered), True, &timing)
        log.stamp(context_row)
        return result

    cdef object _run_within(self, object batch, bint merge):
        with self._make_context() as entered:
            state = self._state_with(entered)
            return self.kernel._run(batch, state, merge, <Untimed> NULL)

    cdef dict _state_with(self, object entered):
        if self._context_key is None:
            return self.state
        cdef dict state = self.state.copy()
        state[self._context_key] = entered
        return state


cdef int check_batch(object batch) except -1:
    if not hasattr(batch, "keys"):
        raise not_a_batch(batch)
    return 0


cdef dict dict_of(object batch):
    check_batch(batch)
    return dict(batch)


cdef tuple values_for(
    keys, object result, object op, object index, str source="forward"
):
    """Return the value of each output of an op, in order."""
    # TensorFlow's wrappers of containers override __class__, which isinstance takes into account.
    if isinstance(result, Mapping):
        for key in keys:
            if key not in result:
                raise other_keys(op, index, keys, result, source)
        return tuple([result[key] for key in keys])
    # The fields of a namedtuple need not be in the order of the outputs.
    if not PyObject_IsInstance(result, (list, tuple)) or hasattr(result, "_fields"):
        raise not_a_sequence(op, index, keys, result, source)
    values = tuple(result)
    if len(values) != len(keys):
        raise wrong_count(op, index, keys, len(values), source)
    return values


cpdef int run_deferred(object deferred) except -1:
    """Run the functions in lists of a dict, which it empties, and those that they defer."""
    cdef list pending
    while deferred:
        pending = list(deferred.values())
        deferred.clear()
        for functions in pending:
            for function in functions:
                function()
    return 0


def clean_up(dict state not None, functions, error):
    """Clean up after a failed step, or after exit calls that failed.

    Deferred functions are discarded. Then those under "undo" are called, the last one first, and
    then `functions`; without `functions` a plan updates nothing. If one raises, this is noted on
    the error, and the others are called.
    """
    cdef object deferred = state.get(DEFERRED_KEY)
    cdef object undo = state.get(UNDO_KEY) if functions else None
    if isinstance(deferred, dict):
        deferred.clear()
    if isinstance(undo, dict):
        while undo:
            _, function = (<dict> undo).popitem()
            call_cleanup(function, error)
    for function in functions:
        call_cleanup(function, error)


cdef int call_cleanup(object function, object error) except -1:
    """Call a function; an exception becomes a note of the error that made the step fail."""
    try:
        function()
    except Exception as second:
        add_note(error, f"Cleaning up by {function!r} failed too: {second!r}")
    return 0


def get_inputs_by_op(op, store, bint copy_on_write=False):
    """Read the inputs of an op from a mapping.

    Args:
        op: The op.
        store: A mapping of keys to values.
        copy_on_write: Whether to replace read-only arrays in `store` by writable copies.

    Returns:
        A list of the values if the op's `in_list` is true, else its first value, or None for an
        op without inputs.

    Raises:
        KeyError: If a key is not in `store`.
    """
    cdef list values = []
    for key in op.inputs:
        if key not in store:
            raise missing_key(op, key, store)
        value = store[key]
        if copy_on_write:
            flags = getattr(value, "flags", None)
            if flags is not None and not getattr(flags, "writeable", True):
                value = copy.deepcopy(value)
                store[key] = value
        values.append(value)
    if op.in_list:
        return values
    return values[0] if values else None


def split_outputs(op, result, keys, str source="forward"):
    """Return the value of each of `keys` from a list, tuple or mapping, as a tuple."""
    return values_for(keys, result, op, None, source)


def write_outputs_by_op(op, store, outputs, index=None):
    """Write the result of an op's forward to a mapping.

    Args:
        op: The op.
        store: The mapping to write to.
        outputs: The result of forward. If the op's `out_list` is true, a list or tuple with one
            value for each output, or a mapping with every output among its keys; else one value.
        index: The index of the op, for error messages.

    Raises:
        ValueError: If the number of values differs from the number of outputs, or a mapping lacks
            an output.
        TypeError: If `out_list` is true and `outputs` is no list, tuple or mapping.
    """
    cdef list keys = list(op.outputs)
    if not keys:
        return
    if not op.out_list:
        outputs = [outputs]
    for key, value in zip(keys, values_for(keys, outputs, op, index)):
        store[key] = value
