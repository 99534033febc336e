"""Restores the user's objects after a trace, whatever it has done to them."""

from __future__ import annotations

import array
import contextlib
import contextvars
import ctypes
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from fastnet._guards import ABSENT, Kind
from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import (
    GRADIENT_HOOK_TABLES,
    global_module_hook_tables,
    storage_key,
)
from fastnet.backend.torch.update import TRAINED
from fastnet.guards import Snapshot
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Optimizers hold several values for each parameter.
_MAX_ENTRIES = 2_000_000
# Arrays beyond this number of bytes in total are neither compared nor restored.
_MAX_ARRAY_BYTES = 64 * 2**20
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SETTINGS: tuple[tuple[Any, Any], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
)


class Restoration:
    """The objects that a trace can reach, as they are when this object is created.

    Unlike a guard, it covers optimizers and the state that fastnet's own ops keep.
    """

    def __init__(self, plan: ExecutionPlan, state: Mapping[str, Any]) -> None:
        models = [*plan.models, *state.get(TRAINED, ())]
        self._snapshot = Snapshot(
            [
                *((f"the model '{name_of(model)}'", model) for model in models),
                *((plan.describe(index), op) for index, op in enumerate(plan.ops)),
                ("the state of the step", state),
                ("the hooks of all modules", global_module_hook_tables()),
            ],
            max_entries=_MAX_ENTRIES,
        )
        if self._snapshot.truncated is not None:
            raise Uncapturable(f"{self._snapshot.truncated} leads to too much data to restore")
        values = {id(value): value for value in self._snapshot.values()}.values()
        self._tensors = [_Tensor.of(value) for value in values if type(value) in _PLAIN_TENSORS]
        self._arrays = _copy_arrays(values)
        self._settings = [read() for read, _ in _SETTINGS]

    def require_unchanged_data(self) -> None:
        """Refuse a trace that has changed tensors or arrays in a way that a graph cannot show."""
        if any(tensor.is_changed() for tensor in self._tensors):
            raise Uncapturable(
                "running the ops changes the memory, requires_grad or hooks of a tensor"
            )
        for current, saved in self._arrays:
            if not _have_same_items(current, saved):
                raise Uncapturable(
                    f"running the ops writes to a {type(current).__name__} that an op holds"
                )

    def restore(self) -> None:
        """Restore everything that has changed, as far as it can be written to."""
        try:
            self._restore_once()
        except BaseException:
            # An interrupt may have stopped it halfway.
            self._restore_once()
            raise

    def _restore_once(self) -> None:
        with contextlib.ExitStack() as stack:  # A failing callback does not stop the others.
            # Callbacks run in reverse: objects, tensors, arrays, settings.
            for (_, write), value in zip(_SETTINGS, self._settings, strict=True):
                stack.callback(write, value)
            for current, saved in self._arrays:
                stack.callback(_restore_array, current, saved)
            for tensor in self._tensors:
                stack.callback(tensor.restore)
            stack.callback(_restore_snapshot, self._snapshot)


