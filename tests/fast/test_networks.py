"""A run in each framework, from building models to explaining and resuming it, by public names."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import fastnet
from fastnet import backend, errors, explain, profiling, types, util
from fastnet.compat import v1
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.conformance.frameworks import FRAMEWORKS, Framework

pytestmark = pytest.mark.fast

KERNEL = np.array([[1.0], [2.0]], "float32")
LAYERS = [(KERNEL, np.array([0.5], "float32"))]
X = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
BATCH = {"x": X, "t": np.array([[0.5], [0.5]], "float32")}
# by hand: the model returns 1.5 and 2.5, each off by 1 and 2, so that the loss is 2.5
LOSS = 2.5
# and its gradient by the kernel is (1, 2), and by the bias 3
TRAINED = [KERNEL - 0.1 * np.array([[1.0], [2.0]]), np.array([0.5 - 0.1 * 3])]


@pytest.fixture(params=["torch", "tf-static", "tf-eager"])
def fw(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


# where a graph would show nothing more
in_both = pytest.mark.parametrize("fw", ["torch", "tf-eager"], indirect=True)


def ops_of(model: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        MeanSquaredError(("y", "t"), "loss"),
        UpdateOp(model, "loss"),
    ]


def trainer(fw: Framework) -> tuple[Any, Any]:
    model = fw.build(LAYERS, fw.sgd(0.1))
    return fastnet.Network(ops_of(model)), model


def assert_trained(fw: Framework, model: Any) -> None:
    for weight, expected in zip(fw.weights(model), TRAINED, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_a_step(fw: Framework) -> None:
    network, model = trainer(fw)
    assert isinstance(network, fastnet.BaseNetwork)
    of_torch, of_tf = fastnet.TorchNetwork, fastnet.TFNetwork
    assert type(network) is (of_torch if fw.target == "torch" else of_tf)
    result = fw.step(network, BATCH, "train")
    np.testing.assert_allclose(result["loss"], LOSS, rtol=1e-6)
    assert_trained(fw, model)


@in_both
def test_the_same_by_functions(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    x, t = fw.tensor(X), fw.tensor(BATCH["t"])
    tape: Any = None
    if fw.target == "tf":
        from tensorflow import GradientTape

        tape = GradientTape(persistent=True)
        tape.__enter__()
    watched = backend.watch(x, tape)
    y = backend.feed_forward(model, watched)
    loss = backend.reduce_mean(backend.mean_squared_error(y, t, average_loss=False))
    by_x = backend.get_gradient(loss, watched, tape=tape)
    np.testing.assert_allclose(by_x, [[1.0, 2.0], [2.0, 4.0]], rtol=1e-5)
    variables = list(model.parameters()) if fw.target == "torch" else model.trainable_variables
    gradients = backend.get_gradient(loss, variables, tape=tape)
    penalty = backend.l2_regularization(model, beta=2.0)
    np.testing.assert_allclose(util.to_number(penalty), 1 + 4 + 0.25, rtol=1e-5)
    if tape is not None:
        tape.__exit__(None, None, None)
    backend.update_model(model, gradients)
    assert_trained(fw, model)


@in_both
def test_files(fw: Framework, tmp_path: Path) -> None:
    network, model = trainer(fw)
    fw.step(network, BATCH, "train")
    backend.set_lr(model, 0.25)
    assert backend.get_lr(model) == pytest.approx(0.25)
    assert backend.get_optimizer(model) is model.current_optimizer
    path = backend.save_model(model, tmp_path, "weights")
    fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    resumed, other = trainer(fw)
    backend.load_model(other, path)
    assert_trained(fw, other)
    resumed, other = trainer(fw)
    fastnet.load_checkpoint(tmp_path / "run.ckpt", resumed)
    assert_trained(fw, other)
    assert backend.get_lr(other) == pytest.approx(0.25)


def test_a_compiled_step() -> None:
    torch = pytest.importorskip("torch")
    model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn=None)
    options = fastnet.CompileOptions(backend="eager")
    network = fastnet.Network([ModelOp(model, "x", "y")], compile=options)
    batch = {"x": torch.ones(3, 2)}
    with network("infer", 1):
        results = [network.run_step(batch)["y"] for _ in range(3)]
    assert all(torch.allclose(one, model(batch["x"])) for one in results)
    assert [(one.mode, one.fallback) for one in network.traces] == [("infer", None)]


@in_both
def test_an_epoch_of_a_loader(fw: Framework) -> None:
    network, model = trainer(fw)
    epoch = fastnet.steps(network, [fw.tensors(BATCH)], "train", show="loss")
    assert [set(result) >= {"loss"} for _, result in epoch] == [True]
    assert epoch.count == 1
    assert fastnet.network.steps is fastnet.steps
    assert_trained(fw, model)


@in_both
def test_what_follows_an_update(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    ema = EMA(model, decay=0.5)
    network = fastnet.Network([*ops_of(model), ema])
    with network(mode="train", epoch=1):
        network.run_step(BATCH)
    assert_trained(fw, model)
    # the first update is copied
    assert_trained(fw, ema.averaged)


def test_a_schedule_of_torch() -> None:
    fw = FRAMEWORKS["torch"]
    model = fw.build(LAYERS, fw.sgd(0.1))
    from torch.optim.lr_scheduler import ExponentialLR

    schedule = LRSchedule(model, lambda optimizer: ExponentialLR(optimizer, 0.5))
    network = fastnet.Network([*ops_of(model), schedule])
    with network(mode="train", epoch=1):
        network.run_step(BATCH)
    assert backend.get_lr(model) == 0.05


@in_both
def test_a_profile(fw: Framework) -> None:
    network, _ = trainer(fw)
    batch = fw.tensors(BATCH)
    profile = fastnet.profile(network, batch, mode="train", steps=4, eager=fw.eager)
    assert type(profile) is profiling.Profile
    (section,) = profile.sections
    assert isinstance(section, profiling.Section)
    assert section.steps == 4
    assert all(isinstance(row, profiling.Row) for row in section.rows)
    assert [row.name.partition("(")[0] for row in section.rows if row.kind == "op"] == [
        "ModelOp",
        "MeanSquaredError",
        "UpdateOp",
    ]
    comparison = profile.compare(profile)
    assert isinstance(comparison, profiling.Comparison)
    assert all(isinstance(row, profiling.ComparedRow) for row in comparison.rows)
    assert profiling.profile is fastnet.profile


@in_both
def test_an_explanation(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    unread = LambdaOp(lambda x: x, "x", "unread")
    scheduled = EpochScheduler({1: None, 3: TensorOp("y", "z")})
    network = fastnet.Network([*ops_of(model), unread, scheduled])
    found = network.explain(mode="train", epoch=1, desired_output_keys={"loss"})
    assert isinstance(found, explain.Explanation)
    assert all(isinstance(item, explain.Item) for item in found.ops)
    assert [item.name for item in found.ops][:3] == ["ModelOp", "MeanSquaredError", "UpdateOp"]
    assert any(
        isinstance(one, explain.Finding) and one.keys == ("unread",) for one in found.findings
    )
    keys = {key.name: key for key in found.keys}
    assert all(isinstance(key, explain.Key) for key in found.keys)
    lifetimes = [life for key in found.keys for life in key.lifetimes]
    assert all(isinstance(life, explain.Lifetime) for life in lifetimes)
    assert keys["x"].required
    assert keys["loss"].returned
    (schedule,) = found.schedules
    assert isinstance(schedule, explain.Schedule)
    assert schedule.values == ((1, "nothing"), (3, "TensorOp (y -> z)"))


@in_both
def test_the_older_api(fw: Framework) -> None:
    kind = v1.TorchNetwork if fw.target == "torch" else v1.TFNetwork
    model = v1.build(lambda: fw.make_model(LAYERS), fw.sgd(0.1), model_name="older")
    network = v1.Network(ops_of(model))
    assert isinstance(network, kind)
    assert isinstance(network, v1.BaseNetwork)
    network.load_epoch("train", 1)
    network.run_step(fw.tensors(BATCH))
    network.unload_epoch()
    assert_trained(fw, model)


def test_errors_and_contexts() -> None:
    assert issubclass(errors.UnknownNameError, KeyError)
    assert issubclass(errors.UnknownNameError, ValueError)
    assert issubclass(errors.WrongOptimizerError, ValueError)
    with util.NonContext():
        pass


def test_types() -> None:
    assert types.missing_attributes(TensorOp("x", "y"), types.OP_ATTRIBUTES) == []
    assert len(types.missing_attributes(3, types.SLICER_ATTRIBUTES)) > 0
    assert callable(types.DeferredLike.__call__)
    assert callable(types.DatasetLike.__call__)
    assert typing.get_args(types.Forward)
    assert typing.get_args(types.RunStep)
    assert type(None) in typing.get_args(types.Ops)
    assert type(None) in typing.get_args(types.NumpyOps)
    assert type(None) in typing.get_args(types.Slicers)
    assert typing.get_args(types.Mode) == ("train", "eval", "test", "infer")
    assert typing.get_origin(types.State) is dict
    assert issubclass(typing.get_origin(types.Batch), Mapping)
    assert types.Tensor is not None
    assert types.Model is not None


# ---------------------------------------------------------------------- utilities
