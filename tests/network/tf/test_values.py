"""What batches and results may hold, besides tensors."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastnet.network import TFNetwork
from fastnet.op.tensorop import Delete, LambdaOp
from tests.network.keras_models import infer, keras, tf
from tests.network.tf_programs import EITHER_WAY, TRACING, Counting, Doing, kind_of, ones, reasons

# Keras 2 asks for a random number up to 1e9 once somebody has set its seed.
pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("error", "ignore:non-integer arguments to randrange"),
]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    value: Any
    name: str = "record"


class Color(enum.Enum):
    RED = 1


class Thing:
    """An object that is equal to nothing but itself."""


X = tf.constant([1.0, 2.0])
THING = Thing()

CONSTANTS = [
    "a",
    b"a",
    2**80,
    1j,
    True,
    None,
    Color.RED,
    pathlib.Path("a"),
    THING,
    Thing,
    len,
    frozenset("ab"),
    {"a": (1, {"b": [None, "c"]})},
    Pair("a", 1),
    Record(1),
    np.array([THING, None]),
    np.array(["2020-01-01"], "datetime64[D]"),
    SimpleNamespace(a=1),
    MappingProxyType({"a": 1}),
]

COMPOSITES = [
    tf.ragged.constant([[1.0], [2.0, 3.0]]),
    tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]]),
    tf.IndexedSlices(ones(1, 2), tf.constant([1]), tf.constant([5, 2])),
]


class TestThroughOps:
    @EITHER_WAY
    @pytest.mark.parametrize("value", CONSTANTS, ids=kind_of)
    def test_constants_come_as_they_are(self, value: Any, eager: bool) -> None:
        seen: list[Any] = []
        op = Doing(lambda data, state: seen.append(data) or data, "a", "b")
        network = TFNetwork(op)
        with network(mode="infer", epoch=1, eager=eager):
            for _ in range(2):
                result = network.run_step({"a": value})
                assert result["a"] is value
                assert type(result["b"]) is type(value)
        assert len(seen) == (2 if eager else 1)
        for one in (*seen, result["b"]):
            if isinstance(value, np.ndarray):
                assert np.array_equal(one, value)
            else:
                assert one == value

    @EITHER_WAY
    @pytest.mark.parametrize(
        "value",
        [
            np.float32(1.5),
            np.array(["a", "b"], object),
            np.zeros((0, 3)),
            np.ma.masked_array([1.0, 2.0], [False, False]),
            np.arange(6).reshape(2, 3).T,
            tf.Variable([1.0, 2.0]),
        ],
        ids=kind_of,
    )
    def test_arrays_and_variables_are_tensors_in_a_graph(self, value: Any, eager: bool) -> None:
        network = TFNetwork(Doing(lambda data, state: tf.identity(data), "a", "b"))
        batch = {"a": value}
        result = infer(network, batch, eager=eager)
        assert result["a"] is batch["a"] is value
        assert tf.is_tensor(result["b"])
        assert np.array_equal(result["b"], tf.convert_to_tensor(value))

    @EITHER_WAY
    def test_variables_are_read_in_each_step(self, eager: bool) -> None:
        value = tf.Variable([1.0])
        network = TFNetwork(LambdaOp(lambda data: 2 * data, "a", "b"))
        with network(mode="infer", epoch=1, eager=eager):
            for number in (1.0, 3.0):
                value.assign([number])
                assert network.run_step({"a": value})["b"].numpy() == [2 * number]

    def test_the_variables_of_keras_are_tensors(self) -> None:
        weight = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]).weights[0]
        network = TFNetwork(LambdaOp(lambda data: data + 1, "a", "b"))
        for eager in (False, True):
            assert np.array_equal(infer(network, {"a": weight}, eager=eager)["b"], weight + 1)

    @EITHER_WAY
    def test_ops_compute_with_what_is_no_tensor(self, eager: bool) -> None:
        def combine(x: Any, options: Any) -> Any:
            y = x * options["scale"] if options["on"] else x
            return {"y": y, "names": [*options["names"], "y"]}

        network = TFNetwork(LambdaOp(combine, ["x", "options"], "out"))
        options = {"scale": 3, "on": True, "names": ["x"]}
        result = infer(network, {"x": X, "options": options}, eager=eager)["out"]
        assert result["y"].numpy().tolist() == [3.0, 6.0]
        assert result["names"] == ["x", "y"]
        result = infer(network, {"x": X, "options": {**options, "on": False}}, eager=eager)["out"]
        assert result["y"].numpy().tolist() == [1.0, 2.0]

    @EITHER_WAY
    def test_what_passes_between_ops_may_be_anything(self, eager: bool) -> None:
        network = TFNetwork(
            [
                Doing(lambda x, state: SimpleNamespace(x=x, of=(one for one in [x])), "x", "thing"),
                Doing(lambda thing, state: thing.x + next(thing.of), "thing", "y"),
                Delete("thing"),
            ]
        )
        for size in (2, 3):
            result = infer(network, {"x": ones(size)}, eager=eager)
            assert result["y"].numpy().tolist() == [2.0] * size
            assert set(result) == {"x", "y"}

    @EITHER_WAY
    @pytest.mark.parametrize("value", COMPOSITES, ids=kind_of)
    def test_composites_keep_their_types(self, value: Any, eager: bool) -> None:
        network = TFNetwork(Doing(lambda data, state: data, "a", "b"))
        for _ in range(2):
            result = infer(network, {"a": {"x": [value]}}, eager=eager)["b"]["x"][0]
            assert type(result) is type(value)
            own, other = (tf.nest.flatten(one, expand_composites=True) for one in (result, value))
            assert all(map(np.array_equal, own, other))

    @EITHER_WAY
    def test_a_composite_that_an_op_makes(self, eager: bool) -> None:
        network = TFNetwork(
            LambdaOp(lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 2]), "x", "y")
        )
        for x in ([1, 2, 3], [4, 5, 6]):
            result = infer(network, {"x": tf.constant(x)}, eager=eager)["y"]
            assert result.to_list() == [x[:1], x[1:]]


class TestBatch:
    @EITHER_WAY
    def test_keys_need_not_be_names(self, eager: bool) -> None:
        keys = ["a b", "a_b", "/", " ", "epoch", "epoch_0", "ключ", "1"]
        network = TFNetwork(LambdaOp(lambda *values: sum(values), keys, "sum"))
        batch = {key: tf.constant(float(place)) for place, key in enumerate(keys)}
        assert infer(network, batch, eager=eager)["sum"].numpy() == 28.0


class TestResults:
    def test_what_an_op_writes_into_its_input_does_not_get_into_the_batch(self) -> None:
        def write(data: Any, state: Any) -> Any:
            data["new"] = data["x"] + 1
            return data

        network = TFNetwork(Doing(write, "data", "out"))
        data = {"x": X}
        for _ in range(2):
            result = infer(network, {"data": data})
            assert result["out"]["new"].numpy().tolist() == [2.0, 3.0]
            assert list(data) == ["x"]

    def test_what_the_program_changes_in_a_batch_is_another_batch(self) -> None:
        op = Counting("data", "out")
        network = TFNetwork(op)
        names = ["a"]
        data = {"names": names, "x": X}
        assert infer(network, {"data": data})["out"]["names"] == ["a"]
        names.append("b")
        result = infer(network, {"data": data})["out"]
        assert result["names"] == ["a", "b"]
        result["names"].append("c")
        assert infer(network, {"data": data})["out"]["names"] == names == ["a", "b"]
        assert op.runs == 2
        assert reasons(network)[1] == "'data' holds something else than before"

    def test_arrays_of_the_batch_are_not_shared(self) -> None:
        array = np.ones(1000, "float32")
        result = infer(TFNetwork(Counting("x", "y")), {"x": array})
        array[:] = 7
        assert np.array_equal(result["y"], np.ones(1000))


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (object, "object"),
            (lambda: {Thing()}, "Thing"),
            (lambda: [1, {"a": Pair(1, Record(Thing()))}], "Thing"),
            (lambda: torch.ones(2), "Tensor"),
            (lambda: np.array([Thing()]), "ndarray"),
        ],
    )
    def test_what_a_graph_cannot_make_anew(self, make: Any, name: str) -> None:
        op = Doing(lambda x, state: make(), "x", "y")
        network = TFNetwork([Counting("x", "z"), op])
        with pytest.raises(
            TypeError, match=rf"Doing \(op 1, .* writes 'y', .* type {name}\."
        ) as caught:
            infer(network, {"x": X})
        assert "eager=True" in str(caught.value)
        assert caught.value.__notes__ == [TRACING]
        assert type(infer(network, {"x": X}, eager=True)["y"]) is type(make())
