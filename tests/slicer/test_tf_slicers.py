"""Slicers of TensorFlow tensors, against numpy and, where it is installed, FastEstimator."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer
from fastnet.slicer.slicer import forward_slicers, reverse_slicers

pytestmark = pytest.mark.tf

ROW = np.arange(5, dtype="float32").reshape(1, 5)
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


def is_eager(value: Any) -> bool:
    return type(value) is type(tf.constant(0))


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape), dtype)


class TestAxisSlicer:
    SHAPE = (2, 3, 4)

    @pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "string"])
    def test_cut_and_join(self, axis: int, dtype: str) -> None:
        batch = numbers(*self.SHAPE)
        batch = tf.strings.as_string(batch) if dtype == "string" else tf.cast(batch, dtype)
        slicer = AxisSlicer(axis, slice="x")
        pieces = slicer._slice_batch(batch)
        assert len(pieces) == self.SHAPE[axis]
        for position, piece in enumerate(pieces):
            assert is_eager(piece)
            np.testing.assert_array_equal(piece.numpy(), np.take(batch.numpy(), position, axis))
        joined = slicer._unslice_batch(tuple(pieces), key="x")
        assert is_eager(joined)
        assert joined.dtype == batch.dtype
        np.testing.assert_array_equal(joined.numpy(), batch.numpy())

    def test_the_only_axis(self) -> None:
        slicer = AxisSlicer(0, slice="x")
        pieces = slicer._slice_batch(tf.range(3))
        assert [tuple(piece.shape) for piece in pieces] == [()] * 3
        assert slicer._unslice_batch(tuple(pieces), "x").numpy().tolist() == [0, 1, 2]

    def test_nothing_to_cut(self) -> None:
        assert AxisSlicer(0, slice="x").slice_batches((tf.ones((0, 2)),)) == []

    @pytest.mark.parametrize("axis", [3, -4])
    def test_no_such_axis(self, axis: int) -> None:
        with pytest.raises(IndexError) as caught:
            AxisSlicer(axis, slice="x")._slice_batch(tf.ones(self.SHAPE))
        assert str(caught.value) == (
            f"AxisSlicer cuts ['x'] along axis {axis}, but got data of shape (2, 3, 4), which has "
            "no such axis."
        )

    def test_slices_of_too_few_axes(self) -> None:
        with pytest.raises(IndexError) as caught:
            AxisSlicer(2, slice="x")._unslice_batch((tf.constant(1.0),), key="loss")
        assert str(caught.value) == (
            "AxisSlicer joins 'loss' along a new axis 2, but its slices have shape (), too few "
            "axes for that. Un-slice a value such as a loss with MeanUnslicer."
        )


class TestMeanUnslicer:
    @staticmethod
    def mean(*slices: Any) -> Any:
        return MeanUnslicer("loss")._unslice_batch(slices, key="loss")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
    def test_floats(self, dtype: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        slices = [tf.cast(tf.constant(rng.standard_normal(shape)), dtype) for _ in range(3)]
        before = [piece.numpy().copy() for piece in slices]
        result = self.mean(*slices)
        assert result.dtype.name == dtype
        assert tuple(result.shape) == shape
        wide = "complex128" if dtype == "complex64" else "float64"
        wanted = np.mean([array.astype(wide) for array in before], axis=0)
        tolerance = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype, 1e-5)
        np.testing.assert_allclose(
            result.numpy().astype(wide), wanted, rtol=tolerance, atol=tolerance / 10
        )
        for array, piece in zip(before, slices, strict=True):
            np.testing.assert_array_equal(piece.numpy(), array)

    @pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "uint32", "bool"])
    def test_ints_have_a_float_mean(self, dtype: str) -> None:
        result = self.mean(tf.cast([1, 1], dtype), tf.cast([0, 1], dtype))
        assert is_eager(result)
        assert result.dtype.is_floating
        assert result.numpy().tolist() == [0.5, 1.0]
        scalar = self.mean(tf.cast(1, dtype), tf.cast(0, dtype))
        assert (is_eager(scalar), float(scalar)) == (True, 0.5)

    def test_small_ints_do_not_overflow(self) -> None:
        slices = [tf.constant([200], tf.uint8)] * 2
        assert self.mean(*slices).numpy().tolist() == [200.0]

    def test_ints_and_floats(self) -> None:
        assert self.mean(tf.constant([1]), tf.constant([2.5])).numpy().tolist() == [1.75]

    def test_the_sum_runs_from_zero(self) -> None:
        assert str(self.mean(tf.constant(-0.0)).numpy()) == "0.0"

    def test_gradients_pass(self) -> None:
        piece = tf.constant([1.0])
        with tf.GradientTape() as tape:
            tape.watch(piece)
            loss = self.mean(piece, piece, tf.constant([3.0]), piece)
        assert tape.gradient(loss, piece).numpy().tolist() == [0.75]


def cut(slicer: SlidingSlicer, batch: Any) -> list[Any]:
    pieces = [piece for (piece,) in slicer.slice_batches((batch,))]
    assert all(map(is_eager, pieces))
    return pieces


class TestCutting:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, [[0, 1], [2, 3]]),
            ({"pad_mode": "partial"}, [[0, 1], [2, 3], [4]]),
            ({"pad_mode": "constant", "pad_val": 9}, [[0, 1], [2, 3], [4, 9]]),
            ({"pad_mode": "nopad"}, [[0, 1], [2, 3], [3, 4]]),
            ({"strides": 1}, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        ],
    )
    def test_row(self, arguments: dict[str, Any], expected: list[list[int]]) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", **arguments)
        pieces = cut(slicer, tf.constant(ROW))
        assert [piece.numpy().tolist() for piece in pieces] == [[row] for row in expected]

    def test_a_mirror_reaches_every_axis(self) -> None:
        """Channels come last in TensorFlow, and the height of an image is its second axis."""
        images = numbers(2, 4, 5, 1)
        slicer = SlidingSlicer([-1, 3, 3, -1], pad_mode="mirror", slice="x")
        padded = np.pad(images.numpy(), [(0, 0), (0, 2), (0, 1), (0, 0)], mode="reflect")
        pieces = cut(slicer, images)
        wanted = [padded[:, i : i + 3, j : j + 3] for i, j in product((0, 3), (0, 3))]
        assert len(pieces) == 4
        for piece, part in zip(pieces, wanted, strict=True):
            np.testing.assert_array_equal(piece.numpy(), part)
        joined = slicer._unslice_batch(tuple(pieces), "x")
        np.testing.assert_array_equal(joined.numpy(), images.numpy())

    def test_too_short_to_be_mirrored(self) -> None:
        slicer = SlidingSlicer([-1, 5, 1], strides=[0, 1, 1], pad_mode="mirror", slice="x")
        with pytest.raises(ValueError, match="mirrored") as caught:
            cut(slicer, numbers(1, 2, 1))
        assert str(caught.value) == (
            "Axis 1 of data of shape [1, 2, 1] is too short to be mirrored: the window size "
            "[-1, 5, 1] needs 3 more positions, and mirroring gives at most 1. Use another "
            "pad_mode, or a smaller window."
        )

    def test_strings(self) -> None:
        names = tf.constant([list("abc")])
        slicer = SlidingSlicer([-1, 2], pad_mode="constant", slice="x", unslice=None)
        assert [piece.numpy().tolist() for piece in cut(slicer, names)] == [
            [[b"a", b"b"]],
            [[b"c", b""]],
        ]

    def test_rank(self) -> None:
        with pytest.raises(ValueError, match="axes") as caught:
            SlidingSlicer([-1, 2], slice="x")._slice_batch(tf.ones((2, 3, 4)))
        assert str(caught.value) == (
            "SlidingSlicer cuts ['x'] with a window of 2 axes, [-1, 2], but got data of 3 axes, of "
            "shape [2, 3, 4]. Give the window a length for each axis of the data, or -1."
        )


class TestJoining:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"pad_val": -1}, [0, 1, 2, 3, -1]),
            ({"pad_mode": "partial"}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "constant", "pad_val": 9}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "nopad", "unslice_mode": "sum"}, [0, 1, 2, 6, 4]),
            ({"strides": 1}, [0, 1, 2, 3, 4]),
            ({"strides": 1, "unslice_mode": "sum"}, [0, 2, 4, 6, 4]),
            ({"strides": 3, "pad_val": 7, "unslice_mode": "sum"}, [0, 1, 7, 3, 4]),
        ],
    )
    def test_row(self, arguments: dict[str, Any], expected: list[int]) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", **arguments)
        joined = slicer._unslice_batch(tuple(cut(slicer, tf.constant(ROW))), key="x")
        assert is_eager(joined)
        assert joined.numpy().tolist() == [expected]

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("mode", ["avg", "sum"])
    def test_types(self, dtype: str, mode: str) -> None:
        batch = tf.cast(numbers(2, 4) % 2, dtype)
        before = batch.numpy().copy()
        slicer = SlidingSlicer([-1, 2], slice="x", unslice_mode=mode)
        joined = slicer._unslice_batch(tuple(cut(slicer, batch)), "x")
        assert joined.dtype.name == ("float32" if mode == "avg" else dtype)
        np.testing.assert_array_equal(joined.numpy().astype("float32"), before.astype("float32"))
        np.testing.assert_array_equal(batch.numpy(), before)

    def test_windows_of_one(self) -> None:
        volume = numbers(2, 3, 4)
        slicer = SlidingSlicer([-1, 1, 1], slice="x", squeeze_window=True)
        pieces = cut(slicer, volume)
        assert [piece.numpy().tolist() for piece in pieces] == [
            volume.numpy()[:, i, j].tolist() for i, j in product(range(3), range(4))
        ]
        joined = slicer._unslice_batch(tuple(pieces), "x")
        np.testing.assert_array_equal(joined.numpy(), volume.numpy())

    def test_variables(self) -> None:
        slicer = SlidingSlicer([2], unslice="y", unslice_shape=[4])
        slices = (tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0]))
        assert slicer._unslice_batch(slices, "y").numpy().tolist() == [1, 2, 3, 4]

    def test_each_key_has_its_own_shape(self) -> None:
        slicer = SlidingSlicer([-1, 2, -1], slice=["image", "mask"], unslice=["image", "mask", "y"])
        batch = {"image": numbers(2, 4, 3), "mask": numbers(2, 4, 1)}
        minibatches = forward_slicers([slicer], batch)
        for minibatch in minibatches:
            minibatch["y"] = minibatch["mask"] * 2
        joined = reverse_slicers([slicer], minibatches, batch)
        np.testing.assert_array_equal(joined["image"].numpy(), batch["image"].numpy())
        np.testing.assert_array_equal(joined["y"].numpy(), batch["mask"].numpy() * 2)

    def test_slices_that_do_not_fit(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[1, 4])
        with pytest.raises(ValueError, match="fit") as caught:
            slicer._unslice_batch((tf.ones((1, 3)),) * 2, key="y")
        assert str(caught.value) == (
            "SlidingSlicer cannot un-slice 'y': a slice of shape [1, 3] does not fit into its "
            "window of shape [1, 2], in data of shape [1, 4]. Give the slicer the unslice_shape of "
            "this key, or cut a key of its shape."
        )

    @pytest.mark.parametrize("mode", ["avg", "sum"])
    @pytest.mark.parametrize(
        ("make", "dtype"), [(tf.constant, "object"), (np.array, "<U1")], ids=["tf", "numpy"]
    )
    def test_strings(self, mode: str, make: Any, dtype: str) -> None:
        slicer = SlidingSlicer([2], slice="x", unslice_mode=mode)
        slices = tuple(slicer._slice_batch(make(list("abcd"))))
        with pytest.raises(TypeError) as caught:
            slicer._unslice_batch(slices, key="x")
        assert str(caught.value) == (
            f"SlidingSlicer cannot un-slice 'x': its slices are of type {dtype}, and only numbers "
            "can be averaged or added up. Leave the key out of `unslice`."
        )


@pytest.mark.parametrize("eager", [False, True])
def test_in_a_network(eager: bool) -> None:
    """What is cut, runs in pieces and is joined, is what the ops do to the whole."""
    images = tf.cast(tf.random.stateless_uniform((2, 6, 6, 1), (1, 2)), "float32")
    network = TFNetwork(
        [
            LambdaOp(lambda x: 2 * x + 1, "x", "y"),
            LambdaOp(lambda x: tf.reduce_mean(x), "x", "level"),
            LambdaOp(lambda x: tf.size(x), "x", "count"),
        ],
        slicers=[
            SlidingSlicer([-1, 3, 3, -1], slice="x", unslice=["x", "y"]),
            MeanUnslicer(["level", "count"]),
        ],
    )
    with network(mode="eval", epoch=1, eager=eager):
        for _ in range(2):
            result = network.run_step({"x": images, "name": "a"})
            np.testing.assert_array_equal(result["x"].numpy(), images.numpy())
            np.testing.assert_array_equal(result["y"].numpy(), images.numpy() * 2 + 1)
            np.testing.assert_allclose(result["level"], images.numpy().mean(), rtol=1e-6)
            assert float(result["count"]) == 18
            assert result["name"] == "a"


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """A shape, and the arguments of a slicer that may fit it."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    window = [draw(st.sampled_from([-1, 1, 2, 3, 5])) for _ in shape]
    return shape, {
        "window_size": window,
        "strides": draw(st.sampled_from([(), 1, 2, 3])),
        "pad_mode": draw(st.sampled_from(["drop", "partial", "constant", "nopad", "mirror"])),
        "pad_val": draw(st.sampled_from([0.0, -1.0, 7])),
        "unslice_mode": draw(st.sampled_from(["avg", "sum"])),
    }


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("fastestimator.slicer")


