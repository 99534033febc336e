"""Networks under a MirroredStrategy of two logical CPUs, beside the same steps on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.model import EMA, UpdateOp
from fastnet.slicer import AxisSlicer, SlidingSlicer
from tests import own_process
from tests.network.tf.strategy_programs import STEPS, adam, by_hand, mlp, numbers, regression

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]

keras = tf.keras
DEVICES = ["/device:CPU:0", "/device:CPU:1"]
STRATEGY: Any = None

if own_process.is_here():
    # Importing fastnet has not started TensorFlow.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(DEVICES)

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])


@pytest.fixture(autouse=True)
def _leaves_no_strategy() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    yield
    assert not tf.distribute.has_strategy()


def lazy_mlp() -> Any:
    """A model that has no variables before its first step."""
    return keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def built(make: Callable[[], Any] = mlp, optimizer: Any = momentum, **settings: Any) -> Any:
    with STRATEGY.scope():
        return fastnet.build(make, optimizer, **settings)


def value_of(variable: Any) -> np.ndarray:
    """Read a variable, which must be the same on all devices."""
    inner = variable if isinstance(variable, tf.Variable) else variable.value
    first, *others = [copy.numpy() for copy in getattr(inner, "values", [inner])]
    for copy in others:
        np.testing.assert_array_equal(copy, first)
    return np.asarray(first)


def twin_of(model: Any, make: Callable[[], Any] = mlp) -> Any:
    """Make a model on one device with the weights of another one."""
    twin = make()
    for mine, other in zip(twin.weights, model.weights, strict=True):
        mine.assign(value_of(other))
    return twin


def assert_same_weights(model: Any, other: Any) -> None:
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(value_of(one), value_of(two), rtol=1e-4, atol=1e-6)


def assert_infinite_step_is_skipped(model: Any, eager: bool, **settings: Any) -> None:
    """Run an infinite step on the last device, which changes no weights, and a finite one."""
    before = [value_of(one) for one in model.trainable_variables]
    network = fastnet.Network(regression(model, outputs={"stepped": "stepped"}, **settings))
    batch = {key: np.array(value) for key, value in STEPS[0].items()}
    batch["x"][-1] = np.inf
    with network("train", 1, eager=eager):
        assert not network.run_step(batch)["stepped"]
        for mine, old in zip(model.trainable_variables, before, strict=True):
            np.testing.assert_array_equal(value_of(mine), old)
        assert network.run_step(STEPS[0])["stepped"]


def distributed(value: Any, first: int) -> Any:
    """Make a distributed value, of which the first device gets the first rows."""
    waiting = iter([tf.constant(value[:first]), tf.constant(value[first:])])
    return STRATEGY.experimental_distribute_values_from_function(lambda context: next(waiting))


def with_squares(loss: Any, gradients: Any) -> Any:
    return loss + 0.1 * sum(tf.reduce_sum(one**2) for one in gradients)


class TestTraining:
    @EITHER_WAY
    @pytest.mark.parametrize("batches", ["plain", "distributed"])
    @pytest.mark.parametrize(("scope", "optimizer"), [(True, adam), (False, momentum)])
    def test_equals_one_device_on_the_whole_batch(
        self, batches: str, scope: bool, optimizer: Any, eager: bool
    ) -> None:
        """The network remembers the strategy of its model."""
        model = built(optimizer=optimizer)
        twin = twin_of(model)
        network = fastnet.Network(regression(model))
        losses = []
        with STRATEGY.scope() if scope else nullcontext():
            for epoch in (1, 2):
                with network("train", epoch, eager=eager):
                    for batch in STEPS:
                        given: Any = batch
                        if batches == "distributed":
                            half = len(batch["x"]) // 2
                            given = {key: distributed(one, half) for key, one in batch.items()}
                        result = network.run_step(given)
                        losses.append(float(result["loss"]))
                        np.testing.assert_array_equal(result["x"], batch["x"])
                        assert result["y_pred"].shape == batch["y"].shape
        assert len(network.traces) == (0 if eager else 2)
        np.testing.assert_allclose(losses, by_hand(twin, optimizer(), STEPS * 2), rtol=1e-4)
        assert_same_weights(model, twin)

    def test_batches_of_a_distributed_dataset(self) -> None:
        model = built()
        twin = twin_of(model)
        network = fastnet.Network(regression(model))
        data = numbers(24, 7)
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(8)
        network.transform(STRATEGY.experimental_distribute_dataset(dataset), mode="train")
        steps = [{key: one[i : i + 8] for key, one in data.items()} for i in (0, 8, 16)]
        by_hand(twin, momentum(), steps)
        assert_same_weights(model, twin)

    @EITHER_WAY
    @pytest.mark.parametrize("program", ["merged", "clipped", "given", "average", "warming"])
    def test_programs(self, program: str, eager: bool) -> None:
        model = built()
        twin = twin_of(model)
        settings = {"merged": {"merge_grad": 2, "clip_norm": 0.1}, "clipped": {"clip_norm": 0.1}}
        ops = regression(model, **settings.get(program, {}))
        if program == "given":
            # An op that clips sees the gradients of the whole batch.
            clip = LambdaOp(lambda g: tf.clip_by_global_norm(g, 0.1)[0], "g", "g")
            ops[2:] = [GradientOp("loss", "g", model=model), clip, UpdateOp(model, "loss", "g")]
        averages = program in ("average", "warming")
        if averages:
            with STRATEGY.scope():
                ops.append(EMA(model, decay=0.5 if program == "average" else lambda n: n / (2 + n)))
        network = fastnet.Network(ops)
        with network("train", 1, eager=eager):
            for batch in STEPS:
                network.run_step(batch)
        norm = None if averages else 0.1
        by_hand(twin, momentum(), STEPS, 2 if program == "merged" else 1, norm)
        assert_same_weights(model, twin)
        if averages:
            assert ops[-1].state_dict()["updates"] == len(STEPS)
            assert not np.allclose(
                value_of(ops[-1].averaged.weights[0]), value_of(model.weights[0])
            )

    @EITHER_WAY
    def test_weights_count_over_all_devices(self, eager: bool) -> None:
        model = built()
        twin = twin_of(model)
        masks = [np.arange(len(one["x"])) % 3 < 1 + step % 2 for step, one in enumerate(STEPS)]

        def masked_mean(pred: Any, truth: Any, mask: Any) -> Any:
            losses = tf.reduce_mean((pred - truth) ** 2, -1) * mask
            return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(mask))

        run, _, _ = regression(model)
        network = fastnet.Network(
            [
                run,
                LambdaOp(masked_mean, ["y_pred", "y", "mask"], "loss"),
                LambdaOp(tf.reduce_sum, "mask", "count"),
                UpdateOp(model, "loss", weight="count"),
            ]
        )
        steps = [
            {**batch, "mask": mask.astype("float32")}
            for batch, mask in zip(STEPS, masks, strict=True)
        ]
        with network("train", 1, eager=eager):
            for batch in steps:
                network.run_step(batch)
        kept = [
            {key: np.asarray(one)[mask] for key, one in batch.items()}
            for batch, mask in zip(STEPS, masks, strict=True)
        ]
        by_hand(twin, momentum(), kept)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_all_devices_skip_a_gradient_that_is_not_finite(self, eager: bool) -> None:
        model = built()
        twin = twin_of(model)
        assert_infinite_step_is_skipped(model, eager, skip_nonfinite=True)
        by_hand(twin, momentum(), STEPS[:1])
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_a_penalty_of_the_averaged_gradient(self, eager: bool) -> None:
        """The second gradient goes through the average over the devices."""
        model = built()
        twin, optimizer = twin_of(model), momentum()
        ops = regression(model)
        ops[2:] = [
            GradientOp("loss", "g", model=model, higher_order=True),
            LambdaOp(with_squares, ["loss", "g"], "total"),
            UpdateOp(model, "total"),
        ]
        network = fastnet.Network(ops)
        with network("train", 1, eager=eager):
            for batch in STEPS:
                network.run_step(batch)
        for batch in STEPS:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    loss = tf.reduce_mean((twin(batch["x"], training=True) - batch["y"]) ** 2)
                total = with_squares(loss, inner.gradient(loss, twin.trainable_variables))
            gradients = outer.gradient(total, twin.trainable_variables)
            optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        assert_same_weights(model, twin)

    def test_the_rest_of_merged_gradients_is_flushed(self) -> None:
        model = built()
        twin = twin_of(model)
        network = fastnet.Network(regression(model, merge_grad=4, rest="flush"))
        network.transform(STEPS[:2], mode="train")
        by_hand(twin, momentum(), STEPS[:2], merge=2)
        assert_same_weights(model, twin)

    def test_a_model_without_variables(self) -> None:
        model = built(lazy_mlp)
        network = fastnet.Network(regression(model))
        with network("train", 1):
            if hasattr(keras, "ops"):
                with pytest.raises(ValueError, match="Give it an Input, or call its build"):
                    network.run_step(STEPS[0])
            else:
                network.run_step(STEPS[0])
                assert all(len(one.values) == 2 for one in model.trainable_variables)

    @EITHER_WAY
    def test_an_overflow_on_one_device_skips_the_step(self, eager: bool) -> None:
        assert_infinite_step_is_skipped(built(mixed_precision="float16"), eager)

    @EITHER_WAY
    def test_a_changed_setting(self, eager: bool) -> None:
        """It takes effect when the network is entered again, on all devices."""
        model = built()
        twin = twin_of(model)
        network = fastnet.Network(regression(model))
        for merge in (1, 2):
            network.ops[-1].merge_grad = merge
            with network("train", 1, eager=eager):
                for batch in STEPS[:2]:
                    network.run_step(batch)
        optimizer = momentum()
        by_hand(twin, optimizer, STEPS[:2])
        by_hand(twin, optimizer, STEPS[:2], merge=2)
        assert_same_weights(model, twin)

    def test_a_compiled_step_is_a_graph(self) -> None:
        network = TFNetwork(regression(built()), compile=True)
        with network("train", 1):
            network.run_step(STEPS[0])
        assert network.traces[-1].fallback is not None


class TestEvaluation:
    @EITHER_WAY
    @pytest.mark.parametrize("size", [1, 5, 8])
    def test_any_size_equals_one_device(self, size: int, eager: bool) -> None:
        model = built()
        twin = twin_of(model)
        network = fastnet.Network(regression(model))
        batch = numbers(size, 3)
        with network("eval", 1, eager=eager):
            result = network.run_step(batch)
        expected = twin(batch["x"])
        np.testing.assert_allclose(result["y_pred"], expected, rtol=1e-5, atol=1e-6)
        loss = float(tf.reduce_mean((expected - batch["y"]) ** 2))
        np.testing.assert_allclose(float(result["loss"]), loss, rtol=1e-5)

    @EITHER_WAY
    def test_how_results_are_joined(self, eager: bool) -> None:
        ops = {
            "mean": tf.reduce_mean,
            "size": lambda x: tf.shape(x)[0],
            "any": lambda x: tf.reduce_any(x > 6.0),
            "word": lambda x: tf.constant("word"),
            "double": lambda x: x * 2,
            "nest": lambda x: {"a": [x + 1, None]},
            "ragged": lambda x: tf.RaggedTensor.from_row_lengths(x, tf.ones_like(x, "int64")),
        }
        network = TFNetwork([LambdaOp(fn, "x", key) for key, fn in ops.items()])
        x = np.arange(8.0, dtype="float32")
        with STRATEGY.scope(), network("infer", 1, eager=eager):
            result = network.run_step({"x": distributed(x, 5), "other": "kept"})
            assert np.isnan(network.run_step({"x": distributed(x[:0], 0)})["mean"])
            one_nan = np.where(x == 1, np.nan, x)
            assert np.isnan(network.run_step({"x": distributed(one_nan, 5)})["mean"])
            assert network.run_step({"x": distributed(x, 8)})["mean"] == x.mean()
        assert result["mean"] == x.mean()
        assert (result["size"], result["any"]) == ((5 * 5 + 3 * 3) / 8, 3 / 8)
        assert result["word"] == b"word"
        np.testing.assert_array_equal(result["double"], 2 * x)
        np.testing.assert_array_equal(result["nest"]["a"][0], x + 1)
        assert result["ragged"].to_list() == [[one] for one in x]
        np.testing.assert_array_equal(result["x"], x)
        assert result["other"] == "kept"

    @EITHER_WAY
    def test_scalar_of_each_device_is_not_taken_for_the_samples(self, eager: bool) -> None:
        def weighted_mean(factor: Any, x: Any) -> Any:
            return tf.reduce_mean(factor * x)

        network = TFNetwork(LambdaOp(weighted_mean, ["a", "x"], "mean"))
        x = np.arange(8.0, dtype="float32")
        factor = STRATEGY.experimental_distribute_values_from_function(
            lambda context: tf.constant(2.0)
        )
        with STRATEGY.scope(), network("infer", 1, eager=eager):
            result = network.run_step({"a": factor, "x": distributed(x, 5)})
        assert result["mean"] == 2 * x.mean()

    def test_slicers_cut_before_the_batch_is_split(self) -> None:
        images = np.arange(4 * 4 * 6, dtype="float32").reshape(4, 4, 6)
        for slicer in (
            SlidingSlicer([2, -1, -1], strides=[2, 0, 0], slice="x", unslice="y"),
            AxisSlicer(-1, slice="x", unslice="y"),
        ):
            network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], slicers=[slicer])
            with STRATEGY.scope(), network("infer", 1):
                for x in (images, distributed(images, 2)):
                    np.testing.assert_array_equal(network.run_step({"x": x})["y"], 2 * images)

    def test_postprocessing_sees_the_joined_batch(self) -> None:
        double = NumpyLambdaOp(lambda y: y * 2, "y", "z")
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")], postprocessing=[double])
        with STRATEGY.scope(), network("infer", 1):
            result = network.run_step({"x": np.arange(5)})
        np.testing.assert_array_equal(result["z"], 2 * (np.arange(5) + 1))


class TestErrors:
    def test_uneven_batches_in_training(self) -> None:
        network = fastnet.Network(regression(built()))
        with network("train", 1), pytest.raises(ValueError, match=r"^A batch of 5 samples cannot"):
            network.run_step(numbers(5, 0))

    def test_values_of_several_lengths(self) -> None:
        network = fastnet.Network(regression(built()))
        batch = {"x": STEPS[0]["x"], "y": STEPS[0]["y"][:4]}
        with network("train", 1), pytest.raises(ValueError, match=r"lengths differ: \{'x': \[8\]"):
            network.run_step(batch)

    def test_slicers_that_remove_the_batch_axis(self) -> None:
        slicers = [AxisSlicer(0, slice="x", unslice="y")]
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y")], slicers=slicers)
        with STRATEGY.scope(), network("infer", 1), pytest.raises(ValueError, match="let slicers"):
            network.run_step({"x": np.ones((4, 4))})

    def test_a_model_that_was_built_without_the_strategy(self) -> None:
        network = TFNetwork(regression(fastnet.build(mlp, momentum, model_name="m")))
        with (
            STRATEGY.scope(),
            pytest.raises(ValueError, match=r"^Model 'm' is to be updated under a Mirrored"),
            network("train", 1),
        ):
            pass

    @EITHER_WAY
    def test_average_that_was_made_without_the_strategy(self, eager: bool) -> None:
        model = built(model_name="m")
        network = TFNetwork([*regression(model), EMA(model)])
        with (
            pytest.raises(ValueError, match=r"^EMA of 'm' .* Mirrored.*within `with strategy"),
            network("train", 1, eager=eager),
        ):
            pass

    @EITHER_WAY
    def test_an_error_on_one_device_names_the_op(self, eager: bool) -> None:
        check = LambdaOp(lambda x: tf.debugging.check_numerics(x, "bad"), "x", "y")
        network = TFNetwork([check])
        x = np.array([1.0, 2.0, 3.0, np.nan], "float32")
        with STRATEGY.scope(), network("infer", 1, eager=eager):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                network.run_step({"x": x})
            assert any("LambdaOp" in note for note in caught.value.__notes__)
            assert network.run_step({"x": x[:2]})["y"].shape == (2,)


def test_checkpoint_of_a_generator_of_each_device(tmp_path: Path) -> None:
    class Drawing(TensorOp):
        def __init__(self, seed: int) -> None:
            super().__init__(inputs="x", outputs="x")
            self.generator = tf.random.Generator.from_seed(seed)

        def forward(self, data: Any, state: Any) -> Any:
            return data + self.generator.uniform(tf.shape(data))

    def make(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        with STRATEGY.scope():
            model = fastnet.build(mlp, momentum, model_name="net")
            return fastnet.Network([Drawing(seed), *regression(model)])

    def run(network: Any) -> list[float]:
        with network("train", 1):
            return [float(network.run_step(batch)["loss"]) for batch in STEPS]

    network, resumed = make(0), make(1)
    run(network)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    losses = run(network)
    fastnet.load_checkpoint(path, resumed)
    assert run(resumed) == losses
    other = fastnet.Network([Drawing(1), *regression(fastnet.build(mlp, momentum))])
    other.models[0].model_name = "net"
    with pytest.raises(ValueError, match=r"ops/0.generator is a Generators.* is a Generator"):
        fastnet.load_checkpoint(path, other)


def test_models_are_mirrored_over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tf.config.list_logical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: list(found))
    made: list[Any] = []

    def make() -> Any:
        made.append(mlp())
        return made[-1]

    try:
        model = fastnet.build(make, momentum)
        # It was made again under the strategy, as if for the first time.
        assert model is made[1]
        assert model.layers[0].name == "dense"
        network = fastnet.Network(regression(model))
        assert "MirroredStrategy over 2 devices" in str(network.explain("train"))
    finally:
        tf.distribute.experimental_set_strategy(None)
    explanation = network.explain("infer")
    assert list(explanation.parallelism.values()) == ["by MirroredStrategy over 2 devices"]
    twin = twin_of(model)
    with network("train", 1):
        network.run_step(STEPS[0])
    by_hand(twin, momentum(), STEPS[:1])
    assert_same_weights(model, twin)


def test_unknown_number_of_samples_in_a_function_is_refused() -> None:
    network = TFNetwork(LambdaOp(lambda x: x + 1, "x", "y"))
    with STRATEGY.scope(), network("infer", 1):
        for rows, fails in ((4, False), (None, True)):
            spec = [{"x": tf.TensorSpec((rows, 2))}]
            step = tf.function(lambda batch: network.run_step(batch)["y"], input_signature=spec)
            if fails:
                with pytest.raises(ValueError, match="number of samples of 'x' is unknown"):
                    step({"x": tf.ones((4, 2))})
            else:
                result = STRATEGY.experimental_local_results(step({"x": tf.ones((4, 2))}))
                assert np.concatenate(result).tolist() == [[2.0, 2.0]] * 4
