"""When ops are traced, and what `network.traces` says of it."""

from __future__ import annotations

import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.backend import load_model, save_model
from fastnet.network import TFNetwork
from fastnet.network.tf import program
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.keras_models import (
    assert_close,
    batches,
    infer,
    keras,
    layers,
    line,
    loop,
    mlp,
    regression,
    supervised,
    tf,
    to_zero,
    train,
    twins,
    weights,
)
from tests.network.tf_programs import CONSTANT, FITS, Counting, Doing, first, kind_of, ones, reasons

pytestmark = pytest.mark.tf


def sgd(lr: float = 0.1) -> Any:
    return keras.optimizers.SGD(lr)


def built(make: Any = line, optimizer: Any = sgd, **kwargs: Any) -> Any:
    return fastnet.build(make, optimizer, **{"model_name": "model", **kwargs})


def double() -> tuple[Counting, TFNetwork]:
    op = Counting("x", "y")
    return op, TFNetwork(op)


class TestTwoTraces:
    def test_of_each_mode_for_ten_epochs_of_varying_batches(self) -> None:
        model = built(mlp, "sgd")
        network = TFNetwork(supervised(model))
        data = [batches(1, size)[0] for size in (8, 8, 5, 3, 8, 7, 2)]
        for epoch in range(1, 11):
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

    def test_python_runs_twice_in_each(self) -> None:
        op, network = double()
        for mode in ("infer", "eval", "infer", "eval"):
            for size in (3, 1, 2):
                infer(network, {"x": ones(size)}, mode)
        second = f"'x' has the shape (1), where (3) was traced{FITS}"
        assert op.runs == 4
        assert reasons(network) == [first("infer"), second, first("eval"), second]

    def test_weights_that_it_gets_are_those_of_eager_steps(self) -> None:
        results = []
        for eager in (False, True):
            keras.utils.set_random_seed(7)
            make = lambda: keras.Sequential([layers.Dense(3), layers.Dense(1)])  # noqa: E731
            network = TFNetwork(regression(fastnet.build(make, "adam")))
            data = [{"x": ones(3, 2)}] * 3
            train(network, data, eager=eager)
            results.append(weights(network.models[0]))
        for static, eager_one in zip(*results, strict=True):
            np.testing.assert_allclose(static, eager_one, rtol=1e-5)

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

    def test_of_ops_that_make_variables_each_time_none_comes(self) -> None:
        op = Doing(lambda x, state: tf.Variable(1.0).assign_add(tf.reduce_sum(x)), "x", "y")
        network = TFNetwork(op)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"singleton tf\.Variable"):
                infer(network, {"x": ones(3)})
        assert network.traces == ()

    def test_warming_up_is_traced_by_itself(self) -> None:
        op, network = double()
        for warmup in (True, False, True):
            with network(mode="train", epoch=1, warmup=warmup):
                network.run_step({"x": ones(2)})
        assert op.runs == 2
        assert reasons(network) == ["first step in mode 'train', warming up", first("train")]

    def test_ids_of_datasets_that_run_the_same_ops_share_them(self) -> None:
        op = Counting("x", "y", ds_id=["a", "b"])
        other = Counting("x", "z", ds_id="c")
        network = TFNetwork([op, other])
        for ds_id in ("a", "b", "a", "c", "b"):
            with network(mode="eval", epoch=1, ds_id=ds_id):
                network.run_step({"x": ones(2)})
        assert (op.runs, other.runs) == (1, 1)
        assert reasons(network) == [first("eval")] * 2

    def test_eager_traces_nothing(self) -> None:
        op, network = double()
        for size in (2, 3):
            infer(network, {"x": ones(size)}, eager=True)
        assert op.runs == 2
        assert network.traces == ()

    def test_what_is_not_read_does_not_matter(self) -> None:
        op, network = double()
        for rest in (1, "a", ones(2), [ones(3)], None):
            assert infer(network, {"x": ones(2), "rest": rest})["rest"] is rest
        assert op.runs == 1

    def test_plans_that_are_cleared_are_traced_again(self) -> None:
        op, network = double()
        infer(network, {"x": ones(2)})
        op.outputs = ["z"]
        network.retrace()
        assert list(infer(network, {"x": ones(2)})) == ["x", "z"]
        assert op.runs == 2
        assert reasons(network) == [first(), first()]


