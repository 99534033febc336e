"""Run the active ops of a network: read, forward, write, over flat slots.

A `Plan` is laid out once, when a network is opened. A step then fills the input slots, calls each
op's `forward` with values that are a pointer away, drops each value after its last reader, and
hands back the output slots. No key is hashed inside the loop.
"""

import copy
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

# batches of up to this many keys need no allocation: their slots live on the C stack
cdef enum:
    STACK_SLOTS = 64

cdef str DEFERRED = "deferred"

# what each timed step has once, in the order of its rows
cdef enum Span:
    DISPATCH   # slots: reading them for an op, writing what it returned, dropping dead values
    SETTING
    DEFERRALS
    MERGE      # the dict that is returned, with the batch's own entries
    RELEASE    # the values that are left
    MEASURING
    N_SPANS

cdef tuple SPANS = ("dispatch", "setting", "deferred", "merge", "release", "measuring")

cdef enum Read:
    READ_NONE  # forward(None, state)
    READ_ONE   # forward(value, state)
    READ_FIRST  # the same, of several inputs that must be there
    READ_LIST  # forward([value, ...], state)

cdef enum Write:
    WRITE_NONE
    WRITE_ONE
    WRITE_LIST

# a cache line each, with slots as small numbers: a plan of many ops is walked from end to end
cdef struct Step:
    vectorcallfunc call  # the callee's own entry
    PyObject* callee   # the function behind a bound method, or any other callable
    PyObject* owner    # what the method is bound to, or NULL
    int* inputs        # slots
    int* outputs
    int* dead          # the slots that nobody reads after this op
    int n_inputs
    int n_outputs
    int n_dead
    unsigned char read    # a Read
    unsigned char write   # a Write
    unsigned char deletes


# what a step that is measured goes by, and one that is not: the loop is compiled once for each
cdef struct Timing:
    PyObject* log
    int first
    PyObject* before  # or NULL
    PyObject* after

cdef struct NoTiming:
    char nothing

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
    """Leave a stamp where the step is measured."""
    if Times is Timed:
        (<StampLog> times.log).add(times.first + <int> row)


cdef inline bint before_op(Times times, Py_ssize_t place) except -1:
    """Call what is to be called before an op, and tell whether something is due after it."""
    if Times is Timed:
        if times.before != NULL:
            (<object> times.before)(place)
            stamp(times, MEASURING)
            return True
    return False


cdef inline int after_op(Times times, Py_ssize_t place) except -1:
    """Call what is to be called after an op."""
    if Times is Timed:
        (<object> times.after)(place)
    return 0


