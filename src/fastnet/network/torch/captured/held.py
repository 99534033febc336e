"""What a captured step was made of, taken down so that each step sees whether it still is so."""

from __future__ import annotations

import argparse
import functools
import random
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch

from fastnet._baked import Seen, first_other
from fastnet._watch import ClassAttributes, Contents
from fastnet.backend.model_metadata import is_built, taken_names
from fastnet.backend.readers import (
    ABSENT,
    array_of,
    items_of,
    method_of,
    partial_of,
    same_constant,
    value_of_context,
)
from fastnet.backend.torch._internals import OF_MODULES, module_hook_tables
from fastnet.network.torch.captured.called import Called, methods_run
from fastnet.network.torch.captured.global_names import (
    Globals,
    attributes_in,
    is_library,
)
from fastnet.network.torch.captured.readers import (
    Slots,
    bound_to,
    bytes_of,
    has_not_begun,
    is_buffer,
    place_in,
    settings_of,
    slots_of,
    wrapped_by,
)
from fastnet.schedule.schedule import EpochScheduler
from fastnet.types import is_op

__all__ = ["Held", "TooMuch"]

# what lies behind a program's own objects may be all of its data
_MOST_NODES = 20_000
_MOST_BYTES = 1 << 16

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    range,
    slice,
    np.number,
    np.bool_,
    np.character,
    np.datetime64,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
)
_WHOLE = (type, ModuleType, torch.Tensor, torch.Generator)
# of the ops' own keeping, which modes and data sets are for
_OF_OPS = frozenset({"mode", "ds_id"})
# and which the library's own do not read in a step
_OF_LIBRARY = _OF_OPS | {"schedulers"}
# written by every opening, or not for the step
_FACTS = frozenset(
    {"fe_alone", "fe_compiled", "fe_device", "fe_input_spec", "fe_traceability_summary"}
    | {"current_optimizer", "loss_name", "mixed_precision", "model_name", "optimizer"}
    | {"_fastnet_beside"}
)
_OF_CLASSES = frozenset({"__doc__", "__annotations__", "__dict__", "__weakref__"})
# of Python's own what keeps things for itself, and is the same to whoever uses it
_CACHING = frozenset({"logging", "typing", "builtins", "abc", "_abc"})
# which every module of torch has
_TABLES = frozenset(vars(torch.nn.Module()))
_CACHE = type(functools.cache(len))
_DRAWING = (random.Random, np.random.Generator, np.random.RandomState)
_OF_C = (BuiltinFunctionType, MethodWrapperType)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
# of torch's own classes of objects those that ops hold, and read in a step
_OF_TORCH = ("torch.distributions.", "torch.nn.utils.")

Name = tuple[str, ...]


class TooMuch(Exception):
    """There is more to compare than can be compared in each step.

    Args:
        way: The way to what is too much.
        what: What to say of it.
    """

    def __init__(self, way: Name, what: str) -> None:
        super().__init__(what.format(_told(way)))
        self.root = way[0]


