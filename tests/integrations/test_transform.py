"""`transform` of a batch, of a list, of a pipeline, and of loaders."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.integrations.sides import Sides, assert_same, batches, mlp


def classifier(lib: Any, **settings: Any) -> Any:
    model = lib.build(mlp, "sgd", model_name="mlp")
    models = lib.op.tensorop.model
    return lib.Network(
        [
            models.ModelOp(model, "x", "y"),
            lib.op.tensorop.loss.CrossEntropy(
                ("y", "onehot"), "loss", form="categorical", from_logits=True
            ),
            models.UpdateOp(model, "loss"),
        ],
        **settings,
    )


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value.numpy() for key, value in batch.items()}


def test_a_batch(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        (batch,) = batches(1)
        return [
            dict(network.transform({"x": batch["x"]}, mode="infer")),
            dict(network.transform(batch, "eval", 3, "some")),
            dict(network.transform(batch, mode="train", epoch=2)),
            dict(network.transform(batch, mode="infer", ds_id="some")),
        ]

    sides.agree(program)


def test_a_batch_of_arrays_and_numbers(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        (batch,) = batches(1)
        values = {
            "x": batch["x"].numpy(),
            "id": 7,
            "scale": 0.5,
            "flag": True,
            "list": [1.0, np.arange(3), {"deep": (4, np.ones(2))}],
            "name": "a name",
            "nothing": None,
        }
        return dict(classifier(lib).transform(values, mode="infer"))

    sides.agree(program)


def test_a_list(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        given = [as_arrays(batch) for batch in batches(3)]
        results = network.transform(given, mode="eval")
        assert isinstance(results, list)
        return [dict(result) for result in results], network.transform([], mode="eval")

    sides.agree(program)


def test_a_tuple(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        results = classifier(lib).transform(tuple(batches(2)), mode="infer")
        return [dict(result) for result in results]

    sides.agree(program)


def test_with_slicers_and_postprocessing(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x - x.mean(), "x", "y")],
            postprocessing=lib.op.numpyop.LambdaOp(lambda y: y.round(2), "y", "y"),
            slicers=lib.slicer.AxisSlicer(1, slice="x", unslice=["x", "y"]),
        )
        results = network.transform([as_arrays(batch) for batch in batches(2)], mode="infer")
        return [dict(result) for result in results]

    sides.agree(program)


def test_the_network_is_free_afterwards(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        network.transform(batches(1)[0], mode="infer")
        return network.ctx_state, network.ctx_ops

    sides.agree(program)


def pipeline_of(fe: ModuleType) -> Any:
    """FastEstimator's Pipeline, over samples that are arrays."""
    (batch,) = batches(1, size=10)
    dataset = fe.dataset.NumpyDataset(as_arrays(batch))
    return fe.Pipeline(
        train_data=dataset,
        eval_data={"first": dataset, "second": dataset},
        batch_size=4,
        ops=[fe.op.numpyop.LambdaOp(lambda x: x * 2, "x", "x", mode="eval", ds_id="second")],
    )


def test_a_pipeline(sides: Sides) -> None:
    """FastEstimator's own Pipeline feeds a network of either."""

    def program(lib: Any) -> Any:
        network = classifier(lib)
        pipeline = pipeline_of(sides.fastestimator)
        told = []
        for mode, ds_id in (("train", ""), ("eval", "first"), ("eval", "second")):
            results = network.transform(pipeline, mode=mode, epoch=1, ds_id=ds_id)
            told.append([dict(result) for result in results])
        return told

    results = sides.agree(program)
    assert [len(result["x"]) for result in results[0]] == [4, 4, 2]


def test_loaders_that_only_fastnet_takes(sides: Sides) -> None:
    """A DataLoader and a generator of batches, with a progress bar or without."""
    torch.manual_seed(0)
    network = classifier(sides.fastnet)
    given = batches(3)
    expected = [dict(result) for result in network.transform(given, mode="eval")]
    loader = torch.utils.data.DataLoader(given, batch_size=None)
    for data in (loader, iter(given), (batch for batch in given)):
        assert_same(network.transform(data, mode="eval"), expected)
    loader = torch.utils.data.DataLoader(given, batch_size=None)
    assert_same(network.transform(loader, mode="eval", progress=True), expected)


def test_the_kind_of_mapping(sides: Sides) -> None:
    """What was written lies over what was read, and takes what a program writes."""

    def program(lib: Any) -> Any:
        ops = lib.op.tensorop
        network = lib.network.TorchNetwork(
            [ops.LambdaOp(lambda x: x + 1, "x", "x"), ops.LambdaOp(lambda x: x.sum(), "x", "y")]
        )
        (batch,) = batches(1)
        result = network.transform(as_arrays(batch), mode="infer")
        result["x"], result["more"] = "a", "b"
        results = network.transform([batch], mode="infer")
        sliced = lib.network.TorchNetwork(
            network.ops, slicers=lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y"])
        ).transform(batch, "infer")
        return (
            [[type(one).__name__, [dict(each) for each in one.maps]] for one in (result, *results)],
            type(sliced).__name__,
        )

    (told, _), kind = sides.agree(program)
    assert told[0] == "ChainMap"
    assert told[1][0].keys() == {"x", "y", "more"}
    assert kind == "dict"