@cython.final
cdef class Plan:
    """The active ops of a network, laid out for its steps.

    Args:
        table: The table of the network's keys.
        specs: An `OpSpec` for each active op, in order.
        forwards: What to call for each op: `forward(data, state)`, usually the op's bound method.
        resolution: What `resolve` found for these ops.
        move: Applied to each value on its way in (such as a copy to the device), or None.
        release: Applied to each value on its way out (such as a detach), or None.
        adopt: What makes tensors of other things on their way in, before `move`, as a tuple: the
            class of tensors that need not be looked at, a map of what comes back as these tensors,
            and a map of all, also of what comes back as it was. None for nothing.
        setting: Something that must be so while ops run and is put back afterwards (such as
            gradients being off), as a tuple: a function that reads it, one that sets it, and the
            value it must have. None for nothing.
        abandon: Functions without arguments that let go of what a step that failed has left behind,
            wherever it was: gradients, say. Each may be called twice.

    Attributes:
        resolution: What the steps need, move and return.
        elsewhere: Given a missing key, describes an inactive op that writes it, or returns None.
        places: The index that errors give for each op of a plan for a part of the ops; else None.

    Raises:
        ValueError: If an op has several outputs but says that it returns one bare value, or if
            there is not one forward for each op.
    """

    cdef Step* _steps
    cdef int* _numbers  # backing store of every slot list
    cdef Py_ssize_t _n_steps
    cdef Py_ssize_t _n_slots
    cdef list _forwards  # keeps alive what the steps point to
    cdef list _specs
    cdef list _keys  # the key of each slot
    cdef Py_ssize_t _n_inputs
    cdef Py_ssize_t _n_outputs
    cdef int* _inputs  # slots that the batch fills
    cdef int* _outputs  # slots that are handed back
    cdef NestMap _move
    cdef NestMap _release
    cdef object _own
    cdef NestMap _foreign
    cdef NestMap _arrays
    cdef object _read_setting
    cdef object _write_setting
    cdef object _needed_setting
    cdef tuple _abandon
    cdef readonly object resolution
    cdef public object elsewhere
    cdef public object places

    def __cinit__(self):
        self._steps = NULL
        self._numbers = NULL

    def __init__(
        self,
        KeyTable table not None,
        list specs not None,
        list forwards not None,
        Resolution resolution not None,
        NestMap move=None,
        NestMap release=None,
        tuple setting=None,
        abandon=(),
        tuple adopt=None,
    ):
        if self._steps != NULL:
            raise RuntimeError("a Plan is laid out once")
        if len(specs) != len(forwards):
            raise ValueError(f"{len(specs)} ops, but {len(forwards)} forwards")
        self._move = move
        self._release = release
        if adopt is not None:
            self._own, self._foreign, self._arrays = adopt
        if setting is not None:
            self._read_setting, self._write_setting, self._needed_setting = setting
        self._abandon = tuple(abandon)
        self.resolution = resolution
        self._lay_out(table, specs, forwards, resolution)

    def __dealloc__(self):
        PyMem_Free(self._steps)
        PyMem_Free(self._numbers)

    cdef int _lay_out(
        self, KeyTable table, list specs, list forwards, Resolution resolution
    ) except -1:
        cdef Py_ssize_t n_steps = len(specs)
        cdef Py_ssize_t n_keys = table.size()
        cdef Py_ssize_t n_numbers = 2 * n_keys
        cdef Py_ssize_t index, position, slot, key_id, n_slots
        cdef int* free
        cdef OpSpec spec
        cdef Step* step

        for item in specs:
            spec = <OpSpec?> item
            if spec is None:
                raise TypeError("None stands where a spec is expected")
            # a slot can die at each of its mentions
            n_numbers += 2 * (spec.n_inputs + spec.n_outputs)
        self._steps = <Step*> PyMem_Malloc(max(n_steps, 1) * sizeof(Step))
        self._numbers = <int*> PyMem_Malloc(max(n_numbers, 1) * sizeof(int))
        cdef int* slot_of = <int*> PyMem_Malloc(max(n_keys, 1) * sizeof(int))
        cdef char* live = <char*> PyMem_Malloc(max(n_keys, 1))
        if self._steps == NULL or self._numbers == NULL or slot_of == NULL or live == NULL:
            PyMem_Free(slot_of)
            PyMem_Free(live)
            raise MemoryError()
        try:
            free = self._numbers
            self._keys = [None] * n_keys
            n_slots = 0
            for key_id in range(n_keys):
                slot_of[key_id] = -1
            self._forwards = list(forwards)
            self._specs = list(specs)
            for index in range(n_steps):
                spec = <OpSpec> specs[index]
                step = &self._steps[index]
                step.deletes = spec.deletes
                self._bind(step, self._forwards[index])
                step.n_inputs = spec.n_inputs
                step.n_outputs = spec.n_outputs
                step.inputs = free
                step.outputs = free + spec.n_inputs
                free += spec.n_inputs + spec.n_outputs
                for position in range(spec.n_inputs + spec.n_outputs):
                    key_id = spec.ids[position]
                    if key_id >= n_keys:
                        raise ValueError(
                            f"{describe_op(spec.item, index)} was read with another table of keys"
                        )
                    if slot_of[key_id] < 0:
                        slot_of[key_id] = n_slots
                        self._keys[n_slots] = table._names[key_id]
                        n_slots += 1
                    step.inputs[position] = slot_of[key_id]
                if spec.in_list:
                    step.read = READ_LIST
                else:
                    step.read = READ_ONE if spec.n_inputs else READ_NONE
                    if spec.n_inputs > 1:
                        step.read = READ_FIRST
                if not spec.n_outputs:
                    step.write = WRITE_NONE
                elif spec.out_list:
                    step.write = WRITE_LIST
                elif spec.n_outputs == 1:
                    step.write = WRITE_ONE
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

            # backwards: a slot is live while a later op reads it, or it is wanted at the end
            for index in range(n_steps - 1, -1, -1):
                step = &self._steps[index]
                step.dead = free
                for position in range(step.n_outputs):
                    slot = step.outputs[position]
                    if not live[slot]:
                        free[0] = slot
                        free += 1
                for position in range(step.n_outputs):
                    live[step.outputs[position]] = 0
                for position in range(step.n_inputs):
                    slot = step.inputs[position]
                    if step.deletes or not live[slot]:
                        free[0] = slot
                        free += 1
                        # an output of the same op overwrites this slot before the dead are dropped
                        if not step.deletes and self._writes(step, slot):
                            free -= 1
                for position in range(step.n_inputs):
                    live[step.inputs[position]] = 1
                step.n_dead = free - step.dead
            self._n_steps = n_steps
        finally:
            PyMem_Free(slot_of)
            PyMem_Free(live)
        return 0

    cdef bint _writes(self, Step* step, Py_ssize_t slot) noexcept:
        cdef Py_ssize_t position
        for position in range(step.n_outputs):
            if step.outputs[position] == slot:
                return True
        return False

    cdef void _bind(self, Step* step, object forward) noexcept:
        # calling the function with its owner in front saves the bound method's own shifting
        if PyMethod_Check(forward):
            step.callee = PyMethod_GET_FUNCTION(forward)
            step.owner = PyMethod_GET_SELF(forward)
        else:
            step.callee = <PyObject*> forward
            step.owner = NULL
        step.call = PyVectorcall_Function(step.callee)
        if step.call == NULL:
            step.call = PyObject_Vectorcall

    @property
    def ops(self):
        """The ops, in order, as a tuple."""
        return tuple([spec.item for spec in self._specs])

    cdef object _op(self, Py_ssize_t position):
        return (<OpSpec> self._specs[position]).item

    cdef object _place(self, Py_ssize_t position):
        return position if self.places is None else self.places[position]

    @property
    def keys(self):
        """The key of each slot, as a tuple of strings."""
        return tuple(self._keys)

    @property
    def flow(self):
        """For each op the keys that it reads, that it writes, and that are dropped after it."""
        cdef Py_ssize_t index
        cdef list flow = []
        for index in range(self._n_steps):
            step = &self._steps[index]
            flow.append(
                (
                    self._names(step.inputs, step.n_inputs),
                    self._names(step.outputs, step.n_outputs),
                    # a slot that is read twice is dropped twice, the second time for nothing
                    tuple(dict.fromkeys(self._names(step.dead, step.n_dead))),
                )
            )
        return tuple(flow)

    cdef tuple _names(self, int* slots, Py_ssize_t count):
        cdef Py_ssize_t index
        return tuple([self._keys[slots[index]] for index in range(count)])

    def missing(self, batch):
        """Look for a key that a step would miss.

        Args:
            batch: The batch of the step.

        Returns:
            The error that a step with it would raise, or None if it has every key.

        Raises:
            TypeError: If it is no mapping.
        """
        cdef Py_ssize_t index
        if type(batch) is not dict:
            check_batch(batch)
        for index in range(self._n_inputs):
            if self._keys[self._inputs[index]] not in batch:
                return self._missing_input(self._inputs[index], batch)
        return None

    def run(self, batch, dict state not None):
        """Run a step.

        Args:
            batch: A mapping that has every key that ops read before one writes it.
            state: The step's context, handed to each op. Functions that ops put into the lists
                under its "deferred" entry run after the last op.

        Returns:
            A dict of the keys that the plan returns.

        Raises:
            KeyError: If a key is missing, before any op has run.
            TypeError: If the batch is no mapping.
            ValueError: If an op returns fewer values than it has outputs, or more, or a mapping
                that lacks one of them.
            TypeError: If an op that writes a list returns neither a list, nor a tuple, nor a
                mapping.
            Exception: Whatever an op raises, with a note that names the op.
        """
        return self._run(batch, state, False, <Untimed> NULL)

    def step(self, batch, dict state not None):
        """Run a step and lay its outputs over its batch.

        Args:
            batch: As for `run`.
            state: As for `run`.

        Returns:
            A new dict of the batch's own entries, those that were adopted as they are then, and,
            over them, the outputs.

        Raises:
            Exception: As for `run`.
        """
        return self._run(batch, state, True, <Untimed> NULL)

    def step_timed(
        self,
        batch,
        dict state not None,
        StampLog log not None,
        int first=0,
        before=None,
        after=None,
    ):
        """Run a step and take down when each part of it was over.

        Args:
            batch: As for `run`.
            state: As for `run`.
            log: Where to. What the first stamp is of began with the last one that is in it.
            first: The row of the first of `spans`; those of the others follow.
            before: Called with the place of each op right before it runs, and with the place after
                the last one before deferred functions run; or None.
            after: Called with the same place right after they ran or failed, or None. What the two
                take is a span of its own.

        Returns:
            What `step` returns.

        Raises:
            Exception: As for `run`. The log then has the stamps of what has run.
        """
        cdef Timing timing = timing_of(log, first, before, after)
        return self._run(batch, state, True, &timing)

    @property
    def spans(self):
        """What the stamps of `step_timed` are of, in the order of their rows.

        Each is a kind and, where there are several of the kind, a key or the place of an op.
        """
        inputs = [("input", self._keys[self._inputs[index]]) for index in range(self._n_inputs)]
        outputs = [("output", self._keys[self._outputs[index]]) for index in range(self._n_outputs)]
        ops = [("op", place) for place in range(self._n_steps)]
        once = [(kind, None) for kind in SPANS]
        return tuple(once + inputs + outputs + ops)

    cdef object _run(self, object batch, dict state, bint merge, Times times):
        """Run a step, with stamps where it is measured."""
        cdef PyObject* on_stack[STACK_SLOTS]
        cdef PyObject** slots = on_stack
        cdef Py_ssize_t index = -1
        cdef PyObject* setting = NULL
        cdef bint inside = False
        cdef PyObject* found
        cdef PyObject* value
        cdef Step* step
        cdef dict result
        if Times is Timed:
            # from here on no stamp fails: what is half done would be lost
            (<StampLog> times.log).reserve(
                4 * self._n_steps + self._n_inputs + self._n_outputs + 2 * N_SPANS
            )
        if self._n_slots >= STACK_SLOTS:
            slots = <PyObject**> PyMem_Malloc((self._n_slots + 1) * sizeof(PyObject*))
            if slots == NULL:
                raise MemoryError()
        memset(slots, 0, (self._n_slots + 1) * sizeof(PyObject*))
        try:
            stamp(times, DISPATCH)
            if self._write_setting is not None:
                setting = PyObject_CallNoArgs(self._read_setting)
                if setting != <PyObject*> self._needed_setting:
                    PyObject_CallOneArg(self._write_setting, self._needed_setting)
                stamp(times, SETTING)
            if self._arrays is None:
                self._fill(slots, batch, times)
            else:
                batch = self._fill_adopting(slots, batch, times)
            step = self._steps
            for index in range(self._n_steps):
                value = self._read(step, index, slots)
                stamp(times, DISPATCH)
                inside = before_op(times, index)
                value = self._invoke(step, value, slots, <PyObject*> state)
                stamp(times, N_SPANS + self._n_inputs + self._n_outputs + index)
                if inside:
                    inside = False
                    # kept where the end of the step finds it, whatever comes
                    slots[self._n_slots] = value
                    after_op(times, index)
                    slots[self._n_slots] = NULL
                    stamp(times, MEASURING)
                self._write(step, index, slots, value)
                step += 1
            index = -1
            stamp(times, DISPATCH)
            # A context has a dict of its own, in which this entry stays the same.
            found = PyDict_GetItemWithError(<PyObject*> state, <PyObject*> DEFERRED)
            if found != NULL and PyObject_IsTrue(<object> found):
                inside = before_op(times, self._n_steps)
                run_deferred(<object> found)
                stamp(times, DEFERRALS)
                if inside:
                    inside = False
                    after_op(times, self._n_steps)
                    stamp(times, MEASURING)
            result = self._collect(slots, batch, merge, times)
        except BaseException as error:
            self._give_up(state, error)
            if index >= 0:
                note_failure(
                    error, self._op(index), self._place(index), self._reads_of(index, slots)
                )
            if inside:
                after_op(times, index if index >= 0 else self._n_steps)
            raise
        finally:
            self._clear(slots, on_stack)
            stamp(times, RELEASE)
            if setting != NULL:
                # an op may have changed it too
                self._set_back(setting)
                stamp(times, SETTING)
        # not inside the try: a result on its way out is lost if what comes last in it raises
        return result

    cdef int _set_back(self, PyObject* setting) except -1:
        try:
            PyObject_CallOneArg(self._write_setting, <object> setting)
        finally:
            Py_XDECREF(setting)
        return 0

    cdef int _give_up(self, dict state, object error) except -1:
        """Leave nothing of a step that failed to a later one, even if this is interrupted."""
        cdef object interrupt = None
        try:
            drop_deferred(state, error)
        except BaseException as second:
            interrupt = second
        for abandon in self._abandon:
            interrupt = attempt(abandon, abandon, error) or interrupt
        if interrupt is not None:
            raise interrupt
        return 0

    cdef int _fill(self, PyObject** slots, object batch, Times times) except -1:
        cdef Py_ssize_t index
        cdef bint plain = type(batch) is dict
        for index in range(self._n_inputs):
            self._fill_one(slots, self._inputs[index], batch, plain, False)
            stamp(times, N_SPANS + index)
        return 0

    cdef object _fill_adopting(self, PyObject** slots, object batch, Times times):
        """Do what `_fill` does, and give the batch with the tensors that were made for it."""
        cdef Py_ssize_t index
        cdef bint plain = type(batch) is dict
        cdef object filled = batch
        for index in range(self._n_inputs):
            if self._fill_one(slots, self._inputs[index], batch, plain, True):
                filled = self._fill_foreign(slots, self._inputs[index], batch, filled)
            stamp(times, N_SPANS + index)
        return filled

    cdef bint _holds_foreign(self, object value) except -1:
        try:
            return self._arrays.holds_leaf(value)
        except RecursionError:
            return False  # what holds itself is the ops' own affair

    cdef object _fill_foreign(
        self, PyObject** slots, Py_ssize_t slot, object batch, object filled
    ):
        cdef object key = self._keys[slot]
        cdef object value = batch[key]
        if self._foreign.holds_leaf(value):
            value = self._foreign.map(value)
            filled = dict(batch) if filled is batch else filled
            filled[key] = value
        value = self._arrays.map(value)
        if self._move is not None:
            value = self._move.map(value)
        Py_INCREF(value)
        slots[slot] = <PyObject*> value
        return filled

    cdef inline int _fill_one(
        self, PyObject** slots, Py_ssize_t slot, object batch, bint plain, bint adopts
    ) except -1:
        """Read one value, unless it must be adopted: tell whether it must."""
        cdef PyObject* found
        cdef object value
        cdef object key = self._keys[slot]
        if plain:
            found = hold(<PyObject*> batch, <PyObject*> key)
            if found == NULL:
                raise self._missing_input(slot, batch)
            value = <object> found
            unhold(found)
        else:
            value = self._read_mapping(slot, batch)
        if adopts and <PyObject*> Py_TYPE(value) != <PyObject*> self._own:
            if self._holds_foreign(value):
                return True
        if self._move is not None:
            value = self._move.map(value)
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
        self, Step* step, Py_ssize_t position, PyObject** slots
    ) except NULL:
        """Return what an op is called with, borrowed; a list of several is in the last slot."""
        cdef PyObject* value
        if step.read == READ_ONE:
            value = slots[step.inputs[0]]
            if value == NULL:
                raise self._missing_value(step, position, slots)
            return value
        if step.read == READ_NONE:
            return <PyObject*> None
        values = self._gather(step, position, slots)
        if step.read == READ_FIRST:
            return slots[step.inputs[0]]
        Py_INCREF(values)
        slots[self._n_slots] = <PyObject*> values
        return <PyObject*> values

    cdef inline PyObject* _invoke(
        self, Step* step, PyObject* value, PyObject** slots, PyObject* state
    ) except NULL:
        # one place in front for the owner, and one that vectorcall may scribble on
        cdef PyObject* arguments[4]
        cdef PyObject* result
        arguments[2] = value
        arguments[3] = state
        if step.owner != NULL:
            arguments[1] = step.owner
            result = step.call(
                step.callee, &arguments[1], 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL
            )
        else:
            result = step.call(
                step.callee, &arguments[2], 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL
            )
        if step.read == READ_LIST:
            Py_CLEAR(slots[self._n_slots])
        return result

    cdef inline int _write(
        self, Step* step, Py_ssize_t position, PyObject** slots, PyObject* result
    ) except -1:
        cdef PyObject* held = NULL
        cdef Py_ssize_t index, slot
        if step.write == WRITE_ONE:
            slot = step.outputs[0]
            held = slots[slot]
            slots[slot] = result
            Py_XDECREF(held)
        elif step.write == WRITE_NONE:
            Py_XDECREF(result)
        else:
            try:
                self._scatter(step, position, slots, <object> result)
            finally:
                Py_XDECREF(result)

        for index in range(step.n_dead):
            slot = step.dead[index]
            held = slots[slot]
            slots[slot] = NULL
            Py_XDECREF(held)
        return 0

    cdef list _gather(self, Step* step, Py_ssize_t position, PyObject** slots):
        cdef list values = []
        cdef Py_ssize_t index
        cdef PyObject* value
        for index in range(step.n_inputs):
            value = slots[step.inputs[index]]
            if value == NULL:
                raise self._missing_value(step, position, slots)
            values.append(<object> value)
        return values

    cdef int _scatter(
        self, Step* step, Py_ssize_t position, PyObject** slots, object result
    ) except -1:
        cdef Py_ssize_t index, slot
        cdef PyObject* held
        cdef tuple values = None
        if type(result) is list or type(result) is tuple:
            # a tuple of our own: the op may hold on to its list, and change it
            values = tuple(result)
        if values is None or len(values) != step.n_outputs:
            keys = self._names(step.outputs, step.n_outputs)
            values = values_for(keys, result, self._op(position), self._place(position))
        for index in range(step.n_outputs):
            slot = step.outputs[index]
            held = slots[slot]
            value = values[index]
            Py_INCREF(value)
            slots[slot] = <PyObject*> value
            Py_XDECREF(held)
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
            return 0  # a Delete took it
        value = <object> slots[slot]
        if self._release is not None:
            value = self._release.map(value)
        result[self._keys[slot]] = value
        return 0

    cdef inline void _clear(self, PyObject** slots, PyObject** on_stack) noexcept:
        cdef Py_ssize_t index
        for index in range(self._n_slots + 1):
            Py_XDECREF(slots[index])
        if slots != on_stack:
            PyMem_Free(slots)

    cdef list _reads_of(self, Py_ssize_t position, PyObject** slots):
        """List an op's inputs: key, value, and the op that wrote it with its index, or None."""
        cdef Step* step = &self._steps[position]
        cdef Py_ssize_t index, earlier, slot
        cdef list reads = []
        for index in range(step.n_inputs):
            slot = step.inputs[index]
            if slots[slot] == NULL:
                continue
            writer = place = None
            for earlier in range(position - 1, -1, -1):
                if self._writes(&self._steps[earlier], slot):
                    writer, place = self._op(earlier), self._place(earlier)
                    break
            reads.append((self._keys[slot], <object> slots[slot], writer, place))
        return reads

    cdef object _missing_input(self, Py_ssize_t slot, object batch):
        """Return the error for a key that the batch lacks, naming the op that reads it first."""
        cdef Py_ssize_t index
        cdef object deleted_by = None
        cdef dict written = {}
        cdef Step* step
        key = self._keys[slot]
        for index in range(self._n_steps):
            step = &self._steps[index]
            if self._reads(step, slot) and key not in written:
                reason = self._writer_elsewhere(slot, index)
                op, place = self._op(index), self._place(index)
                return missing_key(
                    op, key, batch, place, deleted_by, reason=reason, written=written
                )
            described = describe_op(self._op(index), self._place(index))
            if step.deletes:
                for name in self._names(step.inputs, step.n_inputs):
                    written.pop(name, None)
                if self._reads(step, slot):
                    deleted_by = described
            for name in self._names(step.outputs, step.n_outputs):
                written[name] = described

    cdef object _writer_elsewhere(self, Py_ssize_t slot, Py_ssize_t reader):
        """Name an op that writes a key, but is not active or runs after the reader; or None."""
        cdef Py_ssize_t index
        reason = None if self.elsewhere is None else self.elsewhere(self._keys[slot])
        if reason is not None:
            return reason
        for index in range(reader + 1, self._n_steps):
            if self._writes(&self._steps[index], slot):
                return f"{describe_op(self._op(index), self._place(index))} writes it later."
        return None

    cdef object _missing_value(self, Step* step, Py_ssize_t position, PyObject** slots):
        """Return the error for a key that an earlier op has deleted."""
        cdef Py_ssize_t index, slot, earlier
        there = [self._keys[slot] for slot in range(self._n_slots) if slots[slot] != NULL]
        for index in range(step.n_inputs):
            slot = step.inputs[index]
            if slots[slot] == NULL:
                deleted_by = None
                for earlier in range(position):
                    if self._steps[earlier].deletes and self._reads(&self._steps[earlier], slot):
                        deleted_by = describe_op(self._op(earlier), self._place(earlier))
                return missing_key(
                    self._op(position),
                    self._keys[slot],
                    there,
                    self._place(position),
                    deleted_by,
                )

    cdef bint _reads(self, Step* step, Py_ssize_t slot) noexcept:
        cdef Py_ssize_t position
        for position in range(step.n_inputs):
            if step.inputs[position] == slot:
                return True
        return False


