"""Keras models made ready: optimizers, weights, precision, and models with names like fastnet's."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import get_lr, load_model, save_model
from fastnet.errors import WrongOptimizerError
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import RepeatScheduler
from tests.network.keras_models import (
    BY_NAME,
    CLASSES,
    KERAS_3,
    KINDS,
    assert_close,
    batches,
    classify,
    keras,
    layers,
    line,
    loop,
    mlp,
    regression,
    same_weights,
    supervised,
    to_zero,
    train,
    twins,
    weights,
)

pytestmark = pytest.mark.tf

# what FastEstimator's names stand for; the other settings are those of the classes
DEFAULTS = {
    "adadelta": {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-7},
    "adagrad": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "adam": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
    "adamax": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
    "rmsprop": {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7},
    "sgd": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
}


def policy() -> str:
    """Name the process's precision policy."""
    if KERAS_3:
        return str(keras.config.dtype_policy().name)
    return str(keras.mixed_precision.global_policy().name)


def set_policy(name: Any) -> None:
    (keras.config.set_dtype_policy if KERAS_3 else keras.mixed_precision.set_global_policy)(name)


def wrapper() -> Any:
    return keras.optimizers if KERAS_3 else keras.mixed_precision


class ByHand:
    """Updates variables like an optimizer, without being one of Keras."""

    def apply_gradients(self, pairs: Any) -> None:
        for gradient, variable in pairs:
            variable.assign_sub(0.1 * gradient)


class TestOptimizers:
    @pytest.mark.parametrize("name", CLASSES)
    def test_by_name(self, name: str) -> None:
        model = build(line, name)
        optimizer = model.optimizer
        assert type(optimizer) is CLASSES[name]
        assert model.current_optimizer is optimizer
        settings = {**optimizer.get_config(), "name": name}
        # read off variables, where there are some
        assert settings == pytest.approx({**CLASSES[name]().get_config(), "name": name})
        chosen = {key: settings[key] for key in DEFAULTS[name]}
        assert chosen == pytest.approx(DEFAULTS[name])

    def test_of_another_model(self) -> None:
        first, second = (
            build(line, keras.optimizers.SGD, model_name=name) for name in ("first", "second")
        )
        text = r"'\w+'.*SGD.*of model 'first'.*keras"
        with pytest.raises(WrongOptimizerError, match=text):
            build(line, lambda: first.optimizer, model_name="third")
        second.optimizer = first.optimizer
        network = TFNetwork([ModelOp(second, "x", "y")])
        with pytest.raises(WrongOptimizerError, match=text), network("train", 1):
            pass

    @pytest.mark.parametrize(
        "make",
        [
            lambda: keras.optimizers.Adam,
            lambda: tf.compat.v1.train.AdamOptimizer(0.1),
            lambda: ByHand(),
            lambda: [keras.optimizers.Adam()],
        ],
        ids=["class", "tf.train", "program", "list"],
    )
    def test_not_from_keras(self, make: Any) -> None:
        with pytest.raises(WrongOptimizerError, match=r"'m'.*not an optimizer of.*keras"):
            build(line, make, model_name="m")

    def test_one_assigned_that_is_not_from_keras(self) -> None:
        model = build(line, "sgd", model_name="m")
        model.current_optimizer = ByHand()
        network = TFNetwork([ModelOp(model, "x", "y")])
        with pytest.raises(WrongOptimizerError, match=r"'m'.*ByHand"), network("train", 1):
            pass

    def test_weight_decay_is_a_variable_for_optimizers_of_keras_only(self) -> None:
        class Decaying(keras.optimizers.SGD):  # type: ignore[misc]
            pass

        own, other = (
            build(line, lambda cls=cls: cls(0.1, weight_decay=0.01)).optimizer
            for cls in (keras.optimizers.SGD, Decaying)
        )
        assert isinstance(own.weight_decay, tf.Variable)
        assert type(other.weight_decay) is float

    def test_settings_that_are_the_optimizers(self) -> None:
        with pytest.raises(TypeError, match=r"\['lr'\], but model 'm' .*`optimizer_fn=lambda"):
            build(line, "adam", model_name="m", lr=1e-3)


