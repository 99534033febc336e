"""What a graph was made of, taken down so that a later look tells whether it is still so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from typing import Any
from weakref import WeakSet

from fastnet._baked import Seen, first_other
from fastnet._resolve import same_items
from fastnet.backend.tf._keras_internals import WRITTEN_BY_LOADING
from fastnet.backend.tf.baked import (
    CLASS,
    Look,
    is_plain,
    is_variable,
    look_at,
    looks_at_variables,
    own_classes,
)
from fastnet.util.numbers import same_constant

__all__ = ["Change", "Fingerprint"]

# the path of names from one of the objects that a fingerprint was asked for to what has changed,
# with the objects on the way
Change = list[tuple[Any, str]]

_ABSENT: Any = object()


class _Node(Seen):
    """An object that can change, what it was like, and the way to it."""

    def __init__(self, owner: Any, look: Look, parent: _Node | None, name: str) -> None:
        super().__init__(owner, look.kind)
        self.look = look
        self.parent = parent
        self.name = name

    def then(self) -> list[tuple[str, Any]]:
        return self.look.names(self.owner, self.values)

    def current(self) -> list[tuple[str, Any]]:
        return self.look.names(self.owner, self.read(self.owner))


class Fingerprint:
    """What some objects, and those that they hold, are like now.

    Numbers, strings and the like are compared by what they are, and so are the items of containers
    and small arrays; attributes of layers, optimizers, ops and functions one by one; any other
    object by which it is. What is taken down is kept alive, so that no other takes its place.

    Args:
        roots: The objects.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._nodes: dict[int, _Node] = {}
        self._roots = tuple(roots)
        waiting: deque[tuple[Any, _Node | None, str, bool, bool]] = deque(
            (root, None, "", True, True) for root in self._roots
        )
        while waiting:
            value, parent, name, called, with_variables = waiting.popleft()
            if id(value) in self._nodes or is_plain(value):
                continue
            look = look_at(value, called)
            if look is None or (is_variable(value) and not with_variables):
                continue
            node = self._nodes[id(value)] = _Node(value, look, parent, name)
            if not look.goes_on:
                continue
            for kind in own_classes(value.__class__) if look.kind == "attributes" else ():
                if id(kind) not in self._nodes:
                    self._nodes[id(kind)] = _Node(kind, CLASS, node, "")
            with_variables = with_variables and looks_at_variables(value)
            # what a method is bound to is read when it is called
            bound = isinstance(value, MethodType)
            waiting.extend((part, node, key, bound, with_variables) for key, part in node.then())
        self._seen: list[Seen] = [
            node for node in self._nodes.values() if type(node.owner) not in (tuple, frozenset)
        ]
        _ALIVE.add(self)

    def holds(self) -> bool:
        """Return whether all is as it was."""
        return not any(True for _ in self._changed())

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
        place = first_other(self._seen)
        while place >= 0:
            node = self._seen[place]
            assert isinstance(node, _Node)
            now = node.read(node.owner)
            names = self._differences(node, node.look.names(node.owner, now))
            if names:
                for name in names:
                    yield node, name
            else:
                # for the next look, which need not compare what does not matter
                node.values = tuple(now)
            place = first_other(self._seen, place + 1)

    def _differences(self, node: _Node, now: list[tuple[str, Any]]) -> list[str]:
        """Name what differs from what a node was like."""
        then = node.then()
        if _has_names(then) or _has_names(now):
            before, after = dict(then), dict(now)
            return [
                str(name)
                for name in {**before, **after}
                if not self._alike(_held(before, name), _held(after, name))
            ]
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
        return not self._differences(node, node.look.names(now, node.read(now)))

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
        node = self._nodes.get(id(before.owner))
        if node is None:
            return
        if node.look.kind not in ("attributes", "mapping"):
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
