"""What changes with the epoch, against openings of each epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler, get_signature_epochs
from fastnet.slicer import AxisSlicer


def passing(outputs: str, **kwargs: Any) -> LambdaOp:
    return LambdaOp(lambda x: x, "x", outputs, **kwargs)


class Warm(Scheduler[Any]):
    """A scheduler of a class of its own: something in the first three epochs."""

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


def in_force(network: TorchNetwork, mode: str, epoch: int, desired: Any) -> list[Any]:
    with network(mode, epoch, desired_output_keys=desired):
        optimizers = [model.current_optimizer for model in network.models if mode == "train"]
        return [
            *network.ctx_ops,
            *optimizers,
            *network.ctx_postprocessing,
            *network.ctx_slicers,
        ]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_changes_are_those_between_openings(mode: str) -> None:
    network = network_of(
        RepeatScheduler([passing("a"), passing("a"), None]),
        EpochScheduler({2: passing("b", mode="train")}),
        Warm(passing("a")),
    )
    desired = ["y"]
    schedules = network.explain(mode, desired_output_keys=desired).schedules
    sets = {
        epoch: in_force(network, mode, epoch, desired)
        for epoch in range(1, schedules.last_epoch + 1)
    }
    changed = [epoch for epoch in list(sets)[1:] if sets[epoch] != sets[epoch - 1]]
    assert [change.epoch for change in schedules.changes] == changed
    for change in schedules.changes:
        now, before = sets[change.epoch], sets[change.epoch - 1]
        started = [item for item in now if item not in before]
        assert [text.split()[0] for text in change.starts] == [
            type(item).__name__ for item in started
        ]
        assert len(change.stops) == len([item for item in before if item not in now])
        assert not change.traces  # that is TensorFlow's
    assert list(schedules.signature_epochs) == get_signature_epochs(
        network.get_scheduled_items(mode), schedules.last_epoch, mode, ""
    )
    # the last change of all, and each cycle once
    assert schedules.last_epoch == 20 + 6 - 1


def test_values_of_each_scheduler() -> None:
    schedules = network_of().explain("train", 3).schedules
    optimizer, shown, slicer = schedules.schedulers
    assert (optimizer.where, optimizer.name) == ("optimizer of 'line'", "EpochScheduler")
    assert optimizer.values == (
        (1, "SGD (learning rate 0.01)"),
        (2, "SGD (learning rate 0.01)"),
        (4, "Adam (learning rate 0.001)"),
        (5, "Adam (learning rate 0.001)"),
        (6, "Adam (learning rate 0.001)"),
    )
    assert (shown.where, shown.cycle, shown.now) == ("postprocessing[0]", 2, "nothing")
    assert shown.values[1] == (2, "LambdaOp (y -> shown)")
    assert slicer.values[-1] == (6, "AxisSlicer (x -> x, y, a, b)")
    assert [schedule.where for schedule in network_of().explain("eval").schedules.schedulers] == [
        "postprocessing[0]",
        "slicers[0]",
    ]


def test_nothing_is_scheduled() -> None:
    explanation = TorchNetwork([passing("a")]).explain()
    assert explanation.schedules.schedulers == explanation.schedules.changes == ()
    assert "Schedules" not in str(explanation)


def test_a_far_epoch_is_looked_at() -> None:
    network = TorchNetwork([EpochScheduler({1: passing("a"), 3000: passing("b")})])
    schedules = network.explain("infer").schedules
    assert schedules.signature_epochs == (1, 3000)
    assert "from epoch 3000: starts LambdaOp (x -> b); stops LambdaOp (x -> a)" in str(
        network.explain("infer")
    )


def test_many_changes_are_cut_short() -> None:
    ops = [RepeatScheduler([passing("a"), passing("b")]), EpochScheduler({90: passing("c")})]
    text = str(TorchNetwork(ops).explain("infer"))
    assert "  ... and 82 more changes\n" in text
