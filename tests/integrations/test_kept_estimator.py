"""A program that replaces its imports alone, and keeps FastEstimator's Estimator and Pipeline.

FastEstimator's Estimator knows no TensorFlow network but its own, and hands every other one batches
of torch.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

SIZE, COUNT, EPOCHS = 8, 20, 3


class Data(torch.utils.data.Dataset[Any]):
    """Points, each with a class."""

    def __init__(self) -> None:
        generator = np.random.default_rng(5)
        self.x = generator.normal(size=(COUNT, 4)).astype("float32")
        self.t = generator.integers(3, size=COUNT)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "t": self.t[index]}


def torch_model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def tf_model() -> Any:
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((4,)), layers.Dense(8, "relu"), layers.Dense(3)])


def fit(fastestimator: Any, lib: Any, make: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Train with FastEstimator's Estimator; give the network and what its steps have returned."""
    for module in ("pipeline", "estimator", "trace"):
        importlib.import_module(f"fastestimator.{module}")
    tensorop = importlib.import_module(f"{lib.__name__}.op.tensorop")
    importlib.import_module(f"{lib.__name__}.op.tensorop.model")
    importlib.import_module(f"{lib.__name__}.op.tensorop.loss")
    model = lib.build(make, "adam")
    network = lib.Network(
        [
            tensorop.model.ModelOp(model, "x", "p"),
            tensorop.loss.CrossEntropy(["p", "t"], "loss", from_logits=True),
            tensorop.model.UpdateOp(model, "loss"),
        ]
    )
    seen: list[dict[str, Any]] = []

    class Keep(fastestimator.trace.Trace):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(inputs=["x", "t", "p", "loss"], mode="train")

        def on_batch_end(self, data: Any) -> None:
            seen.append({key: data[key] for key in self.inputs})

    loader = torch.utils.data.DataLoader(Data(), batch_size=SIZE, shuffle=False)
    estimator = fastestimator.estimator.Estimator(
        pipeline=fastestimator.pipeline.Pipeline(train_data=loader),
        network=network,
        epochs=EPOCHS,
        traces=[Keep()],
    )
    estimator.fit(warmup=False)
    return network, seen


@pytest.mark.parametrize("make", [torch_model, tf_model])
def test_numbers_are_fastestimators(fastestimator: Any, fastnet: Any, make: Any) -> None:
    _, expected = fit(fastestimator, fastestimator, make)
    network, seen = fit(fastestimator, fastnet, make)
    assert len(seen) == len(expected) == EPOCHS * 3
    for own, other in zip(seen, expected, strict=True):
        for key in ("x", "t", "p", "loss"):
            np.testing.assert_allclose(
                np.asarray(own[key]), np.asarray(other[key]), rtol=1e-5, atol=1e-6, err_msg=key
            )
    own_class = torch.Tensor if make is torch_model else tf.Tensor
    assert all(isinstance(value, own_class) for one in seen for value in one.values())
    if make is tf_model:
        # for batches of 8, and for the last one of an epoch and all others
        assert [trace.reason.partition(",")[0] for trace in network.traces] == [
            "first step in mode 'train'",
            "'t' has the shape (4)",
        ]
