"""What a step reads, moves and returns: keys as small ints, key sets as bitsets.

A network interns every key once, when it is made. Opening it for a mode and an epoch then is
arithmetic on bits: `resolve` walks the active ops once and never hashes a string.
"""

from types import BuiltinMethodType, MethodType

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.string cimport memset

from fastnet.errors import sliced_not_unsliced

# known to the compiler, which then needs no division
cdef enum:
    BITS = 64


cdef class KeyTable:
    """The keys of one network, each with a small id."""

    def __cinit__(self):
        self._ids = {}
        self._names = []

    cpdef Py_ssize_t intern(self, object key) except -1:
        """Return the id of a key: the next free one at its first call, the same one ever after.

        Args:
            key: The key.

        Returns:
            Its id, counted from 0.

        Raises:
            TypeError: If the key is no string.
        """
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
        # another thread may have been first
        cdef object known = self._ids.get(key)
        if known is not None:
            return known
        cdef Py_ssize_t key_id = len(self._names)
        # the name first: whoever finds an id looks its name up
        self._names.append(key)
        self._ids[key] = key_id
        return key_id

    def name(self, Py_ssize_t key_id):
        """Look up the key that has an id.

        Args:
            key_id: An id that `intern` gave.

        Returns:
            The key.

        Raises:
            IndexError: If no key has this id.
        """
        if not 0 <= key_id < len(self._names):
            raise IndexError(f"no key has the id {key_id}")
        return self._names[key_id]

    cdef Py_ssize_t size(self) noexcept:
        return len(self._names)

    def __len__(self):
        return len(self._names)


cdef class KeySet:
    """A set of keys of one table, a bit for each.

    Args:
        table: The table whose ids the bits stand for.
        keys: The keys to start with; each is interned.
    """

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
            raise TypeError("a slicer's spec was never filled")
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
        """Copy the set.

        Returns:
            A new set of the same keys.
        """
        cdef KeySet result = KeySet(self.table)
        result.unite(self)
        return result

    def names(self):
        """Spell the keys out.

        Returns:
            A new `set` of strings.
        """
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
    """What a network knows of one of its items before it is opened.

    Args:
        item: An op, a postprocessing op or a slicer.
    """

    def __init__(self, item):
        self.item = item
        self._mode = as_set(getattr(item, "mode", None))
        self._ds_id = as_set(getattr(item, "ds_id", None))
        self._ds_id_excludes = any([name.startswith("!") for name in self._ds_id or ()])

    cdef bint in_force(self, object mode, object ds_id) except -1:
        if self._mode is not None and mode not in self._mode:
            return False
        if self._ds_id is None or ds_id is None:
            return True
        if self._ds_id_excludes:
            # every name starts with "!", or a mixture of names was refused when the op was made
            return all([name[1:] != ds_id for name in self._ds_id]) or ds_id in self._ds_id
        return ds_id in self._ds_id

    cdef bint _limits_are_as_read(self) except -1:
        return (
            as_set(getattr(self.item, "mode", None)) == self._mode
            and as_set(getattr(self.item, "ds_id", None)) == self._ds_id
        )

    def runs_in(self, mode, ds_id):
        """Return whether the item takes part in a mode on a dataset.

        Args:
            mode: The mode, one of "train", "eval", "test" or "infer".
            ds_id: The dataset's id; "" for data without one, which no positive name matches; None
                for any.

        Returns:
            True if it does.
        """
        return self.in_force(mode, ds_id)


cdef set as_set(names):
    """Make a set of names, or None of no names, which is what most items have."""
    if names is None or len(names) == 0:
        return None
    return {names} if isinstance(names, str) else set(names)


