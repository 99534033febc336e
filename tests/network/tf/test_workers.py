"""Steps of several workers under MultiWorkerMirroredStrategy, beside one process and loops by hand.

The workers are processes of their own: what runs in them are the functions of this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import MeanUnslicer, Slicer
from tests import tf_workers
from tests.missing_keys import reads
from tests.tf_workers import Workers

pytestmark = [pytest.mark.tf, pytest.mark.slow]

keras = tf.keras
KERAS_3 = hasattr(keras, "ops")

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])

Batch = dict[str, np.ndarray]


_made: list[Workers] = []


@pytest.fixture
def workers() -> Workers:
    """Give the workers that there are, or new ones where a test has ended those."""
    if not _made or not _made[-1].are_there:
        _made.append(Workers(2))
    return _made[-1]


@pytest.fixture(scope="module", autouse=True)
def workers_are_ended() -> Iterator[None]:
    yield
    for each in _made:
        each.end()


@pytest.fixture
def new_workers() -> Iterator[Callable[..., Workers]]:
    """Make workers for a test that leaves them of no more use."""
    found: list[Workers] = []

    def make(**settings: Any) -> Workers:
        found.append(Workers(2, **settings))
        return found[-1]

    yield make
    for each in found:
        each.end()


# ---------------------------------------------------------------------- models and data


def mlp(*middle: Any) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="tanh"),
            *middle,
            keras.layers.Dense(2),
        ]
    )


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def batches(sizes: Any = (8, 8, 4, 6, 8)) -> list[Batch]:
    made = []
    for seed, size in enumerate(sizes):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(size, 3)).astype("float32")
        made.append({"x": x, "y": np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)})
    return made


def my_part(batch: Batch) -> Batch:
    """Return a worker's rows of a batch."""
    rank, count = fastnet.backend.tf.processes.rank(), 2
    size = len(batch["x"]) // count
    return {key: value[rank * size : (rank + 1) * size] for key, value in batch.items()}


def regression(model: Any, **settings: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y_pred"),
        MeanSquaredError(("y_pred", "y"), "loss"),
        UpdateOp(model, "loss", **settings),
    ]


def values(*models: Any) -> list[np.ndarray]:
    return [np.array(weight.numpy()) for model in models for weight in model.weights]


def curve(x: Any) -> Any:
    for _ in range(12):
        x = tf.tanh(x) + 0.1 * tf.sin(x)
    return x


def with_weights(model: Any, given: list[np.ndarray]) -> Any:
    """Give a model weights; there may be more of them than it has."""
    for weight, value in zip(model.weights, given, strict=False):
        weight.assign(value)
    return model


def assert_alike(one: list[np.ndarray], other: list[np.ndarray], atol: float = 1e-6) -> None:
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=atol)


def square_error(model: Any, batch: Batch) -> Any:
    return tf.reduce_mean((model(batch["x"], training=True) - batch["y"]) ** 2)


# ---------------------------------------------------------------------- plain training


def train(optimizer: Any, eager: bool) -> Any:
    keras.utils.set_random_seed(fastnet.backend.tf.processes.rank())
    model = fastnet.build(mlp, optimizer)
    before, losses = values(model), []
    network = fastnet.Network(ops=regression(model))
    for epoch in (1, 2):
        with network(mode="train", epoch=epoch, eager=eager):
            for batch in batches():
                losses.append(float(network.run_step(my_part(batch))["loss"]))
    return before, values(model), losses, len(network.traces)


def train_by_hand(before: list[np.ndarray], optimizer: Any) -> Any:
    strategy = tf.distribute.get_strategy()
    model, made = with_weights(mlp(), before), optimizer()
    made.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = square_error(model, {"x": x, "y": y})
            share = loss / strategy.num_replicas_in_sync
        gradients = tape.gradient(share, model.trainable_variables)
        made.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)), reduce_retracing=True)
    losses = []
    for batch in batches() * 2:
        part = my_part(batch)
        losses.append(float(run(tf.constant(part["x"]), tf.constant(part["y"]))))
    return values(model), losses


def alone(before: list[np.ndarray], optimizer: Any, steps: list[Batch]) -> list[np.ndarray]:
    """Train in this process, on whole batches."""
    model, made = with_weights(mlp(), before), optimizer()
    for batch in steps:
        with tf.GradientTape() as tape:
            loss = square_error(model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        made.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return values(model)


class TestTraining:
    @EITHER_WAY
    @pytest.mark.parametrize("optimizer", [sgd, adam])
    def test_as_one_process_and_as_by_hand(
        self, workers: Workers, optimizer: Any, eager: bool
    ) -> None:
        (before, after, losses, traces), second = workers.run(train, optimizer, eager)
        # the first worker's weights are everybody's
        assert_alike(before, second[0], 0)
        assert_alike(after, second[1], 0)
        assert traces == (0 if eager else 2)
        by_hand = workers.run(train_by_hand, before, optimizer)
        assert_alike(after, by_hand[0][0])
        np.testing.assert_allclose([losses, second[2]], [one[1] for one in by_hand], rtol=1e-5)
        assert_alike(after, alone(before, optimizer, batches() * 2))


# ---------------------------------------------------------------------- programs


class Clip(TensorOp):
    """Clips gradients by their global norm."""

    def forward(self, data: Any, state: Any) -> Any:
        return tf.clip_by_global_norm(data, 0.1)[0]


def head() -> Any:
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])