class TestLossScaleOptimizers:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("mixed", [True, False])
    def test_a_given_one_is_not_wrapped_again(self, kind: Any, mixed: bool) -> None:
        given = wrapper().LossScaleOptimizer(kind.Adam())
        model = build(mlp, lambda: given, mixed_precision=mixed)
        assert model.optimizer is given
        assert isinstance(given.inner_optimizer, kind.Adam)

    @pytest.mark.parametrize("kind", KINDS)
    def test_mixed_precision_wraps(self, kind: Any) -> None:
        inner = kind.SGD(0.1)
        model = build(mlp, lambda: inner, mixed_precision=True)
        assert isinstance(model.optimizer, wrapper().LossScaleOptimizer)
        assert model.optimizer.inner_optimizer is inner
        assert model.current_optimizer is model.optimizer

    def test_mixed_precision_wraps_each_of_a_schedule(self) -> None:
        model = build(line, RepeatScheduler(["adam", None, "sgd"]), mixed_precision=True)
        first, none, last = model.optimizer.get_all_values()
        assert none is None
        assert all(isinstance(one, wrapper().LossScaleOptimizer) for one in (first, last))


class TestSeveral:
    def test_beside_a_torch_model(self) -> None:
        torch = pytest.importorskip("torch")
        one, two = build(lambda: [torch.nn.Linear(2, 1), line()], ["adam", "adam"])
        assert type(one.optimizer) is torch.optim.Adam
        assert type(two.optimizer) is CLASSES["adam"]


class TestWeights:
    @pytest.mark.parametrize("ending", [".weights.h5", ".keras", ".h5"])
    def test_are_loaded(self, tmp_path: Path, ending: str) -> None:
        other = mlp()
        path = tmp_path / f"w{ending}"
        other.save_weights(path) if ending == ".weights.h5" else other.save(path)
        assert same_weights(build(mlp, "sgd", weights_path=path), other)

    def test_what_a_built_model_saves(self, tmp_path: Path) -> None:
        """Optimizers and schedulers that it holds are in nobody's way."""
        model = build(mlp, RepeatScheduler(["adam", "sgd"]))
        train(TFNetwork(supervised(model)), batches(2))
        path = str(tmp_path / "w.weights.h5")
        model.save_weights(path)
        for optimizer in ("rmsprop", None):
            assert same_weights(build(mlp, optimizer, weights_path=path), model)
        plain = mlp()
        plain.load_weights(path)
        assert same_weights(plain, model)


class TestKindsOfModels:
    def test_tf_keras(self) -> None:
        """Keras 2, where it is installed beside Keras 3."""
        tf_keras = pytest.importorskip("tf_keras")
        model = build(lambda: tf_keras.Sequential([tf_keras.layers.Dense(3)]), "adam")
        assert type(model.optimizer) is tf_keras.optimizers.legacy.Adam
        results = train(TFNetwork(supervised(model)), batches(2))
        assert np.isfinite(float(results[-1]["loss"]))

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 computes with TensorFlow only")
    def test_keras_with_another_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["keras"].config, "backend", lambda: "jax")
        with pytest.raises(ValueError, match=r"backend of Keras is 'jax'.*KERAS_BACKEND"):
            build(line, "adam")


@pytest.fixture
def as_before() -> Iterator[None]:
    """Put the process's own policy back."""
    yield
    set_policy("float32")


