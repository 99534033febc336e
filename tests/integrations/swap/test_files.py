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


def make(fe: ModuleType, kind: str, seed: int, mixed: bool = False) -> Any:
    torch.manual_seed(seed)
    tf.keras.utils.set_random_seed(seed)
    if kind == "torch":
        makes = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    else:
        makes = lambda: tf.keras.Sequential(  # noqa: E731
            [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)]
        )
    return fe.build(makes, OPTIMIZERS[kind], model_name="saved", mixed_precision=mixed)


def train(fe: ModuleType, model: Any, steps: int = 2) -> None:
    tensorop = fe.op.tensorop
    network = fe.Network(
        [
            tensorop.model.ModelOp(model, "x", "y"),
            tensorop.loss.MeanSquaredError(("y", "t"), "loss"),
            tensorop.model.UpdateOp(model, "loss"),
        ]
    )
    data = [
        {"x": np.full((4, 3), 0.1 * n, "float32"), "t": np.ones((4, 2), "float32")} for n in (1, 2)
    ]
    network.transform(data[:steps], mode="train")


def state(model: Any) -> list[np.ndarray]:
    """List a model's weights, and what its optimizer remembers."""
    optimizer = model.current_optimizer
    if isinstance(model, torch.nn.Module):
        memory = optimizer.state_dict()["state"]
        found = [value for one in memory.values() for value in one.values()]
        return [value.numpy() for value in [*model.state_dict().values(), *found]]
    variables = optimizer.variables
    found = variables() if callable(variables) else variables
    return [*model.get_weights(), *[np.asarray(one) for one in found]]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", ["torch", "legacy", "new"])
@pytest.mark.parametrize("sides", ["both", "saves", "loads"])
def test_from_one_side_to_the_other(
    fastestimator: ModuleType, tmp_path: Path, sides: str, kind: str, mixed: bool
) -> None:
    if kind == "new" and mixed:
        pytest.skip("FastEstimator wraps this one in a class that saves what it cannot load")
    if sides in ("both", "saves"):
        install()
    model = make(fastestimator, kind, seed=1, mixed=mixed)
    train(fastestimator, model)
    path = fastestimator.backend.save_model(model, str(tmp_path), save_optimizer=True)
    uninstall()

    if sides in ("both", "loads"):
        install()
    other = make(fastestimator, kind, seed=2, mixed=mixed)
    train(fastestimator, other, steps=1)
    fastestimator.backend.set_lr(other, 0.5)
    fastestimator.backend.load_model(other, path, load_optimizer=True)
    assert float(fastestimator.backend.get_lr(other)) == pytest.approx(0.01)
    for one, expected in zip(state(other), state(model), strict=True):
        np.testing.assert_array_equal(one, expected)
    ending = "pt" if kind == "torch" else "h5", "pt" if kind == "torch" else "pkl"
    assert sorted(os.listdir(tmp_path)) == sorted([f"saved.{ending[0]}", f"saved_opt.{ending[1]}"])


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


def test_nothing_in_a_file_is_executed(
    fastestimator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install()
    model = make(fastestimator, "legacy", seed=1)
    path = fastestimator.backend.save_model(model, str(tmp_path), save_optimizer=True)
    file = tmp_path / "saved_opt.pkl"
    file.write_bytes(pickle.dumps({"lr": 0.1, "weights": [Attack()]}))
    before = state(model)
    with pytest.raises(ValueError, match=r"saved_opt\.pkl.*mkdir.*save_optimizer=True"):
        fastestimator.backend.load_model(model, path, load_optimizer=True)
    assert not (tmp_path / "attacked").exists()
    for one, expected in zip(state(model), before, strict=True):
        np.testing.assert_array_equal(one, expected)


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
