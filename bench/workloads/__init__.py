"""The workloads, by name, in the order in which the report shows them."""

from __future__ import annotations

from bench.workloads import (
    compiled,
    dispatch,
    fit,
    foreign,
    growth,
    identity_chain,
    lenet,
    live_tensors,
    many_modules,
    measuring,
    mlp,
    nest,
    op_cost,
    open_epoch,
    slicing,
    tf_first_step,
    tf_mlp,
    tf_op_cost,
    tf_open_epoch,
    tf_traces,
)
from bench.workloads.workload import Workload

ALL: tuple[Workload, ...] = (
    *identity_chain.WORKLOADS,
    *mlp.WORKLOADS,
    *foreign.WORKLOADS,
    *many_modules.WORKLOADS,
    *lenet.WORKLOADS,
    *open_epoch.WORKLOADS,
    *nest.WORKLOADS,
    *slicing.WORKLOADS,
    *live_tensors.WORKLOADS,
    *measuring.WORKLOADS,
    *op_cost.WORKLOADS,
    *fit.WORKLOADS,
    *dispatch.WORKLOADS,
    *compiled.WORKLOADS,
    *tf_mlp.WORKLOADS,
    *foreign.TF_WORKLOADS,
    *tf_first_step.WORKLOADS,
    *tf_open_epoch.WORKLOADS,
    *tf_traces.WORKLOADS,
    *tf_op_cost.WORKLOADS,
    *dispatch.TF_WORKLOADS,
    *fit.TF_WORKLOADS,
    *growth.WORKLOADS,
)

BY_NAME: dict[str, Workload] = {workload.name: workload for workload in ALL}

# The workloads of each group, and the others by themselves: what a command line may name, and what
# a process measures.
TOGETHER: dict[str, tuple[str, ...]] = {
    together: tuple(one.name for one in ALL if (one.group or one.name) == together)
    for together in dict.fromkeys(workload.group or workload.name for workload in ALL)
}
