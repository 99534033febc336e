"""`transform` in TensorFlow, of a batch, of a list, of a pipeline; and ops on arrays afterwards."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import (
    LOSS,
    MARKS,
    agree,
    assert_same,
    batches,
    mlp,
    one_hot_loss,
    start_over,
    steps,
    tf,
)

pytestmark = MARKS


def classifier(lib: Any, **settings: Any) -> Any:
    model = lib.build(mlp, "sgd", model_name="mlp")
    models = lib.op.tensorop.model
    return lib.Network(
        [models.ModelOp(model, "x", "y"), one_hot_loss(lib), models.UpdateOp(model, "loss")],
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
            dict(network.transform(dict(batch), "eval", 3, "some")),
            dict(network.transform(dict(batch), mode="train", epoch=2)),
            dict(network.transform(dict(batch), mode="infer", ds_id="some")),
        ]

    agree(sides, program)


def test_a_batch_after_training(sides: Sides) -> None:
    """In fastnet a graph that is there already runs it, in FastEstimator the ops one by one.

    A graph adds the bias in the same call that multiplies: one rounding less.
    """

    def program(lib: Any) -> Any:
        network = classifier(lib)
        told = [steps(network, batches(3)), steps(network, batches(1), "eval")]
        for batch in batches(2, size=3):
            told.append([dict(network.transform(dict(batch), mode="eval"))])
        return told

    agree(sides, program, rtol=LOSS)


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

    agree(sides, program)


def test_a_list_and_a_tuple(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        given = [as_arrays(batch) for batch in batches(3)]
        results = network.transform(given, mode="eval")
        assert isinstance(results, list)
        more = network.transform(tuple(batches(2)), mode="eval")
        return [dict(result) for result in [*results, *more]], network.transform([], mode="eval")

    agree(sides, program)


def test_with_slicers_and_postprocessing(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x - tf.reduce_mean(x), "x", "y")],
            postprocessing=lib.op.numpyop.LambdaOp(lambda y: y.round(2), "y", "y"),
            slicers=lib.slicer.AxisSlicer(1, slice="x", unslice=["x", "y"]),
        )
        (batch,) = batches(1)
        results = network.transform([as_arrays(batch)], mode="infer")
        return [dict(result) for result in results], dict(network.transform(batch, "infer"))

    agree(sides, program)


def test_the_network_is_free_afterwards(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        network.transform({"x": batches(1)[0]["x"]}, mode="infer")
        return network.ctx_state, network.ctx_ops

    agree(sides, program)


def pipeline_of(fe: ModuleType) -> Any:
    """FastEstimator's Pipeline, over samples that are arrays; its batches are torch's."""
    (batch,) = batches(1, size=10)
    dataset = fe.dataset.NumpyDataset(as_arrays(batch))
    return fe.Pipeline(
        train_data=dataset,
        eval_data={"first": dataset, "second": dataset},
        batch_size=4,
        ops=[fe.op.numpyop.LambdaOp(lambda x: x * 2, "x", "x", mode="eval", ds_id="second")],
    )


def test_a_pipeline(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = classifier(lib)
        pipeline = pipeline_of(sides.fastestimator)
        told = []
        for mode, ds_id in (("train", ""), ("eval", "first"), ("eval", "second")):
            results = network.transform(pipeline, mode=mode, epoch=1, ds_id=ds_id)
            told.append([dict(result) for result in results])
        return told

    results = agree(sides, program)
    assert [len(result["x"]) for result in results[0]] == [4, 4, 2]


def test_data_that_only_fastnet_takes(sides: Sides) -> None:
    """A tf.data.Dataset and a generator of batches, with a progress bar or without."""
    start_over()
    network = classifier(sides.fastnet)
    given = batches(3)
    expected = [dict(result) for result in network.transform(given, mode="eval")]
    stacked = {key: tf.stack([batch[key] for batch in given]) for key in given[0]}
    dataset = tf.data.Dataset.from_tensor_slices(stacked)
    for data in (dataset, iter(given), (batch for batch in given)):
        assert_same(network.transform(data, mode="eval"), expected)
    assert_same(network.transform(dataset, mode="eval", progress=True), expected)


# ---------------------------------------------------------------------- postprocessing


def test_functions_see_whole_batches_of_arrays(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        seen: list[Any] = []

        def standardised(y: Any, label: Any) -> list[Any]:
            seen.extend([type(y), y.shape, y.dtype, type(label), label.dtype])
            return [(y - y.mean()) / y.std(), label.astype("float64").sum()]

        ops = lib.op.numpyop
        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "y")],
            [
                ops.LambdaOp(standardised, ["y", "label"], ["z", "count"]),
                ops.LambdaOp(lambda z: z.max(axis=1), "z", "most"),
                None,
            ],
        )
        return seen, [steps(network, batches(2), "eval", eager=eager) for eager in (True, False)]

    agree(sides, program)


def test_an_op_for_single_samples(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        class Sample(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                y, label = data
                assert isinstance(y, np.ndarray)
                return [y[:2] * (label + 1), y.sum() > 0]

        class One(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                return data.mean() * (2 if state["mode"] == "eval" else 1)

        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "y")],
            [Sample(["y", "label"], ["parts", "positive"]), One("parts", "mean")],
        )
        return [steps(network, batches(2), mode, eager=True) for mode in ("eval", "infer")]

    agree(sides, program)


def test_an_op_that_writes_into_its_input(sides: Sides) -> None:
    """Neither the caller's tensors nor those of the step show it."""

    def program(lib: Any) -> Any:
        class Zeroed(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward_batch(self, data: Any, state: Any) -> Any:
                data = np.array(data)
                data[0] = 0
                return data

        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "y")],
            [Zeroed("x", "z"), Zeroed("y", "y")],
        )
        given = batches(1)
        return steps(network, given, "eval", eager=True), given

    agree(sides, program)


def test_what_postprocessing_reads_comes_back(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TFNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "y")],
            lib.op.numpyop.LambdaOp(lambda y: y.sum(axis=1), "y", "sum"),
        )
        return [
            steps(network, batches(1), "eval", wanted=wanted, eager=True)
            for wanted in (None, set(), {"sum"}, {"y"}, {"x"})
        ]

    agree(sides, program)
