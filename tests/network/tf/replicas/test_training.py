"""Training that is spread over several devices, beside training on one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.programs import raising
from tests.network.tf.replicas.devices import (
    EITHER_WAY,
    KERAS_3,
    STRATEGY,
    assert_same_weights,
    copies_of,
    halves,
    keras,
    parts,
    under,
    value_of,
)
from tests.network.tf.replicas.programs import (
    STEPS,
    adam,
    by_hand,
    mlp,
    momentum,
    numbers,
    regression,
    same_model,
    sgd,
    square_error,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]


class TestTraining:
    @pytest.mark.parametrize(
        ("optimizer", "eager"),
        [("sgd", False), (momentum, False), (momentum, True), ("adam", False), (adam, True)],
    )
    def test_two_devices_train_as_one_does_on_the_whole_batch(
        self, optimizer: Any, eager: bool
    ) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, optimizer)
            twin = same_model(model, mlp)
            network = fastnet.Network(ops=regression(model))
            assert isinstance(network, TFNetwork)
            losses = []
            for epoch in (1, 2):
                with network(mode="train", epoch=epoch, eager=eager):
                    for x, y in STEPS:
                        result = network.run_step({"x": halves(x), "y": halves(y)})
                        losses.append(float(result["loss"]))
                        np.testing.assert_array_equal(result["x"], x)
                        assert result["y_pred"].shape == y.shape
        assert len(network.traces) == (0 if eager else 2)
        make = {"sgd": lambda: keras.optimizers.SGD(0.01), "adam": keras.optimizers.Adam}
        expected = by_hand(
            twin,
            make.get(optimizer, optimizer)(),
            lambda x, y: square_error(twin, x, y),
            STEPS * 2,
        )
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        assert_same_weights(model, twin)
        assert value_of(model.current_optimizer.iterations) == len(losses)

    @EITHER_WAY
    @pytest.mark.parametrize("first", [5, 8], ids=["5 and 3", "8 and none"])
    def test_each_device_counts_alike_whatever_its_part(self, first: int, eager: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            losses = []
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS[:2]:
                    result = network.run_step({"x": halves(x, first), "y": halves(y, first)})
                    assert result["y_pred"].shape == y.shape
                    losses.append(float(result["loss"]))

        def loss_of(x: Any, y: Any) -> tf.Tensor:
            means = [square_error(twin, x[:first], y[:first])]
            if first < len(x):
                means.append(square_error(twin, x[first:], y[first:]))
            heard.append(float(sum(means)) / len(means))
            return sum(means) / 2

        heard: list[float] = []
        by_hand(twin, momentum(), loss_of, STEPS[:2])
        np.testing.assert_allclose(losses, heard, rtol=1e-4)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_plain_batches_are_everybodys(self, two: None, eager: bool) -> None:
        model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, eager=eager):
            result = network.run_step({"x": tf.constant(x), "y": y})
        assert result["y_pred"].shape == (16, 2)
        with under(None):
            expected = by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        np.testing.assert_allclose(result["loss"], expected[0], rtol=1e-5)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_given_gradients_are_averaged(self, eager: bool) -> None:
        class Gradients(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return state["tape"].gradient(data, model.trainable_variables)

        with under(STRATEGY):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            ops = [*regression(model, gradients="g")[:2], Gradients("loss", "g")]
            network = TFNetwork([*ops, UpdateOp(model, "loss", gradients="g")])
            with network(mode="train", epoch=1, eager=eager, desired_output_keys=["loss"]):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_two_models_one_through_the_other(self, eager: bool) -> None:
        def make_both() -> list[Any]:
            return [mlp(), keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])]

        with under(STRATEGY):
            front, back = fastnet.build(make_both, [sgd, adam])
            twins = [
                same_model(model, lambda place=place: make_both()[place])
                for place, model in enumerate((front, back))
            ]
            ops = [
                ModelOp(front, "x", "z"),
                ModelOp(back, "z", "y_pred"),
                MeanSquaredError(("y_pred", "y"), "loss"),
                MeanSquaredError(("z", "y"), "front_loss"),
                UpdateOp(front, "front_loss", defer=True),
                UpdateOp(back, "loss"),
            ]
            network = TFNetwork(ops)
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        optimizers = [sgd(), adam()]
        for x, y in STEPS:
            with tf.GradientTape(persistent=True) as tape:
                z = twins[0](x)
                losses = [tf.reduce_mean((z - y) ** 2), tf.reduce_mean((twins[1](z) - y) ** 2)]
            for twin, loss, optimizer in zip(twins, losses, optimizers, strict=True):
                gradients = tape.gradient(loss, twin.trainable_variables)
                optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        assert_same_weights(front, twins[0])
        assert_same_weights(back, twins[1])

    @EITHER_WAY
    def test_losses_of_the_model_count_once(self, eager: bool) -> None:
        def make() -> Any:
            return mlp(keras.regularizers.L2(0.1))

        with under(STRATEGY):
            model = fastnet.build(make, sgd)
            twin = same_model(model, make)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})

        def loss_of(x: Any, y: Any) -> tf.Tensor:
            return square_error(twin, x, y) + tf.add_n(twin.losses)

        by_hand(twin, sgd(), loss_of, STEPS)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_mixed_precision(self, eager: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum, mixed_precision=True)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    result = network.run_step({"x": halves(x), "y": halves(y)})
                    assert np.isfinite(result["loss"])
        assert model.dtype_policy.name == "mixed_float16"
        assert value_of(model.current_optimizer.iterations) == len(STEPS)
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin, rtol=0.01, atol=0.01)

    @EITHER_WAY
    def test_gradients_that_overflow_on_one_device_update_none(
        self, two: None, eager: bool
    ) -> None:
        model = fastnet.build(mlp, momentum, mixed_precision=True)
        before = [value_of(weight) for weight in model.weights]
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, eager=eager):
            network.run_step({"x": parts(x, x), "y": parts(y, 1e9 * y)})
            for weight, value in zip(model.weights, before, strict=True):
                np.testing.assert_array_equal(value_of(weight), value)
            network.run_step({"x": parts(x, x), "y": parts(y, y)})
        changes = [
            np.abs(value_of(weight) - value).max()
            for weight, value in zip(model.weights, before, strict=True)
        ]
        assert min(changes) > 0
        assert max(changes) < 1

    @EITHER_WAY
    def test_batch_normalization_counts_on_each_device_as_keras_has_it(
        self, two: None, eager: bool
    ) -> None:
        def make() -> Any:
            layers = [keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(2)]
            return keras.Sequential([keras.layers.Input((3,)), *layers])

        model = fastnet.build(make, sgd)
        network = TFNetwork(regression(model))
        x, y = numbers(6, seed=1)
        seen = [x[:4], x[4:]]
        with network(mode="train", epoch=1, eager=eager):
            network.run_step({"x": halves(x, 4), "y": halves(y, 4)})
        mean, variance = map(copies_of, model.layers[0].non_trainable_weights[:2])
        for place, part in enumerate(seen):
            np.testing.assert_allclose(mean[place], 0.1 * part.mean(axis=0), rtol=1e-4)
            np.testing.assert_allclose(variance[place], 0.9 + 0.1 * part.var(axis=0), rtol=1e-4)
        with network(mode="eval", epoch=1, eager=eager):
            result = network.run_step({"x": halves(x, 4), "y": halves(y, 4)})
        gamma, beta, kernel, bias = map(value_of, model.trainable_weights)
        normal = [
            (part - mean[place]) / np.sqrt(variance[place] + 1e-3)
            for place, part in enumerate(seen)
        ]
        expected = (np.concatenate(normal) * gamma + beta) @ kernel + bias
        np.testing.assert_allclose(result["y_pred"], expected, rtol=1e-3, atol=1e-5)

    @EITHER_WAY
    def test_warming_up_trains_nothing(self, two: None, eager: bool) -> None:
        model = fastnet.build(mlp, sgd)
        before = [value_of(weight) for weight in model.weights]
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, warmup=True, eager=eager):
            result = network.run_step({"x": halves(x), "y": halves(y)})
        assert np.isfinite(result["loss"])
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(value_of(weight), value)

    @EITHER_WAY
    @pytest.mark.parametrize("kind", ["class", "sequential"])
    def test_a_model_that_has_no_weights_yet(self, kind: str, eager: bool) -> None:
        class Lazy(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(2, kernel_initializer="ones")

            def call(self, x: Any) -> Any:
                return self.dense(x)

        def make() -> Any:
            layer = keras.layers.Dense(2, kernel_initializer="ones")
            return Lazy() if kind == "class" else keras.Sequential([layer])

        with under(STRATEGY):
            model = fastnet.build(make, momentum)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                if KERAS_3:
                    # there each device would make variables of its own
                    x, y = STEPS[0]
                    with pytest.raises(ValueError, match="Input"):
                        network.run_step({"x": halves(x), "y": halves(y)})
                    return
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        twin = make()
        twin(STEPS[0][0])
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin)

    def test_another_optimizer_is_another_trace(self, two: None) -> None:
        model = fastnet.build(mlp, EpochScheduler({1: sgd, 2: adam}), model_name="m")
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        for epoch in (1, 2, 3):
            with network(mode="train", epoch=epoch):
                network.run_step({"x": halves(x), "y": halves(y)})
        assert [(trace.epoch, trace.reason) for trace in network.traces] == [
            (1, "first step in mode 'train'"),
            (2, "the optimizer of model 'm' has changed"),
        ]

    @EITHER_WAY
    @pytest.mark.parametrize("mixed", [False, True])
    def test_gradients_of_several_steps_are_merged(self, eager: bool, mixed: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum, mixed_precision=mixed)
            twin = same_model(model, mlp)
            update = UpdateOp(model, "loss", merge_grad=2)
            network = TFNetwork([*regression(model)[:2], update])
            weights = [[value_of(one) for one in model.weights]]
            with network(mode="train", epoch=1, eager=eager, desired_output_keys=["loss"]):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
                    weights.append([value_of(one) for one in model.weights])
            state = update.state_dict()
            times, sums = state["merged"], state["gradients"]
        changed = [
            not all(map(np.array_equal, then, now)) for then, now in itertools.pairwise(weights)
        ]
        assert changed == [False, True, False, True, False]

        def loss_of(first: Any, second: Any) -> tf.Tensor:
            return (square_error(twin, *first) + square_error(twin, *second)) / 2

        by_hand(twin, momentum(), loss_of, [STEPS[:2], STEPS[2:4]])
        assert_same_weights(model, twin, *([0.02, 0.01] if mixed else []))
        if not mixed:
            assert times == 1
            with tf.GradientTape() as tape:
                loss = square_error(twin, *STEPS[4])
            for one, two in zip(sums, tape.gradient(loss, twin.trainable_variables), strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-6)

    def test_a_model_that_was_made_without_the_strategy(self) -> None:
        model = fastnet.build(mlp, sgd, model_name="m")
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with under(STRATEGY):
            with pytest.raises(ValueError, match="Model") as caught, network(mode="train", epoch=1):
                pass
            assert str(caught.value) == (
                "Model 'm' is to be updated under a MirroredStrategy, but was not made under it. "
                "Call fastnet.build within its scope, or after "
                "tf.distribute.experimental_set_strategy."
            )
            with network(mode="eval", epoch=1):
                result = network.run_step({"x": halves(x), "y": halves(y)})
        np.testing.assert_allclose(result["y_pred"], model(x), rtol=1e-5)
        with network(mode="train", epoch=1):
            assert network.run_step({"x": x, "y": y})["y_pred"].shape == (8, 2)

    def test_a_model_that_was_made_under_it_runs_without_too(self) -> None:
        with STRATEGY.scope():
            model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="eval", epoch=1):
            assert network.run_step({"x": x, "y": y})["y_pred"].shape == (8, 2)
        with STRATEGY.scope(), network(mode="train", epoch=1):
            network.run_step({"x": halves(x), "y": halves(y)})
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin)


class TestAgainstFastEstimator:
    """The same training in FastEstimator, in the environment that has it."""

    @pytest.mark.parametrize("firsts", [(4, 4, 2, 3, 4), (8, 3, 4, 1, 5)], ids=["even", "uneven"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_training(self, two: None, fastestimator: Any, optimizer: str, firsts: Any) -> None:
        def make() -> Any:
            return mlp(keras.regularizers.L2(0.1))

        from fastestimator.op.tensorop.loss import MeanSquaredError as TheirError
        from fastestimator.op.tensorop.model import ModelOp as TheirPass
        from fastestimator.op.tensorop.model import UpdateOp as TheirUpdate

        model = fastnet.build(make, optimizer)
        theirs = fastestimator.build(make, optimizer)
        for weight, other in zip(theirs.weights, model.weights, strict=True):
            weight.assign(value_of(other))
        network = TFNetwork(regression(model))
        their_network = fastestimator.Network(
            ops=[
                TheirPass(theirs, "x", "y_pred"),
                TheirError(("y_pred", "y"), "loss"),
                TheirUpdate(theirs, "loss"),
            ]
        )
        for epoch in (1, 2):
            with (
                network(mode="train", epoch=epoch),
                their_network(mode="train", epoch=epoch, ds_id="") as opened,
            ):
                for (x, y), first in zip(STEPS, firsts, strict=True):
                    batch = {"x": halves(x, first), "y": halves(y, first)}
                    result = network.run_step(batch)
                    expected = opened.run_step(batch)
                    assert result.keys() == expected.keys()
                    for key, value in expected.items():
                        np.testing.assert_allclose(result[key], value, rtol=1e-5, atol=1e-6)
            assert_same_weights(model, theirs, rtol=1e-5)


class TestClipping:
    """Gradients are clipped as those of the whole batch are on one device."""

    @staticmethod
    def clipped(optimizer: Any, norm: float | None, value: float | None) -> Any:
        apply = optimizer.apply_gradients

        def run(pairs: Any) -> None:
            gradients, variables = zip(*pairs, strict=True)
            if norm is not None:
                gradients, total = tf.clip_by_global_norm(gradients, norm)
                norms.append(float(total))
            if value is not None:
                gradients = [tf.clip_by_value(one, -value, value) for one in gradients]
            apply(zip(gradients, variables, strict=True))

        norms: list[float] = []
        optimizer.apply_gradients = run
        return optimizer, norms

    @pytest.mark.parametrize("eager", [False, True])
    @pytest.mark.parametrize(("norm", "value"), [(0.1, None), (None, 0.02)])
    def test_by_norm_and_by_value(
        self, norm: float | None, value: float | None, eager: bool
    ) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            told: Any = {"grad_norm": "norm", "stepped": "stepped"}
            network = fastnet.Network(
                regression(model, clip_norm=norm, clip_value=value, outputs=told)
            )
            results = []
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    results.append(network.run_step({"x": halves(x), "y": halves(y)}))
        optimizer, norms = self.clipped(sgd(), norm, value)
        by_hand(twin, optimizer, lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin)
        if norm is not None:
            np.testing.assert_allclose([one["norm"] for one in results], norms, rtol=1e-4)
        assert all(bool(one["stepped"]) for one in results)

    @pytest.mark.parametrize("eager", [False, True])
    def test_of_merged_gradients(self, eager: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            network = fastnet.Network(regression(model, clip_norm=0.1, merge_grad=2, rest="flush"))
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS[:3]:
                    network.run_step({"x": halves(x), "y": halves(y)})
        optimizer = sgd()
        for steps in (STEPS[:2], STEPS[2:3]):
            gradients: Any = []
            for x, y in steps:
                with tf.GradientTape() as tape:
                    loss = square_error(twin, x, y)
                gradients.append(tape.gradient(loss, twin.trainable_variables))
            means = [sum(each) / len(steps) for each in zip(*gradients, strict=True)]
            clipped, _ = tf.clip_by_global_norm(means, 0.1)
            optimizer.apply_gradients(zip(clipped, twin.trainable_variables, strict=True))
        assert_same_weights(model, twin)

    def test_telling_of_merged_gradients_is_refused(self) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, sgd, model_name="merged")
            network = fastnet.Network(
                regression(model, merge_grad=2, outputs={"stepped": "stepped"})
            )
            x, y = STEPS[0]
            with (
                network(mode="train", epoch=1),
                raising(
                    ValueError,
                    "UpdateOp of 'merged' merges gradients on several devices, where it cannot "
                    "report updates within a step. Leave `outputs` out.",
                ),
            ):
                network.run_step({"x": halves(x), "y": halves(y)})


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("merge", [1, 2])
def test_an_average_of_weights(eager: bool, merge: int) -> None:
    with under(STRATEGY):
        model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        ema = EMA(model, decay=0.9)
        network = fastnet.Network([*regression(model, merge_grad=merge), ema])
        with network(mode="train", epoch=1, eager=eager):
            for x, y in STEPS[:4]:
                network.run_step({"x": halves(x), "y": halves(y)})
        means = [value_of(one) for one in ema.averaged.weights]
    optimizer, expected = sgd(), None
    for start in range(0, 4, merge):
        gradients: Any = []
        for x, y in STEPS[start : start + merge]:
            with tf.GradientTape() as tape:
                loss = square_error(twin, x, y)
            gradients.append(tape.gradient(loss, twin.trainable_variables))
        each = [sum(one) / merge for one in zip(*gradients, strict=True)]
        optimizer.apply_gradients(zip(each, twin.trainable_variables, strict=True))
        now = [one.numpy() for one in twin.weights]
        expected = (
            now
            if expected is None
            else [0.9 * one + 0.1 * other for one, other in zip(expected, now, strict=True)]
        )
    for mine, other in zip(means, expected or [], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
