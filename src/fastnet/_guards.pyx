"""Walks the data reachable from some objects, and compares it with what an earlier walk found.

A walk makes a node of each object that it enters, and keeps what the object holds in one flat
tuple. A comparison reads each object again and compares pointers. Where a pointer differs, the
object is read into a list, and `fastnet.guards` compares the values. No code of users is called.
"""

import inspect
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
)

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport Py_SIZE, PyObject
from cpython.ref cimport Py_DECREF
from cpython.weakref cimport PyWeakref_Check, PyWeakref_GetRef
from libc.string cimport memcmp

from fastnet._threads cimport FREE_THREADED, hold, unhold

# The value of a name, a slot or a closure variable that is not set.
ABSENT = object()
cdef PyObject* NO_VALUE = <PyObject*> ABSENT
cdef object get_mro = type.__dict__["__mro__"].__get__


cpdef enum Kind:
    """The kind of a node, which decides the values that it has."""
    LINK  # A further reference to a known node. Values: none.
    OBJECT  # The attributes of an object. Values: its class, its dict or ABSENT, names and values.
    # Shown as __bases__: a change of the MRO is a change of bases.
    CLASS  # The attributes of a class. Values: its MRO, names and values.
    DICT  # A dict. Values: keys and values.
    LIST  # A list. Values: items.
    SET  # A set. Values: members.
    SEQUENCE  # A deque, or the order of an OrderedDict. Values: items, or keys.
    SLOTS  # The slots of an object, or members of a C class. Values: descriptors and values.
    FUNCTION  # A function. Values: code, closure, defaults, keyword defaults, dict, free variables.
    GLOBAL  # A name in a namespace. Values: the name, and its value or ABSENT.
    FIXED  # A tuple, frozenset or method, which cannot change. Values: what it holds.
    WEAK  # A weak reference, or a container of them. Values: whether it is alive, or none.
    STATE  # A context variable, thread-local or ctypes object. Values: its state in this thread.