class _Node(Seen):
    """An object that can change, what it was like, and the way to it."""

    def __init__(
        self,
        owner: Any,
        kind: Any,
        way: Name,
        passed_over: frozenset[str] = frozenset(),
        private: bool = True,
    ) -> None:
        super().__init__(owner, kind)
        self.kind = kind
        self.way = way
        self.passed_over = passed_over
        # whether names that begin with an underscore matter
        self.private = private

    def pairs(self, values: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Name the values that matter."""
        if self.kind == "function":
            cells = self.owner.__code__.co_freevars
            names = ["__code__", "__defaults__", "__kwdefaults__", *cells]
            return list(zip(names, values, strict=False))
        if isinstance(self.owner, (Globals, Called)):
            return list(zip(self.owner.names, values, strict=True))
        if self.kind not in ("attributes", "mapping"):
            return list(enumerate(values))
        half = len(values) // 2
        return [
            (name, value)
            for name, value in zip(values[:half], values[half:], strict=True)
            if not (
                isinstance(name, str)
                and (name in self.passed_over or (not self.private and name.startswith("_")))
            )
        ]


class Held:
    """What some objects, and those that they lead to, are like now.

    Numbers, strings and the like are compared by their values, whatever else by which object it
    is; what is in containers, functions, modules and objects of the user's own classes one by one.

    Args:
        roots: The objects, by names for what is told of them.
        has_run: Tells of code whether it has run in a step. What a function has counts where its
            code did; else only which function it is.
        everything: Whether what ops and models of the library keep for themselves counts too.
        codes: Code that reads globals besides, each with its table of them.

    Attributes:
        tensors: The tensors that were found on the way, by their ids.
        cached: The code of functions whose results are cached.

    Raises:
        TooMuch: If there is more than can be compared in each step.
    """

    def __init__(
        self,
        roots: Iterable[tuple[str, Any]],
        has_run: Callable[[CodeType], bool],
        everything: bool = False,
        codes: Iterable[tuple[CodeType, dict[str, Any]]] = (),
    ) -> None:
        self._has_run = has_run
        self._everything = everything
        # kept alive, so that no other object takes the place of one that is compared by its id
        self._roots, self._codes = list(roots), list(codes)
        self._walk()

    def _walk(self) -> None:
        """Take down all there is."""
        self.tensors: dict[int, torch.Tensor] = {}
        self._tables: set[tuple[Any, ...]] = set()
        self._nodes: dict[int, _Node] = {}
        self.cached: set[Any] = set()
        # whether a container was found in the place of another one of the same values
        self._is_replaced = False
        attributes = attributes_in(code for code, _ in self._codes)
        weak: list[tuple[weakref.ref[Any], Name]] = []
        waiting: deque[tuple[Any, Name]] = deque((value, (name,)) for name, value in self._roots)
        waiting.extend(
            (Globals(code, table), ("the code of the ops",)) for code, table in self._codes
        )
        while waiting:
            value, way = waiting.popleft()
            if isinstance(value, _CACHE):
                # it need not have run, and runs when a program has cleared the cache
                self.cached.add(getattr(value.__wrapped__, "__code__", None))
            if isinstance(value, torch.Tensor):
                self.tensors[id(value)] = value
            if isinstance(value, type):
                waiting.extend(self._look_at_class(value, way))
            elif isinstance(value, _PLAIN) and not is_library(type(value).__module__):
                waiting.extend(self._look_at_class(type(value), way))
            elif isinstance(value, weakref.ref):
                weak.append((value, way))
            beside = _beside(value)
            if beside is not None:
                waiting.append((beside, way))
            if id(value) in self._nodes or isinstance(value, (*_PLAIN, *_WHOLE)):
                continue
            node = self._look_at(value, way)
            if node is None:
                continue
            self._nodes[id(value)] = node
            if len(self._nodes) > _MOST_NODES:
                raise TooMuch(way, "there is too much behind {} to compare it in each step")
            if callable(node.kind):
                parts = [] if isinstance(value, np.ndarray) else node.pairs(node.values)
            else:
                parts = node.pairs(node.values)
            if isinstance(value, Globals) and value.is_library:
                parts = [(name, part) for name, part in parts if type(part) in (dict, list, set)]
            waiting.extend((_whole(value, part), (*way, str(name))) for name, part in parts)
            if node.kind == "mapping":
                waiting.extend((name, way) for name, _ in parts if not isinstance(name, str))
            if isinstance(value, FunctionType):
                waiting.append((Globals(value.__code__, value.__globals__), way))
            elif isinstance(value, Globals):
                waiting.extend((inner, way) for inner in value.inner(attributes))
            if node.kind == "attributes" or isinstance(node.kind, Slots):
                waiting.extend(self._look_at_class(type(value), way))
        for one, way in weak:
            # nothing is kept alive that a program lets go
            held = one()
            if not (held is None or isinstance(held, _WHOLE) or id(held) in self._nodes):
                raise TooMuch(way, "{} is a weak reference to what nothing else here holds")
        modules = [
            node.owner for node in self._nodes.values() if isinstance(node.owner, torch.nn.Module)
        ]
        classes = set(map(type, modules))
        self._called = Called(classes, {*attributes, *methods_run(classes, self._has_run)})
        self._hooks = module_hook_tables()
        for called in (self._called, *self._hooks):
            kind = Called.read if called is self._called else "mapping"
            self._nodes[id(called)] = _Node(
                called, kind, ("the classes of modules, or their hooks",)
            )
        self._globals = [node for node in self._nodes.values() if isinstance(node.owner, Globals)]
        self._seen: list[Seen] = [
            node
            for node in self._nodes.values()
            if not isinstance(node.owner, (tuple, frozenset, MethodType, *_OF_C, Globals))
        ]
        # what a module has in turn: parameters, parts, hooks
        self._of_modules = {
            id(part): part
            for module in modules
            for name, part in vars(module).items()
            if name in _TABLES and isinstance(part, dict) and id(part) in self._nodes
        }
        apart = {id(self._called), *map(id, self._hooks), *self._of_modules}
        self._others = [
            node
            for node in self._seen
            if not _has_table(node) and (id(node.owner) not in apart or _can_be_moved(node.owner))
        ]
        self._look_quickly()

    def _look_quickly(self) -> None:
        """Take down, for C to compare, what is in tables; each of the others is asked."""
        owners = [node.owner for node in self._seen if _has_table(node)]
        tables = [*(vars(one) for one in owners), *self._of_modules.values(), *self._hooks]
        entries: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        absent: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for node in self._globals:
            table = node.owner.table
            for name in node.owner.names:
                if name in table:
                    entries[id(table), name] = table, name
                else:
                    # one of Python's own, as long as the program has none of that name
                    absent.setdefault(id(table), (table, set()))[1].add(name)
        lists = [node.owner for node in self._others if _is_plain_list(node.owner)]
        self._asked = [node for node in self._others if not _is_plain_list(node.owner)]
        self._contents = Contents(
            *(list(entries.values()), tables, lists, list(absent.values())), owners=owners
        )
        called = self._called
        self._classes = ClassAttributes(called.classes, called.attributes)

    def _look_at_class(self, cls: type, way: Name) -> Iterator[tuple[Any, Name]]:
        """Take down what classes of a program's own have, and go through it."""
        of_class: type = type(cls)
        for base in (*cls.__mro__, *of_class.__mro__):
            if is_library(base.__module__) or id(base) in self._nodes:
                continue
            self._nodes[id(base)] = _Node(base, "attributes", way, _OF_CLASSES)
            for name, part in vars(base).items():
                if name not in _OF_CLASSES:
                    read = part.fget if isinstance(part, property) else part
                    yield read, (*way, str(name))

    def _look_at(self, value: Any, way: Name) -> _Node | None:
        if isinstance(value, (list, tuple, deque, set, frozenset, *_VIEWS)):
            kind = "sequence" if isinstance(value, (list, tuple)) else list
            return _Node(value, kind, way)
        if value is sys.modules:
            raise TooMuch(way, "{} has all modules, which are too many to compare in each step")
        if isinstance(value, dict):
            return _Node(value, "mapping", way)
        if isinstance(value, Globals):
            if value.key in self._tables or not value:
                return None
            self._tables.add(value.key)
            return _Node(value, Globals.read, way)
        if isinstance(value, GeneratorType) and has_not_begun(value):
            return _Node(value, place_in, way)
        if isinstance(value, ContextVar):
            return _Node(value, value_of_context, way)
        if isinstance(value, (Iterator, *_DRAWING)):
            raise TooMuch(way, f"{{}} is of type {type(value).__name__}, which goes on in itself")
        if isinstance(value, FunctionType):
            counts = self._has_run(value.__code__) or value.__code__ in self.cached
            if is_library(value.__module__) or not counts:
                return None
            return _Node(value, "function", way)
        if isinstance(value, MethodType):
            return _Node(value, method_of, way)
        if isinstance(value, _OF_C):
            # what goes on by itself cannot be called in a step
            bound = value.__self__
            goes_on = isinstance(bound, (Iterator, *_DRAWING, ModuleType))
            return None if goes_on else _Node(value, bound_to, way)
        if isinstance(value, functools.partial):
            return _Node(value, partial_of, way)
        if isinstance(value, (staticmethod, classmethod)):
            return _Node(value, wrapped_by, way)
        if isinstance(value, np.ndarray):
            if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
                raise TooMuch(way, "{} is an array too large to compare it in each step")
            return _Node(value, array_of, way)
        if isinstance(value, MappingProxyType):
            return _Node(value, items_of, way)
        if is_buffer(value):
            if memoryview(value).nbytes > _MOST_BYTES:
                raise TooMuch(way, "{} is too large to compare it in each step")
            return _Node(value, bytes_of, way)
        package = type(value).__module__.partition(".")[0]
        own = not is_library(type(value).__module__)
        if own and (not hasattr(value, "__dict__") or slots_of(type(value))):
            return _Node(value, Slots(type(value)), way)
        if not hasattr(value, "__dict__"):
            return None
        if package in sys.stdlib_module_names and package not in _CACHING:
            return _Node(value, "attributes", way)
        if isinstance(value, torch.nn.Module):
            # a model may have something of its own where fastnet writes on others
            facts = _FACTS - taken_names(value) if is_built(value) else frozenset()
            return _Node(value, "attributes", way, OF_MODULES | facts)
        if is_op(value):
            own = is_library(type(value).__module__)
            passed = _OF_LIBRARY if own else _OF_OPS
            return _Node(value, "attributes", way, passed, private=self._everything or not own)
        kind = type(value)
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            return _Node(value, "attributes", way)
        if isinstance(value, torch.optim.Optimizer):
            return _Node(value, settings_of, way)
        if isinstance(value, (SimpleNamespace, argparse.Namespace)) or not is_library(
            kind.__module__
        ):
            return _Node(value, "attributes", way)
        if kind.__module__.startswith(_OF_TORCH) or kind.__module__ == EpochScheduler.__module__:
            return _Node(value, "attributes", way)
        if self._everything and kind.__module__.startswith("fastnet."):
            return _Node(value, "attributes", way, _OF_STEPS)
        return None

    def is_same(self) -> bool:
        """Return whether all is as it was, as far as objects are the very same ones."""
        return (
            self._contents.are_still()
            and self._classes.are_still()
            and first_other(self._asked) < 0
        )

    def changes(self) -> Iterator[str]:
        """Go through what is not as it was.

        Yields:
            The names that lead to it.
        """
        are_same, self._is_replaced = True, False
        for other in self._of_other_classes():
            are_same = False
            yield _told((*other.way, "__class__"))
        place = first_other(self._seen)
        while place >= 0:
            node = self._seen[place]
            assert isinstance(node, _Node)
            now = node.read(node.owner)
            before, self._is_replaced = self._is_replaced, False
            names = self._differences(node, node.pairs(now))
            if not names and not self._is_replaced:
                # so that the next look need not compare what does not matter
                node.values = tuple(now)
            self._is_replaced |= before
            for name in names:
                are_same = False
                yield _told((*node.way, str(name)))
            place = first_other(self._seen, place + 1)
        for node in self._globals:
            for name in self._differences(node, node.pairs(node.read(node.owner))):
                are_same = False
                yield _told((*node.way, str(name)))
        if are_same and self._is_replaced:
            # what is in the place of another one can change in its turn
            self._walk()
        elif are_same:
            self._look_quickly()

    def _of_other_classes(self) -> Iterator[_Node]:
        for node in self._seen:
            assert isinstance(node, _Node)
            if type(node.owner) is not node.cls:
                yield node

    def put_back(self) -> None:
        """Put back what has changed, wherever that can be written to."""
        for node in self._of_other_classes():
            node.owner.__class__ = node.cls
        for node in self._globals:
            for name, value in node.pairs(node.values):
                if value is ABSENT:
                    node.owner.table.pop(name, None)
                elif node.owner.table.get(name, ABSENT) is not value:
                    node.owner.table[name] = value
        place = first_other(self._seen)
        while place >= 0:
            at = self._seen[place]
            assert isinstance(at, _Node)
            self._put_back(at)
            place = first_other(self._seen, place + 1)

    def _put_back(self, node: _Node) -> None:
        owner = node.owner
        if isinstance(owner, type):
            now = node.pairs(node.read(owner))
            before = dict(node.pairs(node.values))
            for name in self._differences(node, now):
                if name in before:
                    setattr(owner, name, before[name])
                else:
                    delattr(owner, name)
        elif node.kind == "function":
            for cell, value in zip(owner.__closure__ or (), node.values[3:], strict=False):
                if type(value) is not object:  # which stands for nothing at all
                    cell.cell_contents = value
        elif node.kind in ("attributes", "mapping"):
            table = vars(owner) if node.kind == "attributes" else owner
            half = len(node.values) // 2
            table.clear()
            table.update(zip(node.values[:half], node.values[half:], strict=True))
        elif node.kind == "sequence" and isinstance(owner, list):
            owner[:] = node.values
        elif isinstance(owner, set):
            owner.clear()
            owner.update(node.values)
        elif isinstance(owner, deque):
            owner.clear()
            owner.extend(node.values)
        elif node.kind is array_of:
            owner[...] = np.frombuffer(node.values[1], owner.dtype).reshape(owner.shape)

    def _differences(self, node: _Node, now: list[tuple[Any, Any]]) -> list[Any]:
        before, after = dict(node.pairs(node.values)), dict(now)
        names = [
            name
            for name in {**before, **after}
            if not self._alike(before.get(name, ABSENT), after.get(name, ABSENT))
        ]
        if not names and node.kind == "mapping":
            # what goes through it sees the order
            moved = zip(before, after, strict=True)
            names = [name for name, other in moved if name is not other and name != other]
        return names

    def _alike(self, then: Any, now: Any) -> bool:
        if then is now:
            return True
        if type(then) is not type(now):
            return False
        if isinstance(then, _PLAIN):
            return same_constant(then, now)
        node = self._nodes.get(id(then))
        if node is None or node.kind in ("attributes", "function"):
            return False
        # another container of the same values is as good
        if self._differences(node, node.pairs(node.read(now))):
            return False
        self._is_replaced |= not isinstance(now, (tuple, frozenset, MethodType))
        return True


# what a step writes to whatever keeps track of steps
_OF_STEPS = frozenset(
    {"_opened", "_epoch", "_others", "_switch", "_are_still", "_mode", "_unseen", "_deferred"}
)


def _told(way: Name) -> str:
    names = [name for name in way[1:] if name not in ("_modules", "_parameters", "_buffers")]
    return way[0] + (f", `{'.'.join(names)}`" if names else "")


def _has_table(node: Seen) -> bool:
    """Return whether what an object has is what is in the dict of its attributes."""
    assert isinstance(node, _Node)
    if node.kind != "attributes" or isinstance(node.owner, type):
        return False
    # what makes up its dict has no place for one
    return bool(type(node.owner).__dictoffset__) and type(vars(node.owner)) is dict


def _can_be_moved(owner: Any) -> bool:
    """Return whether an object has an order of its own, beside that of its entries."""
    return isinstance(owner, OrderedDict) and len(owner) > 1


def _is_plain_list(owner: Any) -> bool:
    """Return whether what an object has is what is in it as a list, in this order."""
    kind = type(owner)
    # a list of a program's own class can be given another one
    return kind is list or (
        isinstance(owner, list) and is_library(kind.__module__) and kind.__iter__ is list.__iter__
    )


def _whole(owner: Any, part: Any) -> Any:
    """Return what to look at for a value: of a module that is held all that is in it."""
    if isinstance(part, ModuleType) and not isinstance(owner, Globals):
        return part if is_library(part.__name__) else vars(part)
    return part


def _beside(value: Any) -> dict[str, Any] | None:
    """Return the attributes that there are of what is compared in another way, or not at all."""
    if isinstance(value, (torch.Tensor, FunctionType, functools.partial)):
        return getattr(value, "__dict__", None) or None
    kind = type(value)
    if is_library(kind.__module__):
        return None
    if isinstance(value, (list, tuple, deque, set, frozenset, dict, *_PLAIN)) or slots_of(kind):
        return getattr(value, "__dict__", None)
    return None
