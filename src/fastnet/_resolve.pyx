"""Resolves which keys a step reads, moves to its device and returns.

A network interns each key once. `resolve` then works on integers and bitsets, without hashing keys.
"""

from types import BuiltinMethodType, MethodType

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.string cimport memset

from fastnet.errors import sliced_not_unsliced

# With a constant power of two the compiler shifts instead of dividing.
cdef enum:
    BITS = 64


cdef class KeyTable:
    """The keys of one network, with an id for each."""

    def __cinit__(self):
        self._ids = {}
        self._names = []

    cpdef Py_ssize_t intern(self, object key) except -1:
        """Return the id of a key, which is added if it is new. Ids count from 0."""
        if type(key) is not str:
            if not isinstance(key, str):
                raise TypeError(f"a key is a string, not {key!r} of type {type(key).__name__}")
            key = str.__str__(key)
        cdef object known = self._ids.get(key)
        if known is not None:
            return known
        return self._add(key)

    @cython.critical_section
    cdef Py_ssize_t _add(self, object key) except -1:
        # Another thread may have added the key.
        cdef object known = self._ids.get(key)
        if known is not None:
            return known
        cdef Py_ssize_t key_id = len(self._names)
        # Add the name first, because other threads look up the name of an id that they find.
        self._names.append(key)
        self._ids[key] = key_id
        return key_id

    cdef Py_ssize_t size(self) noexcept:
        return len(self._names)

    def __len__(self):
        return len(self._names)


