"""How a graph of several devices is divided, where that is not seen from outside."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.network.tf.compiled.dividing import divide
from fastnet.network.tf.compiled.guarding import Source
from fastnet.network.tf.compiled.reading import Reading, Uncompilable, read

pytestmark = pytest.mark.tf


def meet(value: Any, number: int) -> Any:
    return tf.raw_ops.CollectiveReduceV2(
        input=value,
        group_size=2,
        group_key=1,
        instance_key=number,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
    )


def work(value: Any) -> Any:
    for _ in range(15):
        value = tf.sin(value) * 2.0
    return value


def source_of(function: Any) -> tuple[Source, Reading]:
    """Trace a function, which need not run."""
    concrete = tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec((4,), tf.float32)
    )
    reading = read(concrete, lambda name: None, seeded=True, spread=True)
    return Source(concrete, reading), reading


def divided(function: Any) -> list[dict[str, int]]:
    """Return how many nodes the programs of each device have, level by level."""
    source, reading = source_of(function)
    levels, _ = divide(source.operations, source.inputs, reading)
    found = [{device: len(own) for device, own in level.programs.items()} for level in levels]
    return [one for one in found if one]


class TestMeetings:
    def test_one_waits_for_what_the_other_has_to_do(self) -> None:
        def step(x: Any) -> list[Any]:
            with tf.device("CPU:0"):
                first = work(meet(work(work(x)), 1))
            with tf.device("CPU:1"):
                # more before they meet, and no program after that which it could be part of
                return [first, work(meet(x, 1))]

        assert divided(step) == [{"CPU:0": 60}, {"CPU:0": 30, "CPU:1": 30}]

    def test_that_never_come_about(self) -> None:
        def step(x: Any) -> list[Any]:
            with tf.device("CPU:1"):
                second = meet(work(meet(work(x), 1)), 2)
            with tf.device("CPU:0"):
                return [meet(work(meet(work(second), 1)), 2)]

        with pytest.raises(Uncompilable, match="the devices do not meet in the same order"):
            divided(step)
