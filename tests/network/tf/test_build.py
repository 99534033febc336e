"""Keras models made ready: optimizers, names, weights, precision. How files are read is tested with
`fastnet.backend`."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend.dispatch import framework_of
from fastnet.errors import UnknownNameError, WrongOptimizerError
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.schedule import EpochScheduler, RepeatScheduler
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
    same_weights,
    supervised,
    train,
    twins,
    variables_of,
    weights,
)
from tests.network.programs import raising
from tests.network.schedulers import Doubling

# which of them there are follows Keras' version
NAMES = sorted(
    name.lower()
    for name in (
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion"),
        *("Muon", "Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW"),
    )
    if hasattr(tf.keras.optimizers, name)
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


def takes_one(parameters: Any) -> None:
    """Return no optimizer, of some parameters."""


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

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "Adamax", "RMSprop", "SGD"])
    def test_they_train_as_by_hand(self, kind: Any, name: str) -> None:
        model, twin = twins(mlp)
        data = batches(3)
        model = build(lambda: model, lambda: getattr(kind, name)(0.01))
        made = len(variables_of(model.optimizer))
        train(TFNetwork(supervised(model)), data)
        # all that it keeps was made when the model was built
        assert len(variables_of(model.optimizer)) == made
        loop(twin, getattr(kind, name)(0.01), data, classify)
        assert_close(model, twin)

    def test_by_class(self) -> None:
        assert type(build(line, BY_NAME.Adam).optimizer) is BY_NAME.Adam

    def test_a_schedule_of_rates(self) -> None:
        model, twin = twins(mlp)
        data = batches(4)

        def make() -> Any:
            return BY_NAME.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1]))

        model = build(lambda: model, make)
        train(TFNetwork(supervised(model)), data)
        loop(twin, make(), data, classify)
        assert_close(model, twin)

    @pytest.mark.parametrize("none", [None, []])
    def test_none(self, none: Any) -> None:
        model = build(line, none)
        assert model.optimizer is None
        assert model.current_optimizer is None
        assert model.fe_compiled is True

    @pytest.mark.parametrize(
        ("source", "kind", "text"),
        [
            (
                "sdg",
                UnknownNameError,
                f"The optimizer of model 'm' is called 'sdg', but the names are {NAMES}. Did you "
                "mean 'sgd'? For any other pass a function, such as "
                "`lambda: tf.keras.optimizers.AdamW(1e-3)`.",
            ),
            (
                3,
                WrongOptimizerError,
                "The optimizer_fn of model 'm' is of type int. Pass a name; a function without "
                "arguments, such as `lambda: keras.optimizers.Adam(1e-3)`; a scheduler of these; "
                "or None.",
            ),
            (
                takes_one,
                WrongOptimizerError,
                "The optimizer_fn of model 'm' failed: TypeError(\"takes_one() missing 1 required "
                "positional argument: 'parameters'\"). For a Keras model it takes no argument, and "
                "returns a Keras optimizer.",
            ),
            (
                lambda: [1],
                WrongOptimizerError,
                "The optimizer_fn of model 'm' returned list, not a Keras optimizer.",
            ),
            (
                lambda: None,
                WrongOptimizerError,
                "The optimizer_fn of model 'm' returned NoneType, not a Keras optimizer.",
            ),
        ],
    )
    def test_that_cannot_be_made(self, source: Any, kind: Any, text: str) -> None:
        for each in (source, EpochScheduler({1: "sgd", 2: source})):
            with raising(kind, text):
                build(line, each, model_name="m")

    def test_what_failed_is_the_cause(self) -> None:
        error = RuntimeError("inside")

        def fail() -> Any:
            raise error

        with pytest.raises(ValueError, match="inside") as caught:
            build(line, fail)
        assert caught.value.__cause__ is error

    def test_an_optimizer_instead_of_a_function(self) -> None:
        with raising(
            WrongOptimizerError,
            "The optimizer_fn of model 'm' is of type SGD. Pass a name; a function without "
            "arguments, such as `lambda: keras.optimizers.Adam(1e-3)`; a scheduler of these; or "
            "None.",
        ):
            build(line, BY_NAME.SGD(), model_name="m")

    def test_settings_that_are_the_optimizers(self) -> None:
        with pytest.raises(TypeError, match=r"\['lr'\], but model 'm' .*`optimizer_fn=lambda"):
            build(line, "adam", model_name="m", lr=1e-3)


class TestScheduledOptimizers:
    @pytest.mark.parametrize(
        ("scheduler", "kinds"),
        [
            (EpochScheduler({1: "adam", 3: None, 4: BY_NAME.SGD}), "Adam Adam None SGD SGD"),
            (EpochScheduler({2: "adam"}), "None Adam Adam Adam Adam"),
            (RepeatScheduler(["adam", BY_NAME.SGD, None]), "Adam SGD None Adam SGD"),
            (Doubling(), "SGD SGD None None None"),
        ],
        ids=["epochs", "late", "turns", "own"],
    )
    def test_each_is_made_once_and_the_first_is_current(self, scheduler: Any, kinds: str) -> None:
        held = {name: repr(value) for name, value in vars(scheduler).items()}
        model = build(line, scheduler)
        assert {name: repr(value) for name, value in vars(scheduler).items()} == held
        assert model.optimizer is not scheduler
        current = [model.optimizer.get_current_value(epoch) for epoch in range(1, 6)]
        again = [model.optimizer.get_current_value(epoch) for epoch in range(1, 6)]
        assert all(a is b for a, b in zip(current, again, strict=True))
        named = [type(optimizer).__name__.replace("NoneType", "None") for optimizer in current]
        assert named == kinds.split()
        assert model.current_optimizer is current[0]

    def test_one_scheduler_for_two_models(self) -> None:
        scheduler = EpochScheduler({1: "adam", 2: "sgd"})
        one, two = build(lambda: [line(), line()], [scheduler, scheduler])
        assert one.optimizer.get_current_value(1) is not two.optimizer.get_current_value(1)
        assert scheduler.get_all_values() == ["adam", "sgd"]

    def test_each_trains_in_its_turn(self) -> None:
        model, twin = twins(mlp)
        data = batches(5)
        model = build(lambda: model, RepeatScheduler(["adam", lambda: BY_NAME.SGD(0.1), None]))
        network = TFNetwork(supervised(model))
        for epoch, batch in zip((1, 2, 4, 5, 7), data, strict=True):
            train(network, [batch], epoch=epoch)
        adam, sgd = BY_NAME.Adam(), BY_NAME.SGD(0.1)
        for optimizer, batch in zip((adam, sgd, adam, sgd, adam), data, strict=True):
            loop(twin, optimizer, [batch], classify)
        assert_close(model, twin)

    def test_with_mixed_precision_each_scales(self) -> None:
        model = build(line, RepeatScheduler(["adam", None, "sgd"]), mixed_precision=True)
        kinds = [isinstance(one, wrapper().LossScaleOptimizer) for one in optimizers_of(model)]
        assert kinds == [True, True]


def optimizers_of(model: Any) -> list[Any]:
    return [one for one in model.optimizer.get_all_values() if one is not None]


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

    def test_by_name(self) -> None:
        model = build(mlp, "adam", mixed_precision=True)
        assert type(model.optimizer.inner_optimizer) is CLASSES["adam"]

    def test_full_precision_does_not(self) -> None:
        assert type(build(mlp, "adam").optimizer) is CLASSES["adam"]


class TestSeveral:
    @pytest.mark.parametrize("kind", [list, tuple])
    def test_a_list_comes_back(self, kind: Any) -> None:
        made = [line(), mlp()]
        models = build(lambda: kind(made), ["adam", None], model_name=["a", "b"])
        assert type(models) is list
        assert models[0] is made[0]
        assert models[1] is made[1]
        assert [model.model_name for model in models] == ["a", "b"]
        assert type(models[0].optimizer) is CLASSES["adam"]
        assert models[1].optimizer is None

    def test_one_in_a_list_is_one(self) -> None:
        made = line()
        assert build(lambda: [made], ["adam"]) is made

    def test_one_of_each_for_each(self) -> None:
        with raising(
            AssertionError,
            "model_fn makes 2 models, but there are 1 optimizers, 2 weights paths and 2 names. "
            "Give one of each for each model.",
        ):
            build(lambda: [line(), line()], "sgd")

    def test_beside_a_torch_model(self) -> None:
        torch = pytest.importorskip("torch")
        one, two = build(lambda: [torch.nn.Linear(2, 1), line()], ["adam", "adam"])
        assert type(one.optimizer) is torch.optim.Adam
        assert type(two.optimizer) is CLASSES["adam"]

    @pytest.mark.parametrize("made", [3, keras.layers.Dense(2), keras.Sequential, tf.Module()])
    def test_what_is_no_model(self, made: Any) -> None:
        with raising(
            ValueError,
            f"model_fn made {type(made).__name__}, which is no model of a known framework. Let it "
            "return a torch.nn.Module or a Keras model, or a sequence of them.",
        ):
            build(lambda: made, None)


class TestNames:
    def test_made_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["fastnet.network.build"], "_names", itertools.count())
        names = [build(line, None).model_name for _ in range(2)]
        names += [model.model_name for model in build(lambda: [line(), line()], None)]
        names += [build(line, None, model_name="mine").model_name, build(line, None).model_name]
        assert names == ["model", "model1", "model2", "model3", "mine", "model4"]

    def test_attributes(self) -> None:
        model = build(line, "sgd", None, "m", False)
        assert model.model_name == "m"
        assert model.fe_compiled is True
        assert model.mixed_precision is False
        assert not hasattr(model, "loss_name")


class TestWeights:
    @pytest.mark.parametrize("ending", [".weights.h5", ".keras", ".h5"])
    @pytest.mark.parametrize("kind", [str, Path, lambda path: [path]])
    def test_are_loaded(self, tmp_path: Path, ending: str, kind: Any) -> None:
        other = mlp()
        path = tmp_path / f"w{ending}"
        other.save_weights(path) if ending == ".weights.h5" else other.save(path)
        assert same_weights(build(mlp, "sgd", weights_path=kind(str(path))), other)

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

    def test_for_some_models(self, tmp_path: Path) -> None:
        other, first, second = mlp(), mlp(), mlp()
        path = str(tmp_path / "w.weights.h5")
        other.save_weights(path)
        before = weights(first)
        build(lambda: [first, second], [None, None], weights_path=[None, path])
        assert same_weights(first, before)
        assert same_weights(second, other)

    def test_before_the_optimizer_is_made(self, tmp_path: Path) -> None:
        other, model = mlp(), mlp()
        path = str(tmp_path / "w.weights.h5")
        other.save_weights(path)
        seen: list[Any] = []

        def look() -> Any:
            seen.extend(weights(model))
            return BY_NAME.SGD()

        build(lambda: model, look, weights_path=path)
        assert same_weights(seen, other)

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "none.h5"
        with pytest.raises(ValueError, match=r"no weights file .*none\.h5.* Check the path"):
            build(mlp, "sgd", weights_path=str(path))


class TestKindsOfModels:
    def functional(self) -> Any:
        x = layers.Input((6,))
        return keras.Model(x, layers.Dense(3)(layers.Dense(5, activation="tanh")(x)))

    def sequential(self) -> Any:
        return mlp()

    def late_sequential(self) -> Any:
        return keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(3)])

    def derived(self) -> Any:
        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.one = layers.Dense(5, activation="tanh")
                self.two = layers.Dense(3)

            def call(self, x: Any) -> Any:
                return self.two(self.one(x))

        return Own()

    @pytest.mark.parametrize(
        ("kind", "eager", "optimizer"),
        [
            ("functional", False, KINDS[-1].Adam),
            ("sequential", True, KINDS[-1].Adam),
            ("late_sequential", False, KINDS[-1].Adam),
            ("late_sequential", True, BY_NAME.Adam),
            ("derived", False, BY_NAME.Adam),
            ("derived", True, KINDS[-1].Adam),
        ],
    )
    def test_training(self, kind: str, eager: bool, optimizer: Any) -> None:
        """One that knows no shape yet gets its variables, and the optimizer its own, by a step."""
        make = getattr(self, kind)
        data = batches(4)
        keras.utils.set_random_seed(3)
        model = build(make, optimizer)
        train(TFNetwork(supervised(model)), data, eager)
        keras.utils.set_random_seed(3)
        twin = make()
        loop(twin, optimizer(), data, classify)
        assert_close(model, twin)

    def test_frameworks(self) -> None:
        assert framework_of(self.functional()) == "tf"
        assert framework_of(self.derived()) == "tf"
        assert framework_of(layers.Dense(1)) is None

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

    def test_keras_with_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its models are torch's modules too, but would not know when they are trained."""
        model = line()
        fake = types.SimpleNamespace(nn=types.SimpleNamespace(Module=keras.Model))
        monkeypatch.setitem(sys.modules, "torch", fake)
        assert framework_of(model) == "tf"