class Program:
    """Models, ops that train them, and the same steps by hand."""

    batch_sizes: Any = (8, 8, 4, 6, 8)
    epochs = 1

    def models(self) -> list[Any]:
        return [mlp()]

    def optimizers(self) -> list[Any]:
        return [sgd]

    def ops(self, models: list[Any]) -> list[Any]:
        raise NotImplementedError

    def network(self, models: list[Any]) -> Any:
        return TFNetwork(self.ops(models))

    def built(self) -> list[Any]:
        models = fastnet.build(self.models, self.optimizers())
        return models if isinstance(models, list) else [models]

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        """Take one step by hand; `update(optimizer, model, gradients)` may reduce gradients."""
        raise NotImplementedError

    def before_epoch(self, epoch: int, models: list[Any]) -> None:
        pass


class Clipped(Program):
    """GradientOp, an op on the gradients, UpdateOp."""

    def ops(self, models: list[Any]) -> list[Any]:
        model = models[0]
        return [
            *regression(model)[:2],
            GradientOp("loss", "g", model=model),
            Clip("g", "g"),
            UpdateOp(model, "loss", gradients="g"),
        ]

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            loss = square_error(models[0], batch)
        gradients = tape.gradient(loss, models[0].trainable_variables)
        update(
            optimizers[0], models[0], gradients, lambda all_: tf.clip_by_global_norm(all_, 0.1)[0]
        )


class Pair(Program):
    """Two models, two losses, updates that are put off."""

    def models(self) -> list[Any]:
        return [mlp(), head()]

    def optimizers(self) -> list[Any]:
        return [sgd, adam]

    def ops(self, models: list[Any]) -> list[Any]:
        front, back = models
        return [
            ModelOp(front, "x", "z"),
            ModelOp(back, "z", "y_pred"),
            MeanSquaredError(("y_pred", "y"), "loss"),
            LambdaOp(lambda y_pred: -tf.reduce_mean(y_pred), "y_pred", "front_loss"),
            UpdateOp(front, "front_loss", defer=True),
            UpdateOp(back, "loss", defer=True),
        ]

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            y_pred = models[1](models[0](batch["x"]))
            losses = [-tf.reduce_mean(y_pred), tf.reduce_mean((y_pred - batch["y"]) ** 2)]
        for model, optimizer, gradients in [
            (model, optimizer, tape.gradient(loss, model.trainable_variables))
            for model, optimizer, loss in zip(models, optimizers, losses, strict=True)
        ]:
            update(optimizer, model, gradients)


class Trunk(Program):
    """Two heads on one trunk, which both losses train."""

    def models(self) -> list[Any]:
        return [mlp(), head(), head()]

    def optimizers(self) -> list[Any]:
        return [sgd, sgd, adam]

    def ops(self, models: list[Any]) -> list[Any]:
        trunk, left, right = models
        return [
            ModelOp(trunk, "x", "z"),
            ModelOp(left, "z", "a"),
            ModelOp(right, "z", "b"),
            MeanSquaredError(("a", "y"), "a_loss"),
            LambdaOp(lambda b: tf.reduce_mean(b**2), "b", "b_loss"),
            LambdaOp(lambda a, b: a + b, ["a_loss", "b_loss"], "loss"),
            UpdateOp(trunk, "loss", defer=True),
            UpdateOp(left, "a_loss", defer=True),
            UpdateOp(right, "b_loss", defer=True),
        ]

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        trunk, left, right = models
        with tf.GradientTape(persistent=True) as tape:
            z = trunk(batch["x"])
            a = tf.reduce_mean((left(z) - batch["y"]) ** 2)
            b = tf.reduce_mean(right(z) ** 2)
            loss = a + b
        for model, optimizer, gradients in [
            (model, optimizer, tape.gradient(each, model.trainable_variables))
            for model, optimizer, each in zip(models, optimizers, (loss, a, b), strict=True)
        ]:
            update(optimizer, model, gradients)


class Frozen(Program):
    """A layer that is frozen in the second epoch, and thawed in the third."""

    epochs = 3

    def ops(self, models: list[Any]) -> list[Any]:
        return regression(models[0])

    def before_epoch(self, epoch: int, models: list[Any]) -> None:
        models[0].layers[0].trainable = epoch != 2

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            loss = square_error(models[0], batch)
        update(optimizers[0], models[0], tape.gradient(loss, models[0].trainable_variables))


class Synced(Program):
    """BatchNormalization over the whole batch."""

    def models(self) -> list[Any]:
        return [mlp(keras.layers.BatchNormalization(momentum=0.9, synchronized=True))]

    def ops(self, models: list[Any]) -> list[Any]:
        return regression(models[0])

    step = Frozen.step