class TestOpsThatSchedulersGive:
    def test_ones_from_a_later_epoch_on(self) -> None:
        ops = Counting("x", "y"), Counting("x", "y")
        network = TFNetwork([EpochScheduler({1: ops[0], 3: ops[1]}), Counting("y", "z")])
        for epoch in range(1, 6):
            for mode in ("train", "eval"):
                train(network, [{"x": ones(2)}], mode=mode, epoch=epoch)
        other = "other ops are active from epoch 3 on"
        assert reasons(network) == [first("train"), first("eval"), other, other]
        assert [trace.epoch for trace in network.traces] == [1, 1, 3, 3]
        assert [op.runs for op in ops] == [2, 2]

    def test_ones_that_go_round_are_traced_once_each(self) -> None:
        network = TFNetwork([RepeatScheduler([Counting("x", "y"), Counting("x", "y")])])
        for epoch in range(1, 6):
            train(network, [{"x": ones(2)}], epoch=epoch)
        assert reasons(network) == [first("train"), "other ops are active from epoch 2 on"]

    def test_ones_of_another_dataset_are_no_others(self) -> None:
        scheduler = EpochScheduler({1: Counting("x", "y"), 3: Counting("x", "y")})
        network = TFNetwork([scheduler, Counting("x", "z", ds_id="a")])
        for epoch, ds_id in ((1, "a"), (2, "b"), (3, "b")):
            with network(mode="eval", epoch=epoch, ds_id=ds_id):
                network.run_step({"x": ones(2)})
        assert reasons(network) == [
            first("eval"),
            first("eval"),
            "other ops are active from epoch 3 on",
        ]

    def test_what_was_used_longest_ago_is_forgotten_first(self) -> None:
        op = Doing(lambda data, state: data, "x", "y")
        network = TFNetwork(op)

        def traces_with(value: int) -> int:
            vars(op)["value"] = value
            train(network, [{"x": ones(2)}])
            return len(network.traces)

        assert [traces_with(value) for value in range(8)] == [*range(1, 9)]
        assert traces_with(0) == 8
        assert traces_with(8) == 9
        assert traces_with(0) == 9
        assert traces_with(1) == 10


def test_loading_weights_traces_nothing(tmp_path: Path) -> None:
    model, twin = twins(line)
    built(lambda: model, lambda: sgd(0.1))
    network = TFNetwork(regression(model))
    data = [{"x": ones(3, 2)}]
    path = save_model(model, str(tmp_path), "start")
    for epoch in (1, 2, 3):
        train(network, data, epoch=epoch)
        infer(network, data[0], "eval")
        load_model(model, path)
    assert reasons(network) == [first("train"), first("eval")]
    assert_close(model, twin)
    assert float(infer(network, data[0], "eval")["y"][0, 0]) == float(twin(data[0]["x"])[0, 0])


class TestOptimizers:
    def test_one_that_is_scheduled(self) -> None:
        model, twin = twins(line)
        built(lambda: model, EpochScheduler({1: lambda: sgd(0.1), 3: lambda: sgd(0.5)}))
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        for epoch in range(1, 6):
            train(network, data, epoch=epoch)
        loop(twin, sgd(0.1), data * 2, to_zero)
        loop(twin, sgd(0.5), data * 3, to_zero)
        assert_close(model, twin)
        assert reasons(network) == [first("train"), "the optimizer of model 'model' has changed"]
        assert [trace.epoch for trace in network.traces] == [1, 3]

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

    def test_a_learning_rate_that_is_assigned_needs_no_trace(self) -> None:
        model, twin = twins(line)
        built(lambda: model, lambda: sgd(0.1))
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        for lr in (0.1, 0.5):
            model.current_optimizer.learning_rate = lr
            train(network, data)
            loop(twin, sgd(lr), data, to_zero)
        assert_close(model, twin)
        assert len(network.traces) == 1

    def test_matter_only_where_models_are_trained(self) -> None:
        model = built()
        network = TFNetwork(regression(model))
        for _ in range(2):
            infer(network, {"x": ones(2, 2)}, "eval")
            model.optimizer = sgd(0.5)
        assert reasons(network) == [first("eval")]

    def test_many_of_them_are_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert program._MAX_STATES == 8
        monkeypatch.setattr(program, "_MAX_STATES", 2)
        model = built()
        network = TFNetwork(regression(model))
        data = [{"x": ones(2, 2)}]
        optimizers = [sgd() for _ in range(3)]
        for place in (0, 1, 2, 2, 1, 0):
            model.optimizer = optimizers[place]
            train(network, data)
        assert reasons(network) == [
            first("train"),
            *["the optimizer of model 'model' has changed"] * 3,
        ]
        gone = weakref.ref(optimizers[2])
        optimizers.clear()
        gc.collect()
        assert gone() is None


