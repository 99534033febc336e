"""Steps of several workers under MultiWorkerMirroredStrategy, beside one process and loops by hand.

The workers are processes of their own: what runs in them are the functions of this module.
"""

from __future__ import annotations

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
from tests.tf_workers import Raised, Workers

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


# ---------------------------------------------------------------------- the programs that networks are


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
        update(optimizers[0], models[0], gradients, lambda all_: tf.clip_by_global_norm(all_, 0.1)[0])


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
            EpochScheduler({1: LambdaOp(both, ["a", "b"], "c"), 2: LambdaOp(both, ["a", "a"], "c")}),
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
        first = list(range(size // 2)) if self.is_part else [
            row for row in range(size) if row % (size // 2) < size // 4
        ]
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


PROGRAMS: dict[str, Callable[[], Program]] = {
    cls.__name__: cls
    for cls in (Clipped, Pair, Trunk, Frozen, Synced, Unused, Merged, Sliced, Scheduled)
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
    return before, values(*models), float(last["loss"])


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
        (before, after, loss), second = workers.run(run_program, name, eager)
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


# ---------------------------------------------------------------------- half precision, buffers, noise


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
