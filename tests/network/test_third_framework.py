"""A framework of numpy alone, brought by the list in CONTRIBUTING: an entry, and its parts."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet import Network, slicer
from fastnet.backend import dispatch, get_shape, reduce_mean, to_tensor
from fastnet.frameworks import FRAMEWORKS, MissingPart, register
from fastnet.network.build import _prepare_model
from fastnet.op import tensorop
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, Reshape, TensorOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.loss import Hinge, MeanSquaredError
from fastnet.op.tensorop.meta import Fuse, OneOf, Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.network.toy import Descent, Model, Tensor
from tests.network.toy.running import TOY, ToyNetwork

X = np.arange(6.0).reshape(3, 2)
T = np.array([[1.0], [0.0], [2.0]])
PACKAGE = TOY.package


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_by_type", {})
    for found in dispatch._found:
        found.clear()
    monkeypatch.setitem(FRAMEWORKS, "toy", TOY)  # taken out again afterwards
    register(TOY)


def make_model() -> Any:
    return fastnet.build(lambda: Model(2, 1), lambda: Descent(0.1), model_name="line")


def training(model: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        MeanSquaredError(("y", "t"), "loss"),
        UpdateOp(model, "loss"),
    ]


def by_hand(steps: int) -> tuple[list[float], list[Any]]:
    """Losses and weights of the line, by the formula."""
    matrix, shift = np.ones((2, 1)), np.zeros(1)
    losses = []
    for _ in range(steps):
        difference = X @ matrix + shift - T
        losses.append(float((difference**2).mean()))
        slope = 2 * difference / difference.size
        matrix, shift = matrix - 0.1 * X.T @ slope, shift - 0.1 * slope.sum(axis=0)
    return losses, [matrix, shift]


def values(model: Any) -> list[Any]:
    return [weight.value for weight in model.weights]


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


class TestSteps:
    def test_training(self) -> None:
        model = make_model()
        network = Network(training(model))
        assert type(network) is ToyNetwork
        losses, weights = by_hand(3)
        with network("train", 1):
            assert model.is_open
            results = [network.run_step({"x": X, "t": T}) for _ in range(3)]
        assert not model.is_open
        assert_close([result["loss"].value for result in results], losses)
        assert_close(values(model), weights)
        assert not results[0]["y"].sources, "what comes back is detached"

    @pytest.mark.parametrize("mode", ["eval", "test", "infer"])
    def test_other_modes_update_nothing(self, mode: str) -> None:
        model = make_model()
        network = Network(training(model))
        with network(mode, 1):
            result = network.run_step({"x": X, "t": T})
        assert_close(values(model), [np.ones((2, 1)), np.zeros(1)])
        np.testing.assert_allclose(result["y"].value, X.sum(axis=1, keepdims=True))
        assert ("loss" in result) is (mode != "infer")

    def test_a_schedule_and_a_deferred_update(self) -> None:
        model = make_model()
        ops = training(model)
        ops[-1] = EpochScheduler({1: None, 2: UpdateOp(model, "loss", defer=True)})
        network = Network(ops)
        for epoch, count in ((1, 0), (2, 1)):
            with network("train", epoch):
                network.run_step({"x": X, "t": T})
            assert_close(values(model), by_hand(count)[1])

    def test_gradients_as_values(self) -> None:
        model = make_model()
        ops = [
            Watch("x"),
            ModelOp(model, "x", "y"),
            MeanSquaredError(("y", "t"), "loss", mode=None),
            GradientOp("loss", "slope", inputs="x"),
            GradientOp("loss", "slopes", model=model),
            UpdateOp(model, "loss", gradients="slopes"),
        ]
        network = Network(ops)
        with network("train", 1):
            result = network.run_step({"x": X, "t": T})
        difference = X.sum(axis=1, keepdims=True) - T
        np.testing.assert_allclose(result["slope"].value, 2 / 3 * difference @ np.ones((1, 2)))
        assert_close(values(model), by_hand(1)[1])

    def test_ops_around_ops(self) -> None:
        up = LambdaOp(lambda x: x + 1.0, "x", "x")
        network = ToyNetwork([Fuse([up, up]), OneOf(up, up), Sometimes(up, prob=1.0)])
        with network("infer", 1):
            np.testing.assert_array_equal(network.run_step({"x": X})["x"].value, X + 4)

    def test_transform_and_postprocessing(self) -> None:
        network = ToyNetwork(
            [Reshape("x", "y", shape=(-1,))], [NumpyLambdaOp(lambda y: y * 2, "y", "z")]
        )
        result = network.transform({"x": X}, "infer")
        assert isinstance(result["z"], Tensor)
        np.testing.assert_array_equal(result["z"].value, 2 * X.reshape(-1))

    def test_slicers(self) -> None:
        seen: list[Any] = []
        network = ToyNetwork(
            [LambdaOp(lambda x: seen.append(x.shape) or x * 2.0, "x", "y")],
            slicers=[AxisSlicer(axis=0, slice="x", unslice="y")],
        )
        with network("infer", 1):
            result = network.run_step({"x": Tensor(X)})
        assert seen == [(2,)] * 3
        np.testing.assert_array_equal(result["y"].value, 2 * X)

    def test_a_profile(self) -> None:
        model = make_model()
        network = Network(training(model))
        made = fastnet.profile(network, {"x": X, "t": T}, mode="train", steps=3)
        assert [row.name for row in made.rows if row.kind == "op"] == [
            "ModelOp(x) -> y",
            "MeanSquaredError(y, t) -> loss",
            "UpdateOp(loss)",
        ]
        assert_close(values(model), by_hand(0)[1])

    def test_the_public_functions(self) -> None:
        assert get_shape(Tensor(X)) == (3, 2)
        assert reduce_mean(Tensor(X)).value == X.mean()
        np.testing.assert_array_equal(to_tensor([X, "a"], "toy")[0].value, X)

    def test_a_key_that_is_not_there(self) -> None:
        network = Network(training(make_model()))
        with network("train", 1), pytest.raises(KeyError) as caught:
            network.run_step({"x": X})
        assert "MeanSquaredError" in str(caught.value)
        assert "'t'" in str(caught.value)

    def test_a_loss_that_is_none(self) -> None:
        model = make_model()
        network = Network([UpdateOp(model, "loss")])
        with network("train", 1), pytest.raises(ValueError, match="as its loss") as caught:
            network.run_step({"loss": "text"})
        assert str(caught.value) == (
            "UpdateOp of 'line' reads a tensor as its loss 'loss', but got str."
        )

    def test_ops_of_two_frameworks(self) -> None:
        torch = pytest.importorskip("torch")
        other = fastnet.build(lambda: torch.nn.Linear(2, 1), "sgd", model_name="other")
        with pytest.raises(AssertionError, match="several frameworks"):
            Network([ModelOp(make_model(), "x", "y"), ModelOp(other, "x", "z")])
        with pytest.raises(ValueError, match="UpdateOp of 'other' holds a model of framework"):
            ToyNetwork([UpdateOp(other, "loss")])


def run_training() -> None:
    network = Network(training(make_model()))
    with network("train", 1):
        network.run_step({"x": X, "t": T})


def profile() -> None:
    fastnet.profile(Network(training(make_model())), {"x": X, "t": T}, steps=2)


UP = LambdaOp(lambda x: x, "x", "x")
# what is taken away, who needs it, and what meets that
PARTS: list[tuple[str, str, Callable[[], Any]]] = [
    ("convert", "to_tensor", lambda: to_tensor(X, "toy")),
    ("losses", "MeanSquaredError", run_training),
    ("losses.mean_squared_error", "MeanSquaredError", run_training),
    ("losses.mean_of_losses", "MeanSquaredError", run_training),
    ("losses.hinge", "Hinge", lambda: ToyNetwork([Hinge(("x", "t"), "loss")])),
    ("setup", "build", make_model),
    ("control", "OneOf", lambda: ToyNetwork([OneOf(UP, UP)])),
    ("reshape", "Reshape", lambda: ToyNetwork([Reshape("x", "y", (-1,))])),
    ("settled_shape", "Reshape", lambda: ToyNetwork([Reshape("x", "y", (-1,))])),
    ("gradients.watch", "Watch", lambda: ToyNetwork([Watch("x")])),
    ("gradients.trainable", "GradientOp", lambda: GradientOp("y", "z", model=make_model())),
    ("taking.take", "GradientOp", lambda: ToyNetwork([GradientOp("y", "z", inputs="x")])),
    ("keeping", "A profile", profile),
]
ADVICE = "CONTRIBUTING.md, 'Add a framework', lists what one has to bring."


class TestWhatIsLeftOut:
    @pytest.mark.parametrize(("part", "asker", "meet"), PARTS, ids=[part for part, *_ in PARTS])
    def test_of_the_package(
        self,
        part: str,
        asker: str,
        meet: Callable[[], Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        take_away(part, monkeypatch)
        with pytest.raises(MissingPart) as caught:
            meet()
        # of a module that is not there, the first of it that somebody needs
        asked = re.escape(part) + (r"(\.\w+)?" if "." not in part else "")
        text = f"{asker} needs '{asked}' of the framework 'toy', but {PACKAGE} has none. "
        assert re.fullmatch(text + re.escape(ADVICE), str(caught.value))

    @pytest.mark.parametrize(
        ("what", "meet"),
        [
            ("network", run_training),
            ("model_pass", run_training),
            ("update", run_training),
        ],
    )
    def test_of_the_entry(
        self, what: str, meet: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(FRAMEWORKS, "toy", dataclasses.replace(TOY, **{what: None}))
        with pytest.raises(MissingPart) as caught:
            meet()
        assert str(caught.value) == f"The framework 'toy' has no {what}. {ADVICE}"

    def test_the_entry_itself(self) -> None:
        del FRAMEWORKS["toy"]
        with pytest.raises(ValueError, match="is no model of a known framework"):
            make_model()
        with pytest.raises(ValueError, match="Unrecognized tensor type Tensor"):
            get_shape(Tensor(X))
        with pytest.raises(ValueError, match="There is no framework 'toy'"):
            ToyNetwork([Reshape("x", "y", (-1,))])


def test_the_list_names_all_that_is_asked_for() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    section = text.split("## Add a framework")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([\w.]+)`", section))
    asked = {part for cls in tensor_ops() for part in parts_of(cls)}
    for path in sorted(Path(slicer.__path__[0]).glob("*.py")):
        asked |= set(re.findall(r"\btensors\.(\w+)", path.read_text()))
    asked |= set(re.findall(r"\bsetup\.(\w+)\(", inspect.getsource(_prepare_model)))
    assert len(asked) > 30
    for part in asked - listed:
        module, _, _ = part.partition(".")
        raise AssertionError(f"{part} is not in the list: name it beside `{module}`")
    for field in dataclasses.fields(TOY):
        assert field.name in listed


def parts_of(cls: type) -> set[str]:
    found = [value for base in cls.__mro__ for value in vars(base).values()]
    return {one.part for one in found if type(one) is OfFramework}


def tensor_ops() -> list[type]:
    for module in pkgutil.walk_packages(tensorop.__path__, "fastnet.op.tensorop."):
        if not module.name.rpartition(".")[2].startswith(("torch_", "tf_")):
            importlib.import_module(module.name)
    found = [TensorOp]
    for cls in found:
        found += [one for one in cls.__subclasses__() if one.__module__.startswith("fastnet.")]
    return found


def take_away(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package lack a function, or a module."""
    name = f"{PACKAGE}.{part}"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, function = name.rpartition(".")
        monkeypatch.delattr(importlib.import_module(module), function, raising=False)
    else:
        monkeypatch.delattr(sys.modules[PACKAGE], part)
        monkeypatch.setitem(sys.modules, name, None)  # as if its file were not there
