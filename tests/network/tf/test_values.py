"""What batches and results may hold, besides tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastnet.guards import Snapshot
from fastnet.network import TFNetwork, TorchNetwork
from fastnet.op.tensorop import Delete, LambdaOp
from tests.network.keras_models import infer, keras, tf
from tests.network.tf_programs import (
    EITHER_WAY,
    FITS,
    Counting,
    Doing,
    first,
    ones,
    reasons,
)

# Keras 2 asks for a random number up to 1e9 once somebody has set its seed.
pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("error", "ignore:non-integer arguments to randrange"),
]


class Pair(NamedTuple):
    left: Any
    right: Any


class Thing:
    """An object that is equal to nothing but itself."""


X = tf.constant([1.0, 2.0])

COMPOSITES = [
    tf.ragged.constant([[1.0], [2.0, 3.0]]),
    tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]]),
    tf.IndexedSlices(ones(1, 2), tf.constant([1]), tf.constant([5, 2])),
]


class TestThroughOps:
    @EITHER_WAY
    def test_arrays_and_variables_are_tensors_in_a_graph(self, eager: bool) -> None:
        """The batch has them as they were given."""
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        batch = {
            "number": np.float32(1.5),
            "texts": np.array(["a", "b"], object),
            "empty": np.zeros((0, 3)),
            "masked": np.ma.masked_array([1.0, 2.0], [False, False]),
            "transposed": np.arange(6).reshape(2, 3).T,
            "variable": tf.Variable([1.0, 2.0]),
            "weight": model.weights[0],
        }
        outputs = [f"{key} out" for key in batch]
        op = Doing(lambda data, state: list(map(tf.identity, data)), [*batch], outputs)
        result = infer(TFNetwork(op), batch, eager=eager)
        for key, value in batch.items():
            assert result[key] is value
            assert tf.is_tensor(result[f"{key} out"])
            assert np.array_equal(result[f"{key} out"], tf.convert_to_tensor(value))

    @EITHER_WAY
    def test_variables_are_read_in_each_step(self, eager: bool) -> None:
        value = tf.Variable([1.0])
        network = TFNetwork(LambdaOp(lambda data: 2 * data, "a", "b"))
        with network(mode="infer", epoch=1, eager=eager):
            for number in (1.0, 3.0):
                value.assign([number])
                assert network.run_step({"a": value})["b"].numpy() == [2 * number]

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
    def test_composites_keep_their_types(self, eager: bool) -> None:
        ops = [
            Doing(lambda data, state: data, "a", "b"),
            LambdaOp(lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 2]), "x", "made"),
        ]
        network = TFNetwork(ops)
        for x in ([1, 2, 3], [4, 5, 6]):
            result = infer(network, {"a": {"x": COMPOSITES}, "x": tf.constant(x)}, eager=eager)
            assert result["made"].to_list() == [x[:1], x[1:]]
            for found, value in zip(result["b"]["x"], COMPOSITES, strict=True):
                assert type(found) is type(value)
                parts = (tf.nest.flatten(one, expand_composites=True) for one in (found, value))
                assert all(map(np.array_equal, *parts))


class TestOfTorch:
    """Tensors of torch in TensorFlow networks, and the other way round."""

    def test_fit_what_was_traced_for_tensors(self) -> None:
        network = TFNetwork(Doing(lambda x, state: 2 * x, "x", "y"))
        for size in (3, 3, 2, 1):
            for make in (ones, torch.ones, lambda n: np.ones(n, "float32")):
                result = infer(network, {"x": make(size)})
                assert result["y"].numpy().tolist() == [2.0] * size
        assert reasons(network) == [first(), f"'x' has the shape (2), where (3) was traced{FITS}"]

    def test_changes_take_effect_at_the_next_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As for tensors of TensorFlow: what was traced is compared once in a session."""
        compared: list[Any] = []
        first_change = Snapshot.first_change

        def count(self: Snapshot) -> str | None:
            compared.append(self)
            return first_change(self)

        op = Doing(lambda x, state: op.factor * x, "x", "y")
        op.factor = 2.0
        network = TFNetwork(op)
        infer(network, {"x": torch.ones(2)})
        monkeypatch.setattr(Snapshot, "first_change", count)
        with network("infer", 1):
            for factor in (2.0, 3.0, 4.0):
                op.factor = factor
                result = network.run_step({"x": torch.ones(2)})
                assert result["y"].numpy().tolist() == [2.0, 2.0]
        assert len(compared) == 1
        assert infer(network, {"x": torch.ones(2)})["y"].numpy().tolist() == [4.0, 4.0]

    def test_take_gradients_or_are_conjugated_and_are_copied(self) -> None:
        network = TFNetwork(Counting("x", "y"))
        leaf = torch.ones(2, requires_grad=True)
        assert infer(network, {"x": 2 * leaf})["y"].numpy().tolist() == [2.0, 2.0]
        value = torch.tensor([1 + 2j]).conj()
        assert infer(network, {"x": value})["y"].numpy().tolist() == [1 - 2j]
        value = torch.ones(2)
        result = infer(network, {"x": value})
        value.zero_()
        assert result["x"].numpy().tolist() == result["y"].numpy().tolist() == [1.0, 1.0]

    @EITHER_WAY
    def test_beside_arrays_which_come_back_as_they_were_given(self, eager: bool) -> None:
        batch = {"x": {"a": [np.ones(2), torch.ones(2)]}}
        result = infer(TFNetwork(Counting("x", "y")), batch, eager=eager)
        array, tensor = result["x"]["a"]
        assert array is batch["x"]["a"][0]
        assert tf.is_tensor(tensor)

    def test_ragged_ones_and_texts_of_tensorflow_stay_as_they_are(self) -> None:
        with TorchNetwork(Counting("x", "y"))("infer", 1) as network:
            for value in (tf.ragged.constant([[1], [2, 3]]), tf.constant(["a"])):
                assert network.run_step({"x": value})["y"] is value


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
        assert reasons(network)[1] == "'data' has other contents than before"

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
            (lambda: [1, {"a": Pair(1, Thing())}], "Thing"),
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
        (note,) = caught.value.__notes__
        assert "eager=True" in note
        assert type(infer(network, {"x": X}, eager=True)["y"]) is type(make())
