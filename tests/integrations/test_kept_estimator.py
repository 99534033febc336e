"""Programs that replace their imports alone, and keep FastEstimator's Estimator and Pipeline.

FastEstimator's Estimator knows no TensorFlow network but its own, and passes batches of torch to
every other one.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tests.integrations.sides import WEIGHTS, Sides, batches, trainer
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

EPOCHS = 3


class Samples(torch.utils.data.Dataset[Any]):
    """Makes each sample anew, since FastEstimator converts it in place."""

    def __init__(self) -> None:
        (self.data,) = batches(1, size=20)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {key: self.data[key][index].numpy() for key in ("x", "onehot")}


def test_fit(sides: Sides, fw: Any) -> None:
    fe = sides.fastestimator
    for module in ("pipeline", "estimator", "trace"):
        importlib.import_module(f"fastestimator.{module}")

    def program(lib: Any) -> Any:
        network = trainer(lib, lib.build(fw.mlp, "adam", model_name="mlp"))
        seen: list[dict[str, Any]] = []

        class Keep(fe.trace.Trace):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__(inputs=["x", "onehot", "y", "loss"], mode="train")

            def on_batch_end(self, data: Any) -> None:
                seen.append({key: data[key] for key in self.inputs})

        loader = torch.utils.data.DataLoader(Samples(), batch_size=8)
        fe.estimator.Estimator(
            pipeline=fe.pipeline.Pipeline(train_data=loader),
            network=network,
            epochs=EPOCHS,
            traces=[Keep()],
        ).fit(warmup=False)
        assert len(seen) == EPOCHS * 3
        tensor = torch.Tensor if fw.NAME == "torch" else tf.Tensor
        assert all(isinstance(value, tensor) for one in seen for value in one.values())
        if lib is sides.fastnet and fw.NAME == "tf":
            # For batches of 8, and for the last one of an epoch and all others.
            reasons = [trace.reason.partition(",")[0] for trace in network.traces]
            assert reasons[0] == "first step in mode 'train'"
            assert len(reasons) == 2
        return seen, network.models[0]

    sides.agree(program, rtol=WEIGHTS)