@cython.no_gc_clear  # A finalizer may compare, and must still find the values.
cdef class BaseSnapshot:
    """The walk and the comparison; `fastnet.guards.Snapshot` adds the rules and the paths."""

    def __init__(self, rules, list roots, dict skip, bint shallow, Py_ssize_t max_entries):
        cdef Py_ssize_t index
        if self.kept is not None:
            raise RuntimeError("a snapshot cannot be taken twice")
        self.rules, self.skip, self.shallow = rules, skip, shallow
        self.remaining_entries = max_entries
        self.kept, self.walked_values, self.seen, self.layouts = [roots, skip], [], {}, {}
        self.functions, self.unfollowed, self.live_referents = [], [], []
        for index, root in enumerate(roots):
            self.visit(root, -1 - index, 0)
        index = 0
        while (index < self.count or self.follow_references()) and self.expand(index):
            index += 1
        self._stopped_at = index if index < self.count else -1
        self.count = index
        self.values = tuple(self.walked_values)
        self.walked_values = self.seen = None
        self.functions = self.unfollowed = self.live_referents = None

    def __dealloc__(self):
        PyMem_Free(self.nodes)

    cdef int add(self, int kind, owner, Py_ssize_t parent, Py_ssize_t position) except -1:
        """Append a node."""
        cdef Py_ssize_t capacity = 2 * self.capacity + 64
        cdef Node* node
        if self.count == self.capacity:
            node = <Node*> PyMem_Realloc(self.nodes, capacity * sizeof(Node))
            if node == NULL:
                raise MemoryError
            self.nodes, self.capacity = node, capacity
        node = &self.nodes[self.count]
        names = self.skip.get(address(owner)) if self.skip else None
        node.owner, node.skip = <PyObject*> owner, NULL if names is None else <PyObject*> names
        node.reference = NULL
        node.kind, node.parent, node.position, node.version = kind, parent, position, 0
        node.first = node.end = len(self.walked_values)
        self.count += 1
        return 0

    cdef bint enter(
        self, key, int kind, owner, Py_ssize_t parent, Py_ssize_t position
    ) except -1:
        """Append the first node with a key and return True, or a LINK to it and return False."""
        cdef Py_ssize_t index = self.seen.setdefault(key, self.count)
        if index == self.count:
            self.add(kind, owner, parent, position)
            return True
        self.add(LINK, None, parent, position)
        self.nodes[self.count - 1].first = index
        return False

    cdef int visit(self, value, Py_ssize_t parent, Py_ssize_t position) except -1:
        """Append the nodes of a value."""
        cdef bint inside = self.shallow and parent >= 0
        cdef Py_ssize_t main = self.count
        cdef tuple kinds
        if is_atom(value):
            return 0
        if inside and not isinstance(value, (dict, list, tuple, set, frozenset)):
            return 0
        if isinstance(value, type) and parent >= 0 and self.rules.is_user_class(value):
            return self.enter_class(value, parent, position)
        if type(value) is FunctionType:
            kinds = self.rules.kinds_of_function(value)
        elif type(value) is BuiltinFunctionType or type(value) is MethodWrapperType:
            kinds = self.rules.kinds_of_builtin(value)
        else:
            layout = self.layout_of(type(value))
            kinds = layout.containers if inside else layout.kinds
        # Addresses are even: the odd key is that of a root that is found again inside another root.
        if kinds and self.enter(address(value) + inside, kinds[0], value, parent, position):
            for kind in kinds[1:]:
                # Fewer than two keys have only one order.
                if kind != SEQUENCE or not isinstance(value, dict) or size_of(value) > 2:
                    self.add(kind, value, main, -1)
        return 0

    cdef object layout_of(self, cls):
        layout = self.layouts.get(address(cls))
        if layout is None:
            layout = self.layouts[address(cls)] = self.rules.layout_of(cls)
        return layout

    cdef bint expand(self, Py_ssize_t index) except -1:
        """Read a node and visit its values; return False if there are too many."""
        cdef Node node = self.nodes[index]  # A copy, because the array moves when it grows.
        cdef Py_ssize_t start = 0, step = 1
        cdef list values = self.walked_values
        owner = <object> node.owner
        if node.kind == LINK or node.kind == GLOBAL:
            return True
        if node.kind == WEAK and not self.shallow:
            self.unfollowed.append(index)
        if size_of(owner) > self.remaining_entries:
            self.nodes[index].kind = FIXED  # A shallow snapshot still compares the other nodes.
            return self.shallow
        node.first = len(values)
        self.read(&node, values)
        node.end = len(values)
        self.remaining_entries -= node.end - node.first
        self.nodes[index] = node
        if node.kind == OBJECT:
            start, step = 3, 2
            self.enter_class(values[node.first], index, -1)
        elif node.kind == CLASS:
            start, step = 2, 2
            for base in <tuple> values[node.first]:
                self.enter_class(base, index, -1)
            if not self.rules.is_user_class(owner):
                return True
        elif node.kind == SLOTS:
            start, step = 1, 2
        elif node.kind == FUNCTION:
            start = 2
        while start < node.end - node.first:
            self.visit(values[node.first + start], index, start)
            start += step
        if node.kind == FUNCTION and not self.shallow:
            self.functions.append(owner)
            self.enter_globals(owner, index)
        return True

    cdef bint follow_references(self) except -1:
        """Visit what weak references lead to if code uses them; return whether nodes were added."""
        cdef Py_ssize_t index, node, first, before = self.count
        cdef list unfollowed = self.unfollowed
        if not unfollowed:
            return False
        self.unfollowed = []
        names = self.rules.attributes_read_by(self.functions)
        for index in unfollowed:
            if self.nodes[index].reference != NULL:
                continue
            if not self.rules.is_named_by_code(
                self, self.nodes[index].parent, self.nodes[index].position, names
            ):
                self.unfollowed.append(index)
                continue
            first = self.count
            reference = <object> self.nodes[index].owner
            target = self.rules.target_of(reference)
            self.live_referents.append(target)
            self.visit(target, index, 0)
            # A snapshot keeps no referent alive, so its nodes have the reference to it.
            if PyWeakref_Check(reference):
                for node in range(first, self.count):
                    if self.nodes[node].owner == <PyObject*> target:
                        self.nodes[node].reference = <PyObject*> reference
        return self.count > before

    cdef int enter_class(self, cls, Py_ssize_t index, Py_ssize_t position) except -1:
        if is_mutable(cls):
            self.enter(address(cls), CLASS, cls, index, position)
        return 0

    cdef int enter_globals(self, function, Py_ssize_t index) except -1:
        """Append the names that a function reads, with their values."""
        cdef list indices = [index]
        for namespace, name, is_followed, parent in self.rules.globals_of(function, self.skip):
            key = address(namespace), name
            if self.enter(key, GLOBAL, namespace, indices[parent], -1):
                value = (<dict> namespace).get(name, ABSENT)
                self.walked_values += (name, value)
                self.kept.append(namespace)
                self.nodes[self.count - 1].end = len(self.walked_values)
                self.remaining_entries -= 2
                if is_followed:
                    self.visit(value, self.count - 1, 1)
            indices.append(self.seen[key])
        return 0

    # --- the comparison -----------------------------------------------------------------------

    cdef int read(self, Node* node, list values) except -1:
        """Append what a node holds now."""
        cdef PyObject* member
        cdef Py_ssize_t position = 0
        owner = <object> node.owner
        if node.kind == OBJECT:
            values.append(type(owner))
            if Py_TYPE(node.owner).tp_dictoffset:
                attributes = get_attributes(owner, NULL)
                values.append(attributes)
                append_items(values, attributes, node)
            else:
                values.append(ABSENT)
        elif node.kind == CLASS:
            values.append(get_mro(owner))
            append_items(values, <object> (<PyTypeObject*> owner).tp_dict, node)
        elif node.kind == DICT:
            append_items(values, owner, node)
        elif node.kind == LIST:
            with cython.critical_section(owner):
                values += (<list> owner)[:]
        elif node.kind == SET:
            with cython.critical_section(owner):
                member = next_member(node.owner, &position)
                while member != NULL:
                    values.append(<object> member)
                    member = next_member(node.owner, &position)
        elif node.kind == GLOBAL:
            name = self.values[node.first]
            values += (name, (<dict> owner).get(name, ABSENT))
        else:
            skip = () if node.skip == NULL else <object> node.skip
            values += self.rules.read(node.kind, owner, self.layout_of(type(owner)), skip)
        return 0

    def is_unchanged(self):
        """Return whether nothing has changed."""
        return self.next_change(0) < 0

    cdef object hold_owner(self, Py_ssize_t index):
        """Return the object of a node; None if it was referred to weakly, and has been freed."""
        cdef Node* node = &self.nodes[index]
        if node.reference == NULL:
            return <object> node.owner
        return referent_of(<object> node.reference)

    cpdef Py_ssize_t next_change(self, Py_ssize_t start) except -2:
        """Return the first node from an index on that has changed, or -1."""
        cdef PyObject** values = items_of(<PyObject*> self.values)
        cdef Node* node = self.nodes + start
        cdef Node* end = self.nodes + self.count
        while node < end:
            # Objects that are referred to weakly are held while they are read.
            if node.reference != NULL or not is_identical(
                node, values + node.first, values + node.end
            ):
                if self._difference_in(node - self.nodes) is not None:
                    return node - self.nodes
            node += 1
        return -1

    cpdef object _difference_in(self, Py_ssize_t index):
        """Return None, or the values of a node before or now and the index of one that differs."""
        cdef Node* node = &self.nodes[index]
        cdef list now = []
        owner = self.hold_owner(index)
        if owner is None and node.reference != NULL:
            return None
        self.read(node, now)
        return self.rules.find_difference(node.kind, self.values[node.first:node.end], now)

    def node(self, Py_ssize_t index):
        """Return the kind, object, parent and position of a node, and its values or their index."""
        cdef Node* node = &self.nodes[index]
        all_values = self.values if self.walked_values is None else self.walked_values
        values = node.first if node.kind == LINK else all_values[node.first:node.end]
        return node.kind, self.hold_owner(index), node.parent, node.position, values


