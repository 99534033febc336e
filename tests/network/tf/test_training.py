"""Steps of Keras models are those of a hand-written loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.model import EMA, ModelOp
from tests.network.keras_models import (
    BY_NAME,
    KERAS_3,
    KINDS,
    Batch,
    assert_close,
    batches,
    classify,
    infer,
    keras,
    layers,
    line,
    loop,
    mlp,
    regression,
    same_weights,
    supervised,
    tf,
    train,
    twins,
    variables_of,
)
from tests.network.tf.compiled.steps import is_compiled, warned
from tests.network.tf_programs import EITHER_WAY, Counting, Doing, ones

pytestmark = pytest.mark.tf

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    f"{kind.__name__.rpartition('.')[2]}-Adam": partial(kind.Adam, 0.01) for kind in KINDS
}
OPTIMIZERS |= {
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True, clipnorm=0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01),
    "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5), momentum=0.5
    ),
}
# XLA takes seconds for each.
CASES = [
    *((name, "static") for name in OPTIMIZERS),
    *((name, "eager") for name in ("amsgrad", "ema", "schedule")),
    *((name, "compiled") for name in ("amsgrad", "ema", "schedule")),
]
SIZES = (8, 5, 3)


def of_sizes(sizes: Iterable[int] = SIZES) -> list[Batch]:
    """Return batches of these sizes."""
    return [batches(1, size, seed)[0] for seed, size in enumerate(sizes)]


class Derived(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.one = layers.Dense(5, activation="tanh")
        self.two = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.two(self.one(x))


class TestLikeALoop:
    @pytest.mark.parametrize(("name", "way"), CASES)
    def test_each_optimizer(self, name: str, way: str) -> None:
        make, eager = OPTIMIZERS[name], way == "eager"
        model, twin = twins(mlp)
        fastnet.build(lambda: model, make)
        made = len(variables_of(model.optimizer))
        network = TFNetwork(supervised(model), compile=way == "compiled")
        data = of_sizes((8, 8, 8) if way == "compiled" else SIZES)
        train(network, data, eager=eager)
        # all that it keeps was made when the model was built
        assert len(variables_of(model.optimizer)) == made
        loop(twin, make(), data, classify)
        if eager:
            assert same_weights(model, twin)
        assert_close(model, twin, 1e-4)
        assert is_compiled(network) is (way == "compiled")

    def test_eager_and_static_are_one_network(self) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: model, "adam")
        network = TFNetwork(supervised(model))
        data = of_sizes()
        for place, batch in enumerate(data):
            train(network, [batch], eager=bool(place % 2))
        loop(twin, BY_NAME.Adam(), data, classify)
        assert_close(model, twin)
        assert len(network.traces) == 2

    @EITHER_WAY
    def test_a_model_whose_variables_come_with_its_first_batch(self, eager: bool) -> None:
        """The optimizer gets its own by that step, too, and none of this is a change."""
        data = batches(4)
        keras.utils.set_random_seed(3)
        model = fastnet.build(Derived, "adam")
        network = TFNetwork(supervised(model))
        for place in (0, 2):
            train(network, data[place : place + 2], eager=eager)
        optimizer = BY_NAME.Adam()
        keras.utils.set_random_seed(3)
        twin = Derived()
        loop(twin, optimizer, data, classify)
        assert_close(model, twin)
        assert len(network.traces) == (0 if eager else 1)

    @pytest.mark.skipif(KERAS_3, reason="Keras 3 lets no AutoGraph into its models")
    def test_a_keras_model_with_conditions_over_tensors(self) -> None:
        class Choosing(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = layers.Dense(3)

            def call(self, x: Any, training: bool = False) -> Any:
                y = self.dense(x)
                if tf.reduce_sum(x) > 0:
                    y = 2 * y
                else:
                    y = -y
                return y

        model = Choosing()
        model(ones(1, 6))
        fastnet.build(lambda: model, "sgd")
        network = TFNetwork(ModelOp(model, "x", "y"))
        x = ones(4, 6)
        np.testing.assert_allclose(infer(network, {"x": x})["y"], 2 * model.dense(x), rtol=1e-6)
        np.testing.assert_allclose(infer(network, {"x": -x})["y"], -model.dense(-x), rtol=1e-6)
        assert len(network.traces) == 1


class TestTape:
    @EITHER_WAY
    def test_is_there_only_where_an_op_takes_gradients(self, eager: bool) -> None:
        seen: dict[str, Any] = {}

        def look(data: Any, state: Any) -> Any:
            seen[state["mode"]] = state["tape"]
            assert state["req_grad"] is (state["mode"] == "train")
            return data

        model = fastnet.build(line, "sgd")
        network = TFNetwork([Doing(look, "x", "x"), *regression(model, mode="train")])
        for mode in ("train", "eval", "test", "infer"):
            infer(network, {"x": ones(3, 2)}, mode, eager)
        assert isinstance(seen.pop("train"), tf.GradientTape)
        assert seen == {"eval": None, "test": None, "infer": None}


class TestEpoch:
    @EITHER_WAY
    def test_is_a_tensor(self, eager: bool) -> None:
        seen: list[Any] = []

        def scale(data: Any, state: Any) -> Any:
            seen.append(state["epoch"])
            return data * tf.cast(state["epoch"], "float32")

        network = TFNetwork(Doing(scale, "x", "y"))
        for epoch in (1, 2, 3, 1000):
            with network(mode="infer", epoch=epoch, eager=eager):
                assert network.run_step({"x": ones(2)})["y"].numpy().tolist() == [epoch] * 2
        assert len(seen) == (4 if eager else 1)
        assert all(tf.is_tensor(epoch) and epoch.dtype == tf.int32 for epoch in seen)
        assert all(epoch.shape == () for epoch in seen)

    @pytest.mark.parametrize("epoch", [np.int64(3), np.array(3), tf.constant(3, tf.int64)])
    def test_may_be_any_integer(self, epoch: Any) -> None:
        network = TFNetwork(Doing(lambda x, state: state["epoch"] * 2, None, "y"))
        for eager in (False, True):
            with network(mode="infer", epoch=epoch, eager=eager):
                assert network.run_step({})["y"].numpy() == 6


@pytest.mark.skipif(KERAS_3, reason="Keras 3 draws by seeds")
def test_compiled_dropout_of_keras_2_runs_as_a_graph() -> None:
    model = fastnet.build(
        lambda: keras.Sequential([layers.Input((6,)), layers.Dropout(0.5)]),
        None,
        model_name="model",
    )
    network = TFNetwork(ModelOp(model, "x", "y"), compile=True)
    with warned() as texts:
        train(network, [{"x": tf.ones((4, 6))}])
    assert "ModelOp (op 0" in texts[0]
    assert "draws random numbers by 'RandomUniform'" in texts[0]
    train(network, [{"x": tf.ones((4, 6))}], mode="infer")
    assert network.traces[-1].fallback is None


@pytest.mark.parametrize("extra", ["merge_grad", "ema", "weight"])
def test_update_with_state_of_its_own_is_traced_once(extra: str) -> None:
    model = fastnet.build(line, "sgd", model_name="model")
    counting = Counting("y", "y")
    settings: dict[str, Any] = {"merge_grad": 2} if extra == "merge_grad" else {}
    if extra == "weight":
        settings = {"merge_grad": 2, "weight": "weight"}
    ops = [ModelOp(model, "x", "y"), counting, *regression(model, **settings)[1:]]
    if extra == "ema":
        ops.append(EMA(model, decay=0.9))
    train(TFNetwork(ops), [{"x": ones(3, 2), "weight": ones()}] * 3)
    assert counting.runs == 1