class Unused(Program):
    """A part of a model that has no part in the loss in every second epoch."""

    epochs = 2

    def models(self) -> list[Any]:
        x = keras.layers.Input((3,))
        outputs = [keras.layers.Dense(2)(x), keras.layers.Dense(2)(x)]
        return [keras.Model(x, outputs)]

    def ops(self, models: list[Any]) -> list[Any]:
        def both(a: Any, b: Any) -> Any:
            return a + b

        return [
            ModelOp(models[0], "x", ["a", "b"]),
            EpochScheduler(
                {1: LambdaOp(both, ["a", "b"], "c"), 2: LambdaOp(both, ["a", "a"], "c")}
            ),
            MeanSquaredError(("c", "y"), "loss"),
            UpdateOp(models[0], "loss"),
        ]

    def before_epoch(self, epoch: int, models: list[Any]) -> None:
        self.epoch = epoch

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            a, b = models[0](batch["x"])
            loss = tf.reduce_mean((a + (b if self.epoch == 1 else a) - batch["y"]) ** 2)
        gradients = tape.gradient(loss, models[0].trainable_variables)
        update(optimizers[0], models[0], gradients)


class Merged(Program):
    """Gradients of two steps at a time."""

    batch_sizes = (8, 8, 4, 4, 8, 8)

    def ops(self, models: list[Any]) -> list[Any]:
        self.waiting: list[Any] = []
        return regression(models[0], merge_grad=2)

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            loss = square_error(models[0], batch)
        self.waiting = getattr(self, "waiting", [])
        self.waiting.append(tape.gradient(loss, models[0].trainable_variables))
        if len(self.waiting) == 2:
            halves = [(a + b) / 2 for a, b in zip(*self.waiting, strict=True)]
            self.waiting = []
            update(optimizers[0], models[0], halves)


class Rows(Slicer):
    """Cuts a batch in two."""

    def _slice_batch(self, batch: Any) -> list[Any]:
        middle = batch.shape[0] // 2
        return [batch[:middle], batch[middle:]]


