"""Files that one side saves and the other loads, in both directions."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

import numpy as np
import tensorflow as tf
import torch

from fastnet.integrations.fastestimator import install, uninstall


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    uninstall()


OPTIMIZERS = {
    "torch": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "legacy": lambda: tf.keras.optimizers.legacy.Adam(0.01),
    "new": lambda: tf.keras.optimizers.AdamW(0.01, weight_decay=0.02),
}
X = np.full((4, 3), 0.1, "float32")
T = np.ones((4, 2), "float32")


def train(fe: ModuleType, kind: str, seed: int, mixed: bool = False) -> Any:
    """Build a model, and train it for a step."""
    torch.manual_seed(seed)
    tf.keras.utils.set_random_seed(seed)

    def make() -> Any:
        if kind == "torch":
            return torch.nn.Linear(3, 2)
        return tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])

    model = fe.build(make, OPTIMIZERS[kind], model_name="saved", mixed_precision=mixed)
    tensorop = fe.op.tensorop
    network = fe.Network(
        [
            tensorop.model.ModelOp(model, "x", "y"),
            tensorop.loss.MeanSquaredError(("y", "t"), "loss"),
            tensorop.model.UpdateOp(model, "loss"),
        ]
    )
    network.transform({"x": X * seed, "t": T}, mode="train")
    return model


def state(model: Any) -> list[np.ndarray]:
    """List the weights of a model, and the state of its optimizer."""
    optimizer = model.current_optimizer
    if isinstance(model, torch.nn.Module):
        states = optimizer.state_dict()["state"].values()
        tensors = [*model.state_dict().values(), *(one for each in states for one in each.values())]
        return [one.numpy() for one in tensors]
    variables = optimizer.variables
    found = variables() if callable(variables) else variables
    return [*model.get_weights(), *[np.asarray(one) for one in found]]


@pytest.mark.parametrize(
    ("kind", "mixed"),
    # FastEstimator wraps a new optimizer in a class that saves what it cannot load.
    [("torch", False), ("torch", True), ("legacy", False), ("legacy", True), ("new", False)],
)
@pytest.mark.parametrize("sides", ["saves", "loads"])
def test_from_one_side_to_the_other(
    fastestimator: ModuleType, tmp_path: Path, sides: str, kind: str, mixed: bool
) -> None:
    if sides == "saves":
        install()
    model = train(fastestimator, kind, seed=1, mixed=mixed)
    path = fastestimator.backend.save_model(model, str(tmp_path), save_optimizer=True)
    uninstall()

    if sides == "loads":
        install()
    other = train(fastestimator, kind, seed=2, mixed=mixed)
    fastestimator.backend.set_lr(other, 0.5)
    fastestimator.backend.load_model(other, path, load_optimizer=True)
    assert float(fastestimator.backend.get_lr(other)) == pytest.approx(0.01)
    for one, expected in zip(state(other), state(model), strict=True):
        np.testing.assert_array_equal(one, expected)
    endings = ("pt", "pt") if kind == "torch" else ("h5", "pkl")
    assert sorted(os.listdir(tmp_path)) == [f"saved.{endings[0]}", f"saved_opt.{endings[1]}"]


def test_optimizer_of_layers_that_were_frozen(fastestimator: ModuleType, tmp_path: Path) -> None:
    """Keras makes the state of a layer when it is unfrozen, so the order of arrays differs."""
    install()
    dense = tf.keras.layers.Dense

    def trained_in_two_steps(seed: int, is_frozen: bool) -> Any:
        tf.keras.utils.set_random_seed(seed)
        layers = [dense(3, trainable=not is_frozen), dense(3), dense(3)]
        model = fastestimator.build(
            lambda: tf.keras.Sequential([tf.keras.layers.Input((3,)), *layers]),
            OPTIMIZERS["legacy"],
            model_name="saved",
        )
        tensorop = fastestimator.op.tensorop
        network = fastestimator.Network(
            [
                tensorop.model.ModelOp(model, "x", "y"),
                tensorop.loss.MeanSquaredError(("y", "t"), "loss"),
                tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        for _ in range(2):
            network.transform({"x": X * seed, "t": np.ones((4, 3), "float32")}, mode="train")
            layers[0].trainable = True
        return model

    def moments(model: Any) -> list[np.ndarray]:
        return [
            model.current_optimizer.get_slot(weight, name).numpy()
            for name in ("m", "v")
            for layer in model.layers
            for weight in layer.weights
        ]

    model, other = trained_in_two_steps(1, True), trained_in_two_steps(2, False)
    path = fastestimator.backend.save_model(model, str(tmp_path), save_optimizer=True)
    fastestimator.backend.load_model(other, path, load_optimizer=True)
    for one, expected in zip(moments(other), moments(model), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_optimizer_of_other_layers_of_the_same_shapes(
    fastestimator: ModuleType, tmp_path: Path
) -> None:
    install()
    dense, tensorop = tf.keras.layers.Dense, fastestimator.op.tensorop

    def trained(frozen: str) -> Any:
        layers = [dense(3, name=name, trainable=name != frozen) for name in ("first", "second")]
        model = fastestimator.build(
            lambda: tf.keras.Sequential([tf.keras.layers.Input((3,)), *layers]),
            OPTIMIZERS["legacy"],
            model_name="saved",
        )
        network = fastestimator.Network(
            [
                tensorop.model.ModelOp(model, "x", "y"),
                tensorop.loss.MeanSquaredError(("y", "t"), "loss"),
                tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        network.transform({"x": X, "t": np.ones((4, 3), "float32")}, mode="train")
        return model

    path = fastestimator.backend.save_model(trained("first"), str(tmp_path), save_optimizer=True)
    with pytest.raises(ValueError, match=r"saved_opt\.pkl.*second.* where the model's are .*first"):
        fastestimator.backend.load_model(trained("second"), path, load_optimizer=True)


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


def test_nothing_in_a_file_is_executed(
    fastestimator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install()
    model = train(fastestimator, "legacy", seed=1)
    path = fastestimator.backend.save_model(model, str(tmp_path), save_optimizer=True)
    (tmp_path / "saved_opt.pkl").write_bytes(pickle.dumps({"lr": 0.1, "weights": [Attack()]}))
    with pytest.raises(ValueError, match=r"saved_opt\.pkl.*mkdir.*save_optimizer=True"):
        fastestimator.backend.load_model(model, path, load_optimizer=True)
    assert not (tmp_path / "attacked").exists()


def test_weights_from_a_link(
    fastestimator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gdown

    kept = tmp_path / "kept.pt"
    torch.save({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, kept)

    def download(url: str, output: str, quiet: bool) -> str:
        assert url == "https://drive.google.com/uc?id=1"
        target = os.path.join(output, "weights.pt")
        with open(target, "wb") as file:
            file.write(kept.read_bytes())
        return target

    monkeypatch.setattr(gdown, "download", download)
    with install():
        model = fastestimator.build(
            lambda: torch.nn.Linear(3, 2), "sgd", weights_path="https://drive.google.com/uc?id=1"
        )
    assert torch.equal(model.weight, torch.ones(2, 3))