cdef class KeySet:
    """A set of keys as a bitset of their ids in a table. New keys are added to the table."""

    def __cinit__(self, KeyTable table not None, keys=()):
        self.table = table
        self.n_words = 0
        self.words = NULL
        self.reserve(table.size() // BITS + 1)
        for key in keys:
            self.set_bit(table.intern(key))

    def __dealloc__(self):
        PyMem_Free(self.words)

    cdef int reserve(self, Py_ssize_t n_words) except -1:
        if n_words <= self.n_words:
            return 0
        cdef uint64_t* words = <uint64_t*> PyMem_Realloc(self.words, n_words * sizeof(uint64_t))
        if words == NULL:
            raise MemoryError()
        memset(words + self.n_words, 0, (n_words - self.n_words) * sizeof(uint64_t))
        self.words = words
        self.n_words = n_words
        return 0

    cdef int set_bit(self, Py_ssize_t key_id) except -1:
        cdef Py_ssize_t word = key_id // BITS
        if word >= self.n_words:
            self.reserve(max(word + 1, 2 * self.n_words))
        self.words[word] |= (<uint64_t> 1) << (key_id % BITS)
        return 0

    cdef void clear_bit(self, Py_ssize_t key_id) noexcept:
        cdef Py_ssize_t word = key_id // BITS
        if word < self.n_words:
            self.words[word] &= ~((<uint64_t> 1) << (key_id % BITS))

    cdef bint has_bit(self, Py_ssize_t key_id) noexcept:
        cdef Py_ssize_t word = key_id // BITS
        return word < self.n_words and (self.words[word] >> (key_id % BITS)) & 1

    cdef int unite(self, KeySet other) except -1:
        if other is None:
            raise TypeError("a slicer's spec was not initialized")
        self.reserve(other.n_words)
        cdef Py_ssize_t word
        for word in range(other.n_words):
            self.words[word] |= other.words[word]
        return 0

    cdef void intersect(self, KeySet other) noexcept:
        cdef Py_ssize_t word
        for word in range(self.n_words):
            self.words[word] &= other.words[word] if word < other.n_words else 0

    cdef void subtract(self, KeySet other) noexcept:
        cdef Py_ssize_t word
        for word in range(min(self.n_words, other.n_words)):
            self.words[word] &= ~other.words[word]

    cdef bint is_empty(self) noexcept:
        cdef Py_ssize_t word
        for word in range(self.n_words):
            if self.words[word]:
                return False
        return True

    def copy(self):
        cdef KeySet result = KeySet(self.table)
        result.unite(self)
        return result

    def names(self):
        """Return the keys as a new `set`."""
        return set(self)

    def __iter__(self):
        cdef Py_ssize_t key_id
        cdef list found = []
        for key_id in range(min(self.table.size(), self.n_words * BITS)):
            if self.has_bit(key_id):
                found.append(self.table._names[key_id])
        return iter(found)

    def __contains__(self, key):
        cdef object key_id = self.table._ids.get(key)
        return key_id is not None and self.has_bit(key_id)

    def __len__(self):
        cdef Py_ssize_t key_id, count = 0
        for key_id in range(self.n_words * BITS):
            count += self.has_bit(key_id)
        return count

    def __bool__(self):
        return not self.is_empty()

    def __repr__(self):
        return f"KeySet({sorted(self)})"


cdef class Spec:
    """The mode and ds_id of an op, a postprocessing op or a slicer, read once."""

    def __init__(self, item):
        self.item = item
        self._mode = as_set(getattr(item, "mode", None))
        self._ds_id = as_set(getattr(item, "ds_id", None))
        self._ds_id_excludes = any([name.startswith("!") for name in self._ds_id or ()])

    cdef bint is_active(self, object mode, object ds_id) except -1:
        if self._mode is not None and mode not in self._mode:
            return False
        if self._ds_id is None or ds_id is None:
            return True
        if self._ds_id_excludes:
            # The constructors of ops refuse to mix names with and without "!".
            return all([name[1:] != ds_id for name in self._ds_id]) or ds_id in self._ds_id
        return ds_id in self._ds_id

    cdef bint _has_current_mode_and_ds_id(self) except -1:
        return (
            as_set(getattr(self.item, "mode", None)) == self._mode
            and as_set(getattr(self.item, "ds_id", None)) == self._ds_id
        )

    def runs_in(self, mode, ds_id):
        """Return whether the item is active in a mode and for a ds_id, or None for any ds_id."""
        return self.is_active(mode, ds_id)


cdef set as_set(names):
    """Return a set of the names, or None if there are none."""
    if names is None or len(names) == 0:
        return None
    return {names} if isinstance(names, str) else set(names)


cdef class OpSpec(Spec):
    """The keys and settings of an op or a postprocessing op, read once.

    `deletes` says that the op deletes its inputs after it has run. `read_models` is a function that
    returns the models that the op holds, as a tuple, and whether it takes gradients; None for an op
    without either.
    """

    def __cinit__(self):
        self.ids = NULL

    def __init__(self, op, KeyTable table not None, bint deletes=False, read_models=None):
        Spec.__init__(self, op)
        self.in_list = op.in_list
        self.out_list = op.out_list
        self.deletes = deletes
        self.forward = getattr(op, "forward", None)
        self._read_models = read_models
        self.models, self.takes_gradients = self._models_now()
        self._table = table
        cdef list ids = [table.intern(key) for key in op.inputs]
        cdef Py_ssize_t n_inputs = len(ids)
        ids.extend([table.intern(key) for key in op.outputs])
        self.n_inputs = self.n_outputs = 0
        PyMem_Free(self.ids)
        self.ids = <Py_ssize_t*> PyMem_Malloc(max(len(ids), 1) * sizeof(Py_ssize_t))
        if self.ids == NULL:
            raise MemoryError()
        cdef Py_ssize_t index
        for index in range(len(ids)):
            self.ids[index] = ids[index]
        self.n_inputs = n_inputs
        self.n_outputs = len(ids) - n_inputs

    def __dealloc__(self):
        PyMem_Free(self.ids)

    cdef bint _has_keys(self, object keys, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t index
        cdef list now = list(keys)
        if len(now) != count:
            return False
        for index in range(count):
            if now[index] != self._table._names[self.ids[first + index]]:
                return False
        return True

    def is_current(self):
        """Return whether the op's keys and settings are still those that were read."""
        cdef object op = self.item
        return (
            self._has_keys(op.inputs, 0, self.n_inputs)
            and self._has_keys(op.outputs, self.n_inputs, self.n_outputs)
            and self._has_current_mode_and_ds_id()
            and bool(op.in_list) == self.in_list
            and bool(op.out_list) == self.out_list
            and same_callable(getattr(op, "forward", None), self.forward)
            and self._has_current_models()
        )

    cdef tuple _models_now(self):
        return ((), False) if self._read_models is None else self._read_models(self.item)

    cdef bint _has_current_models(self) except -1:
        models, takes_gradients = self._models_now()
        return same_models(models, self.models) and takes_gradients == self.takes_gradients


cdef bint same_callable(one, other) except -1:
    """Return whether two callables are the same: bound methods are created on every access."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in (MethodType, BuiltinMethodType):
        return False
    # Both compare the objects that they are bound to by identity.
    return one == other


cdef bint same_models(tuple models, tuple others):
    # An op may return its models in any order, and a model need not be comparable.
    return {id(model) for model in models} == {id(model) for model in others}


cdef class SlicerSpec(Spec):
    """The keys, mode and ds_id of a slicer, read once."""

    def __init__(self, slicer, KeyTable table not None):
        Spec.__init__(self, slicer)
        self.slices = KeySet(table, slicer.slice_inputs)
        self.unslices = KeySet(table, slicer.unslice_inputs)

    def is_current(self):
        """Return whether the slicer's keys, mode and ds_id are still those that were read."""
        return (
            set(self.item.slice_inputs) == self.slices.names()
            and set(self.item.unslice_inputs) == self.unslices.names()
            and self._has_current_mode_and_ds_id()
        )


cdef class Resolution:
    """The keys of one execution plan.

    Args:
        inputs: The keys that the network needs from its batch.
        device_inputs: The keys that ops read from the batch, on the device.
        outputs: The keys that the network returns.
        returned: The keys that the ops' step returns: the outputs, and keys that postprocessing
            reads and then deletes. By default the outputs.
    """

    def __init__(
        self,
        KeySet inputs not None,
        KeySet device_inputs not None,
        KeySet outputs not None,
        KeySet returned=None,
    ):
        self.inputs = inputs
        self.device_inputs = device_inputs
        self.outputs = outputs
        self.returned = outputs if returned is None else returned


cdef int refuse_none(Spec spec) except -1:
    # Cython lets a typed variable be None, and would read its fields nevertheless.
    if spec is None:
        raise TypeError("a spec cannot be None")
    return 0


def select(list specs not None, mode, ds_id):
    """Return the specs that are active in a mode and for a ds_id, or None for any ds_id."""
    # Appending to a list would copy it each time that it grows.
    cdef list chosen = [None] * len(specs)
    cdef Py_ssize_t count = 0
    cdef Spec spec
    for spec in specs:
        refuse_none(spec)
        if spec.is_active(mode, ds_id):
            chosen[count] = spec
            count += 1
    del chosen[count:]
    return chosen


def gather(list specs not None):
    """Return lists of the ops, their forwards, their models and the indices of gradient ops."""
    cdef Py_ssize_t count = len(specs)
    cdef list ops = [None] * count, forwards = [None] * count, models = [], gradient_indices = []
    cdef set seen = set()
    cdef Py_ssize_t index
    cdef OpSpec spec
    for index in range(count):
        spec = specs[index]
        refuse_none(spec)
        ops[index] = spec.item
        forwards[index] = spec.forward
        for model in spec.models:
            if id(model) not in seen:
                seen.add(id(model))
                models.append(model)
        if spec.takes_gradients:
            gradient_indices.append(index)
    return ops, forwards, models, gradient_indices


def same_items(list items not None, tuple snapshot not None):
    """Return whether a list has the items of a tuple, compared by identity."""
    cdef Py_ssize_t index
    with cython.critical_section(items):
        if len(items) != len(snapshot):
            return False
        for index in range(len(snapshot)):
            if items[index] is not snapshot[index]:
                return False
    return True


def same_entries(list entries not None, list tables not None, Py_ssize_t size):
    """Return whether dicts hold the very values that they held.

    Args:
        entries: A dict, a key and its value then, for each value to compare.
        tables: Dicts to which nothing may be added.
        size: How many items these had together.
    """
    for table, key, value in entries:
        if (<dict> table).get(key, entries) is not value:
            return False
    for table in tables:
        size -= len(<dict> table)
    return size == 0


def resolve(
    KeyTable table not None,
    list ops not None,
    list postprocessing not None,
    list slicers not None,
    desired=None,
    str context="",
):
    """Return the `Resolution` of the specs of the active ops, postprocessing ops and slicers.

    Args:
        table: The table of the network's keys.
        ops: The specs of the ops, in order.
        postprocessing: The specs of the postprocessing ops, in order.
        slicers: The specs of the slicers.
        desired: The keys to return, or None for all outputs. Keys that postprocessing reads are
            always returned.
        context: The mode, epoch and ds_id for the error message.

    Raises:
        ValueError: If a returned key is sliced and no slicer unslices it.
    """
    cdef KeySet needed = KeySet(table)
    cdef KeySet device = KeySet(table)
    cdef KeySet produced = KeySet(table)
    cdef KeySet sliced = KeySet(table)
    cdef KeySet unsliced = KeySet(table)
    # The keys that postprocessing reads, writes, uses and deletes.
    cdef KeySet read_after = KeySet(table)
    cdef KeySet written_after = KeySet(table)
    cdef KeySet used_after = KeySet(table)
    cdef KeySet deleted_after = KeySet(table)
    cdef KeySet outputs, unsliced_from_batch, in_minibatches, still_sliced, returned
    cdef OpSpec spec
    cdef SlicerSpec slicer
    cdef Py_ssize_t index, key_id

    for slicer in slicers:
        refuse_none(slicer)
        sliced.unite(slicer.slices)
        unsliced.unite(slicer.unslices)
    needed.unite(sliced)

    for spec in ops:
        refuse_none(spec)
        for index in range(spec.n_inputs):
            key_id = spec.ids[index]
            if not produced.has_bit(key_id):
                device.set_bit(key_id)
        for index in range(spec.n_inputs, spec.n_inputs + spec.n_outputs):
            produced.set_bit(spec.ids[index])
        if spec.deletes:
            for index in range(spec.n_inputs):
                produced.clear_bit(spec.ids[index])
    needed.unite(device)
    returned = produced.copy()
    in_minibatches = sliced.copy()
    in_minibatches.unite(produced)
    # A slicer unslices them although no op writes them, so the batch must hold them.
    unsliced_from_batch = unsliced.copy()
    unsliced_from_batch.subtract(produced)
    needed.unite(unsliced_from_batch)

    for spec in postprocessing:
        refuse_none(spec)
        for index in range(spec.n_inputs):
            key_id = spec.ids[index]
            if not produced.has_bit(key_id):
                needed.set_bit(key_id)
            if not written_after.has_bit(key_id):
                read_after.set_bit(key_id)
                (deleted_after if spec.deletes else used_after).set_bit(key_id)
        for index in range(spec.n_inputs, spec.n_inputs + spec.n_outputs):
            produced.set_bit(spec.ids[index])
            written_after.set_bit(spec.ids[index])
        if spec.deletes:
            for index in range(spec.n_inputs):
                produced.clear_bit(spec.ids[index])
                written_after.clear_bit(spec.ids[index])

    outputs = produced.copy()
    if desired is not None:
        # Unknown keys are not interned, because the table would grow with every request.
        wanted = KeySet(table, [key for key in desired if key in table._ids])
        outputs.intersect(wanted)
        outputs.unite(read_after)

    returned.intersect(read_after)
    returned.unite(outputs)

    if not sliced.is_empty():
        # Postprocessing runs on unsliced values, and may delete a key that is still sliced.
        written_after.unite(deleted_after)
        written_after.subtract(used_after)
        still_sliced = in_minibatches.copy()
        still_sliced.intersect(returned)
        still_sliced.subtract(unsliced)
        still_sliced.subtract(written_after)
        if not still_sliced.is_empty():
            raise sliced_not_unsliced(still_sliced.names(), context)

    return Resolution(needed, device, outputs, returned)