@cython.final
cdef class BoundPlan:
    """A plan with the state of a context's steps: what such a step calls, and nothing around it.

    Nothing of Python is between a step and its ops: a framework that takes down, with each of its
    own ops, which Python functions have called it has as few of them to look at as there can be.

    Args:
        plan: The plan.
        state: The context that ops are given.
        make: Makes what is entered around the ops of each step, such as a tape or a change of
            precision: a context manager. None for nothing.
        key: Where ops find what that context gives them: a step's own copy of `state` has it. None
            for nowhere.
    """

    cdef readonly Plan plan
    cdef readonly dict state
    cdef object _make
    cdef object _key

    def __cinit__(self, Plan plan not None, dict state not None, make=None, key=None):
        self.plan = plan
        self.state = state
        self._make = make
        self._key = key

    def run(self, batch):
        """Run a step, as the plan's own `run` does.

        Args:
            batch: As for the plan.

        Returns:
            What the plan returns.

        Raises:
            Exception: As for the plan, and whatever the context raises.
        """
        if self._make is None:
            return self.plan._run(batch, self.state, False, <Untimed> NULL)
        return self._run_within(batch, False)

    def step(self, batch):
        """Run a step, as the plan's own `step` does.

        Args:
            batch: As for the plan.

        Returns:
            What the plan returns.

        Raises:
            Exception: As for `run`.
        """
        if self._make is None:
            return self.plan._run(batch, self.state, True, <Untimed> NULL)
        return self._run_within(batch, True)

    def step_timed(
        self, batch, StampLog log not None, int first=0, before=None, after=None, int around=0
    ):
        """Run a step, as the plan's own `step_timed` does.

        Args:
            batch: As for the plan.
            log: As for the plan.
            first: As for the plan.
            before: As for the plan.
            after: As for the plan.
            around: The row of entering and leaving the context.

        Returns:
            What the plan returns.

        Raises:
            Exception: As for `run`.
        """
        cdef Timing timing = timing_of(log, first, before, after)
        if self._make is None:
            return self.plan._run(batch, self.state, True, &timing)
        with self._make() as given:
            log.stamp(around)
            result = self.plan._run(batch, self._state_with(given), True, &timing)
        log.stamp(around)
        return result

    cdef object _run_within(self, object batch, bint merge):
        with self._make() as given:
            state = self._state_with(given)
            return self.plan._run(batch, state, merge, <Untimed> NULL)

    cdef dict _state_with(self, object given):
        if self._key is None:
            return self.state
        cdef dict state = self.state.copy()
        state[self._key] = given
        return state


