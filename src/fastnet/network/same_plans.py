"""Comparison of what the ranks of a distributed program will run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import zip_longest
from numbers import Real
from typing import Any

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.errors import describe_op
from fastnet.framework import Processes
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.types import Model, State


def require_same_plans(
    processes: Processes,
    plan: ExecutionPlan,
    state: State,
    models: Iterable[Model],
    named_trainable_parameters: Callable[[Model], Iterable[tuple[str, Any]]],
    more_lines: Iterable[str] = (),
) -> None:
    """Raise a ValueError on every process if what a session will run differs.

    Only a digest is communicated unless it differs. `named_trainable_parameters` yields the
    trainable weights of a model, with names, and `more_lines` describe what else the processes must
    have in common.
    """
    lines = [*_describe(plan, state, models, named_trainable_parameters), *more_lines]
    digest = sha256("\n".join(lines).encode()).digest()
    if len(set(processes.all_gather_object(digest))) == 1:
        return
    first_lines, *lines_of_others = processes.all_gather_object(lines)
    for rank, rank_lines in enumerate(lines_of_others, 1):
        for first_line, line in zip_longest(first_lines, rank_lines, fillvalue="nothing more"):
            if first_line != line:
                raise ValueError(
                    "The ranks would train with different ops or settings: rank 0 has "
                    f"{first_line}, but rank {rank} has {line}. Make the network with the same "
                    "code on each rank, and enter it with the same arguments."
                )


def _describe(
    plan: ExecutionPlan,
    state: State,
    models: Iterable[Model],
    named_trainable_parameters: Callable[[Model], Iterable[tuple[str, Any]]],
) -> Iterator[str]:
    """Describe what the ranks must have in common, one line each."""
    yield f"mode '{state['mode']}', epoch {int(state['epoch'])}, eager {state['eager']}"
    for index, op in enumerate(plan.ops):
        for inner in with_inner_ops([op]):
            adapted = as_tensor_op(inner)
            settings = {key: _plain(getattr(inner, key)) for key in adapted.alike_on_ranks}
            names = sorted(map(name_of, adapted.get_fe_models()))
            yield f"{describe_op(inner, index)}, models {names}, settings {settings}"
    for slicer in plan.slicers:
        sliced = list(getattr(slicer, "slice_inputs", ()))
        unsliced = list(getattr(slicer, "unslice_inputs", ()))
        yield f"{type(slicer).__name__} (slices {sliced}, unslices {unsliced})"
    for model in sorted(models, key=name_of):
        for name, weight in named_trainable_parameters(model):
            kind = f"{tuple(weight.shape)}, {weight.dtype}"
            yield f"trained weight {name} of model '{name_of(model)}', {kind}"
        optimizer = get_metadata(model, "current_optimizer")
        while hasattr(optimizer, "inner_optimizer"):  # Keras's, inside one that scales losses
            optimizer = optimizer.inner_optimizer
        config = optimizer.get_config() if hasattr(optimizer, "get_config") else {}
        for group in getattr(optimizer, "param_groups", [config]):
            settings = {
                key: float(value) if key == "lr" else value
                for key, value in group.items()
                if key == "lr" or isinstance(value, (Real, str, tuple))
            }
            yield f"{type(optimizer).__name__} of model '{name_of(model)}', settings {settings}"


def _plain(setting: Any) -> Any:
    """Return a setting, or the name of a function, whose repr differs from process to process."""
    return getattr(setting, "__qualname__", type(setting)) if callable(setting) else setting