@pytest.fixture
def as_before() -> Iterator[None]:
    """Put the process's own policy back."""
    yield
    set_policy("float32")


@pytest.mark.usefixtures("as_before")
class TestPrecision:
    @pytest.mark.parametrize("own", ["float32", "mixed_float16", "mixed_bfloat16"])
    @pytest.mark.parametrize("mixed", [True, False])
    def test_only_while_the_model_is_made(self, own: str, mixed: bool) -> None:
        set_policy(own)
        seen: list[str] = []

        def make() -> Any:
            seen.append(policy())
            return mlp()

        model = build(make, "sgd", mixed_precision=mixed)
        assert seen == ["mixed_float16" if mixed else "float32"]
        assert policy() == own
        assert model.mixed_precision is mixed
        assert {layer.compute_dtype for layer in model.layers} == {
            "float16" if mixed else "float32"
        }
        assert {weight.dtype for weight in map(tf.convert_to_tensor, model.weights)} == {tf.float32}
        y = model(tf.ones((1, 6)))
        assert y.dtype == (tf.float16 if mixed else tf.float32)

    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            ("fp16", "float16"),
            ("fp16-mixed", "float16"),
            ("float16", "float16"),
            ("mixed_float16", "float16"),
            ("bf16", "bfloat16"),
            ("bf16-mixed", "bfloat16"),
            ("bfloat16", "bfloat16"),
            ("mixed_bfloat16", "bfloat16"),
            ("float32", "float32"),
            ("fp32", "float32"),
        ],
    )
    def test_by_name(self, name: str, dtype: str) -> None:
        model = build(mlp, "sgd", mixed_precision=name)
        assert {layer.compute_dtype for layer in model.layers} == {dtype}
        assert {weight.dtype for weight in map(tf.convert_to_tensor, model.weights)} == {tf.float32}
        scales = isinstance(model.optimizer, wrapper().LossScaleOptimizer)
        assert scales == (dtype == "float16")
        assert policy() == "float32"

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
        assert policy() == "float32"

    def test_when_the_optimizer_fails(self) -> None:
        with pytest.raises(ValueError, match="is called 'none'"):
            build(mlp, "none", mixed_precision=True)
        assert policy() == "float32"

    def test_a_policy_object_is_the_same_one_afterwards(self) -> None:
        own = keras.mixed_precision.Policy("mixed_bfloat16")
        set_policy(own)
        build(mlp, "sgd", mixed_precision=True)
        now = keras.config.dtype_policy() if KERAS_3 else keras.mixed_precision.global_policy()
        assert now is own

    @pytest.mark.skipif(KERAS_3, reason="Keras 3 settles on a policy when it first makes a layer")
    def test_a_policy_that_was_never_set_goes_on_following_floatx(self) -> None:
        set_policy(None)
        build(mlp, "sgd")
        keras.backend.set_floatx("float64")
        try:
            assert policy() == "float64"
        finally:
            keras.backend.set_floatx("float32")

    def test_a_torch_model_leaves_it_too(self) -> None:
        torch = pytest.importorskip("torch")
        set_policy("mixed_bfloat16")
        build(lambda: torch.nn.Linear(1, 1), "sgd", mixed_precision=True)
        assert policy() == "mixed_bfloat16"

    def test_not_on_macs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.warns(UserWarning, match="not supported on macOS"):
            model = build(mlp, "adam", mixed_precision=True)
        assert model.mixed_precision is False
        assert type(model.optimizer) is CLASSES["adam"]

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


