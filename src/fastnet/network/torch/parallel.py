"""Distributed training of a plan: who averages gradients, and whether all ranks run the same."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch.distributed as dist

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch import processes
from fastnet.backend.torch.parameters import named_trainable_parameters
from fastnet.backend.torch.wrappers import groups_of, parallel_type
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.same_plans import require_same_plans
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op, takes_gradients
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Model, State


def find_reduced_by_ddp(plan: ExecutionPlan, trained: Sequence[Model]) -> Model | None:
    """Return the model whose DistributedDataParallel averages the gradients of a plan, or None.

    It does so if one backward pass of one forward pass is all that takes gradients.
    """
    gradient_ops = [op for op in plan.ops if takes_gradients(op)]
    if len(trained) > 1 or len(gradient_ops) != 1 or type(gradient_ops[0]) is not UpdateOp:
        return None
    update = gradient_ops[0]
    if update.gradients is not None or update.updater().is_merging:
        return None
    other_ops = [op for op in plan.ops if op is not update]
    runs = [op for op in other_ops if update.model in as_tensor_op(op).get_fe_models()]
    runs_once = len(runs) == 1 and type(runs[0]) is ModelOp and runs[0].gradients
    return update.model if runs_once and parallel_type(update.model) == "ddp" else None


def require_engines(plan: ExecutionPlan) -> None:
    """Raise a ValueError for an update that would leave each process with other weights."""
    for op in with_inner_ops(plan.ops):
        if not isinstance(op, UpdateOp) or op.gradients is not None:
            continue
        if parallel_type(op.model) is None and not get_metadata(op.model, "fe_alone"):
            raise ValueError(
                f"UpdateOp of '{name_of(op.model)}' would update a model in one of "
                f"{processes.world_size()} processes, but nothing averages its gradients over "
                "them. Build it with parallel='ddp' or 'fsdp' after the process group is "
                "initialized, or with parallel=None if each process trains weights of its own."
            )


def require_plain_models(plan: ExecutionPlan) -> None:
    """Raise a ValueError for a second-order gradient beside a model that is sharded."""
    sharded = [name_of(model) for model in plan.models if parallel_type(model) == "fsdp"]
    if sharded and any(map(_is_of_higher_order, with_inner_ops(plan.ops))):
        raise ValueError(
            f"A GradientOp has higher_order=True, but the model '{sharded[0]}' is sharded by "
            "FSDP2, which frees weights that the second gradient needs. Build it with "
            "parallel='ddp'."
        )


def _is_of_higher_order(op: Any) -> bool:
    return isinstance(op, GradientOp) and op.higher_order


def compare_plans(plan: ExecutionPlan, state: State, may_compile: bool) -> bool:
    """Compare what all ranks will run, if their models communicate; return whether they do.

    Args:
        plan: The plan.
        state: The state of the session.
        may_compile: Whether steps may be compiled, in which updates average all gradients.
    """
    if not plan.takes_gradients or state["warmup"]:
        return False
    models = [model for model in plan.models if parallel_type(model) in ("ddp", "fsdp")]
    groups = [group for model in models for group in groups_of(model)]
    # Ranks outside of a smaller group may run something else.
    if not groups or any(dist.get_world_size(group) != processes.world_size() for group in groups):
        return False
    averages = "compiled steps" if may_compile else "no compiled steps"
    require_same_plans(processes, plan, state, models, named_trainable_parameters, [averages])
    return True


def compare_batches(batches: Any) -> None:
    """Raise a ValueError if the loaders of the ranks have different numbers of batches."""
    counts = processes.all_gather_object(len(batches) if isinstance(batches, Sized) else None)
    if len(set(counts)) > 1:
        raise ValueError(
            f"The loaders of the ranks have {counts} batches, but in training each step waits for "
            "all ranks. Give each rank the same number of batches: a DistributedSampler does, and "
            "drop_last=True leaves out the rest. Or train with "
            "`with network('train', epoch), torch.distributed.algorithms.join.Join([model]):`."
        )
