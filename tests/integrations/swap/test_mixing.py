"""Objects from before the swap, from during it, and fastnet's own, side by side."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip(
    "fastestimator", reason="swaps fastnet into FastEstimator 1.7.0: `make test-fe`"
)

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

import numpy as np
import torch

import fastnet
from fastnet.integrations.fastestimator import install, uninstall


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    uninstall()


CLASSES = {
    "network": ["BaseNetwork", "TorchNetwork", "TFNetwork"],
    "op.op": ["Op"],
    "op.tensorop": ["TensorOp", "LambdaOp", "Delete"],
    "op.tensorop.meta": ["Fuse", "Repeat"],
    "op.tensorop.loss": ["LossOp", "CrossEntropy", "SuperLoss"],
    "op.tensorop.model": ["ModelOp", "UpdateOp"],
    "schedule": ["Scheduler", "EpochScheduler", "RepeatScheduler"],
    "slicer": ["Slicer", "AxisSlicer"],
}
NAMES = [name for names in CLASSES.values() for name in names]


def classes(package: Any) -> SimpleNamespace:
    """Take the classes that tests make objects of, as they are now."""
    found = {
        name: getattr(importlib.import_module(f"{package.__name__}.{module}"), name)
        for module, names in CLASSES.items()
        for name in names
    }
    return SimpleNamespace(Network=package.Network, build=package.build, **found)


Library = SimpleNamespace


@pytest.fixture
def theirs(fastestimator: ModuleType) -> Library:
    return classes(fastestimator)


@pytest.fixture
def swapped(theirs: Library, fastestimator: ModuleType) -> Library:
    """FastEstimator's names, swapped; `theirs` were taken before."""
    install()
    return classes(fastestimator)


def make_objects(lib: Library) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Make objects, and name the classes that each is of."""
    model = lib.build(lambda: torch.nn.Linear(2, 3), "sgd")
    op = lib.LambdaOp(fn=lambda x: x, inputs="x", outputs="x")
    loss = lib.CrossEntropy(("y", "t"), "loss", from_logits=True)
    made = {
        "lambda": (op, ("LambdaOp", "TensorOp", "Op")),
        "delete": (lib.Delete("x"), ("Delete", "TensorOp", "Op")),
        "fuse": (lib.Fuse([op]), ("Fuse", "TensorOp", "Op")),
        "repeat": (lib.Repeat(op, 2), ("Repeat", "TensorOp", "Op")),
        "loss": (loss, ("CrossEntropy", "LossOp", "TensorOp", "Op")),
        "model": (lib.ModelOp(model, "x", "y"), ("ModelOp", "TensorOp", "Op")),
        "update": (lib.UpdateOp(model, "loss"), ("UpdateOp", "TensorOp", "Op")),
        "epochs": (lib.EpochScheduler({1: op}), ("EpochScheduler", "Scheduler")),
        "turns": (lib.RepeatScheduler([op, None]), ("RepeatScheduler", "Scheduler")),
        "slicer": (lib.AxisSlicer(1, slice="x"), ("AxisSlicer", "Slicer")),
    }
    network = lib.Network([lib.ModelOp(model, "x", "y")])
    return {**made, "network": (network, ("TorchNetwork", "BaseNetwork"))}


@pytest.mark.parametrize("made_by", ["theirs", "swapped", "fastnet"])
def test_instances(theirs: Library, swapped: Library, made_by: str) -> None:
    """FastEstimator's modules ask with the swapped names, and count an object whoever made it.

    A program that has imported names before the swap asks with those.
    """
    library = {"theirs": theirs, "swapped": swapped, "fastnet": classes(fastnet)}[made_by]
    asked = [swapped, *([theirs, classes(fastnet)] if made_by == "swapped" else [])]
    for kind, (item, expected) in make_objects(library).items():
        for names in asked:
            found = {name for name in NAMES if isinstance(item, getattr(names, name))}
            assert found == set(expected), kind
        found = {name for name in NAMES if issubclass(type(item), getattr(swapped, name))}
        assert found == set(expected), kind


def test_classes_of_the_program(theirs: Library, swapped: Library) -> None:
    """What a program derives from a swapped class is not what it derives from another."""

    class Own(swapped.TensorOp):
        pass

    class Older(theirs.TensorOp):
        pass

    assert isinstance(Own(), Own)
    assert isinstance(Own(), swapped.TensorOp)
    assert isinstance(Own(), theirs.TensorOp)
    assert isinstance(Older(), swapped.TensorOp)
    assert not isinstance(Older(), Own)
    assert not isinstance(swapped.TensorOp(), Own)
    assert not isinstance(swapped.LambdaOp(len, "x", "y"), Own)


def test_objects_go_on_working(theirs: Library, fastestimator: ModuleType) -> None:
    """Networks from before the swap, and from during it, before, during and after it."""
    model = theirs.build(lambda: torch.nn.Linear(2, 2), "sgd")
    ops = [theirs.ModelOp(model, "x", "y"), theirs.LambdaOp(lambda y: y + 1, "y", "z")]
    batch = {"x": np.ones((3, 2), "float32")}
    before = theirs.Network(ops)
    expected = before.transform(dict(batch), mode="infer")["z"]
    with install():
        during = fastestimator.Network(ops)
        assert isinstance(during, fastnet.TorchNetwork)
        for network in (before, during):
            torch.testing.assert_close(network.transform(dict(batch), "infer")["z"], expected)
    for network in (before, during):
        torch.testing.assert_close(network.transform(dict(batch), "infer")["z"], expected)


def test_a_network_without_models_runs_in_tensorflow(swapped: Library) -> None:
    network = swapped.Network([swapped.LambdaOp(lambda x: x + 1, "x", "y")])
    assert isinstance(network, swapped.TFNetwork)
    assert network.transform({"x": np.zeros(2)}, "infer")["y"].numpy().tolist() == [1, 1]


def test_classes_can_be_pickled(swapped: Library) -> None:
    for name in NAMES:
        found = getattr(swapped, name)
        assert pickle.loads(pickle.dumps(found)) is found
