"""`transform` of a batch, of a list, of a pipeline, and of loaders."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.integrations.sides import Sides, trainer


def classifier(fw: Any, lib: Any) -> Any:
    return trainer(lib, lib.build(fw.mlp, "sgd", model_name="mlp"))


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value.numpy() for key, value in batch.items()}


def test_a_batch_of_arrays_and_numbers(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        (batch,) = fw.batches(1)
        values = {
            "x": batch["x"].numpy(),
            "id": 7,
            "scale": 0.5,
            "flag": True,
            "list": [1.0, np.arange(3), {"deep": (4, np.ones(2))}],
            "name": "a name",
            "nothing": None,
        }
        return dict(classifier(fw, lib).transform(values, mode="infer"))

    sides.agree(program)


def pipeline_of(fe: ModuleType, data: dict[str, Any]) -> Any:
    """FastEstimator's Pipeline, over samples that are arrays; its batches are torch's."""
    dataset = fe.dataset.NumpyDataset(as_arrays(data))
    return fe.Pipeline(
        train_data=dataset,
        eval_data={"first": dataset, "second": dataset},
        batch_size=4,
        ops=[fe.op.numpyop.LambdaOp(lambda x: x * 2, "x", "x", mode="eval", ds_id="second")],
    )


def test_a_pipeline(sides: Sides, fw: Any) -> None:
    """FastEstimator's own Pipeline feeds a network of either."""

    def program(lib: Any) -> Any:
        network = classifier(fw, lib)
        (data,) = fw.batches(1, size=10)
        pipeline = pipeline_of(sides.fastestimator, data)
        told = []
        for mode, ds_id in (("train", ""), ("eval", "first"), ("eval", "second")):
            results = network.transform(pipeline, mode=mode, epoch=1, ds_id=ds_id)
            told.append([dict(result) for result in results])
        return told

    results = sides.agree(program)
    assert [len(result["x"]) for result in results[0]] == [4, 4, 2]
