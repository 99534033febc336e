"""Collects what `BaseNetwork.explain` needs to explain a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import get_framework
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.explain.explanation import Explanation, make_explanation
from fastnet.network.measuring import compiles_steps, traces_of
from fastnet.network.untrained import find_untrained
from fastnet.network.update_binding import find_first_deferred
from fastnet.network.validation import check_request
from fastnet.types import is_scheduler
from fastnet.util import to_list

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork


def explain(
    network: BaseNetwork, mode: str, epoch: int, ds_id: str | None, desired_keys: Any
) -> Explanation:
    """Explain the steps of a session without entering the network; see `BaseNetwork.explain`."""
    plan = error = None
    try:
        epoch, desired = check_request(mode, epoch, ds_id, desired_keys, network._first_epoch)
        plan = network._find_plan(mode, epoch, ds_id, desired)
        for model in plan.models:
            # Choosing the optimizer of the epoch may fail.
            optimizer: Any = get_metadata(model, "optimizer")
            if is_scheduler(optimizer):
                optimizer.get_current_value(epoch)
        network._check_ops(plan)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        desired = frozenset(key for key in to_list(desired_keys) if isinstance(key, str))
    ops = network.ops if plan is None else plan.ops
    describe = get_framework(network.target_type).describe_parallelism
    parallelism = {name_of(model): describe(model) for model in network.models}
    return make_explanation(
        None if plan is None else plan.kernel,
        network=type(network).__name__,
        framework=network.target_type,
        device="" if network.device is None else str(network.device),
        lists={
            "ops": network.ops,
            "postprocessing": network.postprocessing,
            "slicers": network.slicers,
        },
        models=network.models,
        mode=mode,
        epoch=epoch,
        ds_id=ds_id,
        desired=desired,
        returns_all=not desired and network._returns_all,
        read=network._plan_cache.read,
        error=error,
        first_deferred=len(ops)
        if plan is None
        else find_first_deferred(ops, network._plan_cache.step_options.defers_last_updates),
        parallelism={name: how for name, how in parallelism.items() if how is not None},
        compiled=_describe_compilation(network, mode),
        untrained=find_untrained(network.ops, network._trainable_in),
    )


def _describe_compilation(network: BaseNetwork, mode: str) -> str:
    """Describe from the trace records of a mode whether its steps run as compiled programs."""
    if not compiles_steps(network):
        return ""
    traces = [trace for trace in traces_of(network) if trace.mode == mode]
    if not traces:
        return "are compiled at the first step"
    fallbacks = [trace.fallback for trace in traces if trace.fallback is not None]
    if not fallbacks:
        return f"are compiled, which took {sum(trace.compile_seconds for trace in traces):.1f} s"
    return f"are {'partly' if len(fallbacks) < len(traces) else 'not'} compiled: {fallbacks[-1]}"