class TestLayers:
    @staticmethod
    def nested() -> Any:
        inner = keras.Sequential(
            [layers.Input((4,)), layers.Dense(4, name="one"), layers.Dense(3, name="two")],
            name="inner",
        )
        return keras.Sequential([layers.Input((2,)), layers.Dense(4, name="front"), inner])

    def test_that_are_frozen_and_thawed(self) -> None:
        model, twin = twins(self.nested)
        built(lambda: model, sgd, model_name="net")
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        optimizer = sgd()
        train(network, data)
        loop(twin, optimizer, data, to_zero)
        for trainable in (False, True, False):
            for each in (model, twin):
                each.get_layer("inner").get_layer("two").trainable = trainable
            before = weights(model)
            train(network, data)
            after = weights(model)
            loop(twin, optimizer, data, to_zero)
            assert np.array_equal(before[-1], after[-1]) is not trainable
            assert not np.array_equal(before[0], after[0])
        assert_close(model, twin)
        assert reasons(network) == [
            first("train"),
            "layer 'two' of model 'net'._trainable has changed",
        ]

    def test_a_model_that_gets_more_of_them(self) -> None:
        model = keras.Sequential([layers.Input((2,)), layers.Dense(2)])
        built(lambda: model)
        network = TFNetwork([ModelOp(model, "x", "y")])
        assert infer(network, {"x": ones(1, 2)})["y"].shape == (1, 2)
        model.add(layers.Dense(5))
        assert infer(network, {"x": ones(1, 2)})["y"].shape == (1, 5)
        assert len(network.traces) == 2

    def test_frozen_before_a_network_is_opened_and_thawed_later(self) -> None:
        model, twin = twins(self.nested)
        model.get_layer("front").trainable = twin.get_layer("front").trainable = False
        built(lambda: model)
        network = TFNetwork(regression(model))
        data = [{"x": ones(3, 2)}]
        train(network, data)
        loop(twin, sgd(), data, to_zero)
        model.get_layer("front").trainable = twin.get_layer("front").trainable = True
        train(network, data)
        loop(twin, sgd(), data, to_zero)
        assert_close(model, twin)
        assert reasons(network)[1:] == ["layer 'front' of model 'model'._trainable has changed"]


