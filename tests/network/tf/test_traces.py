"""When ops are traced, and what `network.traces` says of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.backend import load_model, save_model
from fastnet.network import TFNetwork
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.keras_models import (
    KERAS_3,
    assert_close,
    batches,
    infer,
    keras,
    line,
    loop,
    mlp,
    regression,
    supervised,
    tf,
    to_zero,
    train,
    twins,
)
from tests.network.tf_programs import CONSTANT, FITS, Counting, Doing, first, ones, reasons

pytestmark = pytest.mark.tf


def sgd(lr: float = 0.1) -> Any:
    return keras.optimizers.SGD(lr)


def built(make: Any = line, optimizer: Any = sgd, **kwargs: Any) -> Any:
    return fastnet.build(make, optimizer, **{"model_name": "model", **kwargs})


def double() -> tuple[Counting, TFNetwork]:
    op = Counting("x", "y")
    return op, TFNetwork(op)


class TestTwoTraces:
    def test_of_each_mode_for_batches_of_varying_sizes(self) -> None:
        model = built(mlp, "sgd")
        network = TFNetwork(supervised(model))
        data = [batches(1, size)[0] for size in (8, 5, 3, 8)]
        for epoch in (1, 2):
            for mode in ("train", "eval"):
                train(network, data, mode=mode, epoch=epoch)
        second = f"'t' has the shape (5), where (8) was traced{FITS}"
        assert reasons(network) == [first("train"), second, first("eval"), second]
        assert [(trace.mode, trace.epoch) for trace in network.traces] == [
            ("train", 1),
            ("train", 1),
            ("eval", 1),
            ("eval", 1),
        ]
        assert all(trace.seconds > 0 for trace in network.traces)

    def test_of_ops_that_make_variables_python_runs_twice_for_one(self) -> None:
        class Summing(Counting):
            total: Any = None

            def forward(self, data: Any, state: Any) -> Any:
                self.runs += 1
                if self.total is None:
                    self.total = tf.Variable(0.0)
                return self.total.assign_add(tf.reduce_sum(data))

        op = Summing("x", "y")
        network = TFNetwork(op)
        assert [float(infer(network, {"x": ones(3)})["y"]) for _ in range(3)] == [3, 6, 9]
        assert op.runs == 2
        assert reasons(network) == [first()]

    def test_ids_of_datasets_that_run_the_same_ops_share_them(self) -> None:
        op = Counting("x", "y", ds_id=["a", "b"])
        other = Counting("x", "z", ds_id="c")
        network = TFNetwork([op, other])
        for ds_id in ("a", "b", "a", "c", "b"):
            with network(mode="eval", epoch=1, ds_id=ds_id):
                network.run_step({"x": ones(2)})
        assert (op.runs, other.runs) == (1, 1)
        assert reasons(network) == [first("eval")] * 2


def test_ops_that_a_scheduler_gives_are_traced_once_each() -> None:
    ops = Counting("x", "y"), Counting("x", "y")
    scheduler = EpochScheduler({1: ops[0], 3: ops[1], 5: ops[0]})
    network = TFNetwork([scheduler, Counting("y", "z")])
    for epoch in range(1, 6):
        for mode in ("train", "eval"):
            train(network, [{"x": ones(2)}], mode=mode, epoch=epoch)
    other = "other ops are active from epoch 3 on"
    assert reasons(network) == [first("train"), first("eval"), other, other]
    assert [trace.epoch for trace in network.traces] == [1, 1, 3, 3]
    assert [op.runs for op in ops] == [2, 2]


def test_weights_and_rates_that_are_written_trace_nothing(tmp_path: Path) -> None:
    model, twin = twins(line)
    built(lambda: model)
    network = TFNetwork(regression(model))
    data = [{"x": ones(3, 2)}]
    path = save_model(model, str(tmp_path), "start")
    for rate in (0.1, 0.5):
        load_model(model, path)
        model.current_optimizer.learning_rate = rate
        infer(network, data[0], "eval")
        train(network, data)
    loop(twin, sgd(0.5), data, to_zero)
    assert_close(model, twin)
    assert reasons(network) == [first("eval"), first("train")]


class TestOptimizers:
    def test_ones_that_go_round_are_traced_once_each(self) -> None:
        model, twin = twins(line)
        built(lambda: model, RepeatScheduler([lambda: sgd(0.1), lambda: sgd(0.01)]))
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        for epoch in range(1, 9):
            train(network, data, epoch=epoch)
            infer(network, data[0], "eval")
            loop(twin, sgd(0.1 if epoch % 2 else 0.01), data, to_zero)
        assert_close(model, twin)
        assert reasons(network) == [
            first("train"),
            first("eval"),
            "the optimizer of model 'model' has changed",
        ]

    @pytest.mark.parametrize("attribute", ["current_optimizer", "optimizer"])
    def test_one_that_is_assigned(self, attribute: str) -> None:
        model, twin = twins(line)
        built(lambda: model, lambda: sgd(0.1), model_name="net")
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        train(network, data)
        before = model.optimizer
        if attribute == "current_optimizer":
            model.optimizer = None
        setattr(model, attribute, sgd(0.5))
        train(network, data)
        model.optimizer = before
        train(network, data)
        for lr in (0.1, 0.5, 0.1):
            loop(twin, sgd(lr), data, to_zero)
        assert_close(model, twin)
        assert reasons(network) == [first("train"), "the optimizer of model 'net' has changed"]

    def test_matter_only_where_models_are_trained(self) -> None:
        model = built()
        network = TFNetwork(regression(model))
        for _ in range(2):
            infer(network, {"x": ones(2, 2)}, "eval")
            model.optimizer = sgd(0.5)
        assert reasons(network) == [first("eval")]


class TestValues:
    @pytest.mark.parametrize(
        ("before", "after", "reason"),
        [
            (ones(2), ones(2, dtype="float64"), "'x' is of type float64, not float32 as before"),
            (ones(2), ones(3), f"'x' has the shape (3), where (2) was traced{FITS}"),
            (ones(2, 3), ones(2, 4), "'x' has the shape (2, 4), where (2, 3) was traced"),
            (1, True, "'x' is a value of type bool, not a value of type int as before"),
            (0.0, -0.0, f"'x' is -0.0, not 0.0 as before{CONSTANT}"),
            ("a", 100 * "b", f"'x' is '{76 * 'b'}..., not 'a' as before{CONSTANT}"),
            ([ones(2)], [ones(2), ones(2)], "'x' has other contents than before"),
            (
                {"a": 1, "b": 2},
                {"b": 2, "a": 1},
                "'x' has its keys in the order ['b', 'a'], not ['a', 'b'] as before",
            ),
            (
                tf.ragged.constant([[1], [2, 3]]),
                tf.sparse.from_dense([[1], [2]]),
                "'x' is a SparseTensor, not a RaggedTensor as before",
            ),
        ],
    )
    def test_that_do_not_fit(self, before: Any, after: Any, reason: str) -> None:
        op, network = double()
        for value in (before, after, before, after):
            infer(network, {"x": value})
        assert op.runs == 2
        assert reasons(network) == [first(), reason]

    def test_that_fit(self) -> None:
        values: list[tuple[Any, Any]] = [
            (ones(2), tf.zeros(2)),
            (np.ones(2, "float32"), tf.Variable(ones(2))),
            ({"a": [ones(2)], "b": 1}, {"a": [ones(2)], "b": 1}),
            (tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[1, 2, 3]])),
            (tf.sparse.from_dense([[1, 0], [0, 2]]), tf.sparse.from_dense([[1, 1]])),
            (
                tf.IndexedSlices(ones(3, 2), tf.range(3), tf.constant([9, 2])),
                tf.IndexedSlices(ones(1, 2), tf.range(1), tf.constant([7, 2])),
            ),
            (float("nan"), float("nan")),
            (frozenset("ab"), frozenset("ba")),
        ]
        keys = [str(place) for place in range(len(values))]
        op = Counting(keys, [f"{key} out" for key in keys])
        network = TFNetwork(op)
        for batch in [*zip(*values, strict=True)] * 2:
            infer(network, dict(zip(keys, batch, strict=True)))
        assert op.runs == 1

    @pytest.mark.parametrize(
        ("dynamic", "traces"), [({"x": (0, 1)}, 1), ({"x": (1,)}, 1), (True, 3), (None, 3)]
    )
    def test_of_sparse_tensors_follow_dynamic(self, dynamic: Any, traces: int) -> None:
        op = Doing(lambda x, state: tf.sparse.to_dense(x), "x", "y")
        network = TFNetwork(op, dynamic=dynamic)
        for _ in range(2):
            for rows, columns in ((2, 3), (4, 3), (2, 5), (1, 1)):
                values = np.arange(rows * columns, dtype="float32").reshape(rows, columns)
                found = infer(network, {"x": tf.sparse.from_dense(values)})["y"]
                np.testing.assert_array_equal(found, values)
        assert len(network.traces) == traces

    def test_of_sparse_tensors_of_unknown_size_are_no_others(self) -> None:
        network = TFNetwork(Doing(lambda x, state: tf.sparse.reduce_sum(x, 1), "x", "y"))
        with network("infer", 1):
            network.run_step({"x": tf.sparse.from_dense(ones(2, 3))})
            spec = tf.SparseTensorSpec((None, None), tf.float32)
            step = tf.function(lambda x: network.run_step({"x": x})["y"], input_signature=[spec])
            assert step(tf.sparse.from_dense(ones(2, 5))).numpy().tolist() == [5, 5]
            assert network.run_step({"x": tf.sparse.from_dense(ones(2, 3))})["y"].shape == (2,)
        assert len(network.traces) == 2

    def test_of_other_sizes_share_a_second_trace(self) -> None:
        op, network = double()
        for _ in range(2):
            for value in (ones(2), ones(3), ones(0), np.ones(5, "float32"), tf.Variable(ones(3))):
                infer(network, {"x": {"a": [value], "b": 1}})
        assert op.runs == 2


class TestBranchesOfPython:
    """What an op does for a shape does not depend on the shapes that came before."""

    @staticmethod
    def by_width(x: Any, state: Any) -> Any:
        return x * (100.0 if x.shape[-1] == 5 else 1.0)

    def test_on_an_axis_of_samples(self) -> None:
        network = TFNetwork(Doing(self.by_width, "x", "y"))
        for size in (3, 2, 3, 4):
            for width in (5, 4, 6, 5):
                batch = {"x": ones(size, width)}
                expected = infer(network, batch, eager=True)["y"]
                assert np.array_equal(infer(network, batch)["y"], expected)

    def test_a_size_that_was_traced_is_known_for_good(self) -> None:
        network = TFNetwork(Doing(lambda x, state: x * float(x.shape[0] or -1), "x", "y"))
        seen = [float(infer(network, {"x": ones(size)})["y"][0]) for size in (4, 4, 3, 4, 2, 4)]
        assert seen == [4, 4, -1, 4, -1, 4]


class TestDynamicAxes:
    """The axes that one trace may serve any length of are the program's choice."""

    @staticmethod
    def runs(dynamic: Any, shapes: list[tuple[int, ...]]) -> int:
        op = Counting("x", "y")
        network = TFNetwork(op, dynamic=dynamic)
        for shape in shapes:
            assert infer(network, {"x": ones(*shape)})["y"].shape == shape
        return op.runs

    def test_false_traces_each_size(self) -> None:
        assert self.runs(False, [(2, 3), (5, 3), (6, 3), (2, 3), (5, 3)]) == 3

    def test_true_traces_once_for_every_size(self) -> None:
        assert self.runs(True, [(2, 3), (5, 3), (6, 3), (1, 3)]) == 1

    @pytest.mark.parametrize("dynamic", [None, {"other": 1}])
    def test_none_opens_the_batch_size_with_the_second(self, dynamic: Any) -> None:
        assert self.runs(dynamic, [(2, 3), (5, 3), (6, 3), (2, 4), (5, 4), (9, 4)]) == 4

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such layer")
    @pytest.mark.parametrize("dynamic", [None, True])
    def test_layer_that_is_wrong_for_any_batch_size(self, dynamic: Any) -> None:
        """In a trace for any size RandomElasticTransform replaces all images by the first one."""

        def make() -> Any:
            elastic = keras.layers.RandomElasticTransform((1.0, 1.0), scale=0.5, seed=1)
            return keras.Sequential([keras.layers.Input((6, 6, 1)), elastic])

        twin, network = make(), TFNetwork(ModelOp(built(make, None), "x", "y"), dynamic=dynamic)
        for size in (3, 2, 3):
            x = tf.random.stateless_uniform((size, 6, 6, 1), (0, size)) * 255
            y = infer(network, {"x": x}, "train")["y"]
            np.testing.assert_allclose(y, twin(x, training=True), rtol=1e-4, atol=1e-3)
        assert len(network.traces) == 2

    @pytest.mark.parametrize("dynamic", [{"x": 1}, {"x": (-1, 7)}])
    def test_axis_of_a_key_is_open_at_once(self, dynamic: Any) -> None:
        assert self.runs(dynamic, [(2, 3), (2, 4), (2, 5), (3, 5), (3, 6), (3, 7)]) == 2
        both = {"x": (0, 1)}
        assert self.runs(both, [(2, 3), (2, 4), (3, 5), (1, 1)]) == 1

    @pytest.mark.parametrize(
        "wrong", [1.5, 0, (0, 1), {"x": None}, {"x": [0, "a"]}, {"x": (True,)}]
    )
    def test_other_values_are_refused(self, wrong: Any) -> None:
        with pytest.raises(TypeError) as caught:
            TFNetwork([], dynamic=wrong)
        held = wrong["x"] if isinstance(wrong, dict) else wrong
        assert f"dynamic is, or holds, {held!r}" in str(caught.value)


