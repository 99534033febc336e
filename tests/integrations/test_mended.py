"""Faults of FastEstimator 1.7.0 that fastnet does not have; see docs/migration.md.

Each test shows FastEstimator's fault first. Fixes that need no comparison are tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations import sides as torch_sides
from tests.integrations.sides import Sides, assert_same, one_hot_loss, start_over, steps
from tests.integrations.tf_sides import MARKS, batches, mlp, tf

pytestmark = MARKS

keras = tf.keras
ONES = {"x": torch.ones(2)}
TF_ONES = {"x": tf.ones(2)}


@pytest.fixture(autouse=True)
def _start_over() -> Iterator[None]:
    start_over()
    yield
    start_over()


def copier(lib: Any, pops: Any = None, slicers: Any = None) -> Any:
    return lib.network.TorchNetwork([lib.op.tensorop.TensorOp("x", "y")], pops, slicers)


def function(lib: Any, fn: Callable[..., Any], outputs: Any = "y", **settings: Any) -> Any:
    return lib.network.TorchNetwork([lib.op.tensorop.LambdaOp(fn, "x", outputs)], **settings)


def trainer(lib: Any, model: Any, *more: Any, **settings: Any) -> Any:
    models = lib.op.tensorop.model
    update = models.UpdateOp(model, "loss", **settings)
    return lib.Network([models.ModelOp(model, "x", "y"), one_hot_loss(lib), update, *more])


def test_transform_of_a_dict(sides: Sides) -> None:
    for lib, kind in ((sides.fastestimator, torch.Tensor), (sides.fastnet, int)):
        batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
        result = copier(lib).transform(batch, mode="eval")
        assert isinstance(batch["nest"]["deep"], kind)
        assert isinstance(result["nest"]["deep"], torch.Tensor)


def test_settings_of_the_caller(sides: Sides) -> None:
    """Deferral is not written into ops, nor optimizers into schedulers."""
    for lib in (sides.fastestimator, sides.fastnet):
        mends = lib is sides.fastnet
        scheduler = lib.schedule.EpochScheduler({1: "adam", 3: None})
        model = lib.build(torch_sides.mlp, scheduler, model_name="mlp")
        assert (scheduler.get_all_values() == ["adam", None]) is mends
        network = trainer(lib, model)
        before = dict(vars(network.ops[-1]))
        network("train", 1, "")
        assert (vars(network.ops[-1]) == before) is mends


def test_means_of_integers(sides: Sides) -> None:
    """Minibatches, and Average, which sums in the dtype of the first tensor."""

    def sliced(lib: Any) -> Any:
        slicers = [lib.slicer.AxisSlicer(0, slice="x"), lib.slicer.MeanUnslicer("y")]
        network = function(lib, lambda x: x.sum(), slicers=slicers)
        return network.transform({"x": torch.tensor([[1], [2]])}, "eval")["y"]

    def averaged(lib: Any) -> Any:
        network = lib.network.TorchNetwork([lib.op.tensorop.Average(["x", "z"], "y")])
        return network.transform({"x": torch.tensor([1]), "z": torch.tensor([2.0])}, "eval")["y"]

    for run in (sliced, averaged):
        with pytest.raises(RuntimeError, match="can't be cast"):
            run(sides.fastestimator)
        assert run(sides.fastnet).item() == 1.5


def test_delete_in_postprocessing(sides: Sides) -> None:
    """Deletes a key of the batch, and one that an op has written."""

    def run(lib: Any, key: str) -> Any:
        ops = lib.op.numpyop
        pops = [ops.LambdaOp(lambda value: value + 1, key, "z"), ops.Delete(key)]
        return set(copier(lib, pops=pops).transform(dict(ONES), "eval"))

    assert run(sides.fastestimator, "x") == {"x", "y", "z"}
    with pytest.raises(KeyError, match="y"):
        run(sides.fastestimator, "y")
    assert run(sides.fastnet, "x") == {"y", "z"}
    assert run(sides.fastnet, "y") == {"x", "z"}


def test_slicers_and_keys_of_postprocessing(sides: Sides) -> None:
    """A key that only postprocessing writes is made from the rejoined tensor."""

    def run(lib: Any, *more: str) -> Any:
        pop = lib.op.numpyop.LambdaOp(lambda y: y.sum(), "y", "z")
        slicer = lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y", *more])
        network = copier(lib, pops=pop, slicers=slicer)
        return network.transform({"x": torch.ones(2, 2)}, "eval")

    with pytest.raises(ValueError, match="un-sliced"):
        run(sides.fastestimator)
    # FastEstimator works if told how `z` is rejoined, which it never is.
    for more in ((), ("z",)):
        assert run(sides.fastnet, *more)["z"] == 4


# ---------------------------------------------------------------------- TensorFlow


def test_layers_that_are_frozen_in_an_inner_model(sides: Sides) -> None:
    """FastEstimator trains a layer of a layer that is frozen after the first epoch."""

    def is_trained(lib: Any) -> bool:
        inner = mlp()
        outer = keras.Sequential([keras.layers.Input((6,)), inner])
        network = trainer(lib, lib.build(lambda: outer, "sgd", model_name="outer"))
        steps(network, batches(2))
        inner.layers[0].trainable = False
        before = inner.layers[0].get_weights()
        steps(network, batches(2), epoch=2)
        return not np.array_equal(before[0], inner.layers[0].get_weights()[0])

    assert [is_trained(lib) for lib in (sides.fastestimator, sides.fastnet)] == [True, False]


def test_merged_gradients_that_are_deferred(sides: Sides) -> None:
    """In a graph FastEstimator fails; eagerly it has fastnet's results."""

    def train(lib: Any, eager: bool) -> Any:
        start_over()
        model = lib.build(mlp, "adam", model_name="mlp")
        network = trainer(lib, model, merge_grad=2, defer=True)
        return steps(network, batches(5), eager=eager), model

    with pytest.raises(Exception, match="out of scope"):
        train(sides.fastestimator, eager=False)
    expected = train(sides.fastestimator, eager=True)
    assert_same(train(sides.fastnet, eager=False), expected, rtol=1e-6)