@pytest.mark.filterwarnings("ignore:.*non-tuple sequence", "ignore:jax.xla")
class TestAgainstFastEstimator:
    """To the bit, wherever FastEstimator's slicer works."""

    @settings(max_examples=60)
    @given(drawn=windows(), dtype=st.sampled_from(["float32", "float64", "int32", "uint8"]))
    def test_sliding(self, theirs: Any, drawn: Any, dtype: str) -> None:
        shape, arguments = drawn
        batch = numbers(*shape, dtype=dtype)
        strides = arguments["strides"] or arguments["window_size"]
        for axis, (size, length) in enumerate(zip(shape, arguments["window_size"], strict=True)):
            stride = strides if isinstance(strides, int) else strides[axis]
            # where no window fits, FastEstimator leaves the axis whole, or adds one
            assume(not (arguments["pad_mode"] == "drop" and length > size > 0 < stride))
        try:
            slicer = theirs.SlidingSlicer(**arguments, slice="x")
            pieces = [piece for (piece,) in slicer.slice_batches((batch,))]
            joined = slicer._unslice_batch(tuple(pieces), "x")
        except (AssertionError, ValueError, RuntimeError, tf.errors.InvalidArgumentError):
            assume(False)
        ours = SlidingSlicer(**arguments, slice="x")
        own_pieces = cut(ours, batch)
        assert len(own_pieces) == len(pieces)
        for own, other in zip(own_pieces, pieces, strict=True):
            np.testing.assert_array_equal(own.numpy(), other.numpy())
        own = ours._unslice_batch(tuple(own_pieces), "x")
        assert own.dtype == joined.dtype
        np.testing.assert_array_equal(own.numpy(), joined.numpy())

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
    def test_mean(self, theirs: Any, dtype: str) -> None:
        rng = np.random.default_rng(1)
        slices = tuple(tf.cast(rng.standard_normal((2, 3)) * 9, dtype) for _ in range(3))
        own = MeanUnslicer("x")._unslice_batch(slices, "x")
        other = theirs.MeanUnslicer("x")._unslice_batch(slices, "x")
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(own.numpy(), other.numpy())

    @pytest.mark.parametrize("axis", [-2, -1, 1])
    def test_axis(self, theirs: Any, axis: int) -> None:
        batch = numbers(2, 3, 4)
        own, other = AxisSlicer(axis, slice="x"), theirs.AxisSlicer(axis, slice="x")
        pieces, others = own._slice_batch(batch), other._slice_batch(batch)
        for one, two in zip(pieces, others, strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())
        np.testing.assert_array_equal(
            own._unslice_batch(tuple(pieces), "x").numpy(),
            other._unslice_batch(tuple(others), "x").numpy(),
        )
