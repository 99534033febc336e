"""The workloads, by name, in the order of the report."""

from __future__ import annotations

from bench.workloads import chains, compiled, fit, nests, ops, tf_models, torch_models
from bench.workloads.workload import Workload

ALL: tuple[Workload, ...] = (
    *chains.WORKLOADS[:3],
    *torch_models.WORKLOADS,
    *chains.WORKLOADS[3:6],
    *nests.WORKLOADS,
    *chains.WORKLOADS[6:],
    *ops.WORKLOADS,
    *fit.WORKLOADS,
    *compiled.WORKLOADS,
    *tf_models.WORKLOADS,
    *fit.TF_WORKLOADS,
    *chains.GROWING,
    *nests.GROWING,
    *chains.TF_GROWING,
)

BY_NAME: dict[str, Workload] = {workload.name: workload for workload in ALL}

# A command line names a group or a workload without one; each is measured in one process.
TOGETHER: dict[str, tuple[str, ...]] = {
    together: tuple(one.name for one in ALL if (one.group or one.name) == together)
    for together in dict.fromkeys(workload.group or workload.name for workload in ALL)
}