@cython.no_gc_clear  # A finalizer may compare, and must still find the values.
cdef class MemberGuard:
    """Detects changes of attributes and method results, read through their C descriptors.

    Args:
        owners: The objects.
        attributes: The names of attributes, which are compared by identity.
        methods: The names of methods without arguments, which return a number from 0 to 2**64 - 1.

    Raises:
        TypeError: If a class does not have such an attribute or method, or a program has replaced
            it.
    """

    def __init__(self, owners, tuple attributes=(), tuple methods=()):
        if self.kept is not None:
            raise RuntimeError("a guard cannot be initialized twice")
        cdef list all_owners = list(owners)
        cdef Py_ssize_t size = len(all_owners) * (len(attributes) + len(methods))
        self.kept = []
        self.members = <Member*> PyMem_Realloc(NULL, max(size, 1) * sizeof(Member))
        if self.members == NULL:
            raise MemoryError
        for owner in all_owners:
            for name in attributes:
                self.add(owner, name, False)
            for name in methods:
                self.add(owner, name, True)

    def __dealloc__(self):
        PyMem_Free(self.members)

    cdef int add(self, owner, str name, bint is_method) except -1:
        cdef Member* member = &self.members[self.count]
        descriptor = inspect.getattr_static(owner, name)
        member.attribute, member.method = NULL, NULL
        if is_method and type(descriptor) is MethodDescriptorType:
            member.method = (<PyMethodDescrObject*> descriptor).d_method
        elif not is_method and type(descriptor) is GetSetDescriptorType:
            member.attribute = (<PyGetSetDescrObject*> descriptor).d_getset
        is_known = member.attribute != NULL and member.attribute.get != NULL
        if not is_known and (member.method == NULL or member.method.ml_flags != METH_NOARGS):
            member_name = f"{type(owner).__name__}.{name}"
            raise TypeError(f"{member_name} is not written in C, or takes arguments")
        value = descriptor.__get__(owner)
        if is_method:
            member.number = value()
        member.owner, member.value = <PyObject*> owner, <PyObject*> value
        self.kept += (owner, value)
        self.count += 1
        return 0

    def are_unchanged(self):
        """Return whether all objects give what they gave."""
        cdef Member* member = self.members
        cdef Member* end = member + self.count
        cdef PyObject* value
        cdef bint is_same
        while member < end:
            if member.attribute != NULL:
                value = member.attribute.get(member.owner, member.attribute.closure)
                # If it is the same object, the guard has a reference too.
                Py_DECREF(<object> value)
                is_same = value == member.value
            else:
                value = member.method.ml_meth(member.owner, NULL)
                number = <object> value
                Py_DECREF(number)
                is_same = <unsigned long long> number == member.number
            if not is_same:
                return False
            member += 1
        return True