@pytest.mark.usefixtures("as_before")
class TestPrecision:
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            (True, "float16"),
            (False, "float32"),
            ("fp16", "float16"),
            ("mixed_float16", "float16"),
            ("bf16-mixed", "bfloat16"),
            ("fp32", "float32"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:The global policy")
    def test_only_while_the_model_is_made(self, name: Any, dtype: str) -> None:
        set_policy("mixed_bfloat16")
        model = build(mlp, "sgd", mixed_precision=name)
        assert policy() == "mixed_bfloat16"
        assert bool(model.mixed_precision) == (dtype != "float32")
        assert {layer.compute_dtype for layer in model.layers} == {dtype}
        assert {weight.dtype for weight in map(tf.convert_to_tensor, model.weights)} == {tf.float32}
        assert model(tf.ones((1, 6))).dtype == dtype
        scales = isinstance(model.optimizer, wrapper().LossScaleOptimizer)
        assert scales == (dtype == "float16")

    def test_when_model_fn_raises(self) -> None:
        set_policy("mixed_bfloat16")
        error = RuntimeError("inside")

        def fail() -> Any:
            raise error

        for mixed in (True, False):
            with pytest.raises(RuntimeError) as caught:
                build(fail, "sgd", mixed_precision=mixed)
            assert caught.value is error
            assert policy() == "mixed_bfloat16"

    def test_when_model_fn_sets_one_itself(self) -> None:
        def make() -> Any:
            set_policy("mixed_float16")
            return mlp()

        model = build(make, "sgd")
        assert model.layers[0].compute_dtype == "float16"
        assert isinstance(model.optimizer, wrapper().LossScaleOptimizer)
        assert policy() == "float32"

    @pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
    def test_warns_if_a_mixed_policy_is_not_used(self, name: str) -> None:
        set_policy(name)
        with pytest.warns(UserWarning, match=f"mixed_precision='{name}'") as caught:
            models = build(lambda: [mlp(), mlp()], ["sgd", "sgd"])
        # Keras 2 has warnings of its own.
        (warning,) = [one for one in caught if one.category is UserWarning]
        assert warning.filename == __file__
        assert {layer.compute_dtype for model in models for layer in model.layers} == {"float32"}

    def test_does_not_warn_otherwise(self) -> None:
        torch = pytest.importorskip("torch")
        set_policy("mixed_float16")
        before = mlp()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            build(mlp, "sgd", mixed_precision="float16")
            build(lambda: before, "sgd")
            build(lambda: torch.nn.Linear(1, 1), "sgd")
            set_policy("float32")
            build(mlp, "sgd")

    @pytest.mark.slow
    def test_when_model_fn_is_what_imports_keras(self) -> None:
        run_alone(
            "import sys, fastnet\n"
            "calls = []\n"
            "def make():\n"
            "    from tensorflow import keras\n"
            "    calls.append(keras)\n"
            "    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])\n"
            "assert 'keras' not in sys.modules\n"
            "model = fastnet.build(make, 'adam', mixed_precision=True)\n"
            "(layer,) = model.layers\n"
            "assert layer.compute_dtype == 'float16', layer.compute_dtype\n"
            "assert layer.name == 'dense', layer.name\n"
            "other = fastnet.build(make, 'adam')\n"
            "assert other.layers[0].compute_dtype == 'float32'\n"
            "assert calls[0].layers.Dense(1).compute_dtype == 'float32'\n"
            "assert type(model.optimizer).__name__.startswith('LossScaleOptimizer')\n"
        )


def run_alone(code: str, **environment: str) -> None:
    """Run code in a fresh interpreter."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **quiet})


def test_a_model_keeps_what_fastestimator_reads() -> None:
    """Whatever Keras makes of attributes that are set on a model."""
    model = fastnet.build(mlp, "adam", model_name="m")
    TFNetwork(supervised(model))
    assert model.loss_name == {"loss"}
    assert isinstance(model.loss_name, set)
    assert (model.model_name, model.mixed_precision, model.fe_compiled) == ("m", False, True)


class Learner(keras.Model):  # type: ignore[misc]
    """A layer, a number, a string and a property under fastnet's names."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = layers.Dense(5, activation="tanh")
        self.current_optimizer = layers.Dense(3)
        self.model_name = 1.0
        self.loss_name = "cross entropy"

    @property
    def mixed_precision(self) -> str:
        return "never"

    def call(self, x: Any) -> Any:
        return self.current_optimizer(self.optimizer(x)) * self.model_name


def learner() -> Any:
    model = Learner()
    model(np.zeros((1, 6), "float32"))
    return model


def test_a_model_that_uses_the_names_keeps_them_and_is_trained_and_saved(tmp_path: Path) -> None:
    model, twin = twins(learner)
    inner = model.optimizer, model.current_optimizer
    fastnet.build(lambda: model, lambda: BY_NAME.SGD(0.1), model_name="m")
    assert get_lr(model) == pytest.approx(0.1)
    data = batches(3)
    network = TFNetwork(supervised(model))
    assert "model 'm' with SGD" in str(network.explain())
    train(network, data)
    loop(twin, BY_NAME.SGD(0.1), data, classify)
    assert_close(model, twin)
    path = save_model(model, str(tmp_path), save_optimizer=True)
    for variable in model.weights:
        variable.assign(tf.zeros_like(variable))
    load_model(model, path, load_optimizer=True)
    assert_close(model, twin)
    assert (model.optimizer, model.current_optimizer) == inner
    assert model.loss_name == "cross entropy"
    assert model.mixed_precision == "never"
    assert model.model_name == 1.0


class TestCompiledByKeras:
    """Keras has the model's optimizer where fastnet has it: it is one optimizer or the other."""

    def test_a_new_optimizer_takes_the_place_of_keras_own(self) -> None:
        model = mlp()
        model.compile("sgd", "mse")
        fastnet.build(lambda: model, "adam")
        assert isinstance(model.optimizer, BY_NAME.Adam)
        assert model.current_optimizer is model.optimizer
        model.optimizer = BY_NAME.SGD(0.5)
        train(TFNetwork(supervised(model)), batches(1))
        assert get_lr(model) == 0.5

    def test_none_leaves_keras_its_own(self) -> None:
        model = mlp()
        model.compile(BY_NAME.SGD(0.5), "mse")
        own = model.optimizer
        fastnet.build(lambda: model, None)
        assert model.optimizer is own
        with pytest.raises(ValueError, match=f"'{model.model_name}' has no optimizer"):
            get_lr(model)
        before = weights(model)
        model.fit(np.ones((2, 6)), np.ones((2, 3)), verbose=0)
        assert not all(map(np.array_equal, before, weights(model)))

    def test_compiling_to_evaluate_keeps_the_optimizer(self) -> None:
        model, twin = twins(mlp)
        fastnet.build(model, lambda: BY_NAME.Adam(0.1))
        own, data, network = model.optimizer, batches(4), TFNetwork(supervised(model))
        train(network, data[:2])
        model.compile(loss="mse", metrics=["mae"])
        model.evaluate(np.ones((2, 6)), np.ones((2, 3)), verbose=0)
        assert model.optimizer is own
        train(network, data[2:])
        loop(twin, BY_NAME.Adam(0.1), data, classify)
        assert_close(model, twin)
        model.compile(BY_NAME.SGD(0.5), "mse")
        with network("train", 1):
            assert get_lr(model) == 0.5

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 does not copy optimizers")
    def test_compiling_a_copy_keeps_its_optimizer(self) -> None:
        model = pickle.loads(pickle.dumps(build(mlp, "adam")))
        own = model.optimizer
        model.compile(loss="mse")
        assert model.optimizer is own
        assert isinstance(own, BY_NAME.Adam)


@pytest.mark.usefixtures("as_before")
class TestModelsMadeBefore:
    @pytest.mark.parametrize("eager", [True, False])
    def test_under_a_policy_of_float16(self, eager: bool) -> None:
        set_policy("mixed_float16")
        model, twin = twins(mlp)
        twin.compile(BY_NAME.SGD(0.1), "mse")
        set_policy("float32")
        fastnet.build(model, lambda: BY_NAME.SGD(0.1))
        assert type(model.optimizer) is type(twin.optimizer)
        assert model.mixed_precision == "float16"
        data = batches(3)
        train(TFNetwork(regression(model)), data, eager=eager)
        loop(twin, twin.optimizer, data, to_zero)
        assert_close(model, twin, rtol=1e-3)

    def test_under_a_policy_of_bfloat16(self) -> None:
        set_policy("mixed_bfloat16")
        model = build(mlp(), "sgd")
        assert type(model.optimizer) is BY_NAME.SGD
        assert model.mixed_precision == "bfloat16"

    def test_beside_models_of_another_precision(self) -> None:
        set_policy("mixed_float16")
        half = build(mlp(), "sgd", model_name="half")
        set_policy("float32")
        full = build(mlp, "sgd", model_name="full")
        new = build(mlp, "sgd", model_name="new", mixed_precision=True)
        TFNetwork([ModelOp(half, "x", "y"), ModelOp(new, "x", "z")])
        with pytest.raises(ValueError, match=r"'half': 'float16', 'full': False.*made before"):
            TFNetwork([ModelOp(half, "x", "y"), ModelOp(full, "x", "z")])

    def test_in_another_precision(self) -> None:
        with pytest.raises(ValueError, match=r"float32.*mixed_precision=True.*model_fn"):
            fastnet.build(line(), "sgd", mixed_precision=True)

    def test_beside_several_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = line()
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one", "two"])
        with pytest.raises(ValueError, match="made for one device, but there are 2 GPUs"):
            fastnet.build(model, "sgd")
