"""Who communicates gradients, and when: decided for each opening by the ops that it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch.engines import engine_of, process_count
from fastnet.backend.torch.exchange import EXCHANGES, Exchange, Exchanges
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.op.op import takes_gradients
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Model

__all__ = ["EXCHANGES", "exchanges_of", "require_communicating"]


def exchanges_of(plan: ExecutionPlan, trained: Sequence[Model]) -> Exchanges | None:
    """Decide how several processes communicate the gradients of an opening's models.

    DistributedDataParallel averages gradients while the backward pass goes on, if one backward
    pass for one forward pass is all there is: a program of one ModelOp and one UpdateOp, say.
    In all others, where several losses, merged steps or gradients as values are, it would
    average too often or not at all, so that ops average gradients when these are complete.

    Args:
        plan: What is run.
        trained: The models of the network that have optimizers.

    Returns:
        The decision; None where no engine communicates.
    """
    engines = {id(model): engine_of(model) for model in plan.models}
    if not {"ddp", "fsdp"} & set(engines.values()):
        return None
    alone = _lone_update(plan.ops) if len(trained) < 2 else None
    exchanges = {
        id(model): Exchange(model, alone is not None and alone.model is model)
        for model in plan.models
        if engines[id(model)] == "ddp"
    }
    return Exchanges(exchanges, frozenset(_given_averages(_flat(plan.ops))))


def require_communicating(plan: ExecutionPlan) -> None:
    """Refuse updates that would leave each of several processes with other weights.

    Args:
        plan: What is run in training.

    Raises:
        ValueError: If a model is updated by its loss in several processes, and nothing
            communicates its gradients, though it was not built to stay by itself or is to merge
            steps.
    """
    for op in _flat(plan.ops):
        if not isinstance(op, UpdateOp) or engine_of(op.model) or op.gradients is not None:
            continue
        name = name_of(op.model)
        if op.merge_grad > 1:
            raise ValueError(
                f"UpdateOp of '{name}' has merge_grad={op.merge_grad} in one of {process_count()} "
                "processes, but the model has no engine that communicates its gradients. Build it "
                "with parallel='ddp' or 'fsdp', or use merge_grad=1."
            )
        if not get_metadata(op.model, "fe_alone"):
            raise ValueError(
                f"UpdateOp of '{name}' updates a model in one of {process_count()} processes, but "
                "the model has no engine that communicates its gradients. Build it with "
                "parallel='ddp' or 'fsdp' once the process group is there and it has something to "
                "train, or with parallel=None if each process is to have weights of its own."
            )


def _lone_update(ops: Sequence[Any]) -> UpdateOp | None:
    """Find the update that is all that takes gradients, of a model that runs once."""
    takers = [op for op in ops if takes_gradients(op)]
    if len(takers) != 1 or type(takers[0]) is not UpdateOp:
        return None
    update = takers[0]
    if update.gradients is not None or update.updater().is_merging:
        return None
    runs = [op for op in ops if op is not update and _holds(op, update.model)]
    return update if len(runs) == 1 and type(runs[0]) is ModelOp and runs[0].gradients else None


def _holds(op: Any, model: Model) -> bool:
    return hasattr(op, "get_fe_models") and any(one is model for one in op.get_fe_models())


def _given_averages(ops: Iterable[Any]) -> Iterable[int]:
    """Find the updates that are given averages: what a GradientOp of the model has led to."""
    from_models: dict[int, set[str]] = {}
    for op in ops:
        read, written = set(op.inputs), set(op.outputs)
        for keys in from_models.values():
            if read & keys:
                keys |= written
            else:
                keys -= written
        if isinstance(op, GradientOp) and op.model is not None:
            from_models.setdefault(id(op.model), set()).update(written)
        if isinstance(op, UpdateOp) and op.gradients in from_models.get(id(op.model), ()):
            yield id(op)


def _flat(ops: Iterable[Any]) -> Iterable[Any]:
    """List ops, those inside of others before these."""
    for op in ops:
        yield from _flat(op.inner_ops() if hasattr(op, "inner_ops") else ())
        yield op