cpdef object referent_of(reference):
    """Return the referent of a weak reference or a proxy, or None."""
    cdef PyObject* referent = NULL
    if not PyWeakref_GetRef(reference, &referent):
        return None
    value = <object> referent
    Py_DECREF(value)
    return value


cdef object address(value):
    return <size_t> <PyObject*> value


cdef inline bint is_atom(value) noexcept:
    """Return whether a value holds nothing and is compared by its bits."""
    cls = type(value)
    is_number = cls is int or cls is float or cls is bool or cls is complex
    return is_number or cls is str or value is None or cls is bytes


cpdef bint is_mutable(cls) noexcept:
    """Return whether the attributes of a class can be set."""
    cdef unsigned long flags = (<PyTypeObject*> cls).tp_flags
    return flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE) == Py_TPFLAGS_HEAPTYPE


cdef inline Py_ssize_t size_of(value) noexcept:
    """Return how many values a container holds; 0 for anything else."""
    if isinstance(value, (set, frozenset)):
        return PySet_GET_SIZE(<PyObject*> value)
    if isinstance(value, dict):
        return 2 * PyDict_GET_SIZE(<PyObject*> value)
    return Py_SIZE(value) if isinstance(value, (list, tuple)) else 0


cdef inline PyObject* next_member(PyObject* members, Py_ssize_t* position) noexcept:
    """Return the next member of a set in the order of its table, or NULL."""
    cdef setentry* entry
    while position[0] <= (<PySetObject*> members).mask:
        entry = &(<PySetObject*> members).table[position[0]]
        position[0] += 1
        # A member that was removed leaves an entry with the hash -1, which no object has.
        if entry.key != NULL and entry.hash != -1:
            return entry.key
    return NULL


cdef bint is_ignored(PyObject* key, PyObject* value, Node* node) except -1:
    """Return whether an item of a dict is none of the values of its node."""
    if type(<object> key) is not str:
        return False
    if node.skip != NULL and <object> key in <tuple> node.skip:
        return True
    if node.kind != CLASS or not (<str> key).startswith("__") or not (<str> key).endswith("__"):
        return False
    cls = type(<object> value)  # Python itself adds some of these names later.
    return not (cls is FunctionType or cls is classmethod or cls is staticmethod or cls is property)


cdef int append_items(list values, items, Node* node) except -1:
    """Append the keys and values of a dict."""
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0
    with cython.critical_section(items):
        while PyDict_Next(<PyObject*> items, &position, &key, &value):
            if not is_ignored(key, value, node):
                values.append(<object> key)
                values.append(<object> value)
    return 0


