"""Slicers where a step runs on several devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.slicer import AxisSlicer, MeanUnslicer, Slicer, SlidingSlicer
from tests.network.tf.replicas.devices import (
    EITHER_WAY,
    STRATEGY,
    assert_same_weights,
    halves,
    plain,
    under,
)
from tests.network.tf.replicas.programs import (
    IMAGES,
    by_hand,
    mean,
    mlp,
    momentum,
    numbers,
    regression,
    same_model,
    square_error,
    twice,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]


WAYS = ["distributed", "transform", "transform a list"]


def sliced(network: Any, way: str, batch: dict[str, Any], first: int | None = None) -> Any:
    """Run a network with slicers on a batch that is, or is to be, spread over two devices."""
    if way == "distributed":
        with network(mode="infer", epoch=1):
            result = network.run_step({key: halves(one, first) for key, one in batch.items()})
    elif way == "transform":
        result = network.transform(batch, mode="infer")
    else:
        (result,) = network.transform([batch], mode="infer")
    return plain(result)


class TestSlicers:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("size", [5, 1])
    @pytest.mark.parametrize(
        "slicer",
        [
            lambda: AxisSlicer(axis=-1, slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 2, 3], slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 3, 4], [0, 1, 2], slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 3, 4], pad_mode="partial", slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 1, -1], squeeze_window=True, slice="x", unslice=["y"]),
        ],
    )
    def test_along_other_axes(self, two: None, slicer: Any, size: int, way: str) -> None:
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops, slicers=[slicer(), MeanUnslicer("mean")])
        x = IMAGES[:size]
        result = sliced(network, way, {"x": x, "other": np.arange(size)})
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["other"], np.arange(size))
        np.testing.assert_array_equal(result["y"], x * 2)
        assert result["mean"].shape == ()
        assert len(network.traces) <= 4  # last windows may be smaller
        pieces = [piece for (piece,) in slicer().slice_batches((x,))]
        halved = [np.array_split(piece, 2) if size > 1 else [piece] for piece in pieces]
        means = [np.mean([part.mean() for part in each]) for each in halved]
        np.testing.assert_allclose(result["mean"], np.mean(means), rtol=1e-5)

    @pytest.mark.parametrize("way", WAYS)
    def test_along_the_axis_of_the_batch(self, two: None, way: str) -> None:
        slicers = [SlidingSlicer([2, -1, -1], slice="x", unslice="y"), MeanUnslicer("mean")]
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops, slicers=slicers)
        x = IMAGES[:4]
        result = sliced(network, way, {"x": x})
        np.testing.assert_array_equal(result["y"], 2 * x)
        np.testing.assert_allclose(result["mean"], x.mean(), rtol=1e-6)

    @pytest.mark.parametrize(
        ("way", "size"),
        # a device without samples has no minibatch
        [("distributed", 4), *((way, size) for way in WAYS[1:] for size in (1, 4))],
    )
    def test_one_sample_at_a_time(self, two: None, size: int, way: str) -> None:
        def classify(x: Any, weights: Any) -> Any:
            assert x.shape.rank == 2
            return tf.reduce_sum(x) + weights[:1]

        slicers = [AxisSlicer(0, slice="x", unslice=["y"]), AxisSlicer(0, unslice=["z"])]
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(classify, ["x", "w"], "z")]
        network = TFNetwork(ops, slicers=slicers)
        x = IMAGES[:size]
        result = sliced(network, way, {"x": x, "w": np.ones(size, "float32")})
        np.testing.assert_array_equal(result["y"], 2 * x)
        np.testing.assert_array_equal(result["z"], x.sum(axis=(1, 2))[:, None] + 1)

    def test_windows_that_overlap_are_averaged_or_added(self, two: None) -> None:
        x = IMAGES[:3]
        for mode, counts in (("avg", [1, 1, 1, 1, 1, 1]), ("sum", [1, 2, 3, 3, 2, 1])):
            slicer = SlidingSlicer([-1, -1, 3], 1, slice="x", unslice="y", unslice_mode=mode)
            network = TFNetwork([LambdaOp(lambda x: x * 1, "x", "y")], slicers=slicer)
            for way in WAYS:
                np.testing.assert_array_equal(sliced(network, way, {"x": x})["y"], x * counts)

    def test_a_shape_that_was_given(self, two: None) -> None:
        slicer = SlidingSlicer([-1, -1, 3], slice="x", unslice="y", unslice_shape=[2, 2, 6])
        network = TFNetwork([LambdaOp(lambda x: x[:, :2], "x", "y")], slicers=slicer)
        x = IMAGES[:4]
        result = sliced(network, "distributed", {"x": x})
        np.testing.assert_array_equal(result["y"], x[:, :2])

    @EITHER_WAY
    def test_plain_batches_are_everybodys(self, two: None, eager: bool) -> None:
        x = IMAGES[:2]
        for slicer in (
            AxisSlicer(1, slice="x", unslice="y"),
            SlidingSlicer([-1, 2, -1], slice="x", unslice="y"),
        ):
            network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], slicers=slicer)
            with network(mode="infer", epoch=1, eager=eager):
                result = network.run_step({"x": tf.constant(x), "other": np.arange(2)})
            np.testing.assert_array_equal(result["y"], np.concatenate([2 * x, 2 * x]))
            np.testing.assert_array_equal(result["other"], [0, 1])

    @EITHER_WAY
    def test_keys_that_are_cut_by_themselves(self, two: None, eager: bool) -> None:
        def add(x: Any, weights: Any) -> Any:
            return x + weights

        slicers = [AxisSlicer(1, slice=["x", "w"], unslice=["x"]), AxisSlicer(1, unslice="y")]
        network = TFNetwork([LambdaOp(add, ["x", "w"], "y")], slicers=slicers)
        x = IMAGES[:3, :, 0]
        weights = np.arange(4, dtype="float32").reshape(1, 4)
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x), "w": weights, "z": halves(x)}))
        np.testing.assert_array_equal(result["y"], x + weights)
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["z"], x)
        np.testing.assert_array_equal(result["w"], weights)

    def test_training(self) -> None:
        class Rows(Slicer):
            def _slice_batch(self, batch: Any) -> list[Any]:
                middle = batch.shape[0] // 2
                return [batch[:middle], batch[middle:]]

        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            slicers = [Rows(slice=["x", "y"], unslice=None), MeanUnslicer("loss")]
            network = TFNetwork(regression(model), slicers=slicers)
            x, y = numbers(8, seed=5)
            with network(mode="train", epoch=1, desired_output_keys=["loss"]):
                loss = network.run_step({"x": halves(x), "y": halves(y)})["loss"]
        # each device cut its own half
        order = [[0, 1, 4, 5], [2, 3, 6, 7]]
        losses = by_hand(
            twin,
            momentum(),
            lambda x, y: square_error(twin, x, y),
            [(x[rows], y[rows]) for rows in order],
        )
        np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
        assert_same_weights(model, twin)

    def test_postprocessing_sees_what_was_joined(self, two: None) -> None:
        pops = [NumpyLambdaOp(lambda y, other: y.sum(axis=(1, 2)) + other, ["y", "other"], "z")]
        slicer = AxisSlicer(-1, slice="x", unslice="y")
        ops = [LambdaOp(lambda x: x * 2, "x", "y")]
        network = TFNetwork(ops, postprocessing=pops, slicers=slicer)
        for way in WAYS:
            result = sliced(network, way, {"x": IMAGES, "other": np.arange(5)})
            expected = (2 * IMAGES).sum(axis=(1, 2)) + np.arange(5)
            np.testing.assert_array_equal(result["z"], expected)

    def test_parts_that_make_different_numbers_of_minibatches(self, two: None) -> None:
        slicer = SlidingSlicer([2, -1, -1], pad_mode="partial", slice="x", unslice="y")
        network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], slicers=slicer)
        with network(mode="infer", epoch=1):
            with pytest.raises(ValueError, match="SlidingSlicer") as caught:
                network.run_step({"x": halves(IMAGES, 4)})
            assert str(caught.value) == (
                "SlidingSlicer cut ['x'] into different numbers of minibatches on the devices: "
                "[2, 1]. Cut along an axis other than the batch's, or give each device as many "
                "samples."
            )
            assert caught.value.__notes__ == ["Raised by SlidingSlicer while it sliced ['x']."]
            result = network.run_step({"x": halves(IMAGES[:4])})
            np.testing.assert_array_equal(result["y"], 2 * IMAGES[:4])
        result = network.transform({"x": IMAGES}, mode="infer")
        np.testing.assert_array_equal(result["y"], 2 * IMAGES)


class TestAgainstFastEstimator:
    """The same slicers in FastEstimator, in the environment that has it."""

    def test_slicers(self, two: None, fastestimator: Any) -> None:
        from fastestimator.op.tensorop import LambdaOp as TheirLambdaOp
        from fastestimator.slicer import AxisSlicer as TheirAxisSlicer
        from fastestimator.slicer import MeanUnslicer as TheirMeanUnslicer
        from fastestimator.slicer import SlidingSlicer as TheirSlidingSlicer

        def networks(settings: dict[str, Any], sliding: bool) -> Iterator[Any]:
            both = (
                (TFNetwork, LambdaOp, AxisSlicer, SlidingSlicer, MeanUnslicer),
                (
                    fastestimator.network.TFNetwork,
                    TheirLambdaOp,
                    TheirAxisSlicer,
                    TheirSlidingSlicer,
                    TheirMeanUnslicer,
                ),
                # theirs in ours
                (TFNetwork, TheirLambdaOp, TheirAxisSlicer, TheirSlidingSlicer, TheirMeanUnslicer),
            )
            for network, op, axis, slide, average in both:
                ops = [op(fn=twice, inputs="x", outputs="y"), op(fn=mean, inputs="x", outputs="m")]
                slicer = (slide if sliding else axis)(slice="x", unslice=("x", "y"), **settings)
                yield network(ops, slicers=[slicer, average("m")])

        def check(results: list[Any]) -> None:
            first, *others = map(plain, results)
            for other in others:
                assert first.keys() == other.keys()
                for key, value in first.items():
                    np.testing.assert_allclose(value, other[key], rtol=1e-6)

        batch = {"x": IMAGES, "other": np.arange(5)}
        for settings, sliding in (
            ({"axis": 2}, False),
            ({"axis": 1}, False),
            ({"window_size": [-1, 2, 3]}, True),
            ({"window_size": [2, -1, -1], "pad_mode": "partial"}, True),
        ):
            check([one.transform(batch, mode="infer") for one in networks(settings, sliding)])
        parts = {key: halves(value) for key, value in batch.items()}
        results = []
        for network in networks({"axis": 1}, False):
            with network(mode="infer", epoch=1, ds_id="") as opened:
                results.append(opened.run_step(parts))
        check(results)
        # here FastEstimator wants shapes of the whole where it has those of a device's part
        mine, _, mixed = networks({"window_size": [-1, 2, 3]}, True)
        for network in (mine, mixed):
            with network(mode="infer", epoch=1):
                result = network.run_step(parts)
            np.testing.assert_array_equal(result["y"], 2 * IMAGES)
