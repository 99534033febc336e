"""One fit with FastEstimator's Estimator in this process, unswapped or swapped, written as JSON.

`bench.fits` starts it, in an interpreter that has FastEstimator.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import machine

EPOCHS = 10
BATCH = 32
IMAGES = 1536


def main(arguments: list[str] | None = None) -> None:
    """Fit, and write down what each step took, what the whole took, and what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_process", description=__doc__)
    parser.add_argument("framework", choices=["torch", "tf"])
    parser.add_argument("--optimizer", default="sgd", help="one that FastEstimator has a name for")
    parser.add_argument("--swapped", action="store_true")
    parser.add_argument("--output", type=Path, required=True, help="where to write the JSON")
    options = parser.parse_args(arguments)
    machine.use_one_thread(options.framework)
    _let_samplers_be_initialised()
    if options.swapped:
        from fastnet.integrations.fastestimator import install

        install()
    options.output.write_text(json.dumps(fit(options.framework, options.optimizer)))


def fit(framework: str, optimizer: str) -> dict[str, Any]:
    """Train a 64-32-10 network on scikit-learn's digits, in batches of 32.

    Args:
        framework: "torch" or "tf".
        optimizer: The name of its optimizer.

    Returns:
        What `bench.fits.Fit` is made of.
    """
    fe: Any = import_module("fastestimator")
    ops: Any = import_module("fastestimator.op.tensorop")
    _seed(framework)
    pipeline = fe.Pipeline(train_data=_digits(), batch_size=BATCH, num_process=0)
    model = fe.build(partial(_model, framework), optimizer_fn=optimizer)
    network = fe.Network(
        [
            ops.model.ModelOp(model=model, inputs="x", outputs="scores"),
            ops.loss.CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            ops.model.UpdateOp(model=model, loss_name="loss"),
        ]
    )
    steps: list[int] = []
    losses: list[Any] = []
    # from outside, and alike on either side: what the estimator calls
    network.run_step = _timed(network.run_step, steps, losses)
    estimator = fe.Estimator(pipeline, network, epochs=EPOCHS, log_steps=None)
    start = time.perf_counter_ns()
    estimator.fit(warmup=False)
    whole = time.perf_counter_ns() - start
    return {
        "epochs": EPOCHS,
        "steps": steps,
        "whole": whole,
        "losses": [float(loss) for loss in losses],
        "weights": _weights(model),
    }


def _timed(
    run_step: Callable[[Any], Any], steps: list[int], losses: list[Any]
) -> Callable[[Any], Any]:
    now = time.perf_counter_ns

    def timed(batch: Any) -> Any:
        start = now()
        result = run_step(batch)
        steps.append(now() - start)
        losses.append(result["loss"])
        return result

    return timed


def _digits() -> Any:
    from sklearn.datasets import load_digits

    data = load_digits()
    return import_module("fastestimator.dataset").NumpyDataset(
        {
            "x": (data.data[:IMAGES] / 16).astype("float32"),
            "y": data.target[:IMAGES].astype("int64"),
        }
    )


def _model(framework: str) -> Any:
    if framework == "torch":
        from torch import nn

        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
    )


def _weights(model: Any) -> list[float]:
    if hasattr(model, "state_dict"):
        arrays = [value.numpy() for value in model.state_dict().values()]
    else:
        arrays = model.get_weights()
    return [float(weight) for array in arrays for weight in array.flat]


def _let_samplers_be_initialised() -> None:
    """Let FastEstimator hand a dataset to torch's Sampler, which no longer takes one."""
    from torch.utils.data import Sampler

    if "__init__" not in vars(Sampler):

        def initialise(self: Any, data_source: Any = None) -> None:
            object.__init__(self)

        Sampler.__init__ = initialise  # type: ignore[method-assign]


def _seed(framework: str) -> None:
    """Draw the same weights on each side, and take the images in the same order."""
    import numpy as np
    import torch

    # a thread of tf.data reads ahead, and must not decide how many numbers were drawn when
    loader: Any = import_module("fastestimator.dataset.dataloader")
    loader.random = SimpleNamespace(
        shuffle=lambda items: random.Random(0).shuffle(items), randint=random.randint
    )

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    if framework == "tf":
        import tensorflow as tf

        tf.keras.utils.set_random_seed(0)


if __name__ == "__main__":
    main()