class Sliced(Program):
    """Minibatches, each of which is a step."""

    batch_sizes = (8, 8, 4, 8)

    def ops(self, models: list[Any]) -> list[Any]:
        return regression(models[0])

    def network(self, models: list[Any]) -> Any:
        slicers = [Rows(slice=["x", "y"], unslice=None), MeanUnslicer("loss")]
        return TFNetwork(self.ops(models), slicers=slicers)

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        size = len(batch["x"])
        first = (
            list(range(size // 2))
            if self.is_part
            else [row for row in range(size) if row % (size // 2) < size // 4]
        )
        rest = [row for row in range(size) if row not in first]
        for rows in (first, rest):
            with tf.GradientTape() as tape:
                part = {key: value[rows] for key, value in batch.items()}
                loss = square_error(models[0], part)
            update(optimizers[0], models[0], tape.gradient(loss, models[0].trainable_variables))

    is_part = False


class Scheduled(Program):
    """Optimizers and ops that change with the epoch."""

    epochs = 4

    def built(self) -> list[Any]:
        return [fastnet.build(mlp, EpochScheduler({1: sgd, 2: adam, 4: sgd}))]

    def ops(self, models: list[Any]) -> list[Any]:
        twice = LambdaOp(lambda loss: 2 * loss, "loss", "loss")
        ops = regression(models[0])
        return [*ops[:2], EpochScheduler({1: None, 3: twice}), ops[2]]

    def before_epoch(self, epoch: int, models: list[Any]) -> None:
        self.epoch = epoch
        if epoch == 1:
            self.made = {1: sgd(), 2: adam(), 4: sgd()}

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            loss = square_error(models[0], batch) * (2 if self.epoch >= 3 else 1)
        gradients = tape.gradient(loss, models[0].trainable_variables)
        update(self.made[{1: 1, 2: 2, 3: 2, 4: 4}[self.epoch]], models[0], gradients)


class Compiled(Program):
    """What a worker does by itself is compiled."""

    def ops(self, models: list[Any]) -> list[Any]:
        first, *rest = regression(models[0])
        return [first, LambdaOp(curve, "y_pred", "y_pred"), *rest]

    def network(self, models: list[Any]) -> Any:
        return TFNetwork(self.ops(models), compile=True)

    def step(self, models: list[Any], optimizers: list[Any], batch: Batch, update: Any) -> None:
        with tf.GradientTape() as tape:
            y_pred = curve(models[0](batch["x"], training=True))
            loss = tf.reduce_mean((y_pred - batch["y"]) ** 2)
        update(optimizers[0], models[0], tape.gradient(loss, models[0].trainable_variables))


PROGRAMS: dict[str, Callable[[], Program]] = {
    cls.__name__: cls
    for cls in (Clipped, Pair, Trunk, Frozen, Synced, Unused, Merged, Sliced, Scheduled, Compiled)
}


def run_program(name: str, eager: bool) -> Any:
    keras.utils.set_random_seed(fastnet.backend.tf.processes.rank())
    program = PROGRAMS[name]()
    models = program.built()
    before, last = values(*models), {}
    network = program.network(models)
    for epoch in range(1, program.epochs + 1):
        program.before_epoch(epoch, models)
        with network("train", epoch, desired_output_keys=["loss"], eager=eager):
            for batch in batches(program.batch_sizes):
                last = network.run_step(my_part(batch))
    parts = [trace.part for trace in network.traces if trace.part is not None]
    return before, values(*models), float(last["loss"]), parts


def run_by_hand(name: str, before: list[np.ndarray]) -> list[np.ndarray]:
    """Do the same under the strategy by hand, gradients averaged over the workers."""
    strategy = tf.distribute.get_strategy()
    count = strategy.num_replicas_in_sync

    def update(optimizer: Any, model: Any, gradients: Any, change: Any = None) -> None:
        if change is not None:
            context = tf.distribute.get_replica_context()
            gradients = change(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients)))
        shares = [None if one is None else one / count for one in gradients]
        optimizer.apply_gradients(zip(shares, model.trainable_variables, strict=True))

    def run(*args: Any) -> None:
        strategy.run(lambda: program.step(*args, update))

    program = PROGRAMS[name]()
    program.is_part = True  # type: ignore[attr-defined]
    return _run_by_hand(program, before, run, my_part)


def _run_by_hand(program: Program, before: list[np.ndarray], run: Any, part: Any) -> Any:
    models = program.models()
    rest = list(before)
    for model in models:
        with_weights(model, rest)
        rest = rest[len(model.weights) :]
    optimizers = [make() for make in program.optimizers()]
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.build(model.trainable_variables)
    for epoch in range(1, program.epochs + 1):
        program.before_epoch(epoch, models)
        for each in getattr(program, "made", {}).values() if epoch == 1 else ():
            each.build(models[0].trainable_variables)
        for batch in batches(program.batch_sizes):
            run(models, optimizers, part(batch))
    return values(*models)


def alone_by_hand(name: str, before: list[np.ndarray]) -> list[np.ndarray]:
    """Do the same in this process, on whole batches."""

    def update(optimizer: Any, model: Any, gradients: Any, change: Any = None) -> None:
        gradients = gradients if change is None else change(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    program = PROGRAMS[name]()
    return _run_by_hand(program, before, lambda *args: program.step(*args, update), lambda one: one)


class TestPrograms:
    @EITHER_WAY
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_as_one_process_and_as_by_hand(self, workers: Workers, name: str, eager: bool) -> None:
        (before, after, loss, parts), second = workers.run(run_program, name, eager)
        compiled = name == "Compiled" and not eager
        assert parts == second[3] == (["1 program"] * 3 if compiled else [])
        assert np.isfinite([loss, second[2]]).all()
        assert_alike(after, second[1], 0)
        with_hands = workers.run(run_by_hand, name, before)
        assert_alike(after, with_hands[0], 2e-6)
        assert_alike(after, alone_by_hand(name, before), 2e-6)


# ---------------------------------------------------------------------- batches


def train_on(sizes: list[int], eager: bool) -> Any:
    """Train on batches of which each worker has other sizes."""
    keras.utils.set_random_seed(3)
    model = fastnet.build(mlp, sgd)
    before = values(model)
    network = TFNetwork(regression(model))
    rank = fastnet.backend.tf.processes.rank()
    losses = []
    with network(mode="train", epoch=1, eager=eager):
        for batch, size in zip(batches([8] * len(sizes)), sizes, strict=True):
            part = {key: value[rank * 4 : rank * 4 + size] for key, value in batch.items()}
            losses.append(float(network.run_step(part)["loss"]))
    return before, values(model), losses, [one.reason for one in network.traces]


@EITHER_WAY
def test_parts_of_other_sizes(workers: Workers, eager: bool) -> None:
    """A worker that traces once more than the other one finds it all the same."""
    sizes = [[4, 4, 4, 4, 4, 4], [4, 3, 4, 1, 2, 4]]
    (before, after, _, first), (_, theirs, _, second) = workers.run(
        train_on, eager=[eager] * 2, sizes=sizes
    )
    assert_alike(after, theirs, 0)
    assert [len(first), len(second)] == ([0, 0] if eager else [1, 2])
    model, optimizer = with_weights(mlp(), before), sgd()
    for place, batch in enumerate(batches([8] * 6)):
        parts = [
            {key: value[rank * 4 : rank * 4 + sizes[rank][place]] for key, value in batch.items()}
            for rank in range(2)
        ]
        with tf.GradientTape() as tape:
            loss = sum(square_error(model, part) for part in parts) / 2
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert_alike(after, values(model), 2e-6)


def train_on_a_dataset() -> Any:
    strategy = tf.distribute.get_strategy()
    keras.utils.set_random_seed(3)
    model = fastnet.build(mlp, sgd)
    before = values(model)
    network = TFNetwork(regression(model))
    (whole,) = batches([22])
    dataset = tf.data.Dataset.from_tensor_slices(whole).batch(8)
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    steps = 0
    with network(mode="train", epoch=1):
        for batch in strategy.experimental_distribute_dataset(dataset.with_options(options)):
            result = network.run_step(batch)
            steps += 1
    return before, values(model), steps, np.array(result["x"])


def test_a_distributed_dataset(workers: Workers) -> None:
    (before, after, steps, first), (_, theirs, _, second) = workers.run(train_on_a_dataset)
    assert_alike(after, theirs, 0)
    assert steps == 3
    (whole,) = batches([22])
    rows = {tuple(row) for row in np.concatenate([first, second])}
    assert rows == {tuple(row) for row in whole["x"][16:]}
    whole_batches = [{key: v[i : i + 8] for key, v in whole.items()} for i in (0, 8, 16)]
    assert_alike(after, alone(before, sgd, whole_batches), 2e-6)


def evaluate(mode: str) -> Any:
    rank = fastnet.backend.tf.processes.rank()
    keras.utils.set_random_seed(3)
    model = fastnet.build(lambda: mlp(keras.layers.BatchNormalization()), sgd)
    network = TFNetwork(regression(model))
    if rank == 1:
        return None  # nothing is communicated: the other one goes on alone
    (batch,) = batches([8])
    for _ in range(2):
        with network(mode=mode, epoch=1):
            result = network.run_step(batch)
    many = network.transform([batch, batch], mode=mode)
    one = network.transform(batch, mode=mode)
    run = tf.distribute.get_strategy().run
    expected = run(lambda: model(tf.constant(batch["x"]), training=False)).numpy()
    return expected, [np.array(each["y_pred"]) for each in (result, *many, one)]


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_a_worker_evaluates_alone(workers: Workers, mode: str) -> None:
    (expected, found), nothing = workers.run(evaluate, mode)
    assert nothing is None
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-5)


def transform_in_training() -> Any:
    keras.utils.set_random_seed(3)
    model = fastnet.build(mlp, sgd)
    before = values(model)
    network = TFNetwork(regression(model))
    network.transform(list(map(my_part, batches())), mode="train")
    network.transform(my_part(batches()[0]), mode="train")
    return before, values(model)


def test_transform_trains(workers: Workers) -> None:
    (before, after), second = workers.run(transform_in_training)
    assert_alike(after, second[1], 0)
    assert_alike(after, alone(before, sgd, [*batches(), batches()[0]]), 2e-6)


# ---------------------------------------------------------------------- half precision, noise


def train_in_half(overflow: bool, eager: bool) -> Any:
    rank = fastnet.backend.tf.processes.rank()
    keras.utils.set_random_seed(3)
    model = fastnet.build(mlp, sgd, mixed_precision=True)
    weights = [values(model)]
    network = TFNetwork(regression(model))
    with network(mode="train", epoch=1, eager=eager):
        for place, batch in enumerate(map(my_part, batches())):
            if overflow and rank == 1 and place == 0:
                batch = {**batch, "y": batch["y"] * 1e9}
            network.run_step(batch)
            weights.append(values(model))
    return weights


@EITHER_WAY
def test_half_precision(workers: Workers, eager: bool) -> None:
    first, second = workers.run(train_in_half, False, eager)
    assert_alike(first[-1], second[-1], 0)
    for mine, theirs in zip(first[-1], alone(first[0], sgd, batches()), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.02, atol=0.01)


@EITHER_WAY
def test_an_overflow_on_one_worker_skips_the_step_on_all(workers: Workers, eager: bool) -> None:
    first, second = workers.run(train_in_half, True, eager)
    assert_alike(first[1], first[0], 0)
    for one, two in zip(first, second, strict=True):
        assert_alike(one, two, 0)
    for mine, theirs in zip(first[-1], alone(first[0], sgd, batches()[1:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.02, atol=0.01)


def explained() -> dict[str, str]:
    return TFNetwork(regression(fastnet.build(mlp, sgd, model_name="net"))).explain().parallelism


def test_how_models_are_spread_is_explained(workers: Workers) -> None:
    told = {"net": "by MultiWorkerMirroredStrategy over 2 devices of 2 processes"}
    assert workers.run(explained) == [told, told]


def normalized() -> Any:
    return mlp(keras.layers.BatchNormalization(momentum=0.9))


def train_normalized(by_hand: bool) -> Any:
    """Train with statistics of each worker's own batches, and look at them there."""
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.get_strategy()
    parts = list(map(my_part, batches()))
    if by_hand:
        model, optimizer = normalized(), sgd()
        optimizer.build(model.trainable_variables)

        def step(batch: Any) -> None:
            with tf.GradientTape() as tape:
                loss = square_error(model, batch) / 2
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for part in parts:
            strategy.run(step, args=({key: tf.constant(value) for key, value in part.items()},))
    else:
        model = fastnet.build(normalized, sgd)
        network = TFNetwork(regression(model))
        with network(mode="train", epoch=1):
            for part in parts:
                network.run_step(part)
    local = strategy.run(lambda: [tf.identity(one) for one in model.weights])
    return [np.array(one) for one in local], values(model)


def test_buffers_are_as_by_hand(workers: Workers) -> None:
    mine = workers.run(train_normalized, False)
    theirs = workers.run(train_normalized, True)
    for (own, joined), (other_own, other_joined) in zip(mine, theirs, strict=True):
        assert_alike(own, other_own)
        assert_alike(joined, other_joined)
    # each has those of its own batches
    place = 4
    assert not np.allclose(mine[0][0][place], mine[1][0][place], atol=1e-4)


def draw() -> Any:
    keras.utils.set_random_seed(3)
    model = fastnet.build(lambda: mlp(keras.layers.Dropout(0.5)), sgd)
    weights = values(model)
    fastnet.backend.tf.processes.seed(5 + fastnet.backend.tf.processes.rank())
    noise = LambdaOp(lambda x: tf.random.uniform(tf.shape(x)), "x", "noise")
    network = TFNetwork([noise, *regression(model)])
    x = np.ones((16, 3), "float32")
    with network(mode="train", epoch=1):
        result = network.run_step({"x": x, "y": x[:, :2]})
    return weights, np.array(result["noise"]), np.array(result["y_pred"])


def test_workers_draw_other_numbers(workers: Workers) -> None:
    first, second = workers.run(draw)
    assert_alike(first[0], second[0], 0)
    assert np.abs(first[1] - second[1]).mean() > 0.1
    assert np.abs(first[2] - second[2]).max() > 1e-3
    again = workers.run(draw)
    np.testing.assert_array_equal(again[0][1], first[1])


# ---------------------------------------------------------------------- processes


def come_together() -> Any:
    from fastnet.backend.tf import processes

    rank = processes.rank()
    processes.barrier()
    result = {
        "rows": tf.constant([[rank], [rank]] if rank else [[rank]]),
        "array": np.arange(1 + rank),
        "loss": tf.constant(float(rank)),
        "count": tf.constant(rank),
        "maybe": float("nan") if rank else 3.0,
        "word": f"word {rank}",
        "nest": {"a": [tf.constant([float(rank)]), rank]},
        "ragged": tf.ragged.constant([[1.0] * (rank + 1)]),
    }
    joined = processes.gather(result)
    joined["ragged"] = joined["ragged"].to_list()
    found = {
        "joined": tf.nest.map_structure(lambda one: np.array(one), joined),
        "exchanged": processes.exchange({"rank": rank, "data": "x" * (5 + rank)}),
        "collected": processes.collect(rank),
        "weighed": float(processes.gather({"a": 1.0 + rank}, samples=1 + rank)["a"]),
        "where": (rank, processes.world_size(), processes.is_started()),
        "errors": [],
    }
    for wrong in ({"a": 1} if rank else {"b": 1}, {"a": [1] * (1 + rank)}):
        try:
            processes.gather(wrong)
        except ValueError as error:
            found["errors"].append(str(error))
    try:
        with processes.together("A task"):
            if rank:
                raise OSError("disk full")
    except (OSError, RuntimeError) as error:
        found["errors"].append(f"{type(error).__name__}: {error}")
    return found


def test_processes(workers: Workers) -> None:
    found = workers.run(come_together)
    for rank, one in enumerate(found):
        joined = one["joined"]
        np.testing.assert_array_equal(joined["rows"], [[0], [1], [1]])
        np.testing.assert_array_equal(joined["array"], [0, 0, 1])
        assert joined["loss"] == joined["count"] == 0.5
        assert (joined["loss"].dtype, joined["count"].dtype) == (np.float32, np.float64)
        assert joined["maybe"] == 3.0
        assert joined["word"] == "word 0"
        np.testing.assert_array_equal(joined["nest"]["a"][0], [0.0, 1.0])
        assert one["exchanged"] == [{"rank": each, "data": "x" * (5 + each)} for each in range(2)]
        assert one["collected"] == (None if rank else [0, 1])
        assert one["weighed"] == pytest.approx((1 + 2 * 2) / 3)
        assert one["where"] == (rank, 2, True)
        assert one["errors"][:2] == [
            "Results are gathered under the keys ['b'] on rank 0, but ['a'] on rank 1. Gather the "
            "same keys on each.",
            "The value of 'a' holds different numbers of values on the ranks, [1, 2], so that they "
            "cannot be put together. What ops return must not depend on which part of the data "
            "they see.",
        ]
        assert one["errors"][2] == (
            "OSError: disk full"
            if rank
            else "RankError: A task has failed on rank 1, and so here: OSError: disk full"
        )


# ---------------------------------------------------------------------- files


def save(folder: str, merge: int) -> Any:
    rank = fastnet.backend.tf.processes.rank()
    keras.utils.set_random_seed(3)
    model = fastnet.build(normalized, adam, model_name="m")
    update = UpdateOp(model, "loss", merge_grad=merge)
    network = TFNetwork([*regression(model)[:2], update])
    with network(mode="train", epoch=1):
        for batch in batches():
            network.run_step(my_part(batch))
    # each worker has a folder of its own, so that it is seen who writes
    path = fastnet.backend.save_model(model, f"{folder}/{rank}", save_optimizer=True)
    after = values(model)
    merged = update.state_dict()
    with_weights(model, [0 * value for value in after])
    update.load_state_dict({"merged": 0, "gradients": [None] * len(merged["gradients"])})
    fastnet.backend.load_model(model, f"{folder}/0/{path.split('/')[-1]}", load_optimizer=True)
    update.load_state_dict(merged)
    steps = int(model.current_optimizer.iterations.numpy())
    return path, after, values(model), merged, update.state_dict(), steps


def test_files_are_written_by_one_worker(workers: Workers, tmp_path: Any) -> None:
    found = workers.run(save, str(tmp_path), 2)
    (path, after, loaded, merged, again, steps), second = found
    assert sorted(one.name for one in (tmp_path / "0").iterdir()) == sorted(
        [path.split("/")[-1], "m_opt.safetensors"]
    )
    assert not (tmp_path / "1").exists()
    assert steps == 2
    assert_alike(after, loaded, 0)
    # one process takes the files
    model = fastnet.build(normalized, adam, model_name="m")
    fastnet.backend.load_model(model, path, load_optimizer=True)
    assert_alike(values(model), after, 0)
    assert int(model.current_optimizer.iterations.numpy()) == steps
    # what was merged is the whole batch's, on each of them, and one process goes on from it
    assert merged["merged"] == again["merged"] == second[3]["merged"] == 1
    for one, two, three in zip(
        merged["gradients"], again["gradients"], second[3]["gradients"], strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-6)
        np.testing.assert_array_equal(one, three)
    update = UpdateOp(model, "loss", merge_grad=2)
    update.load_state_dict(merged)
    with TFNetwork([*regression(model)[:2], update])(mode="train", epoch=1) as network:
        network.run_step(batches()[0])
    assert int(model.current_optimizer.iterations.numpy()) == steps + 1


def stop_and_go_on(folder: str, merge: int) -> Any:
    """Train on, and train again from a checkpoint of the way there, in a network made anew."""
    parts = list(map(my_part, batches()))
    rank = fastnet.backend.tf.processes.rank()
    if not KERAS_3:
        keras.backend.experimental.enable_tf_random_generator()

    def made(seed: int) -> tuple[Any, Any]:
        keras.utils.set_random_seed(seed)
        model = fastnet.build(lambda: mlp(keras.layers.Dropout(0.3)), adam, model_name="m")
        return model, TFNetwork(regression(model, merge_grad=merge))

    def run(network: Any, batches: list[Batch]) -> list[float]:
        with network(mode="train", epoch=1):
            return [float(network.run_step(batch)["loss"]) for batch in batches]

    model, network = made(3)
    fastnet.backend.tf.processes.seed(7 + rank)
    np.random.seed(rank)
    run(network, parts[:3])
    # one path for all, which each worker takes from a folder of its own, so that it is seen who
    # writes
    os.chdir(f"{folder}/{rank}")
    fastnet.save_checkpoint("run", network, epoch=1, step=3)
    os.chdir(tf_workers.ROOT)
    whole = run(network, parts[3:]), values(model), np.random.rand()
    model, network = made(99)
    read = fastnet.load_checkpoint(f"{folder}/0/run", network)
    again = run(network, parts[3:]), values(model), np.random.rand()
    return whole, again, (read.epoch, read.step)


@pytest.mark.parametrize("merge", [1, 2])
def test_a_checkpoint_goes_on_on_each_worker(workers: Workers, tmp_path: Any, merge: int) -> None:
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    found = workers.run(stop_and_go_on, str(tmp_path), merge)
    assert len(list((tmp_path / "0").iterdir())) == 1
    assert not list((tmp_path / "1").iterdir())
    for whole, again, place in found:
        assert place == (1, 3)
        assert again[0] == whole[0]
        assert_alike(again[1], whole[1], 0)
        assert again[2] == whole[2]
    # each has random numbers of its own, and all have the same weights
    (first, _, _), (second, _, _) = found
    assert first[0] != second[0]
    assert first[2] != second[2]
    assert_alike(first[1], second[1], 0)


# ---------------------------------------------------------------------- what goes wrong


def fail(what: str, eager: bool = False) -> Any:
    from fastnet.backend.tf import processes

    rank = processes.rank()
    keras.utils.set_random_seed(3)
    if tf_workers.strategies and what != "no strategy":
        tf.distribute.experimental_set_strategy(tf_workers.strategies[0])
    model = fastnet.build(mlp, sgd, model_name="m")
    ops = regression(model)
    if what == "other ops" and rank:
        ops.insert(2, LambdaOp(lambda loss: 2 * loss, "loss", "loss"))
    network = TFNetwork(ops)
    part = my_part(batches()[0])
    with network(mode="train", epoch=2 if what == "other epoch" and rank else 1, eager=eager):
        network.run_step(part)
        if what == "fewer steps" and rank:
            return "left"
        if what == "raises" and rank:
            raise OSError("disk full")
        if what == "main raises" and not rank:
            raise OSError("disk full")
        if what == "missing key":
            network.run_step({"x": part["x"]})
        network.run_step(part)
        network.run_step(part)
    return "done"


def fail_unseen(what: str) -> Any:
    from fastnet import distributed

    distributed.init("tf", compare_ranks=False)
    try:
        return fail(what)
    finally:
        distributed.init("tf")


# where each of two workers is
APART = {
    "save on one": ("save_checkpoint('run')", "an opening in mode 'train'"),
    "load on one": ("load_checkpoint('run')", "gather"),
    "other paths": ("save_checkpoint('run0')", "save_checkpoint('run1')"),
}


def part_ways(what: str, folder: str) -> None:
    from fastnet import distributed

    rank = distributed.rank()
    os.chdir(folder)
    model = fastnet.build(mlp, sgd, model_name="m")
    network = TFNetwork(regression(model))
    if what == "other paths":
        fastnet.save_checkpoint(f"run{rank}", network)
    if rank == 0:
        call = fastnet.save_checkpoint if what == "save on one" else fastnet.load_checkpoint
        call("run", network)
    if what == "load on one":
        distributed.gather({"rank": rank})
    with network(mode="train", epoch=1):
        network.run_step(my_part(batches()[0]))


class TestErrors:
    def test_workers_that_are_not_compared(self, workers: Workers) -> None:
        assert workers.run(fail_unseen, "other ops") == ["done", "done"]
        assert {one.kind for one in workers.try_to_run(fail, "other ops")} == {"RankError"}

    def test_workers_with_other_ops_or_epochs_go_on_once_they_agree(self, workers: Workers) -> None:
        first, second = workers.try_to_run(fail, "other epoch")
        assert (first.kind, second.kind) == ("RankError", "RankError")
        assert first.text == (
            "Worker 1 opens its network with epoch 2, where worker 0 has 1. Let all workers build "
            "and open networks alike."
        )
        first, second = workers.try_to_run(fail, "other ops")
        assert first.text == (
            "Worker 1 opens its network with the number of ops 4, where worker 0 has 3. Let all "
            "workers build and open networks alike."
        )
        assert second.text == (
            "Worker 0 opens its network with the number of ops 3, where worker 1 has 4. Let all "
            "workers build and open networks alike."
        )
        assert workers.run(fail, "nothing") == ["done", "done"]

    def test_an_error_on_all_workers_leaves_them_usable(self, workers: Workers) -> None:
        for one in workers.try_to_run(fail, "missing key"):
            assert one.kind == "MissingKeyError"
            assert reads("y") in one.text
        assert workers.run(fail, "nothing") == ["done", "done"]

    @pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
    def test_fewer_steps_on_one_worker(
        self, new_workers: Callable[..., Workers], eager: bool
    ) -> None:
        first, second = new_workers().try_to_run(fail, "fewer steps", eager)
        for one in (first, second):
            assert one.kind == "RankError"
            assert one.text == (
                "Worker 1 has ended its steps after 1, where worker 0 is at step 2. Give each "
                "worker as many batches: a tf.distribute dataset does, or repeat() and take(n)."
            )

    @pytest.mark.parametrize("what", ["raises", "main raises"])
    def test_a_worker_that_raises(self, new_workers: Callable[..., Workers], what: str) -> None:
        made = new_workers()
        found = made.try_to_run(fail, what)
        failed, other = found if what == "main raises" else found[::-1]
        assert (failed.kind, failed.text) == ("OSError", "disk full")
        assert other.kind == "RankError"
        place = 0 if what == "main raises" else 1
        assert other.text == f"Worker {place} has failed with OSError: disk full"
        # there are no collectives any more, and whoever wants one is told so
        for one in made.try_to_run(meet):
            assert one.kind == "RankError"
            assert one.text.startswith(other.text)

    @pytest.mark.parametrize("place", [0, 1])
    def test_a_worker_that_is_killed(self, new_workers: Callable[..., Workers], place: int) -> None:
        found = new_workers().try_to_run(die, place)
        assert found[place] is None
        other = found[1 - place]
        assert other.kind == "RankError"
        assert other.text == (
            f"Worker {place} has ended without a word: it was killed, or its machine is gone."
        )

    @pytest.mark.parametrize("what", list(APART))
    def test_workers_at_different_places(
        self, new_workers: Callable[..., Workers], what: str, tmp_path: Any
    ) -> None:
        places = APART[what]
        for rank, one in enumerate(new_workers().try_to_run(part_ways, what, str(tmp_path))):
            assert (one.kind, one.text) == (
                "RankError",
                f"Worker {1 - rank} is at {places[1 - rank]}, where worker {rank} is at "
                f"{places[rank]}. Let all workers run the same program: open networks, save, load "
                "and gather alike on each.",
            )
        assert list(tmp_path.iterdir()) == []

    def test_nobody_has_brought_the_workers_together(
        self, new_workers: Callable[..., Workers]
    ) -> None:
        made = new_workers(prepare="alone")
        for one in made.try_to_run(fail, "no strategy"):
            assert (one.kind, one.text) == (
                "ValueError",
                "TF_CONFIG names 2 workers, but no strategy is in force: each would train by "
                "itself. Put `with fastnet.distributed.run():` around the program, call "
                "fastnet.distributed.init() first, or build models and open networks within the "
                "scope of a tf.distribute.MultiWorkerMirroredStrategy.",
            )
        # too late: TensorFlow has run something
        for one in made.try_to_run(tf_workers.start):
            assert one.kind == "ValueError"
            assert "Call fastnet.distributed.init before TensorFlow does anything else" in one.text


def meet() -> None:
    fastnet.backend.tf.processes.barrier()


def die(place: int) -> None:
    import os
    import signal

    model = fastnet.build(mlp, sgd)
    network = TFNetwork(regression(model))
    with network(mode="train", epoch=1):
        network.run_step(my_part(batches()[0]))
        if fastnet.backend.tf.processes.rank() == place:
            os.kill(os.getpid(), signal.SIGKILL)
        network.run_step(my_part(batches()[0]))


def train_in_a_scope() -> Any:
    (strategy,) = tf_workers.strategies
    keras.utils.set_random_seed(fastnet.backend.tf.processes.rank())
    with strategy.scope():
        model = fastnet.build(mlp, sgd)
        before = values(model)
        network = TFNetwork(regression(model))
        for epoch in (1, 2):
            with network(mode="train", epoch=epoch):
                for batch in map(my_part, batches()):
                    network.run_step(batch)
    assert not tf.distribute.has_strategy()
    return before, values(model), fastnet.backend.tf.processes.world_size()


def test_in_the_scope_of_a_strategy_of_the_programs_own(
    new_workers: Callable[..., Workers],
) -> None:
    (before, after, count), second = new_workers(prepare="start_by_hand").run(train_in_a_scope)
    assert count == 2
    assert_alike(before, second[0], 0)
    assert_alike(after, second[1], 0)
    assert_alike(after, alone(before, sgd, batches() * 2), 2e-6)
