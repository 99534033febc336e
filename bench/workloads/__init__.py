"""The workloads, by name, in the order in which the report shows them."""

from __future__ import annotations

from bench.workloads import (
    identity_chain,
    lenet,
    live_tensors,
    many_modules,
    mlp,
    nest,
    open_epoch,
    slicing,
    tf_mlp,
    tf_open_epoch,
    tf_traces,
)
from bench.workloads.workload import Workload

ALL: tuple[Workload, ...] = (
    *identity_chain.WORKLOADS,
    *mlp.WORKLOADS,
    *many_modules.WORKLOADS,
    *lenet.WORKLOADS,
    *open_epoch.WORKLOADS,
    *nest.WORKLOADS,
    *slicing.WORKLOADS,
    *live_tensors.WORKLOADS,
    *tf_mlp.WORKLOADS,
    *tf_open_epoch.WORKLOADS,
    *tf_traces.WORKLOADS,
)

BY_NAME: dict[str, Workload] = {workload.name: workload for workload in ALL}
