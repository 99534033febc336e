"""Finds trainable parameters in ops that no optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

from fastnet.backend.model_metadata import every_optimizer_of, known_models
from fastnet.errors import describe_op
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import is_given, is_scheduler
from fastnet.util.object_graph import instance_dict, iter_contents
from fastnet.util.warnings import is_library

_MAX_ITEMS = 1000


def find_untrained(
    ops: Sequence[Any],
    named_trainable_parameters: Callable[[Any], Iterable[tuple[str, Any]]],
    only_certain: bool = False,
) -> Iterator[str]:
    """Describe ops with trainable parameters that no optimizer updates.

    Args:
        ops: The ops.
        named_trainable_parameters: Yields the trainable parameters of an object, such as a model or
            an optimizer, with their names in it.
        only_certain: Whether to leave out TensorFlow's variables, in which ops hold counters and
            which are trainable by default, and layers that are not built, which may make none.
    """
    indexed_ops = {
        id(op): (index, op)
        for index, item in enumerate(ops)
        for op in with_inner_ops(item.get_all_values() if is_scheduler(item) else [item])
        if is_given(op)
    }
    contents = [(index, op, list(_contents_of(op))) for index, op in indexed_ops.values()]
    if not any(isinstance(op, UpdateOp) for _, op, _ in contents):
        return
    values = [value for _, _, attributes in contents for _, value in attributes]
    models = known_models()  # Another network may train what an op holds.
    # Attributes of other objects are not asked for: those of a distributed variable may raise.
    optimizers = [value for value in values if "param_groups" in instance_dict(value)]
    optimizers += [optimizer for model in models for optimizer in every_optimizer_of(model)]
    trained = {
        id(parameter)
        for value in (*models, *optimizers)
        for _, parameter in named_trainable_parameters(value)
    }
    for index, op, attributes in contents:
        untrained: dict[str, int] = {}
        for name, value in attributes:
            for inner_name, parameter in named_trainable_parameters(value):
                # TensorFlow's variables, and layers that are not built, have neither.
                is_certain = inner_name or hasattr(value, "requires_grad")
                if id(parameter) not in trained and (is_certain or not only_certain):
                    path = f"{name}.{inner_name}" if inner_name else name
                    untrained[path] = id(parameter)
        if untrained:
            trained.update(untrained.values())  # Each is described once.
            names = list(untrained)
            shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
            yield (
                f"{describe_op(op, index)} has trainable parameters that no optimizer updates: "
                f"{shown}. Unless your program does, nothing trains them; gradients may accumulate "
                "on them, and checkpoints do not contain those of modules and layers. Put them "
                "into a model of their own from fastnet.build, with an UpdateOp, or freeze them "
                "(torch: requires_grad = False, Keras: trainable = False)."
            )


def _contents_of(op: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an op that runs in training holds: in attributes, containers and functions."""
    if not op.mode or "train" in op.mode:
        for name, value in instance_dict(op).items():
            if isinstance(value, (list, tuple, dict)) and len(value) > _MAX_ITEMS:
                continue  # Data, and not modules.
            yield from iter_contents(name, value, 2)
            yield from _globals_of(name, value)
        yield from _globals_of("forward", getattr(type(op), "forward", None))


def _globals_of(name: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function of the program names."""
    if isinstance(function, FunctionType) and not is_library(function.__module__ or ""):
        for key in function.__code__.co_names:
            if key in function.__globals__:
                yield from iter_contents(f"{name}.{key}", function.__globals__[key], 1)