cdef bint has_items(PyObject* items, Node* node, PyObject** at, PyObject** end) except -1:
    """Return whether the items of a dict are the very objects of a range, in the same order."""
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0, skipped = 0
    cdef Py_ssize_t count = 0 if node.skip == NULL else Py_SIZE(<object> node.skip)
    with cython.critical_section(<object> items):
        while PyDict_Next(items, &position, &key, &value):
            if at != end and key == at[0] and value == at[1]:
                at += 2
            elif skipped < count and key == items_of(node.skip)[skipped]:
                skipped += 1  # Most names to skip are in the order of the attributes.
            elif not is_ignored(key, value, node):
                return False
        return at == end


cdef inline bint has_known_items(
    PyObject* items, Node* node, PyObject** at, PyObject** end
) except -1:
    """Return what `has_items` does, immediately if the dict is as it was when last compared."""
    cdef uint64_t version = dict_version_of(items)
    if version != 0 and version == node.version:
        return True
    if not has_items(items, node, at, end):
        return False
    if not FREE_THREADED:  # Other threads compare by it.
        node.version = version
    return True


cdef inline PyObject* or_else(PyObject* value, PyObject* default) noexcept:
    return default if value == NULL else value


cdef bint is_identical(Node* node, PyObject** at, PyObject** end) except -1:
    """Return whether a node holds the very objects that it held."""
    cdef PyObject* owner = node.owner
    cdef PyObject* none = <PyObject*> None
    cdef PyFunctionObject* function = <PyFunctionObject*> owner
    cdef PyCellObject* cell
    cdef PyObject* value
    cdef Py_ssize_t position = 0
    cdef unsigned int version
    if node.kind == LINK or node.kind == FIXED:
        return True
    if node.kind == OBJECT:
        if <PyObject*> Py_TYPE(owner) != at[0]:
            return False
        if at[1] == NO_VALUE:
            return True
        value = PyObject_GenericGetDict(owner, NULL)
        Py_DECREF(<object> value)  # If it is the same dict, the snapshot has a reference too.
        return value == at[1] and has_known_items(value, node, at + 2, end)
    if node.kind == CLASS:
        version = version_of(<PyTypeObject*> owner)  # Writes to it or its bases take it away.
        if version != 0 and version == node.version:
            return True
        value = (<PyTypeObject*> owner).tp_mro
        if value != at[0] or not has_items((<PyTypeObject*> owner).tp_dict, node, at + 1, end):
            return False
        if not FREE_THREADED:  # Other threads compare by it.
            node.version = version
        return True
    if node.kind == DICT:
        return has_known_items(owner, node, at, end)
    if node.kind == LIST:
        with cython.critical_section(<object> owner):
            if Py_SIZE(<object> owner) != end - at:
                return False
            return at == end or not memcmp(items_of(owner), at, (end - at) * sizeof(PyObject*))
    if node.kind == SET:
        with cython.critical_section(<object> owner):
            value = next_member(owner, &position)
            while value != NULL and at != end and value == at[0]:
                at += 1
                value = next_member(owner, &position)
            return value == NULL and at == end
    if node.kind == GLOBAL:
        value = hold(owner, at[0])
        if value != NULL:
            unhold(value)
        return or_else(value, NO_VALUE) == at[1]
    if node.kind == SLOTS:
        while at != end:
            position = (<PyMemberDescrObject*> at[0]).d_member.offset
            value = (<PyObject**> (<char*> owner + position))[0]
            if or_else(value, NO_VALUE) != at[1]:
                return False
            at += 2
        return True
    if node.kind == WEAK:
        if at == end:  # A container of weak references.
            return True
        is_alive = referent_of(<object> owner) is not None
        return at[0] == (<PyObject*> True if is_alive else <PyObject*> False)
    if node.kind == FUNCTION:
        for position in range(end - at - 5):  # Its closure variables follow five other values.
            cell = <PyCellObject*> items_of(at[1])[position]
            if or_else(cell.ob_ref, NO_VALUE) != at[5 + position]:
                return False
        return (
            function.func_code == at[0]
            and or_else(function.func_closure, none) == at[1]
            and or_else(function.func_defaults, none) == at[2]
            and or_else(function.func_kwdefaults, none) == at[3]
            and function.func_dict == at[4]
        )
    # Keys of an OrderedDict that has several, items of a deque, and states are read in Python.
    return False
