"""The tensor functions and conversions, of TensorFlow values, against numpy."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend as backend
from fastnet.backend.dispatch import backend_of
from fastnet.op.numpyop import LambdaOp, forward_numpyop
from fastnet.util import get_batch_size, to_number
from tests.network.keras_models import line

pytestmark = pytest.mark.tf

ARRAY = np.arange(24, dtype="float32").reshape(2, 3, 4)
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


def is_eager(value: Any) -> bool:
    return type(value) is type(tf.constant(0))


class TestFunctions:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_concat(self, axis: int) -> None:
        joined = backend.concat([tf.constant(ARRAY), tf.constant(2 * ARRAY)], axis=axis)
        np.testing.assert_array_equal(joined, np.concatenate([ARRAY, 2 * ARRAY], axis=axis))
        assert backend.concat([], axis=axis) is None

    @pytest.mark.parametrize("axis", [-4, -1, 0, 1, 3])
    def test_expand_dims(self, axis: int) -> None:
        expanded = backend.expand_dims(tf.constant(ARRAY), axis=axis)
        np.testing.assert_array_equal(expanded, np.expand_dims(ARRAY, axis))

    @pytest.mark.parametrize("axis", [None, 1, -1])
    def test_squeeze(self, axis: int | None) -> None:
        tensor = tf.constant(ARRAY[:, :1, :1])
        squeezed = backend.squeeze(tensor, axis=axis)
        np.testing.assert_array_equal(squeezed, np.squeeze(ARRAY[:, :1, :1], axis))

    def test_squeeze_of_a_longer_axis(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="squeeze"):
            backend.squeeze(tf.constant(ARRAY), axis=1)

    @pytest.mark.parametrize("dtype", [None, "float32", "int64", "bool"])
    @pytest.mark.parametrize("own", DTYPES)
    def test_zeros_like(self, own: str, dtype: str | None) -> None:
        zeros = backend.zeros_like(tf.cast(ARRAY, own), dtype=dtype)
        assert zeros.dtype.name == (dtype or own)
        assert zeros.shape == ARRAY.shape
        assert not np.any(zeros.numpy().astype("float32"))

    @pytest.mark.parametrize("axis", [None, 0, -1, [0, 2], (1,)])
    @pytest.mark.parametrize("keepdims", [True, False])
    def test_reduce_mean(self, axis: Any, keepdims: bool) -> None:
        mean = backend.reduce_mean(tf.constant(ARRAY), axis=axis, keepdims=keepdims)
        axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
        np.testing.assert_allclose(mean, ARRAY.mean(axis=axes, keepdims=keepdims), rtol=1e-6)

    def test_get_shape(self) -> None:
        assert backend.get_shape(tf.constant(ARRAY)) == (2, 3, 4)
        assert backend.get_shape(tf.constant(1)) == ()
        assert backend.get_shape(tf.Variable(ARRAY)) == (2, 3, 4)

    def test_get_shape_in_a_graph_of_any_batch_size(self) -> None:
        """As in FastEstimator, where it gives a tensor: good for reshaping."""

        @tf.function(input_signature=[tf.TensorSpec((None, 3, 4))])
        def flatten(x: Any) -> Any:
            batch, *rest = backend.get_shape(x)
            assert rest == [3, 4]
            return tf.reshape(x, [batch * 3, 4]), tf.reshape(x, backend.get_shape(x))

        for size in (2, 1):
            flat, same = flatten(tf.constant(ARRAY[:size]))
            np.testing.assert_array_equal(flat, ARRAY[:size].reshape(-1, 4))
            np.testing.assert_array_equal(same, ARRAY[:size])

    def test_in_graphs(self) -> None:
        @tf.function
        def everything(x: Any) -> Any:
            x = backend.concat([x, backend.zeros_like(x)], axis=1)
            return backend.reduce_mean(backend.squeeze(backend.expand_dims(x, 0), 0), axis=[1, 2])

        wanted = ARRAY.mean(axis=(1, 2)) / 2
        np.testing.assert_allclose(everything(tf.constant(ARRAY)), wanted, rtol=1e-6)


class TestDispatch:
    def test_the_variables_of_keras(self) -> None:
        weight = line().weights[0]
        value = weight.numpy()
        for name, args, expected in (
            ("zeros_like", (), np.zeros_like(value)),
            ("reduce_sum", (), value.sum()),
            ("abs", (), np.abs(value)),
            ("reshape", ([-1],), value.reshape(-1)),
            ("cast", ("float64",), value.astype("float64")),
            ("clip_by_value", (0.0, 0.5), value.clip(0, 0.5)),
        ):
            result = getattr(backend, name)(weight, *args)
            assert tf.is_tensor(result), name
            np.testing.assert_allclose(result, expected, rtol=1e-6)

    @pytest.mark.parametrize(
        "value",
        [tf.constant(1.0), tf.Variable(1.0), tf.constant("a")],
        ids=["tensor", "variable", "string"],
    )
    def test_tensors_and_variables(self, value: Any) -> None:
        assert backend_of(value).__name__ == "fastnet.backend.tf"

    def test_symbolic_tensors(self) -> None:
        seen: list[str] = []

        @tf.function
        def look(x: Any) -> Any:
            seen.append(backend_of(x).__name__)
            return x

        look(tf.constant(1.0))
        assert seen == ["fastnet.backend.tf"]

    def test_anything_else(self) -> None:
        with pytest.raises(ValueError, match="Unrecognized") as caught:
            backend.reduce_mean([1.0, 2.0])
        assert str(caught.value) == (
            "Unrecognized tensor type list: expected a tensor of torch, tensorflow or numpy, but "
            "got [1.0, 2.0]."
        )


@dataclasses.dataclass(frozen=True)
class Record:
    x: Any
    note: str


Pair = collections.namedtuple("Pair", ["a", "b"])


class TestToTensor:
    @pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
    def test_arrays(self, dtype: str) -> None:
        array = tf.cast(tf.constant(ARRAY), dtype).numpy()
        tensor = backend.to_tensor(array, "tf")
        assert is_eager(tensor)
        assert tensor.dtype.name == dtype
        np.testing.assert_array_equal(tensor.numpy(), array)

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [(1, "int64"), (2.5, "float64"), (True, "bool"), (np.float32(3), "float32")],
    )
    def test_numbers(self, value: Any, dtype: str) -> None:
        tensor = backend.to_tensor(value, "tf")
        assert (tensor.shape, tensor.dtype.name, tensor.numpy()) == ((), dtype, value)

    def test_what_is_one_is_used_as_it_is(self) -> None:
        ragged = tf.ragged.constant([[1], [2, 3]])
        sparse = tf.sparse.from_dense([[0, 1]])
        for value in (tf.constant(1), tf.Variable(1.0), ragged, sparse, line().weights[0]):
            assert backend.to_tensor(value, "tf") is value

    def test_strings_and_none_stay(self) -> None:
        for value in ("text", b"bytes", None):
            assert backend.to_tensor(value, "tf") is value

    @pytest.mark.parametrize("kind", ["<U4", "S4", object])
    def test_arrays_of_strings(self, kind: Any) -> None:
        tensor = backend.to_tensor(np.array([["ab"], ["c"]], dtype=kind), "tf")
        assert tensor.numpy().tolist() == [[b"ab"], [b"c"]]
        again = backend.to_tensor(tensor.numpy(), "tf")
        assert again.numpy().tolist() == [[b"ab"], [b"c"]]

    @pytest.mark.parametrize(
        "value",
        [np.array([1, "a", None], dtype=object), object()],
        ids=["array", "object"],
    )
    def test_what_has_no_tensor(self, value: Any) -> None:
        with pytest.raises(TypeError) as caught:
            backend.to_tensor({"x": [value]}, "tf")
        assert str(caught.value) == (
            f"A value of type {type(value).__name__} cannot be converted to a TensorFlow tensor, "
            "because numpy makes an array of Python objects of it. Convert it to numbers first."
        )

    def test_torch_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        for dtype, wanted in ((torch.float16, "float16"), (torch.bfloat16, "float32")):
            tensor = backend.to_tensor(torch.ones(2, dtype=dtype, requires_grad=True), "tf")
            assert (tensor.dtype.name, tensor.numpy().tolist()) == (wanted, [1, 1])
        back = backend.to_tensor(tf.constant([1.5]), "torch")
        assert torch.equal(back, torch.tensor([1.5]))

    def test_nests(self) -> None:
        data = {
            "list": [np.ones(2), "a", (1, None)],
            "pair": Pair(np.zeros(1), [2.0]),
            "record": Record(np.ones(1), "kept"),
        }
        made = backend.to_tensor(data, "tf")
        assert type(made["pair"]) is Pair
        assert type(made["record"]) is Record
        assert made["record"].note == "kept"
        assert made["list"][1] == "a"
        assert made["list"][2][1] is None
        found = [made["list"][0], made["list"][2][0], *made["pair"][1], made["record"].x]
        assert all(map(is_eager, found))
        assert isinstance(data["list"][0], np.ndarray)

    def test_to_arrays(self) -> None:
        made = backend.to_tensor({"x": tf.constant([1.5]), "s": tf.constant(["a"])}, "np")
        assert isinstance(made["x"], np.ndarray)
        assert made["x"].tolist() == [1.5]
        assert made["s"].tolist() == [b"a"]


class TestReading:
    def test_to_shape(self) -> None:
        data = {"x": tf.constant(ARRAY), "y": [tf.Variable([1, 2]), 7]}
        assert backend.to_shape(data) == {"x": (2, 3, 4), "y": [(2,), ()]}
        shapes = backend.to_shape(data, add_batch=True, exact_shape=False)
        assert shapes == {"x": [None] * 4, "y": [[None] * 2, [None]]}

    def test_to_type(self) -> None:
        data = {"x": tf.constant(ARRAY), "y": [tf.Variable([True]), tf.constant("a")]}
        assert backend.to_type(data) == {"x": tf.float32, "y": [tf.bool, tf.string]}

    @pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
    def test_to_number(self, dtype: str) -> None:
        tensor = tf.cast(tf.constant(ARRAY), dtype)
        for value in (tensor, tf.Variable(tensor)):
            array = to_number(value)
            assert isinstance(array, np.ndarray)
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, ARRAY.astype(dtype))
            array[:] = 0  # it is a copy
            assert np.any(tensor.numpy())

    def test_get_batch_size(self) -> None:
        batch = {"x": tf.ones((4, 3)), "y": np.ones(4), "loss": tf.constant(1.0), "names": ["a"]}
        assert get_batch_size(batch) == 4
        with pytest.raises(AssertionError) as caught:
            get_batch_size({"x": tf.ones((4, 3)), "y": tf.ones(3)})
        assert str(caught.value) == (
            "The batch has no single size, because the first axes of its tensors differ: "
            "{'x': 4, 'y': 3}."
        )


class TestPostprocessing:
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64", "bool"])
    def test_ops_see_arrays_and_leave_tensors(self, dtype: str) -> None:
        seen: list[Any] = []

        def look(x: Any) -> Any:
            seen.append(x)
            return x

        tensor = tf.cast(tf.constant(ARRAY), dtype)
        data = {"x": tensor, "rest": "a"}
        forward_numpyop([LambdaOp(look, "x", "y")], data, {"mode": "eval"}, batched="tf")
        assert is_eager(data["y"])
        assert data["y"].dtype.name == dtype
        np.testing.assert_array_equal(data["y"].numpy(), tensor.numpy())
        assert all(isinstance(one, np.ndarray) for one in seen)
        assert is_eager(data["x"])
        np.testing.assert_array_equal(data["x"].numpy(), tensor.numpy())
        assert data["rest"] == "a"

    def test_strings(self) -> None:
        data = {"names": tf.constant(["a", "b"])}
        ops = [LambdaOp(lambda name: name + b"!", "names", "loud")]
        forward_numpyop(ops, data, {"mode": "eval"}, batched="tf")
        assert data["loud"].numpy().tolist() == [b"a!", b"b!"]

    def test_a_chain(self) -> None:
        data = {"x": tf.constant(ARRAY)}
        ops = [
            LambdaOp(lambda x: x.sum(axis=(1, 2)), "x", "y"),
            LambdaOp(lambda y: (y, -y), "y", ["a", "b"]),
        ]
        forward_numpyop(ops, data, {"mode": "eval"}, batched="tf")
        sums = ARRAY.sum(axis=(1, 2))
        np.testing.assert_allclose(data["a"], sums)
        np.testing.assert_allclose(data["b"], -sums)
        assert all(map(is_eager, data.values()))


class TestAgainstFastEstimator:
    @pytest.fixture
    def theirs(self) -> Any:
        return pytest.importorskip("fastestimator.backend")

    def test_functions(self, theirs: Any) -> None:
        tensor = tf.constant(ARRAY)
        for name, args in (
            ("concat", ([tensor, tensor],)),
            ("expand_dims", (tensor,)),
            ("squeeze", (tensor[:, :1],)),
            ("zeros_like", (tensor, "int32")),
            ("reduce_mean", (tensor, [0, 2], True)),
            ("reduce_mean", (tf.cast(tensor, "int32"),)),
            ("get_shape", (tensor,)),
        ):
            own, other = getattr(backend, name)(*args), getattr(theirs, name)(*args)
            np.testing.assert_array_equal(own, other)
            if is_eager(own):
                assert own.dtype == other.dtype
                assert own.shape == other.shape

    def test_to_tensor(self, theirs: Any) -> None:
        data = {
            "array": ARRAY,
            "deep": [np.array([1]), (2.5, None, "a")],
            "strings": np.array([b"a"], dtype=object),
        }
        own, other = (to(data, target_type="tf") for to in (backend.to_tensor, theirs.to_tensor))
        tf.nest.map_structure(np.testing.assert_array_equal, own, other)
        assert backend.to_type(own) == backend.to_type(other)
