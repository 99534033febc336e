"""The tensor functions and conversions, of TensorFlow values, against numpy."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend as backend
from tests.network.keras_models import line

pytestmark = pytest.mark.tf

ARRAY = np.arange(24, dtype="float32").reshape(2, 3, 4)
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


def is_eager(value: Any) -> bool:
    return type(value) is type(tf.constant(0))


class TestFunctions:
    def test_squeeze_of_a_longer_axis(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="squeeze"):
            backend.squeeze(tf.constant(ARRAY), axis=1)

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