class TestValues:
    @pytest.mark.parametrize(
        ("before", "after", "reason"),
        [
            (ones(2), ones(2, dtype="float64"), "'x' is of type float64, not float32 as before"),
            (np.ones(2), ones(2), "'x' is of type float32, not float64 as before"),
            (ones(2), tf.constant(["a"]), "'x' is of type string, not float32 as before"),
            (ones(2), ones(2, 2), "'x' has the shape (2, 2), where (2) was traced"),
            (ones(2), ones(), "'x' has the shape (), where (2) was traced"),
            (ones(2), ones(3), f"'x' has the shape (3), where (2) was traced{FITS}"),
            (ones(), ones(2), "'x' has the shape (2), where () was traced"),
            (ones(2, 3), ones(2, 4), "'x' has the shape (2, 4), where (2, 3) was traced"),
            (1, 2, f"'x' is 2, not 1 as before{CONSTANT}"),
            (1, True, "'x' is a value of type bool, not a value of type int as before"),
            (0.0, -0.0, f"'x' is -0.0, not 0.0 as before{CONSTANT}"),
            ("a", "b", f"'x' is 'b', not 'a' as before{CONSTANT}"),
            ("a", 100 * "b", f"'x' is '{76 * 'b'}..., not 'a' as before{CONSTANT}"),
            (None, 1, "'x' is a value of type int, not a value of type NoneType as before"),
            (1, ones(), "'x' is a tensor, not a value of type int as before"),
            (ones(2), [ones(2)], "'x' is a value of type list, not a tensor as before"),
            (
                [ones(2)],
                (ones(2),),
                "'x' is a value of type tuple, not a value of type list as before",
            ),
            ([ones(2)], [ones(2, 2)], "'x' holds something else than before"),
            ([ones(2)], [ones(2), ones(2)], "'x' holds something else than before"),
            ([ones(2, 3)], [ones(2, 4)], "'x' holds tensors of other shapes than before"),
            ({"a": 1}, {"a": 2}, "'x' holds something else than before"),
            ({"a": 1}, {"b": 1}, "'x' holds something else than before"),
            (
                {"a": 1, "b": 2},
                {"b": 2, "a": 1},
                "'x' has its keys in the order ['b', 'a'], not ['a', 'b'] as before",
            ),
            (
                tf.ragged.constant([[1], [2, 3]]),
                ones(2),
                "'x' is a tensor, not a RaggedTensor as before",
            ),
            (
                tf.ragged.constant([[1], [2, 3]]),
                tf.ragged.constant([[1.0], [2.0, 3.0]]),
                "'x' holds something else than before",
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

    @pytest.mark.parametrize(
        "values",
        [
            [ones(2), ones(2), tf.zeros(2)],
            [ones(2), np.ones(2, "float32"), tf.Variable(ones(2))],
            [[ones(2), 1], [ones(2), 1]],
            [{"a": ones(2), "b": 1}, {"a": ones(2), "b": 1}],
            [tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[1, 2, 3]])],
            [tf.sparse.from_dense([[1, 0], [0, 2]]), tf.sparse.from_dense([[1, 1]])],
            [
                tf.IndexedSlices(ones(3, 2), tf.range(3), tf.constant([9, 2])),
                tf.IndexedSlices(ones(1, 2), tf.range(1), tf.constant([7, 2])),
            ],
            [float("nan"), float("nan")],
            [frozenset("ab"), frozenset("ba")],
        ],
        ids=lambda values: kind_of(values[0]),
    )
    def test_that_fit(self, values: Any) -> None:
        op, network = double()
        for value in [*values, *values]:
            infer(network, {"x": value})
        assert op.runs == 1

    @pytest.mark.parametrize(
        "values",
        [
            [ones(2), ones(3), ones(0), np.ones(5, "float32"), tf.Variable(ones(3))],
            [[ones(2), 1], [ones(4), 1], [ones(5), 1]],
            [{"a": ones(2), "b": 1}, {"a": ones(3), "b": 1}, {"a": ones(5), "b": 1}],
        ],
        ids=lambda values: kind_of(values[0]),
    )
    def test_of_other_sizes_share_a_second_trace(self, values: Any) -> None:
        op, network = double()
        for value in [*values, *values]:
            infer(network, {"x": value})
        assert op.runs == 2

    def test_other_axes_are_traced_by_themselves(self) -> None:
        op, network = double()
        shapes = [(2, 3, 4), (5, 3, 6), (1, 3, 4), (1, 3, 6), (2, 3, 4), (5, 3, 6), (7, 3, 4)]
        for shape in shapes:
            infer(network, {"x": ones(*shape)})
        assert op.runs == 4
        assert reasons(network) == [
            first(),
            "'x' has the shape (5, 3, 6), where (2, 3, 4) was traced",
            f"'x' has the shape (1, 3, 4), where (5, 3, 6) was traced{FITS}",
            f"'x' has the shape (1, 3, 6), where (any, 3, 4) was traced{FITS}",
        ]

    def test_axes_of_several_tensors_are_left_open_together(self) -> None:
        op = Counting(["a", "b"], ["c", "d"])
        network = TFNetwork(op)
        for a, b in [(3, 4), (5, 4), (6, 6), (7, 9)]:
            infer(network, {"a": ones(a, 2), "b": [ones(b, 2)]})
        assert op.runs == 3
        assert reasons(network)[1:] == [
            f"'a' has the shape (5, 2), where (3, 2) was traced{FITS}",
            f"'b' holds tensors of other shapes than before{FITS}",
        ]

    def test_of_an_unknown_rank(self) -> None:
        op, network = double()

        @tf.function(input_signature=[tf.TensorSpec(None)])
        def step(x: Any) -> Any:
            return network.run_step({"x": x})["y"]

        with network(mode="infer", epoch=1):
            network.run_step({"x": ones(2)})
            assert step(ones(2, 3)).shape == (2, 3)
            # what knows nothing of a shape does not stand for one that is known
            assert network.run_step({"x": ones(1, 2, 3)})["y"].shape == (1, 2, 3)
        assert op.runs == 3
        assert reasons(network) == [
            first(),
            "'x' has the shape (?), where (2) was traced",
            "'x' has the shape (1, 2, 3), where (?) was traced",
        ]

    def test_of_an_unknown_length(self) -> None:
        op, network = double()

        @tf.function(input_signature=[tf.TensorSpec((2, None))])
        def step(x: Any) -> Any:
            return network.run_step({"x": x})["y"]

        with network(mode="infer", epoch=1):
            assert step(ones(2, 3)).shape == (2, 3)
            assert network.run_step({"x": ones(2, 3)})["y"].shape == (2, 3)
        assert op.runs == 2
        assert reasons(network) == [first(), "'x' has the shape (2, 3), where (2, ?) was traced"]


class TestBranchesOfPython:
    """What an op does for a shape does not depend on the shapes that came before."""

    @staticmethod
    def by_width(x: Any, state: Any) -> Any:
        return x * (100.0 if x.shape[-1] == 5 else 1.0)

    @pytest.mark.parametrize("widths", [(1, 3, 1), (4, 5, 4), (5, 4, 5, 6, 4, 5), (1, 2, 3, 2, 1)])
    def test_on_an_axis_of_samples(self, widths: tuple[int, ...]) -> None:
        network = TFNetwork(Doing(self.by_width, "x", "y"))
        for size in (3, 3, 2, 3, 4):
            for width in widths:
                batch = {"x": ones(size, width)}
                expected = infer(network, batch, eager=True)["y"]
                assert np.array_equal(infer(network, batch)["y"], expected)

    def test_on_channels(self) -> None:
        network = TFNetwork(Doing(lambda x, state: x * float(x.shape[-1] or -1), "x", "y"))
        for channels in (1, 3, 1):
            assert infer(network, {"x": ones(2, 4, 4, channels)})["y"][0, 0, 0, 0] == channels

    def test_a_size_that_was_traced_is_known_for_good(self) -> None:
        network = TFNetwork(Doing(lambda x, state: x * float(x.shape[0] or -1), "x", "y"))
        seen = [float(infer(network, {"x": ones(size)})["y"][0]) for size in (4, 4, 3, 4, 2, 4)]
        assert seen == [4, 4, -1, 4, -1, 4]

    def test_by_day_and_night_take_turns(self) -> None:
        op, network = double()
        for size in (32, 32, 7, 32, 7, 9, 32):
            infer(network, {"x": ones(size)})
        assert op.runs == 2


class TestOpenAxes:
    """The axes that one trace may serve any length of are the program's choice."""

    @staticmethod
    def runs(open_axes: Any, shapes: list[tuple[int, ...]]) -> int:
        op = Counting("x", "y")
        network = TFNetwork(op, open_axes=open_axes)
        for shape in shapes:
            assert infer(network, {"x": ones(*shape)})["y"].shape == shape
        return op.runs

    def test_none_gives_each_size_a_trace(self) -> None:
        assert self.runs((), [(2, 3), (5, 3), (6, 3), (2, 3), (5, 3)]) == 3

    @pytest.mark.parametrize("axes", [None, 0, (0,), [0], {"other": 1}, {"x": 0}, -2])
    def test_the_first_as_ever(self, axes: Any) -> None:
        assert self.runs(axes, [(2, 3), (5, 3), (6, 3), (2, 4), (5, 4), (9, 4)]) == 4

    @pytest.mark.parametrize("axes", [1, -1, (1,), {"x": -1}, {"x": (1, 7)}])
    def test_another_one_alone(self, axes: Any) -> None:
        assert self.runs(axes, [(2, 3), (2, 4), (2, 5), (3, 5), (3, 6), (3, 7)]) == 4

    def test_several_are_opened_as_they_vary(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op, open_axes={"x": (0, -1)})
        for shape in [(2, 3, 4), (5, 3, 4), (6, 3, 4), (7, 3, 5), (8, 3, 9), (6, 3, 4), (2, 9, 4)]:
            infer(network, {"x": ones(*shape)})
        assert op.runs == 4
        assert reasons(network)[1:] == [
            f"'x' has the shape (5, 3, 4), where (2, 3, 4) was traced{FITS}",
            "'x' has the shape (7, 3, 5), where (any, 3, 4) was traced; from now on any length of "
            "axes 0, 2 fits",
            "'x' has the shape (2, 9, 4), where (any, 3, any) was traced",
        ]

    def test_of_other_keys_stay_as_they_are(self) -> None:
        op = Counting(["x", "z"], ["y", "w"])
        network = TFNetwork(op, open_axes={"x": (0, 1)})
        for size, width in [(2, 3), (4, 5), (5, 6)]:
            infer(network, {"x": ones(size, width), "z": ones(size)})
        assert op.runs == 2
        infer(network, {"x": ones(2, 3), "z": ones(2, 1)})
        infer(network, {"x": ones(2, 3), "z": ones(2, 2)})
        assert op.runs == 4

    @pytest.mark.parametrize("eager", [False, True])
    def test_the_function_passes_them_on(self, eager: bool) -> None:
        model = built()
        network: Any = fastnet.Network(regression(model), open_axes=())
        for size in (2, 3, 4):
            infer(network, {"x": ones(size, 2)}, eager=eager)
        assert len(network.traces) == (0 if eager else 3)

    @pytest.mark.parametrize("wrong", ["x", 1.5, {"x": "a"}, {"x": None}, [0, "a"], (True,)])
    def test_what_is_no_axis(self, wrong: Any) -> None:
        with pytest.raises(TypeError) as caught:
            TFNetwork([], open_axes=wrong)
        held = wrong["x"] if isinstance(wrong, dict) else wrong
        assert str(caught.value) == (
            f"open_axes holds {held!r}. Give the number of an axis, several such numbers, or a "
            "dict with the keys of a batch and these."
        )


class Config:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Valued(Config):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued)

    def __hash__(self) -> int:
        return 0