cdef int check_batch(object batch) except -1:
    # not by its class: what looks like a mapping is one
    if not hasattr(batch, "keys"):
        raise not_a_batch(batch)
    return 0


cdef dict dict_of(object batch):
    check_batch(batch)
    return dict(batch)


cdef tuple values_for(
    keys, object result, object op, object position, str source="forward"
):
    """Take what an op returned apart: a value for each of its outputs, in their order."""
    # by their own word: TensorFlow wraps what a model holds, and some of its wrappers only say so
    if isinstance(result, Mapping):
        for key in keys:
            if key not in result:
                raise other_keys(op, position, keys, result, source)
        return tuple([result[key] for key in keys])
    # a tuple with names is neither in an order that a program goes by, nor a mapping
    if not PyObject_IsInstance(result, (list, tuple)) or hasattr(result, "_fields"):
        raise not_a_sequence(op, position, keys, result, source)
    values = tuple(result)
    if len(values) != len(keys):
        raise wrong_count(op, position, keys, len(values), source)
    return values


cdef int run_deferred(object deferred) except -1:
    """Run the functions that ops put off, in order, and forget them.

    Functions that these put off in turn run after them. If one fails, the rest are discarded.
    """
    cdef list waiting
    while deferred:
        waiting = list(deferred.values())
        deferred.clear()
        while waiting:
            functions = iter(waiting.pop(0))
            for function in functions:
                try:
                    function()
                except BaseException as error:
                    waiting.insert(0, functions)
                    discard(waiting, error)
                    raise
    return 0


