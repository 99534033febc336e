"""What a graph was made of, taken down so that a later look tells whether it is still so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakSet

from fastnet._baked import Seen, first_other
from fastnet._resolve import same_items
from fastnet.backend.code_names import LOOKING_UP, CodeNames, names_in
from fastnet.backend.readers import same_constant
from fastnet.backend.tf._keras_internals import WRITTEN_BY_LOADING
from fastnet.backend.tf.baked import (
    GLOBALS,
    Globals,
    Look,
    attributes_beside,
    is_of_program,
    is_plain,
    is_variable,
    look_at,
    look_at_class,
    looks_at_variables,
    own_classes,
    parts_of_class,
)
from fastnet.util.warnings import warn

__all__ = ["Change", "Fingerprint"]

# the path of names from one of the objects that a fingerprint was asked for to what has changed,
# with the objects on the way
Change = list[tuple[Any, str]]

_ABSENT: Any = object()
# what is behind the ops may be all data of a program
_MOST_NODES = 20_000
_TOO_MUCH = (
    f"The ops lead to more than {_MOST_NODES} objects. What is changed in further ones does not "
    "count for a step that was traced before; call network.retrace() after such a change."
)
# what cannot change in the place of another one
_STAYING = (tuple, frozenset, MethodType, BuiltinFunctionType)


class _Node(Seen):
    """An object that can change, what it was like, and the way to it."""

    def __init__(
        self, owner: Any, look: Look, parent: _Node | None, name: str, names: _Names
    ) -> None:
        super().__init__(owner, look.kind)
        self.look = look
        self.parent = parent
        self.name = name
        self._names = names
        # how many names were known when its parts were looked at
        self.known = -1

    @property
    def key(self) -> int:
        """What it is found by: its owner, or what the globals are of."""
        return -id(self.owner.table) if isinstance(self.owner, Globals) else id(self.owner)

    def then(self) -> list[tuple[str, Any]]:
        return self.pairs(self.owner, self.values)

    def pairs(self, owner: Any, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return the values that matter, each with its name, if it has one."""
        pairs = self.look.names(owner, values)
        if not self.look.named:
            return pairs
        reads, is_class = self._names.has, isinstance(owner, type)
        return [
            (name, value)
            for name, value in pairs
            if reads(name) or (is_class and name.startswith("__"))
        ]

    def parts(self) -> list[tuple[str, Any]]:
        """List what is to be looked at as well."""
        if isinstance(self.owner, type):
            return parts_of_class(self.owner, self._names.has)
        return self.then() if self.look.goes_on else []


