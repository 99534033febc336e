"""The values of schedulers, epoch by epoch."""

from __future__ import annotations

from typing import Any

import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler
from fastnet.slicer import AxisSlicer


def passing(outputs: str) -> LambdaOp:
    return LambdaOp(lambda x: x, "x", outputs)


class Warm(Scheduler[Any]):
    """A scheduler of the user's own: an op in the first three epochs."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get_current_value(self, epoch: int) -> Any:
        return self.value if epoch <= 3 else None

    def get_all_values(self) -> list[Any]:
        return [self.value, None]


def network_of(*ops: Any) -> TorchNetwork:
    model = fastnet.build(
        lambda: torch.nn.Linear(1, 1), EpochScheduler({1: "sgd", 4: "adam"}), model_name="line"
    )
    return TorchNetwork(
        [ModelOp(model, "x", "y"), *ops],
        postprocessing=[RepeatScheduler([None, LambdaArray(lambda y: y, "y", "shown")])],
        slicers=[EpochScheduler({5: AxisSlicer(axis=0, slice="x", unslice=["x", "y", "a", "b"])})],
    )


def test_values_are_those_of_entered_networks() -> None:
    network = network_of(
        RepeatScheduler([passing("a"), passing("a"), None]),
        EpochScheduler({2: passing("b"), 5000: passing("c")}),
        Warm(passing("d")),
    )
    schedules = {one.where: one for one in network.explain("train").schedules}
    for where, output in (("ops[1]", "a"), ("ops[2]", "b"), ("ops[3]", "d")):
        values = dict(schedules[where].values)
        for epoch in range(1, (schedules[where].cycle or 8) + 1):
            with network("train", epoch, desired_output_keys=["y"]):
                active = any(op.outputs == [output] for op in network.ctx_ops)
            value = values[max(start for start in values if start <= epoch)]
            assert value == (f"LambdaOp (x -> {output})" if active else "nothing")
    assert schedules["ops[1]"].cycle == 3
    assert schedules["ops[2]"].values[-1] == (5000, "LambdaOp (x -> c)")