class TestSeveralGPUs:
    """Pretended: the strategy itself is made of the CPU."""

    @pytest.fixture(autouse=True)
    def two(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (cpu,) = tf.config.list_logical_devices("CPU")[:1]
        monkeypatch.setattr(
            tf.config, "list_logical_devices", lambda kind=None: [cpu] * (1 + (kind == "GPU"))
        )
        made = tf.distribute.MirroredStrategy
        monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda devices: made([cpu.name]))
        set_policy("mixed_bfloat16")
        yield
        tf.distribute.experimental_set_strategy(None)
        set_policy("float32")

    @pytest.mark.parametrize("mixed", [True, False])
    def test_models_are_made_under_a_strategy(self, mixed: bool) -> None:
        made: list[Any] = []

        def make() -> Any:
            made.append(keras.Sequential([layers.Input((2,)), layers.Dense(1)]))
            return made[-1]

        model = build(make, "adam", mixed_precision=mixed)
        assert len(made) == 2
        assert model is made[1]
        # as if they had been made once, and with the process's settings as they were
        assert model.layers[-1].name == "dense"
        assert model.layers[-1].compute_dtype == ("float16" if mixed else "float32")
        assert isinstance(tf.distribute.get_strategy(), tf.distribute.Strategy)
        assert tf.distribute.has_strategy()
        assert policy() == "mixed_bfloat16"
        # one that is there already is used, and nothing is made twice
        build(make, "adam")
        assert len(made) == 3

    def test_beside_a_torch_model(self) -> None:
        torch = pytest.importorskip("torch")
        models = build(lambda: [torch.nn.Linear(2, 1), line()], [None, None])
        assert [framework_of(model) for model in models] == ["torch", "tf"]


