"""Networks of two workers under MultiWorkerMirroredStrategy, beside one process.

The workers are processes of their own, which run the functions of this module.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet import distributed
from fastnet.backend import load_model, save_model
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.model import UpdateOp
from tests.network.tf.strategy_programs import (
    STEPS,
    Batch,
    adam,
    by_hand,
    mlp,
    numbers,
    regression,
)
from tests.ranks import Ranks, join_tensorflow, set_tf_config

pytestmark = [pytest.mark.tf, pytest.mark.slow]

keras = tf.keras


@cache
def workers() -> Ranks:
    return Ranks(2, join_tensorflow)


@pytest.fixture(scope="module", autouse=True)
def _ends_workers() -> Any:
    yield
    workers().end()


def own_part(batch: Batch) -> Batch:
    rank, size = distributed.rank(), len(batch["x"]) // 2
    return {key: value[rank * size : (rank + 1) * size] for key, value in batch.items()}


def values(model: Any) -> list[np.ndarray]:
    return [np.array(weight.numpy()) for weight in model.weights]


def alone(before: list[np.ndarray], steps: list[Batch], merge: int = 1) -> list[np.ndarray]:
    """Train in this process on whole batches."""
    model = mlp()
    model.set_weights(before)
    by_hand(model, adam(), steps, merge)
    return values(model)


def assert_close(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def train(program: str, eager: bool) -> Any:
    keras.utils.set_random_seed(distributed.rank())
    model = fastnet.build(mlp, adam)
    before = values(model)
    ops = regression(model, merge_grad=2 if program == "merged" else 1)
    if program == "given":
        ops[2:] = [GradientOp("loss", "g", model=model), UpdateOp(model, "loss", "g")]
    network = fastnet.Network(ops)
    strategy = tf.distribute.get_strategy()
    if eager:  # The network remembers its strategy.
        tf.distribute.experimental_set_strategy(None)
    for epoch in (1, 2):
        with network("train", epoch, eager=eager):
            for batch in STEPS:
                network.run_step(own_part(batch))
    tf.distribute.experimental_set_strategy(strategy)
    return before, values(model), len(network.traces)


@pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
@pytest.mark.parametrize("program", ["plain", "merged", "given"])
def test_training_equals_one_process(program: str, eager: bool) -> None:
    (before, after, traces), second = workers()(train, program, eager)
    for mine, theirs in zip(before + after, second[0] + second[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert traces == (0 if eager else 1)
    assert_close(after, alone(before, STEPS * 2, 2 if program == "merged" else 1))


def train_on_uneven_sizes() -> Any:
    """Train on batches of different sizes, with no more traces for it."""
    model = fastnet.build(mlp, adam)
    network = fastnet.Network(regression(model))
    with network("train", 1):
        for batch in STEPS[:3]:
            count = 4 if distributed.rank() else 3
            network.run_step({key: value[:count] for key, value in batch.items()})
    return values(model)


def test_batches_of_different_sizes() -> None:
    first, second = workers()(train_on_uneven_sizes)
    assert_close(first, second)


def train_on_dataset() -> Any:
    keras.utils.set_random_seed(0)
    model = fastnet.build(mlp, adam)
    before = values(model)
    batch = numbers(24, 0)
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(8)
    strategy = tf.distribute.get_strategy()
    network = fastnet.Network(regression(model))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))
    network.transform(dataset, mode="train")
    if distributed.is_main():
        with network("eval", 1):  # The other worker does not take part.
            network.run_step(numbers(3, 0))
    assert "MultiWorkerMirroredStrategy over 2 devices" in str(network.explain("train"))
    return before, values(model)


def test_a_distributed_dataset() -> None:
    (before, after), second = workers()(train_on_dataset)
    assert_close(after, second[1])
    batch = numbers(24, 0)
    steps = [{key: value[i : i + 8] for key, value in batch.items()} for i in (0, 8, 16)]
    assert_close(after, alone(before, steps))


def use_functions(folder: str) -> Any:
    rank = distributed.rank()
    distributed.barrier()
    result = {"x": tf.range(rank + 1), "mean": tf.constant(float(rank)), "word": f"rank {rank}"}
    gathered = distributed.gather(result)
    error = ""
    try:
        with distributed.raise_on_all_ranks(fastnet.backend.tf.processes, "Loading"):
            if rank:
                raise ValueError("the file is gone")
    except (distributed.RankError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    model = fastnet.build(mlp, adam, model_name="m")
    save_model(model, folder)
    distributed.barrier()
    other = fastnet.build(mlp, adam, model_name="m")
    load_model(other, f"{folder}/m{'.weights.h5' if hasattr(keras, 'ops') else '.h5'}")
    assert all(map(np.array_equal, values(model), values(other)))
    place = rank, distributed.world_size(), distributed.is_main()
    return place, gathered["x"].numpy(), float(gathered["mean"]), gathered["word"], error


def test_functions_of_distributed(tmp_path: Any) -> None:
    for rank, result in enumerate(workers()(use_functions, str(tmp_path))):
        place, x, mean, word, error = result
        assert place == (rank, 2, rank == 0)
        assert x.tolist() == [0, 0, 1]
        assert (np.float32(mean), word) == (np.float32(2 / 3), "rank 0")
        assert error.startswith(
            "ValueError: the file" if rank else "RankError: Loading has failed on rank 1"
        )


def resume(path: str) -> Any:
    weights = []
    for stops in (False, True):
        keras.utils.set_random_seed(distributed.rank())
        model = fastnet.build(mlp, adam, model_name="m")
        network = fastnet.Network(regression(model, merge_grad=2))
        steps = [own_part(numbers(8, seed)) for seed in range(4)]
        with network("train", 1):
            for batch in steps[:3]:
                network.run_step(batch)
        if stops:
            fastnet.save_checkpoint(path, network)
            model = fastnet.build(mlp, adam, model_name="m")
            network = fastnet.Network(regression(model, merge_grad=2))
            fastnet.load_checkpoint(path, network)
        with network("train", 1):
            network.run_step(steps[3])
        weights.append(values(model))
    return weights


def test_a_checkpoint_between_merged_steps(tmp_path: Any) -> None:
    for without, resumed in workers()(resume, str(tmp_path / "run.ckpt")):
        assert_close(resumed, without)


def open_different() -> list[str]:
    rank = distributed.rank()
    errors = []
    for more, nesterov in (rank, False), (0, bool(rank)):
        optimizer = partial(keras.optimizers.SGD, 0.5, momentum=0.25, nesterov=nesterov)
        model = fastnet.build(mlp, optimizer, model_name="m")
        ops = [LambdaOp(lambda x: x, "x", "x")] * more
        network = fastnet.Network([*ops, *regression(model)])
        with pytest.raises(ValueError, match=r"^The ranks would train") as caught:
            network("train", 1).__enter__()
        errors.append(str(caught.value).partition("but rank 1 has ")[2])
    return errors


def test_different_ops_and_optimizers_raise_on_every_worker() -> None:
    for ops, optimizers in workers()(open_different):
        assert ops.startswith("LambdaOp")
        assert optimizers.startswith("SGD of model 'm', settings")
        assert "'momentum': 0.25, 'nesterov': True" in optimizers


def end_early() -> None:
    network = fastnet.Network(regression(fastnet.build(mlp, adam)))
    with network("train", 1):
        for step, batch in enumerate(STEPS):
            if step == 2 and distributed.rank():
                os._exit(1)
            network.run_step(own_part(batch))


def test_a_worker_that_ends() -> None:
    """TensorFlow ends the collective calls of the other one."""
    first, second = workers().outcomes(end_early)
    assert second.error == "The process has ended."
    assert "UpdateOp" in first.error or "ollective" in first.error


def train_by_strategy_of_program() -> Any:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    network = fastnet.Network(regression(fastnet.build(mlp, adam)))
    text = ""
    try:
        with network("train", 1):
            pass
    except ValueError as error:
        text = str(error)
    with strategy.scope():
        model = fastnet.build(mlp, adam)
    network = fastnet.Network(regression(model))
    with network("train", 1):
        for batch in STEPS:
            network.run_step(own_part(batch))
    return text, distributed.rank(), values(model)


def test_workers_that_have_not_joined() -> None:
    """They are refused, unless the program makes the strategy."""
    processes = Ranks(2, set_tf_config)
    first, second = processes(train_by_strategy_of_program)
    processes.end()
    assert first[0].startswith("TF_CONFIG names 2 workers, but the models were not built")
    assert (first[1], second[1]) == (0, 1)
    assert_close(first[2], second[2])
