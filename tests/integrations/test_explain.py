"""Explanations of networks of FastEstimator's own ops, schedulers and slicers."""

from __future__ import annotations

import json
from typing import Any

import fastnet
from tests.integrations.sides import Sides, batches, mlp


def test_ops_of_fastestimator(sides: Sides) -> None:
    lib: Any = sides.fastestimator
    tensorop = lib.op.tensorop
    model = lib.build(mlp, "sgd", model_name="mlp")

    def passing(inputs: Any, outputs: Any) -> Any:
        return tensorop.LambdaOp(fn=lambda *values: values[0], inputs=inputs, outputs=outputs)

    network = fastnet.Network(
        [
            tensorop.meta.Sometimes(passing("x", "x"), prob=0.25),
            tensorop.meta.Fuse([passing("x", "x"), passing("x", "z")]),
            tensorop.meta.OneOf(passing("x", "x"), passing("x", "x")),
            tensorop.meta.Repeat(passing("x", "x"), repeat=2),
            tensorop.model.ModelOp(model=model, inputs="x", outputs="y"),
            lib.schedule.EpochScheduler({1: passing("y", "heat"), 3: None}),
            tensorop.LambdaOp(fn=lambda y: (y**2).mean(), inputs="y", outputs="loss"),
            tensorop.model.UpdateOp(model=model, loss_name="loss"),
            tensorop.Delete("z"),
        ],
        slicers=[lib.slicer.SlidingSlicer(window_size=[4, -1], slice="x", unslice="x")],
        pops=[lib.op.numpyop.LambdaOp(fn=lambda x: x, inputs="x", outputs="shown")],
    )
    explanation = network.explain("train", 1, "", ["shown"])
    network("train", 1, "", ["shown"])
    assert explanation.error is None
    assert [item.name for item in explanation.ops] == [type(op).__name__ for op in network.ctx_ops]
    assert explanation.inputs == network.ctx_inputs
    assert explanation.device_inputs == network.ctx_gpu_inputs
    assert set(explanation.outputs) == network.ctx_outputs
    assert [len(item.ops) for item in explanation.ops] == [1, 2, 2, 1, 0, 0, 0, 0, 0]
    assert [item.setting for item in explanation.ops[:4]] == [
        "prob=0.25",
        "",
        "probs=[0.5, 0.5]",
        "repeat=2",
    ]
    assert explanation.ops[4].models == explanation.ops[7].models == ("mlp",)
    assert explanation.ops[7].takes_gradients
    assert explanation.ops[8].deletes
    assert explanation.unneeded == {5}
    assert [schedule.values for schedule in explanation.schedules] == [
        ((1, "LambdaOp (y -> heat)"), (3, "nothing"))
    ]
    (batch,) = batches(1)
    with network:
        result = network.run_step({"x": batch["x"]})
    assert set(result) == {key.name for key in explanation.keys if key.result is not None}
    assert json.loads(json.dumps(explanation.to_dict())) == explanation.to_dict()