class _Names:
    """The names that code of the program reads, as far as it is known."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, names: CodeNames) -> None:
        self._found |= names.read | names.attributes | names.strings

    def has(self, name: str) -> bool:
        return name in self._found or not self._found.isdisjoint(LOOKING_UP)


class Fingerprint:
    """What some objects, and those that they hold, are like now.

    Numbers, strings and the like are compared by what they are, and so are the items of containers
    and arrays; attributes of layers, optimizers, ops and functions one by one; of objects, classes
    and modules of the program's own those whose names are read by its code, and the globals that
    this reads; any other object by which it is. What is taken down is kept alive, so that no other
    takes its place.

    Args:
        roots: The objects.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._roots = tuple(roots)
        self._walk()
        _ALIVE.add(self)

    def _walk(self) -> None:
        """Take down all there is."""
        self._nodes: dict[int, _Node] = {}
        self._names = _Names()
        # whether something that can change was found in the place of another one of the same values
        self._is_replaced = False
        waiting: deque[tuple[Any, _Node | None, str, bool, bool]] = deque(
            (root, None, "", True, True) for root in self._roots
        )
        growing: list[_Node] = []
        while waiting:
            self._visit(*waiting.popleft(), waiting, growing)
            if waiting:
                continue
            # names that were found later let more of what was found before matter
            for node in growing:
                if node.known < len(self._names):
                    node.known = len(self._names)
                    waiting.extend((part, node, name, False, True) for name, part in node.parts())
        for node in self._nodes.values():
            if isinstance(node.owner, Globals):
                node.values = tuple(node.read(node.owner))
        self._seen: list[Seen] = [
            node for node in self._nodes.values() if type(node.owner) not in (tuple, frozenset)
        ]
        self._objects = [
            node
            for node in self._nodes.values()
            if node.look.kind == "attributes" and own_classes(node.owner.__class__)
        ]
        self._owners = [node.owner for node in self._objects]
        self._classes = list(map(type, self._owners))

    def _visit(
        self,
        value: Any,
        parent: _Node | None,
        name: str,
        called: bool,
        with_variables: bool,
        waiting: deque[tuple[Any, _Node | None, str, bool, bool]],
        growing: list[_Node],
    ) -> None:
        """Take down one object, and have its parts wait for it."""
        if id(value) in self._nodes or is_plain(value):
            return
        if isinstance(value, type):
            cls: Any = value
            for kind in own_classes(cls):
                self._add_class(kind, parent, name, growing)
                making = [vars(kind).get(one) for one in ("__new__", "__init__")]
                waiting.extend((one, parent, name, False, True) for one in making)
            return
        look = look_at(value, called)
        if look is None or (is_variable(value) and not with_variables):
            return
        if len(self._nodes) >= _MOST_NODES:
            if len(self._nodes) == _MOST_NODES:
                warn(_TOO_MUCH)
            return
        node = self._nodes[id(value)] = _Node(value, look, parent, name, self._names)
        if isinstance(value, FunctionType):
            waiting.extend(self._globals_of(node))
        if not look.goes_on:
            return
        if look.kind == "attributes" or look.has_names:
            for kind in own_classes(value.__class__):
                self._add_class(kind, node, "", growing)
        beside = attributes_beside(value, look)
        if beside is not None:
            waiting.append((beside, node, "", False, True))
        with_variables = with_variables and looks_at_variables(value)
        if look.named:
            growing.append(node)
            return
        # what a method is bound to is read when it is called
        bound = isinstance(value, MethodType)
        waiting.extend(
            (part, node, key, bound, with_variables)
            for key, part in node.parts()
            if not is_plain(part)
        )

    def _add_class(self, kind: type, parent: _Node | None, name: str, growing: list[_Node]) -> None:
        if id(kind) not in self._nodes:
            node = _Node(kind, look_at_class(kind), parent, name, self._names)
            self._nodes[id(kind)] = node
            growing.append(node)

    def _globals_of(self, node: _Node) -> Iterator[tuple[Any, _Node | None, str, bool, bool]]:
        """Take down the names that a function reads; go through its globals."""
        function = node.owner
        names = names_in(function.__code__)
        self._names.add(names)
        if not is_of_program(function.__module__):
            return
        table = function.__globals__
        if -id(table) not in self._nodes:
            self._nodes[-id(table)] = _Node(Globals(table), GLOBALS, node, "", self._names)
        found = self._nodes[-id(table)]
        for name in sorted(names.read.difference(found.owner.names)):
            found.owner.names.append(name)
            yield table.get(name), found, name, False, True

    def holds(self) -> bool:
        """Return whether all is as it was."""
        if any(True for _ in self._changed()):
            return False
        if self._is_replaced:
            # what is in the place of another one can change in its turn
            self._walk()
        return True

    def changes(self) -> Iterator[Change]:
        """List what is not as it was.

        Yields:
            The way to each of the attributes that differ.
        """
        for node, name in self._changed():
            way = [(node.owner, name)]
            at = node
            while at.parent is not None:
                way.append((at.parent.owner, at.name))
                at = at.parent
            yield way[::-1]

    def _changed(self) -> Iterator[tuple[_Node, str]]:
        classes = list(map(type, self._owners))
        if classes != self._classes:
            for one, now, then in zip(self._objects, classes, self._classes, strict=True):
                if now is not then:
                    yield one, "__class__"
        place = first_other(self._seen)
        while place >= 0:
            node = self._seen[place]
            assert isinstance(node, _Node)
            values = node.read(node.owner)
            before, self._is_replaced = self._is_replaced, False
            names = self._differences(node, node.pairs(node.owner, values))
            if not names and not self._is_replaced:
                # for the next look, which need not compare what does not matter
                node.values = tuple(values)
            self._is_replaced |= before
            for name in names:
                yield node, name
            place = first_other(self._seen, place + 1)

    def _differences(self, node: _Node, now: list[tuple[str, Any]]) -> list[str]:
        """Name what differs from what a node was like."""
        then = node.then()
        if _has_names(then) or _has_names(now):
            before, after = dict(then), dict(now)
            names = [
                str(name)
                for name in {**before, **after}
                if not self._alike(_held(before, name), _held(after, name))
            ]
            # code that goes through a mapping sees the order
            is_moved = node.look.kind == "mapping" and list(before) != list(after)
            return names or [""] * is_moved
        same = len(now) == len(then) and all(
            self._alike(before, after) for (_, before), (_, after) in zip(then, now, strict=True)
        )
        return [] if same else [""]

    def _alike(self, then: Any, now: Any) -> bool:
        if then is now:
            return True
        if type(then) is not type(now):
            return False
        if is_plain(then):
            return same_constant(then, now)
        node = self._nodes.get(id(then))
        if node is None or not node.look.by_value:
            return False
        # the one in its place is compared with what it was like, and not with what it is
        if self._differences(node, node.pairs(now, node.read(now))):
            return False
        self._is_replaced |= not isinstance(now, _STAYING)
        return True

    def moves_to(self, after: Fingerprint) -> None:
        """Have all fingerprints go along with what was done in between, which is no change to them.

        What running the ops changes, such as a counter in an op, or the weights that a layer makes
        when it is first called, would otherwise look like a change to the graphs traced before.

        Args:
            after: A fingerprint of the same objects, taken later.
        """
        moves = [
            (node, other)
            for key, node in self._nodes.items()
            if (other := after._nodes.get(key)) is not None
            and not same_items(list(other.values), node.values)
        ]
        others = [one for one in list(_ALIVE) if one is not self and one is not after]
        for each in others if moves else ():
            for before, later in moves:
                each._follow(before, later)

    def _follow(self, before: _Node, after: _Node) -> None:
        node = self._nodes.get(before.key)
        if node is None:
            return
        # the objects that it has now may be none that are looked at here
        self._is_replaced = True
        if same_items(list(node.values), before.values) or not node.look.is_paired:
            if same_items(list(node.values), before.values):
                node.values = after.values
            return
        own, then, now = (_by_name(one.values) for one in (node, before, after))
        for name in {**then, **now}:
            one, other = then.get(name, _ABSENT), now.get(name, _ABSENT)
            if one is not other and _matches(own.get(name, _ABSENT), one):
                own[name] = other
        own = {name: value for name, value in own.items() if value is not _ABSENT}
        node.values = (*own, *own.values())


_ALIVE: WeakSet[Fingerprint] = WeakSet()


def _held(values: Mapping[Any, Any], name: Any) -> Any:
    return values.get(name, WRITTEN_BY_LOADING.get(name, _ABSENT))


def _has_names(pairs: list[tuple[str, Any]]) -> bool:
    return bool(pairs) and pairs[0][0] != ""


def _by_name(values: tuple[Any, ...]) -> dict[Any, Any]:
    half = len(values) // 2
    return dict(zip(values[:half], values[half:], strict=True))


def _matches(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and is_plain(one) and same_constant(one, other)