class TestBakedIn:
    """What a graph has of a batch for good is compared with what the batch holds now."""

    def test_an_attribute_that_is_written_to(self) -> None:
        class Held:
            scale = 1.0

        held = Held()
        network = TFNetwork(Doing(lambda x, state: tf.ones(2) * x.scale, "x", "y"))
        for scale in (1.0, 3.0, 1.0, float("nan")):
            held.scale = scale
            y = infer(network, {"x": held})["y"]
            np.testing.assert_array_equal(y, [scale] * 2)
        assert len(network.traces) == 3
        assert reasons(network)[1] == f"'x' has other attributes than before{CONSTANT}"


class TestExactShapes:
    """Some code must know how large a batch is."""

    def test_of_a_batch(self) -> None:
        op = Doing(lambda x, state: x * tf.range(x.shape[0], dtype="float32"), "x", "y")
        network = TFNetwork(op)
        for size in (2, 3, 2, 3, 1):
            assert infer(network, {"x": ones(size)})["y"].numpy().tolist() == list(range(size))
        assert len(network.traces) == 3
        assert reasons(network)[0] == first()
        assert reasons(network)[1].startswith(
            "'x' has the shape (3), where (2) was traced; one trace for each batch size, because "
            "an op failed with a dynamic one: "
        )
        assert reasons(network)[2:] == ["'x' has the shape (1), where (3) was traced"]

    def test_of_a_sample_leave_the_batch_open(self) -> None:
        def fail(x: Any, state: Any) -> Any:
            if x.shape[1] is None:
                raise LookupError("how wide?")
            return x * x.shape[1]

        network = TFNetwork(Doing(fail, "x", "y"), dynamic={"x": (0, 1)})
        shapes = [(2, 3), (5, 4), (7, 4), (4, 3), (1, 7), (2, 7)]
        for size, width in [*shapes, *shapes]:
            result = infer(network, {"x": ones(size, width)})
            assert result["y"].numpy().tolist() == [[width] * width] * size
        found = reasons(network)
        assert found[0].endswith(
            "; one trace for each shape of a sample, because an op failed with a dynamic one: "
            "LookupError: how wide?"
        )
        assert sum("failed" in reason for reason in found) == 1