def test_a_model_keeps_what_fastestimator_reads() -> None:
    """Whatever Keras makes of attributes that are set on a model."""
    model = fastnet.build(mlp, "adam", model_name="m")
    TFNetwork(supervised(model))
    assert model.loss_name == {"loss"}
    assert isinstance(model.loss_name, set)
    assert (model.model_name, model.mixed_precision, model.fe_compiled) == ("m", False, True)


class TestAgainstFastEstimator:
    @pytest.mark.skipif(KERAS_3, reason="FastEstimator stops at Keras 2")
    def test_optimizers_of_names(self) -> None:
        theirs = pytest.importorskip("fastestimator")
        made = theirs.build(lambda: [line() for _ in CLASSES], list(CLASSES))
        own = build(lambda: [line() for _ in CLASSES], list(CLASSES))
        for one, other in zip(own, made, strict=True):
            assert type(one.optimizer) is type(other.optimizer)
            assert one.optimizer.get_config() == other.optimizer.get_config()
            assert len(variables_of(one.optimizer)) == len(variables_of(other.optimizer))

    @pytest.mark.skipif(KERAS_3, reason="FastEstimator stops at Keras 2")
    @pytest.mark.usefixtures("as_before")
    def test_mixed_precision(self) -> None:
        theirs = pytest.importorskip("fastestimator")
        other = theirs.build(mlp, "adam", mixed_precision=True)
        set_policy("float32")
        own = build(mlp, "adam", mixed_precision=True)
        assert type(own.optimizer) is type(other.optimizer)
        assert own.optimizer.get_config() == other.optimizer.get_config()
        for one, two in zip(own.layers, other.layers, strict=True):
            assert one.dtype_policy.name == two.dtype_policy.name
        own.set_weights(other.get_weights())
        x = batches(1)[0]["x"]
        np.testing.assert_array_equal(own(x), other(x))
