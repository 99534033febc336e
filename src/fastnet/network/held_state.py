"""State that ops and models hold beside weights: generators, variables and plain tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import get_framework
from fastnet.backend.held_state import HeldState, generator_state
from fastnet.backend.model_metadata import name_of
from fastnet.errors import shorten
from fastnet.op.op import inner_ops_of
from fastnet.types import is_scheduler
from fastnet.util.object_graph import iter_contents
from fastnet.util.warnings import is_library, warn

if TYPE_CHECKING:
    from fastnet.framework import Framework
    from fastnet.network.base import BaseNetwork

# How far objects and containers inside of an op or a layer are followed.
_DEPTH = 2
_CONTAINERS = (dict, list, tuple, deque)
_MAX_LENGTH = 10_000
_NO_OBJECTS = (type, ModuleType, BuiltinFunctionType, str, int, float, complex, bool, type(None))


def named_items(network: BaseNetwork, stateful: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ops, slicers and schedulers of a network, and `stateful`, each once, by path."""
    items: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(item: Any, path: str) -> None:
        if item is None or isinstance(item, type) or id(item) in seen:
            return
        seen.add(id(item))
        if isinstance(item, (list, tuple)):
            inner = list(item)
        elif is_scheduler(item):
            inner = item.get_all_values()
        else:
            inner = inner_ops_of(item)
        if not isinstance(item, (list, tuple)) or is_stateful(item):
            items[path] = item
        for index, inner_item in enumerate(inner):
            visit(inner_item, f"{path}/{index}")

    for part in ("ops", "postprocessing", "slicers"):
        visit(getattr(network, part), part)
    for name, item in stateful.items():
        visit(item, f"stateful/{name}")
    return items


def is_stateful(item: Any) -> bool:
    """Return whether an object has a `state_dict` and a `load_state_dict`."""
    return all(callable(getattr(item, name, None)) for name in ("state_dict", "load_state_dict"))


def find_held(network: BaseNetwork) -> dict[str, HeldState]:
    """Find the generators and variables that the models and ops of a network hold, by path."""
    framework = get_framework(network.target_type)
    states = {}
    for path, value in values_in(network):
        state = framework.get_held_state(value) or generator_state(value)
        if state is not None:
            states[path] = state
    return states


def values_in(network: BaseNetwork) -> Iterator[tuple[str, Any]]:
    """Yield what the models and ops of a network hold, each object once, with its path.

    Weights are left out, and so are ops that save their state themselves.
    """
    framework = get_framework(network.target_type)
    items = named_items(network, {})
    models = [
        (f"models/{name_of(model)}", framework.submodules_of(model) or {})
        for model in network.models
    ]
    walk = _Walk(framework, (network, *network.models, *items.values()))
    for _, parts in models:
        walk.leave_out(parts.values())
    for model in network.models:
        walk.leave_out(framework.saved_tensors_of(model))
    for path, parts in models:
        yield from walk.parts(path, parts, is_model=True)
    for path, item in items.items():
        if not is_stateful(item):
            for name, value in _attributes_of(item):
                yield from walk.values(f"{path}.{name}", value, _DEPTH)


class _Walk:
    """Yields values that are reachable from others, each object once, with their paths.

    Args:
        framework: Knows the parts and attributes of layers.
        seen: Objects that are not yielded.
    """

    def __init__(self, framework: Framework, seen: Iterable[Any]) -> None:
        self._framework = framework
        self._seen = set(map(id, seen))

    def leave_out(self, values: Iterable[Any]) -> None:
        """Do not yield some objects."""
        self._seen.update(map(id, values))

    def values(self, path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield a value, or those in a container, and what their attributes hold."""
        # Not `isinstance`, which would ask a weak proxy's object, and it may have been deleted.
        if issubclass(type(value), _CONTAINERS) and len(value) > _MAX_LENGTH:
            return  # It holds data.
        for name, item in iter_contents(path, value, _DEPTH):
            if isinstance(item, _NO_OBJECTS) or id(item) in self._seen:
                continue
            self._seen.add(id(item))
            yield name, item
            parts = self._framework.submodules_of(item)
            if parts is not None:
                new_parts = {
                    key: part
                    for key, part in parts.items()
                    if part is item or id(part) not in self._seen
                }
                self.leave_out(new_parts.values())
                yield from self.parts(name, new_parts, is_model=False)
            elif depth and not is_library(type(item).__module__):
                for attribute, inner in _attributes_of(item):
                    yield from self.values(f"{name}.{attribute}", inner, depth - 1)

    def parts(
        self, path: str, parts: Mapping[str, Any], is_model: bool
    ) -> Iterator[tuple[str, Any]]:
        """Yield what the attributes of a layer or a model, and of its nested layers, hold."""
        for name, part in parts.items():
            prefix = f"{path}/{name}" if name else path
            attributes = self._framework.attributes_of(part, is_model)
            for attribute, value in (*attributes, *_class_attributes_of(part)):
                yield from self.values(f"{prefix}.{attribute}", value, _DEPTH)


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, its slots and those of its class included."""
    yield from getattr(value, "__dict__", {}).items()
    yield from _class_attributes_of(value)


def _class_attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object's own classes, and what it has in their slots."""
    for cls in type(value).__mro__:
        if is_library(cls.__module__):
            continue
        for name, attribute in vars(cls).items():
            if isinstance(attribute, MemberDescriptorType):
                with suppress(AttributeError):  # An empty slot.
                    yield name, attribute.__get__(value)
            elif not name.startswith("__"):
                yield name, attribute


def held_values(held: Mapping[str, HeldState], is_random: bool) -> dict[str, list[Any]]:
    """Return the kind and the state of each generator if `is_random`, else of everything else."""
    return {
        path: [state.kind, state.read()]
        for path, state in held.items()
        if state.is_random is is_random
    }


def load_held(held: Mapping[str, HeldState], values: Mapping[str, Any], is_random: bool) -> None:
    """Load the result of `held_values`; warn of states that only one side has."""
    states = {path: state for path, state in held.items() if state.is_random is is_random}
    for path in states.keys() & values.keys():
        kind, value = values[path]
        state = states[path]
        try:
            if state.kind != kind:
                raise ValueError(f"is a {kind}, where that of the program is a {state.kind}")
            state.write(value)
        except Exception as error:
            raise ValueError(f"{path} {error}") from error
    for owner, paths in (
        ("file", sorted(values.keys() - states.keys())),
        ("program", sorted(states.keys() - values.keys())),
    ):
        if paths:
            warn(
                f"The state of {shorten(paths)} is not restored, because only the {owner} has it. "
                "Make the objects when the program makes its ops and models, by the same code."
            )


def restore_held(held: Mapping[str, HeldState]) -> Callable[[], None]:
    """Return a function that restores the present states."""
    values = {path: state.read() for path, state in held.items()}

    def restore() -> None:
        for path, state in held.items():
            state.write(values[path])

    return restore