class WithSlots:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Named(list[Any]):
    scale = 1.0


class TestBakedIn:
    """What a graph has of a batch for good is compared with what the batch holds now."""

    @staticmethod
    def agree(op: Any, *batches: Any) -> int:
        """Count the traces of static steps, whose results are those of eager ones."""
        network = TFNetwork(op)
        for change in batches:
            batch = change()
            expected = infer(network, batch, eager=True)["y"]
            for _ in range(2):
                assert np.array_equal(infer(network, batch)["y"], expected, equal_nan=True)
        return len(network.traces)

    def test_the_order_of_a_dict(self) -> None:
        def last(data: Any, state: Any) -> Any:
            return list(data.values())[-1] * 1.0

        a, b = {"a": ones(2), "b": 2 * ones(2)}, {"b": 2 * ones(2), "a": ones(2)}
        assert self.agree(Doing(last, "x", "y"), lambda: {"x": a}, lambda: {"x": b}) == 2
        pairs = [{"x": {"a": 1.0, "b": 2.0}}, {"x": {"b": 2.0, "a": 1.0}}]
        op = Doing(lambda data, state: tf.constant(list(data.values())), "x", "y")
        assert self.agree(op, lambda: pairs[0], lambda: pairs[1], lambda: pairs[0]) == 2

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Config(scale=1.0),
            lambda: Valued(scale=1.0),
            lambda: WithSlots(1.0),
            lambda: Named([ones(2)]),
        ],
    )
    def test_an_attribute_that_is_written_to(self, make: Any) -> None:
        held = make()

        def write(scale: float) -> Any:
            def change() -> Any:
                held.scale = scale
                return {"x": held}

            return change

        op = Doing(lambda x, state: tf.ones(2) * x.scale, "x", "y")
        assert self.agree(op, write(1.0), write(3.0), write(1.0), write(float("nan"))) == 3

    def test_what_a_function_goes_by(self) -> None:
        scale = 1.0

        def held() -> float:
            return scale * held.factor  # type: ignore[attr-defined, no-any-return]

        def change(factor: float, new: float) -> Any:
            def run() -> Any:
                nonlocal scale
                scale = new
                held.factor = factor  # type: ignore[attr-defined]
                return {"x": held}

            return run

        op = Doing(lambda x, state: tf.ones(2) * x(), "x", "y")
        assert self.agree(op, change(1.0, 1.0), change(2.0, 1.0), change(2.0, 3.0)) == 3

    def test_says_so_in_the_reason(self) -> None:
        held = Config(scale=1.0)
        _, network = double()
        infer(network, {"x": [ones(2), held]})
        infer(network, {"x": held})
        held.scale = 2.0
        infer(network, {"x": held})
        assert reasons(network)[1:] == [
            "'x' is a value of type Config, not a value of type list as before",
            f"'x' has other attributes than before{CONSTANT}",
        ]


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
            "with any an op failed: "
        )
        assert reasons(network)[2:] == ["'x' has the shape (1), where (3) was traced"]

    @pytest.mark.parametrize(
        ("shapes", "meaning"),
        [
            (
                [(2, 3), (2, 4), (5, 4), (4, 3), (1, 7), (2, 7)],
                "one trace for each shape of a sample",
            ),
            (
                [(2, 3), (5, 4), (7, 4), (4, 3), (1, 7), (2, 7)],
                "one trace for each shape of a sample",
            ),
        ],
    )
    def test_of_a_sample_leave_the_batch_open(
        self, shapes: list[tuple[int, int]], meaning: str
    ) -> None:
        def fail(x: Any, state: Any) -> Any:
            if x.shape[1] is None:
                raise LookupError("how wide?")
            return x * x.shape[1]

        network = TFNetwork(Doing(fail, "x", "y"), open_axes=(0, 1))
        for size, width in [*shapes, *shapes]:
            result = infer(network, {"x": ones(size, width)})
            assert result["y"].numpy().tolist() == [[width] * width] * size
        found = reasons(network)
        assert found[1].endswith(
            f"; {meaning}, because with any an op failed: LookupError: how wide?"
        )
        assert sum("failed" in reason for reason in found) == 1

    def test_each_state_of_the_models_finds_out_for_itself(self) -> None:
        model = built()
        seen: list[Any] = []
        network = TFNetwork(
            [
                ModelOp(model, "x", "y"),
                Doing(lambda y, state: seen.append(y.shape[0]) or tf.zeros([y.shape[0]]), "y", "z"),
            ]
        )
        infer(network, {"x": ones(2, 2)}, "train")
        model.trainable = False
        infer(network, {"x": ones(2, 2)}, "train")
        infer(network, {"x": ones(3, 2)}, "train")
        # tracing leaves the size open where another one came, and goes by this one where that fails
        assert seen == [2, 2, None, 3]

    def test_an_op_that_fails_either_way_raises_what_it_raised_last(self) -> None:
        seen: list[Any] = []

        def fail(x: Any, state: Any) -> Any:
            seen.append(tuple(x.shape))
            raise LookupError(len(seen))

        network = TFNetwork(Doing(fail, "x", "y"))
        for _ in range(2):
            with pytest.raises(LookupError) as caught:
                infer(network, {"x": ones(2, 3)})
            assert caught.value.__cause__ is caught.value.__context__ is None
        assert seen == [(2, 3)] * 2
        assert network.traces == ()


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
            "One trace does for any length of axis 2 of 'z' with Network(..., "
            "open_axes={'z': (0, 2)})."
        )
        network = TFNetwork(op, open_axes={"z": (0, 2)})
        op.runs = 0
        for width in range(1, 12):
            infer(network, {"x": ones(2, 3), "z": ones(2, 3, width)})
        assert op.runs == 2

    def test_of_a_length_that_ops_must_know(self) -> None:
        def fail(x: Any, state: Any) -> Any:
            if x.shape[0] is None:
                raise LookupError("how large?")
            return x

        network = TFNetwork(Doing(fail, "x", "y"))
        with network(mode="infer", epoch=1):
            for size in range(1, 8):
                network.run_step({"x": ones(size)})
            with pytest.warns(UserWarning, match="must know the length of axis 0 of 'x'"):
                network.run_step({"x": ones(8)})

    def test_of_different_optimizers_are_not_warned_of(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(program, "_MANY_TRACES", 2)
        model = built()
        network = TFNetwork(regression(model))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                model.optimizer = sgd()
                train(network, [{"x": ones(2, 2)}])
        assert len(network.traces) == 3