class TestMany:
    def test_are_warned_of_once(self) -> None:
        _, network = double()
        with network(mode="infer", epoch=1):
            for number in range(7):
                network.run_step({"x": number})
            with pytest.warns(UserWarning, match="mode 'infer' were traced 8 times") as caught:
                network.run_step({"x": 7})
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for number in range(8, 20):
                    network.run_step({"x": number})
        (warning,) = caught
        assert f"'x' is 7, not 6 as before{CONSTANT}" in str(warning.message)
        assert warning.filename == __file__

    def test_of_a_length_name_the_argument_that_opens_it(self) -> None:
        op = Counting(["x", "z"], ["y", "w"])
        network = TFNetwork(op)
        with network(mode="infer", epoch=1):
            for width in range(1, 8):
                network.run_step({"x": ones(2, 3), "z": ones(2, 3, width)})
            with pytest.warns(UserWarning, match="traced 8 times") as caught:
                network.run_step({"x": ones(2, 3), "z": ones(2, 3, 8)})
        (warning,) = caught
        assert str(warning.message).endswith(
            "One trace serves any length of axis 2 of 'z' with Network(..., dynamic={'z': (0, 2)})."
        )
        assert "Pass values" not in str(warning.message)
        network = TFNetwork(op, dynamic={"z": (0, 2)})
        op.runs = 0
        for width in range(1, 12):
            infer(network, {"x": ones(2, 3), "z": ones(2, 3, width)})
        assert op.runs == 1

    def test_of_a_number_name_it_after_the_second(self) -> None:
        op = Doing(lambda x, state: x * op.factor, "x", "y")
        network = TFNetwork(op)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for factor in (1.0, 2.0, 2.0, 1.0, 3.0, 4.0):
                op.factor = factor
                assert infer(network, {"x": ones(2)})["y"].numpy().tolist() == [factor] * 2
        (text,) = [str(one.message) for one in caught]
        assert "for the second time, because op 0 (Doing)" in text
        assert "factor has changed" in text
        assert "Hold a number that changes in a tf.Variable" in text
        op.factor = tf.Variable(0.0)
        network = TFNetwork(op)
        for factor in (1.0, 2.0, 3.0):
            op.factor.assign(factor)
            assert infer(network, {"x": ones(2)})["y"].numpy().tolist() == [factor] * 2
        assert len(network.traces) == 1

    def test_are_counted_over_all_states_of_the_ops(self) -> None:
        class Trainer:
            def __init__(self) -> None:
                self.history: list[str] = []

            def double(self, x: Any) -> Any:
                return 2 * x

        trainer = Trainer()
        network = TFNetwork(Doing(lambda x, state: trainer.double(x), "x", "y"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for epoch in range(20):
                infer(network, {"x": ones(2)})
                trainer.history.append(f"epoch {epoch}")
        (text,) = [str(one.message) for one in caught]
        assert "were traced 8 times" in text
        assert "history" in text
