"""What a step takes and gives back on several devices, and its errors."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.slicer import AxisSlicer
from tests.missing_keys import missing
from tests.network.tf.replicas.devices import (
    DEVICES,
    EITHER_WAY,
    STRATEGY,
    assert_same_weights,
    halves,
    parts,
    plain,
    under,
)
from tests.network.tf.replicas.programs import (
    STEPS,
    by_hand,
    mlp,
    numbers,
    regression,
    same_model,
    sgd,
    square_error,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]


def test_devices_can_be_set_up_after_the_import() -> None:
    assert len(tf.config.list_logical_devices("CPU")) == 3


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    content: Any
    label: str


class Place(TensorOp):
    """Notes which device each of its runs is on, and what it finds in the state."""

    def __init__(self) -> None:
        super().__init__("x", "place")
        self.seen: list[dict[str, Any]] = []

    def forward(self, data: Any, state: Any) -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        self.seen.append({"state": state, **state})
        state["deferred"]["note"] = [lambda: None]
        return tf.fill(tf.shape(data)[:1], context.replica_id_in_sync_group)


class Gradients(TensorOp):
    """Takes gradients, so that there is a tape."""

    def forward(self, data: Any, state: Any) -> Any:
        return data

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        return False


class TestOpenedElsewhere:
    @pytest.mark.parametrize("replicas_first", [False, True])
    def test_steps_in_replicas_and_without(self, replicas_first: bool) -> None:
        """What a step finds out on one device is not taken for granted on several."""
        with STRATEGY.scope():
            model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        x, y = numbers(4, seed=0)
        batch = {"x": tf.constant(x), "y": tf.constant(y, tf.float32)}
        network = TFNetwork(regression(model))
        with network(mode="train", epoch=1, eager=True):
            steps = [
                lambda: network.run_step(batch),
                lambda: STRATEGY.run(lambda: network.run_step(batch)),
            ]
            for step in reversed(steps) if replicas_first else steps:
                step()
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)] * 2)
        assert_same_weights(model, twin)


class TestSteps:
    @EITHER_WAY
    def test_what_is_joined_and_how(self, two: None, eager: bool) -> None:
        floats = LambdaOp(lambda x: tf.reduce_mean(x), "x", "mean")
        ints = LambdaOp(lambda x: tf.shape(x)[0], "x", "size")
        flags = LambdaOp(lambda x: tf.reduce_any(x > 6.0), "x", "any")
        words = LambdaOp(lambda x: tf.constant("word"), "x", "word")
        half = LambdaOp(lambda x: tf.reduce_sum(tf.cast(x, tf.float16)), "x", "half")
        rows = LambdaOp(lambda x: x * 2, "x", "double")
        constant = LambdaOp(lambda x: "text", "x", "text")
        array = LambdaOp(lambda x: np.array([1, 2]), "x", "array")
        network = TFNetwork([floats, ints, flags, words, half, rows, constant, array])
        x = np.arange(8.0, dtype="float32")
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x, 5)}))
        assert result.keys() == {
            "x", "mean", "size", "any", "word", "half", "double", "text", "array",
        }  # fmt: skip
        np.testing.assert_array_equal(result["x"], x)
        assert result["mean"] == (2.0 + 6.0) / 2
        assert (result["size"], result["size"].dtype) == (4.0, np.float64)
        assert (result["any"], result["any"].dtype) == (0.5, np.float64)
        assert result["word"] == b"word"
        assert (result["half"], result["half"].dtype) == ((10 + 18) / 2, np.float16)
        np.testing.assert_array_equal(result["double"], 2 * x)
        assert result["text"] == "text"
        np.testing.assert_array_equal(result["array"], [1, 2, 1, 2])

    @EITHER_WAY
    def test_scalars_that_are_no_numbers_do_not_count(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: tf.reduce_mean(x), "x", "mean")])
        x = np.array([1.0, 3.0, 5.0], "float32")
        with network(mode="infer", epoch=1, eager=eager):
            assert network.run_step({"x": halves(x, 3)})["mean"] == 3.0
            assert network.run_step({"x": halves(x, 0)})["mean"] == 3.0
            assert np.isnan(network.run_step({"x": halves(x[:0])})["mean"])
            result = network.run_step({"x": halves(np.array([np.inf, 1.0], "float32"))})
        assert result["mean"] == np.inf
        assert result["mean"].dtype == tf.float32

    @EITHER_WAY
    def test_plain_values_are_everybodys(self, two: None, eager: bool) -> None:
        ops = [LambdaOp(lambda x, y: x + y, ["x", "y"], "z"), LambdaOp(lambda w: w, "w", "w2")]
        network = TFNetwork(ops)
        batch = {"x": tf.constant([1, 2]), "y": np.array([10, 20], "int32"), "w": "word", "v": None}
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        assert result.keys() == {*batch, "z", "w2"}
        np.testing.assert_array_equal(result["z"], [11, 22, 11, 22])
        assert all(result[key] is value for key, value in batch.items())
        assert result["w2"] == "word"

    def test_batches_of_a_distributed_dataset(self, two: None) -> None:
        ops = [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops)
        x = np.arange(27, dtype="float32").reshape(9, 3)
        dataset = tf.data.Dataset.from_tensor_slices({"x": x, "n": np.arange(9)}).batch(4)
        batches = list(STRATEGY.experimental_distribute_dataset(dataset))
        with network(mode="infer", epoch=1):
            results = [plain(network.run_step(batch)) for batch in batches]
        assert [len(result["y"]) for result in results] == [4, 4, 1]
        np.testing.assert_array_equal(np.concatenate([result["x"] for result in results]), x)
        np.testing.assert_array_equal(np.concatenate([result["y"] for result in results]), x + 1)
        np.testing.assert_array_equal(np.concatenate([result["n"] for result in results]), range(9))
        # the last batch is the first device's
        means = [x[:4].mean(), x[4:8].mean(), x[8].mean()]
        np.testing.assert_allclose([result["mean"] for result in results], means, rtol=1e-6)
        assert len(network.traces) == 2  # one for the first size, and one for all others

    @EITHER_WAY
    def test_keys_that_no_op_reads_come_through(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
        same = tf.types.experimental.distributed.Mirrored
        mirrored = STRATEGY.run(lambda: tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.constant([1.0, 2.0])
        ))  # fmt: skip
        batch = {
            "x": halves(np.arange(3)),
            "rows": halves(np.arange(3)),
            "scalar": parts(1.0, 4.0),
            "nest": {"a": [halves(np.arange(4)), "b"], "c": Box(parts([1], [2]), "label")},
            "same": mirrored if isinstance(mirrored, same) else parts([2.0], [4.0]),
            "word": "word",
        }
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        np.testing.assert_array_equal(result["rows"], np.arange(3))
        assert result["scalar"].numpy() == 2.5
        np.testing.assert_array_equal(result["nest"]["a"][0], np.arange(4))
        assert result["nest"]["a"][1] == "b"
        assert type(result["nest"]["c"]) is Box
        np.testing.assert_array_equal(result["nest"]["c"].content, [1, 2])
        np.testing.assert_array_equal(result["same"], [2.0, 4.0])
        assert result["word"] == "word"
        assert isinstance(batch["rows"], tf.distribute.DistributedValues)

    @EITHER_WAY
    def test_nested_values(self, two: None, eager: bool) -> None:
        def look(nest: Any) -> Any:
            assert type(nest) is dict
            assert type(nest["pair"]) is Pair
            assert type(nest["box"]) is Box
            left, right = nest["pair"]
            total = left + right[0] + nest["box"].content
            return [Pair(total, {"twice": 2 * total}), Box(tf.reduce_sum(total), right[1]), None]

        network = TFNetwork([LambdaOp(look, "nest", ["pair", "box", "none"])])
        x = np.arange(3.0)
        nest = {"pair": Pair(halves(x), [halves(10 * x), "b"]), "box": Box(halves(100 * x), "c")}
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step({"nest": nest})
        assert type(result["pair"]) is Pair
        np.testing.assert_array_equal(result["pair"].left, 111 * x)
        np.testing.assert_array_equal(result["pair"].right["twice"], 222 * x)
        assert type(result["box"]) is Box
        assert (result["box"].content.numpy(), result["box"].label) == ((111 + 222) / 2, "b")
        assert result["none"] is None
        np.testing.assert_array_equal(result["nest"]["pair"].right[0], 10 * x)
        assert isinstance(nest["pair"].left, tf.distribute.DistributedValues)

    @EITHER_WAY
    def test_ragged_and_sparse_values(self, two: None, eager: bool) -> None:
        def look(ragged: Any, sparse: Any) -> Any:
            return ragged * 2, tf.sparse.map_values(tf.negative, sparse), ragged.row_lengths()

        network = TFNetwork([LambdaOp(look, ["ragged", "sparse"], ["double", "minus", "lengths"])])
        rows = [[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0]]
        ragged = [tf.ragged.constant(rows[:3]), tf.ragged.constant(rows[3:])]
        table = np.array([[0, 7, 0], [8, 0, 0], [0, 0, 9], [0, 1, 0]])
        sparse = [tf.sparse.from_dense(table[:3]), tf.sparse.from_dense(table[3:])]
        batch = {
            key: STRATEGY.experimental_distribute_values_from_function(
                lambda context, each=each: each[context.replica_id_in_sync_group]
            )
            for key, each in (("ragged", ragged), ("sparse", sparse))
        }
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        assert result["double"].to_list() == [[2 * value for value in row] for row in rows]
        assert result["ragged"].to_list() == rows
        np.testing.assert_array_equal(tf.sparse.to_dense(result["minus"]), -table)
        np.testing.assert_array_equal(tf.sparse.to_dense(result["sparse"]), table)
        np.testing.assert_array_equal(result["lengths"], [2, 0, 1, 3])

    @EITHER_WAY
    def test_a_network_inside_a_step(self, two: None, eager: bool) -> None:
        class Inner(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                with inner(mode="infer", epoch=1, eager=eager):
                    return inner.run_step({"a": data})["b"]

        inner = TFNetwork([LambdaOp(lambda a: a - tf.reduce_sum(a), "a", "b")])
        network = TFNetwork([Inner("x", "y")])
        x = np.array([1, 2, 3, 4])
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step({"x": halves(x)})
        np.testing.assert_array_equal(result["y"], [-2, -1, -4, -3])

    @EITHER_WAY
    def test_each_device_has_a_state_of_its_own(self, two: None, eager: bool) -> None:
        place = Place()
        network = TFNetwork([place, Gradients("x", "y")])
        with network(mode="train", epoch=3, eager=eager):
            result = network.run_step({"x": halves(np.arange(5))})
        np.testing.assert_array_equal(result["place"], [0, 0, 0, 1, 1])
        first, second = place.seen
        for one in ("state", "deferred", "tape"):
            assert first[one] is not None
            assert first[one] is not second[one]
        assert first["deferred"] == second["deferred"] == {}
        assert (first["mode"], first["warmup"], first["eager"]) == ("train", False, eager)

    def test_conditions_over_tensors_become_those_of_a_graph(self, two: None) -> None:
        def sign(x: Any) -> Any:
            if tf.reduce_sum(x) > 0:
                y = tf.ones_like(x)
            else:
                y = -tf.ones_like(x)
            return y

        network = TFNetwork([LambdaOp(sign, "x", "y")])
        with network(mode="infer", epoch=1):
            for x in ([3, 1, -5], [-3, -1, 5, 6], [3, 1, -5, -6], [-3, -1, 5]):
                x = np.array(x)
                y = network.run_step({"x": halves(x)})["y"]
                middle = (len(x) + 1) // 2
                signs = [
                    np.full(len(part), np.sign(part.sum())) for part in (x[:middle], x[middle:])
                ]
                np.testing.assert_array_equal(y, np.concatenate(signs))
        assert len(network.traces) == 2  # one for the first size, and one for all others

    @EITHER_WAY
    def test_wanted_keys_and_deleted_ones(self, two: None, eager: bool) -> None:
        ops = [
            LambdaOp(lambda x: x + 1, "x", "y"),
            LambdaOp(lambda y: y + 1, "y", "z"),
            Delete("y"),
            LambdaOp(lambda x: x * 0, "x", "x"),
        ]
        network = TFNetwork(ops)
        x = np.arange(3)
        with network(mode="infer", epoch=1, eager=eager, desired_output_keys=["z"]):
            result = plain(network.run_step({"x": halves(x)}))
        assert result.keys() == {"x", "z"}
        np.testing.assert_array_equal(result["z"], x + 2)
        np.testing.assert_array_equal(result["x"], x)
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x)}))
        assert result.keys() == {"x", "z"}
        np.testing.assert_array_equal(result["x"], 0 * x)

    def test_two_traces_for_all_sizes_and_openings(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        for epoch in (1, 2):
            with network(mode="infer", epoch=epoch):
                for size in (8, 8, 5, 3, 8, 1, 2, 0):
                    x = np.arange(size)
                    np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
        assert [trace.reason for trace in network.traces] == [
            "first step in mode 'infer'",
            "'x' holds tensors of other shapes than before; from now on any length of axis 0 fits",
        ]
        with network(mode="infer", epoch=3):
            x = np.arange(4, dtype="float32")
            np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
            np.testing.assert_array_equal(
                network.run_step({"x": tf.constant(x)})["y"], [*(x + 1), *(x + 1)]
            )
        assert len(network.traces) == 4

    def test_with_and_without_a_strategy_are_two_traces(self) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        x = np.arange(4)
        for _ in range(2):
            with network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": x})["y"], x + 1)
            with under(STRATEGY), network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
            with STRATEGY.scope(), network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
        assert len(network.traces) == 2

    @pytest.mark.parametrize(
        "make",
        [
            lambda: tf.distribute.MirroredStrategy(DEVICES[1:]),
            lambda: tf.distribute.OneDeviceStrategy(DEVICES[1]),
        ],
        ids=["mirrored", "one device"],
    )
    @EITHER_WAY
    def test_a_strategy_of_one_device(self, make: Any, eager: bool) -> None:
        with under(make()):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            x, y = STEPS[0]
            with network(mode="train", epoch=1, eager=eager):
                result = network.run_step({"x": x, "y": y, "z": 1})
            assert result["y_pred"].shape == (8, 2)
            assert network.transform({"x": x[:1], "y": y[:1]}, mode="eval")["loss"].shape == ()
            slicers = [AxisSlicer(1, slice="y", unslice="z")]
            sliced = TFNetwork([LambdaOp(lambda y: -y, "y", "z")], slicers=slicers)
            with sliced(mode="eval", epoch=1, eager=eager):
                np.testing.assert_array_equal(sliced.run_step({"y": tf.constant(y)})["z"], -y)
            np.testing.assert_array_equal(sliced.transform({"y": y}, mode="eval")["z"], -y)
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_nothing_is_logged_for_it(self, two: None, eager: bool) -> None:
        seen: list[logging.LogRecord] = []
        handler = logging.Handler(logging.DEBUG)
        handler.emit = seen.append  # type: ignore[method-assign]
        logger = tf.get_logger()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)  # as where TensorFlow is used interactively
        try:
            model = fastnet.build(mlp, sgd)
            network = TFNetwork([LambdaOp(tell, "x", "x"), *regression(model)])
            x, y = STEPS[0]
            with network(mode="train", epoch=1, eager=eager):
                network.run_step({"x": halves(x), "y": halves(y)})
            network.transform({"x": x, "y": y}, mode="eval")
            assert logger.level == logging.INFO
        finally:
            logger.setLevel(logging.NOTSET)
            logger.removeHandler(handler)
        assert {record.getMessage() for record in seen} == {"what an op tells"}


@tf.autograph.experimental.do_not_convert
def tell(x: Any) -> Any:
    tf.get_logger().warning("what an op tells")
    return x


class TestErrors:
    @EITHER_WAY
    def test_on_one_device_only(self, two: None, eager: bool) -> None:
        def fail(x: Any) -> Any:
            if fails and tf.distribute.get_replica_context().replica_id_in_sync_group == 1:
                raise OSError("no such thing")
            return x

        fails = True
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y"), LambdaOp(fail, "y", "z")])
        with network(mode="infer", epoch=1, eager=eager):
            with pytest.raises(OSError, match="no") as caught:
                network.run_step({"x": halves(np.arange(4))})
            assert str(caught.value) == "no such thing"
            notes = [note for note in caught.value.__notes__ if note.startswith("Raised by")]
            assert notes == ["Raised by LambdaOp (op 1, inputs ['y'], outputs ['z'])."]
            fails = False
            result = network.run_step({"x": halves(np.arange(4))})
            np.testing.assert_array_equal(result["z"], np.arange(4))

    def test_while_a_graph_runs(self, two: None) -> None:
        def check(x: Any) -> Any:
            tf.debugging.assert_positive(x, "not positive")
            return x

        network = TFNetwork([LambdaOp(lambda x: x, "x", "y"), LambdaOp(check, "y", "z")])
        with network(mode="infer", epoch=1):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                network.run_step({"x": halves(np.arange(4) - 2)})
            note = "Raised by LambdaOp (op 1, inputs ['y'], outputs ['z'])."
            assert caught.value.__notes__[0] == note
            assert network.run_step({"x": halves(np.arange(4) + 1)})["z"].shape == (4,)

    @EITHER_WAY
    def test_where_the_devices_meet(self, two: None, eager: bool) -> None:
        class Meet(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                def fail(strategy: Any, value: Any) -> Any:
                    raise OSError("no agreement")

                tf.distribute.get_replica_context().merge_call(fail, args=(data,))

        network = TFNetwork([Meet("x", "y")])
        with network(mode="infer", epoch=1, eager=eager):
            for _ in range(2):
                with pytest.raises(OSError, match="no") as caught:
                    network.run_step({"x": halves(np.arange(4))})
                assert str(caught.value) == "no agreement"
                notes = [note for note in caught.value.__notes__ if note.startswith("Raised by")]
                assert notes == ["Raised by Meet (op 0, inputs ['x'], outputs ['y'])."]

    @EITHER_WAY
    def test_results_that_differ_in_form(self, two: None, eager: bool) -> None:
        class Several(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return [data] * (1 + next(runs) % 2)

        runs = itertools.count()

        network = TFNetwork([Several("x", "y")])
        with (
            network(mode="infer", epoch=1, eager=eager),
            pytest.raises(ValueError, match="The") as caught,
        ):
            network.run_step({"x": halves(np.arange(4))})
        assert str(caught.value) == (
            "The value of 'y' holds different numbers of values on the devices, [1, 2], so that "
            "they cannot be put together. What ops return must not depend on which part of a "
            "batch they see."
        )

    @EITHER_WAY
    def test_a_key_that_is_not_there(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
        with network(mode="infer", epoch=1, eager=eager):
            with pytest.raises(KeyError) as caught:
                network.run_step({"w": halves(np.arange(4))})
            assert str(caught.value) == (
                missing("LambdaOp (op 0, inputs ['x'], outputs ['y'])", "x", ["w"])
            )
            assert network.run_step({"x": halves(np.arange(4))})["y"].shape == (4,)