cdef class OpSpec(Spec):
    """An op, or a postprocessing op, with its keys interned.

    Args:
        op: The op: anything that has `inputs`, `outputs`, `in_list` and `out_list`.
        table: The table of the network's keys.
        deletes: Whether the op takes its inputs out of the batch once it has run.

    Attributes:
        forward: The op's bound `forward`, if it has one.
        models: The models that the op holds, if it says so.
        takes_gradients: Whether it has a setting for keeping the graph it takes gradients of.
    """

    def __cinit__(self):
        self.ids = NULL

    def __init__(self, op, KeyTable table not None, bint deletes=False):
        Spec.__init__(self, op)
        self.in_list = op.in_list
        self.out_list = op.out_list
        self.deletes = deletes
        self.forward = getattr(op, "forward", None)
        self.models = models_of(op)
        self.takes_gradients = takes_gradients(op)
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

    def has_keys_as_read(self):
        """Return whether the op's keys are those that it had.

        Returns:
            True if they are.
        """
        return self._are_as_read(self.item.inputs, 0, self.n_inputs) and self._are_as_read(
            self.item.outputs, self.n_inputs, self.n_outputs
        )

    cdef bint _are_as_read(self, object keys, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t index
        cdef list now = list(keys)
        if len(now) != count:
            return False
        for index in range(count):
            if now[index] != self._table._names[self.ids[first + index]]:
                return False
        return True

    def is_as_read(self):
        """Return whether the op still says of itself what it said.

        Returns:
            True if it does.
        """
        cdef object op = self.item
        return (
            self.has_keys_as_read()
            and self._limits_are_as_read()
            and bool(op.in_list) == self.in_list
            and bool(op.out_list) == self.out_list
            and same_callable(getattr(op, "forward", None), self.forward)
            and same_models(models_of(op), self.models)
            and takes_gradients(op) == self.takes_gradients
        )


cdef bint same_callable(one, other) except -1:
    """Return whether two callables are the same: bound methods are created on every access."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in (MethodType, BuiltinMethodType):
        return False
    # Both compare the objects that they are bound to by identity.
    return one == other


cdef tuple models_of(op):
    get_models = getattr(op, "get_fe_models", None)
    return () if get_models is None else tuple(get_models())


cdef bint same_models(tuple models, tuple others):
    # a set gives them in any order, and a model need not be comparable
    return {id(model) for model in models} == {id(model) for model in others}


cdef bint takes_gradients(op) except -1:
    retain = getattr(op, "fe_retain_graph", None)
    return retain is not None and retain() is not None


cdef class SlicerSpec(Spec):
    """A slicer with its keys interned.

    Args:
        slicer: The slicer: anything that has `slice_inputs` and `unslice_inputs`.
        table: The table of the network's keys.
    """

    def __init__(self, slicer, KeyTable table not None):
        Spec.__init__(self, slicer)
        self.slices = KeySet(table, slicer.slice_inputs)
        self.unslices = KeySet(table, slicer.unslice_inputs)

    def has_keys_as_read(self):
        """Return whether the slicer's keys are those that it had.

        Returns:
            True if they are.
        """
        return (
            set(self.item.slice_inputs) == self.slices.names()
            and set(self.item.unslice_inputs) == self.unslices.names()
        )

    def is_as_read(self):
        """Return whether the slicer still says of itself what it said.

        Returns:
            True if it does.
        """
        return self.has_keys_as_read() and self._limits_are_as_read()


cdef class Resolution:
    """The keys of one execution plan.

    Args:
        inputs: The keys that the network needs from its batch.
        device_inputs: Those of them that ops read, and so must be on the device.
        outputs: The keys that the network returns.
        returned: The keys that its ops hand over: the outputs, and what postprocessing reads and
            then deletes. None for just the outputs.
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
    # a typed loop variable takes None, and then reads through it
    if spec is None:
        raise TypeError("None stands where a spec is expected")
    return 0


def select(list specs not None, mode, ds_id):
    """Return the specs that are active, in their order.

    Args:
        specs: Specs of ops, postprocessing ops or slicers.
        mode: The mode to run in.
        ds_id: The id of the dataset to run on, or None for any.

    Returns:
        A list of those that take part.
    """
    # of its full length from the start, as below: a list that grows is copied over and over
    cdef list chosen = [None] * len(specs)
    cdef Py_ssize_t count = 0
    cdef Spec spec
    for spec in specs:
        refuse_none(spec)
        if spec.in_force(mode, ds_id):
            chosen[count] = spec
            count += 1
    del chosen[count:]
    return chosen


def gather(list specs not None):
    """List what the ops of an execution plan bring with them.

    Args:
        specs: An `OpSpec` for each active op, in order.

    Returns:
        A tuple of lists: the ops, their forwards, the models that they hold (each once, in the
        order of the ops), and the places of the ops that take gradients.
    """
    cdef Py_ssize_t count = len(specs)
    cdef list ops = [None] * count, forwards = [None] * count, models = [], gradient_places = []
    cdef set seen = set()
    cdef Py_ssize_t place
    cdef OpSpec spec
    for place in range(count):
        spec = specs[place]
        refuse_none(spec)
        ops[place] = spec.item
        forwards[place] = spec.forward
        for model in spec.models:
            if id(model) not in seen:
                seen.add(id(model))
                models.append(model)
        if spec.takes_gradients:
            gradient_places.append(place)
    return ops, forwards, models, gradient_places


def same_items(list items not None, tuple snapshot not None):
    """Return whether a list still holds the very objects that it held before.

    Args:
        items: The list.
        snapshot: What it held.

    Returns:
        True if the same objects stand in the same order.
    """
    cdef Py_ssize_t index
    with cython.critical_section(items):
        if len(items) != len(snapshot):
            return False
        for index in range(len(snapshot)):
            if items[index] is not snapshot[index]:
                return False
    return True


def resolve(
    KeyTable table not None,
    list ops not None,
    list postprocessing not None,
    list slicers not None,
    desired=None,
    str context="",
):
    """Work out which keys a step reads, moves to its device, and returns.

    Args:
        table: The table of the network's keys.
        ops: An `OpSpec` for each active op, in order.
        postprocessing: An `OpSpec` for each active postprocessing op, in order.
        slicers: A `SlicerSpec` for each active slicer.
        desired: The keys wanted back. None or an empty collection stands for all outputs. Keys
            that postprocessing reads come back in any case.
        context: Words for the mode, epoch and ds_id, for the error text.

    Returns:
        A `Resolution`.

    Raises:
        ValueError: If a wanted key is cut into minibatches and no slicer un-slices it.
    """
    cdef KeySet needed = KeySet(table)
    cdef KeySet device = KeySet(table)
    cdef KeySet produced = KeySet(table)
    cdef KeySet sliced = KeySet(table)
    cdef KeySet unsliced = KeySet(table)
    cdef KeySet read_after = KeySet(table)
    cdef KeySet made_after = KeySet(table)
    cdef KeySet used_after = KeySet(table)
    cdef KeySet deleted_after = KeySet(table)
    cdef KeySet outputs, pieces, cut, returned
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
    cut = sliced.copy()
    cut.unite(produced)
    pieces = unsliced.copy()
    pieces.subtract(produced)
    needed.unite(pieces)

    for spec in postprocessing:
        refuse_none(spec)
        for index in range(spec.n_inputs):
            key_id = spec.ids[index]
            if not produced.has_bit(key_id):
                needed.set_bit(key_id)
            if not made_after.has_bit(key_id):
                read_after.set_bit(key_id)
                (deleted_after if spec.deletes else used_after).set_bit(key_id)
        for index in range(spec.n_inputs, spec.n_inputs + spec.n_outputs):
            produced.set_bit(spec.ids[index])
            made_after.set_bit(spec.ids[index])
        if spec.deletes:
            for index in range(spec.n_inputs):
                produced.clear_bit(spec.ids[index])
                made_after.clear_bit(spec.ids[index])

    outputs = produced.copy()
    if desired:
        # a key that nothing makes stays out of the table: what is asked for must not make it grow
        wanted = KeySet(table, [key for key in desired if key in table._ids])
        outputs.intersect(wanted)
        outputs.unite(read_after)

    returned.intersect(read_after)
    returned.unite(outputs)

    if not sliced.is_empty():
        # what postprocessing makes is made of joined values; what it only deletes may be in pieces
        made_after.unite(deleted_after)
        made_after.subtract(used_after)
        pieces = cut.copy()
        pieces.intersect(returned)
        pieces.subtract(unsliced)
        pieces.subtract(made_after)
        if not pieces.is_empty():
            raise sliced_not_unsliced(pieces.names(), context)

    return Resolution(needed, device, outputs, returned)
