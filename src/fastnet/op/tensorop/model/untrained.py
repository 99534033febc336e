"""Finds trainable parameters in ops that no optimizer updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any
from weakref import ProxyTypes

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import every_optimizer_of, is_built
from fastnet.errors import describe_op
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import is_given, is_scheduler
from fastnet.util.warnings import is_library


def find_untrained(
    ops: Sequence[Any], trainable_in: Callable[[Any], Iterable[tuple[str, Any]]]
) -> Iterator[str]:
    """Describe ops with trainable parameters that no optimizer updates.

    `trainable_in` yields the trainable parameters of an object, such as a model or an optimizer,
    with their names in it.
    """
    found = {
        id(one): (index, one)
        for index, op in enumerate(ops)
        for one in with_inner_ops(op.get_all_values() if is_scheduler(op) else [op])
        if is_given(one)
    }
    held = [(index, op, list(_held_by(op))) for index, op in found.values()]
    if not any(isinstance(op, UpdateOp) for _, op, _ in held):
        return
    values = [value for _, _, attributes in held for _, value in attributes]
    # Attributes of other objects are not asked for: those of a distributed variable may raise.
    models = [value for value in values if framework_of(value) and is_built(value)]
    for _, op, _ in held:
        models += as_tensor_op(op).get_fe_models()
    optimizers = [value for value in values if "param_groups" in _attributes(value)]
    optimizers += [one for model in models for one in every_optimizer_of(model)]
    trained = {id(one) for value in (*models, *optimizers) for _, one in trainable_in(value)}
    for index, op, attributes in held:
        names = [
            f"{name}.{inner}" if inner else name
            for name, value in attributes
            for inner, one in trainable_in(value)
            if id(one) not in trained
        ]
        if names:
            shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
            yield (
                f"{describe_op(op, index)} has trainable parameters that no optimizer updates: "
                f"{shown}. They are not trained, gradients accumulate on them, and checkpoints do "
                "not contain those of modules and layers. Put them into a model of their own from "
                "fastnet.build, with an UpdateOp, or freeze them (torch: requires_grad = False, "
                "Keras: trainable = False)."
            )


def _held_by(op: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an op that runs in training holds: in attributes, containers and functions."""
    if not op.mode or "train" in op.mode:
        for name, value in _attributes(op).items():
            yield from expand(name, value, 2)
            yield from _globals_of(name, value)
        yield from _globals_of("forward", getattr(type(op), "forward", None))


def _globals_of(name: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function of the program names."""
    if isinstance(function, FunctionType) and not is_library(function.__module__ or ""):
        for key in function.__code__.co_names:
            if key in function.__globals__:
                yield from expand(f"{name}.{key}", function.__globals__[key], 1)


def expand(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield what a container, or a function with its variables, holds; otherwise the value."""
    if type(value) in ProxyTypes:
        return  # The object that it refers to may have been deleted.
    if "__wrapped__" in _attributes(value):
        # The function in a decorated one, as by torch.no_grad, tf.function or functools.cache.
        yield from expand(name, value.__wrapped__, depth)
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"{name}.{key}", one) for key, one in value.items())
    elif isinstance(value, (list, tuple, deque)):
        parts = ((f"{name}[{index}]", one) for index, one in enumerate(value))
    elif isinstance(value, partial):
        parts = [(name, value.func), (f"{name}.args", value.args), (name, value.keywords)]
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        parts = [(name, value.__self__)]
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        # The cell of a variable that is not assigned yet is empty.
        filled = [(key, cell) for key, cell in cells if cell != CellType()]
        variables = [(key, cell.cell_contents) for key, cell in filled]
        positional = value.__code__.co_varnames[: value.__code__.co_argcount]
        defaults = value.__defaults__ or ()
        variables += zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
        variables += (value.__kwdefaults__ or {}).items()
        parts = [(f"{name}.{key}", one) for key, one in variables]
    else:
        yield name, value
    if depth:
        for inner, one in parts:
            yield from expand(inner, one, depth - 1)


def _attributes(value: Any) -> dict[str, Any]:
    own: dict[str, Any] = getattr(value, "__dict__", {})
    return own