cdef int drop_deferred(dict state, object error) except -1:
    """Forget what ops put off in a step that failed, so that no later step runs it."""
    deferred = state.get(DEFERRED)
    if isinstance(deferred, dict) and deferred:
        waiting = list(deferred.values())
        deferred.clear()
        discard(waiting, error)
    return 0


cdef int discard(list waiting, object error) except -1:
    """Let go of what functions hold on to for a run that will not come, such as gradients.

    A function that holds on to something has a `discard`. What goes wrong in it is told in a note
    to the error that led here.
    """
    cdef object interrupt = None
    try:
        for functions in waiting:
            for function in functions:
                let_go = getattr(function, "discard", None)
                if let_go is not None:
                    interrupt = attempt(let_go, function, error) or interrupt
    except Exception as second:
        add_note(error, f"What was deferred could not be discarded: {second!r}")
    if interrupt is not None:
        raise interrupt
    return 0


cdef object attempt(object let_go, object owner, object error):
    """Call what lets go of something; where an interrupt broke it off it is called again.

    Returns:
        The interrupt, to be raised once all is clean, or None.
    """
    cdef object interrupt = None
    while True:
        try:
            let_go()
        except Exception as second:
            add_note(error, f"Discarding {owner!r} failed too: {second!r}")
        except BaseException as second:
            if interrupt is None:
                interrupt = second
                continue
        return interrupt


