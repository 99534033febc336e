"""Collects what `BaseNetwork.explain` needs to explain a step."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from fastnet.backend.facts import fact, name_of
from fastnet.explain import Explanation, Subject, explain_subject
from fastnet.frameworks import MissingPart, part_of
from fastnet.network.checks import check_dataset, check_epoch, check_mode, desired_keys
from fastnet.network.layout import Layout
from fastnet.types import is_scheduler
from fastnet.util import to_list

__all__ = ["explain"]


def explain(
    network: Any,
    mode: str,
    epoch: int,
    ds_id: str | None,
    desired_output_keys: Collection[str] | None,
) -> Explanation:
    """Explain the steps of a context without opening the network; see `BaseNetwork.explain`."""
    layouts = network._layouts
    layout: Layout | None = None
    error: str | None = None
    try:
        check_mode(mode)
        epoch = check_epoch(epoch, network._first_epoch)
        check_dataset(ds_id)
        desired = desired_keys(desired_output_keys)
        layout = layouts.draft(mode, epoch, ds_id, desired or network._wanted)
        _check_optimizer_schedules(layout, epoch)
        network._check_ops(layout)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        given = to_list(desired_output_keys)
        desired = frozenset(key for key in given if isinstance(key, str))
    if layout is None:
        # Only the slicers may be at fault: explain the ops without them.
        with contextlib.suppress(Exception):
            layout = layouts.draft(mode, epoch, ds_id, desired or network._wanted, sliced=False)
    first_deferred = len(network.ops)
    if layout is not None:
        first_deferred = network._first_deferred(layout.ops)
    return explain_subject(
        Subject(
            network=type(network).__name__,
            framework=network.target_type,
            device="" if network.device is None else str(network.device),
            mode=mode,
            epoch=epoch,
            ds_id=ds_id,
            desired=desired,
            wants_all=not desired and not network._wanted,
            ops=network.ops,
            postprocessing=network.postprocessing,
            slicers=network.slicers,
            models=network.models,
            read=layouts.read,
            plan=None if layout is None else layout.plan,
            first_deferred=first_deferred,
            error=error,
            spread=_describe_parallelism(network),
            compiled=_describe_compilation(network, mode),
        )
    )


def _describe_parallelism(network: Any) -> dict[str, str]:
    """Describe how models are distributed, by name, as far as the framework can tell."""
    with contextlib.suppress(MissingPart):
        describe = getattr(part_of(network.target_type, "processes"), "told_spread", None)
        if describe is not None:
            spread = {name_of(model): describe(model) for model in network.models}
            return {name: how for name, how in spread.items() if how is not None}
    return {}


def _describe_compilation(network: Any, mode: str) -> str:
    """Describe from the trace records of a mode whether its steps run as compiled programs."""
    if getattr(network, "_options", None) is None:
        return ""
    traces = [trace for trace in getattr(network, "traces", ()) if trace.mode == mode]
    if not traces:
        return "are compiled when the first one has come"
    reason = ([trace for trace in traces if trace.part is None] or traces)[-1].fallback
    if any(trace.part is not None and trace.fallback is None for trace in traces):
        return f"are compiled in parts, because {reason}"
    if reason is None:
        return f"are compiled, which took {sum(one.compile_seconds for one in traces):.1f} s"
    if any(trace.fallback is None for trace in traces):
        return f"are compiled, but not all: {reason}"
    return f"are not compiled: {reason}"


def _check_optimizer_schedules(layout: Layout, epoch: int) -> None:
    """Raise what choosing the optimizers of an epoch would raise, without choosing them."""
    for model in layout.models:
        optimizer: Any = fact(model, "optimizer")
        if is_scheduler(optimizer):
            optimizer.get_current_value(epoch)