class _Tensor(NamedTuple):
    """A tensor and the properties whose changes `TorchDispatchMode` does not see."""

    tensor: torch.Tensor
    # Shares memory with the tensor, as long as `Tensor.data` is not set.
    alias: torch.Tensor
    requires_grad: bool
    gradient: torch.Tensor | None
    hooks: tuple[dict[Any, Any], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Tensor:
        gradient = tensor.grad if tensor.is_leaf else None
        return cls(tensor, tensor.detach(), tensor.requires_grad, gradient, _hooks_of(tensor))

    def is_changed(self) -> bool:
        tensor = self.tensor
        return (
            tensor.requires_grad != self.requires_grad
            or _layout_of(tensor) != _layout_of(self.alias)
            or _hooks_of(tensor) != self.hooks
        )

    def restore(self) -> None:
        tensor = self.tensor
        if _layout_of(tensor) != _layout_of(self.alias):
            tensor.data = self.alias
        if not tensor.is_leaf:
            return
        if tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if tensor.grad is not self.gradient:
            tensor.grad = self.gradient
        for name, saved in zip(GRADIENT_HOOK_TABLES, self.hooks, strict=True):
            table = getattr(tensor, name)
            if table and table != saved:
                # Setting the attribute to None would not unregister hooks.
                _restore_items(table, list(chain.from_iterable(saved.items())))


def _hooks_of(tensor: torch.Tensor) -> tuple[dict[Any, Any], ...]:
    return tuple(dict(getattr(tensor, name, None) or {}) for name in GRADIENT_HOOK_TABLES)


def _layout_of(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return tensor.layout
    position = tensor.storage_offset(), tensor.shape, tensor.stride()
    return storage_key(tensor), tensor.dtype, tensor.device, *position


def _copy_arrays(values: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Copy the writable arrays, up to a total size."""
    copies: list[tuple[Any, Any]] = []
    remaining = _MAX_ARRAY_BYTES
    for value in values:
        if isinstance(value, np.ndarray) and value.flags.writeable:
            size = value.nbytes
        elif type(value) in (bytearray, array.array):
            size = memoryview(value).nbytes
        else:
            continue
        if size <= remaining:
            remaining -= size
            copies.append((value, np.array(value) if isinstance(value, np.ndarray) else value[:]))
    return copies


def _have_same_items(current: Any, saved: Any) -> bool:
    if isinstance(current, np.ndarray):
        return bool(current.shape == saved.shape and current.tobytes() == saved.tobytes())
    return bytes(current) == bytes(saved)  # NaN equals NaN, unlike in array.array.


def _restore_array(current: Any, saved: Any) -> None:
    if _have_same_items(current, saved):
        return
    if isinstance(current, np.ndarray):
        current[...] = saved
    else:
        current[:] = saved


# --- snapshots ------------------------------------------------------------------------------------


def _restore_snapshot(snapshot: Snapshot) -> None:
    index = snapshot.next_change(0)
    while index >= 0:
        kind, owner, _, _, values = snapshot.node(index)
        # Setting an attribute may run code of a user's class, which may raise.
        with contextlib.suppress(Exception):
            if owner is not None:  # It may have been freed.
                _restore_node(kind, owner, values)
        index = snapshot.next_change(index + 1)


def _restore_node(kind: Kind, owner: Any, values: Sequence[Any]) -> None:
    """Restore the data of a node.

    Its values are those of `fastnet.guards`: the header of its kind (`_HEADERS` there), and then in
    dicts, attributes and slots a key or name before each value.
    """
    if kind == Kind.OBJECT:
        if type(owner) is not values[0]:
            object.__setattr__(owner, "__class__", values[0])
        if values[1] is not ABSENT:
            if vars(owner) is not values[1]:
                object.__setattr__(owner, "__dict__", values[1])
            _restore_items(values[1], values[2:])
    elif kind == Kind.DICT:
        _restore_items(owner, values)
    elif kind == Kind.CLASS:
        _restore_class(owner, values)
    elif kind == Kind.LIST:
        list.__setitem__(owner, slice(None), values)
    elif kind == Kind.SET:
        set.clear(owner)
        set.update(owner, values)
    elif kind == Kind.SEQUENCE and isinstance(owner, deque):
        deque.clear(owner)
        deque.extend(owner, values)
    elif kind == Kind.SEQUENCE:
        for key in values:
            OrderedDict.move_to_end(owner, key)
    elif kind == Kind.SLOTS:
        for slot, value in zip(values[::2], values[1::2], strict=True):
            if value is not ABSENT:
                slot.__set__(owner, value)
            else:
                with contextlib.suppress(AttributeError):
                    slot.__delete__(owner)
    elif kind == Kind.FUNCTION:
        _restore_function(owner, values)
    elif kind == Kind.STATE:
        _restore_state(owner, values)
    elif kind == Kind.GLOBAL and values[1] is not ABSENT:
        owner[values[0]] = values[1]
    elif kind == Kind.GLOBAL:
        owner.pop(values[0], None)


def _restore_items(table: dict[Any, Any], values: Sequence[Any]) -> None:
    """Restore the items of a dict, in their order, without calling methods of a subclass."""
    base = OrderedDict if isinstance(table, OrderedDict) else dict
    base.clear(table)
    for key, value in zip(values[::2], values[1::2], strict=True):
        base.__setitem__(table, key, value)


def _restore_state(owner: Any, values: Sequence[Any]) -> None:
    # Traces run in a copy of the context, so its variables need not be restored.
    if isinstance(owner, threading.local):
        _restore_items(vars(owner), values)
    elif not isinstance(owner, contextvars.ContextVar) and _is_number(owner):
        ctypes.memmove(ctypes.addressof(owner), values[0], len(values[0]))


def _is_number(data: Any) -> bool:
    """Return whether ctypes data consists of numbers; restored pointers could dangle."""
    if isinstance(data, ctypes.Array):
        return isinstance(next(iter(data), None), (int, float))
    is_object = isinstance(data, ctypes.py_object)
    return not is_object and isinstance(getattr(data, "value", None), (int, float))


def _restore_class(cls: type, values: Sequence[Any]) -> None:
    attributes = dict(zip(values[1::2], values[2::2], strict=True))
    for name, value in attributes.items():
        if vars(cls).get(name, ABSENT) is not value:
            setattr(cls, name, value)
    for name in [*vars(cls)]:
        if name not in attributes and not name.startswith("__"):
            delattr(cls, name)


def _restore_function(function: Any, values: Sequence[Any]) -> None:
    code, _, defaults, keyword_defaults, attributes, *contents = values
    function.__code__, function.__defaults__ = code, defaults
    function.__kwdefaults__, function.__dict__ = keyword_defaults, attributes
    for cell, value in zip(function.__closure__ or (), contents, strict=True):
        if value is not ABSENT:
            cell.cell_contents = value
        else:
            with contextlib.suppress(ValueError):
                del cell.cell_contents