def get_inputs_by_op(op, store, bint copy_on_write=False):
    """Read an op's inputs from a mapping, in the form its forward takes them.

    Args:
        op: The op.
        store: The mapping of keys to values.
        copy_on_write: Whether to replace read-only arrays in the store by copies that the op may
            write to.

    Returns:
        A list of values if the op's `in_list` is true, else its one value, or None for an op
        without inputs.

    Raises:
        KeyError: If a key is not in the store.
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
    """Take what an op returned apart, a value for each of several outputs.

    Args:
        op: The op.
        result: What it returned: a list or a tuple of as many values, or a mapping that has every
            output among its keys.
        keys: The outputs.
        source: What of the op returned it, for error texts.

    Returns:
        A tuple of the values, in the order of the outputs.

    Raises:
        ValueError: If there are fewer values, or more, or a mapping lacks an output.
        TypeError: If it is neither a list, nor a tuple, nor a mapping.
    """
    return values_for(keys, result, op, None, source)


def write_outputs_by_op(op, store, outputs, position=None):
    """Write what an op's forward returned into a mapping.

    Args:
        op: The op.
        store: The mapping to write to.
        outputs: What forward returned. If the op's `out_list` is true, a list or a tuple with a
            value for each output, or a mapping that has every output among its keys; else one
            value.
        position: The op's place among others, for error texts; None where it has none.

    Raises:
        ValueError: If there are fewer values than the op has outputs, or more, or a mapping lacks
            an output.
        TypeError: If the op writes a list and got something else.
    """
    cdef list keys = list(op.outputs)
    if not keys:
        return
    if not op.out_list:
        outputs = [outputs]
    for key, value in zip(keys, values_for(keys, outputs, op, position)):
        store[key] = value