def test_delete_of_a_key_of_the_batch(sides: Sides) -> None:
    """It fails eagerly in FastEstimator, which needs it in a graph."""

    def run(lib: Any, eager: bool) -> Any:
        ops = lib.op.tensorop
        network = lib.network.TFNetwork([ops.LambdaOp(lambda x: x + 1, "x", "y"), ops.Delete("x")])
        return steps(network, [TF_ONES], "eval", eager=eager)

    with pytest.raises(KeyError, match="x"):
        run(sides.fastestimator, eager=True)
    for eager in (False, True):
        assert_same(run(sides.fastnet, eager), run(sides.fastestimator, eager=False))


def test_models_that_are_not_built(sides: Sides) -> None:
    def train(lib: Any, **settings: Any) -> Any:
        start_over()
        model = lib.build(
            lambda: keras.Sequential([keras.layers.Dense(3, **settings)]), "adam", model_name="lazy"
        )
        return steps(trainer(lib, model), batches(3)), model

    with pytest.raises(ValueError, match="have not yet been created"):
        train(sides.fastestimator)
    # The same model, built from the start.
    assert_same(train(sides.fastnet), train(sides.fastestimator, input_shape=(6,)))


def test_updates_of_a_step_that_failed(sides: Sides) -> None:
    """FastEstimator applies a deferred update of a step that failed in the next one."""

    def train(lib: Any, fails: bool) -> Any:
        start_over()
        model = lib.build(mlp, "sgd", model_name="mlp")
        failing = [fails]

        def fn(y: Any) -> Any:
            if failing and failing.pop():
                raise ArithmeticError("once")
            return y

        network = trainer(lib, model, lib.op.tensorop.LambdaOp(fn, "y", "z"), defer=True)
        data = batches(2)
        with network("train", 1, "", eager=True):
            if fails:
                with pytest.raises(ArithmeticError, match="once"):
                    network.run_step(data[0])
            network.run_step(data[1])
        return model.get_weights()

    expected = train(sides.fastestimator, fails=False)
    assert not np.array_equal(train(sides.fastestimator, fails=True)[0], expected[0])
    assert_same(train(sides.fastnet, fails=True), expected)
