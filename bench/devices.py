"""Train steps over two devices in TensorFlow: `python -m bench.devices`.

Under MirroredStrategy, over two virtual devices of this CPU, on one core: the hand-written
function, in which XLA may compile the forward and backward passes of each device, and fastnet's
steps as a graph and with `compile=True`. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine, processes
from bench.program import Program
from bench.tables import markdown_table
from bench.timing import Spread, interleave

LEARNING_RATE = 0.01
BY_HAND = "hand-written function"
PEERS = (BY_HAND, f"{BY_HAND}, jit_compile=True", "fastnet", "fastnet, compile=True")
_DEVICES = ("CPU:0", "CPU:1")
_CHECKED = 3
_ROUND_NS = 20_000_000


def _mlp() -> list[Any]:
    from keras import Input, layers

    return [Input((16,)), layers.Dense(32, activation="relu"), layers.Dense(4)]


def _lenet() -> list[Any]:
    from keras import Input, layers

    return [
        Input((28, 28, 1)),
        layers.Conv2D(6, 5, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(120, activation="relu"),
        layers.Dense(4),
    ]


def _normed() -> list[Any]:
    from keras import Input, layers

    made = [Input((32,))]
    for _ in range(20):
        made += [layers.Dense(32), layers.LayerNormalization(), layers.Activation("gelu")]
    return [*made, layers.Dense(4)]


# The layers, and the number of samples of a device.
WORKLOADS: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "MLP 16-32-4, 8 samples": (_mlp, 8),
    "LeNet, 32 samples": (_lenet, 32),
    "20 layers of 32, normed, 16 samples": (_normed, 16),
    "20 layers of 32, normed, 512 samples": (_normed, 512),
}


def measure(name: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure one workload in this process, which has not started TensorFlow yet.

    Returns:
        For each peer the microseconds of a step, the ratio to the hand-written function, the
        largest difference of a weight after some steps, and the compiled parts.
    """
    machine.use_one_thread("tf")
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in _DEVICES]
    )
    strategy = tf.distribute.MirroredStrategy(_DEVICES)
    tf.distribute.experimental_set_strategy(strategy)
    layers, size = WORKLOADS[name]
    batch = _batch(strategy, layers()[0].shape[1:], size)
    programs, models, networks = {}, {}, {}
    for peer in PEERS:
        make = _by_hand if peer.startswith(BY_HAND) else _fastnet
        step, models[peer], networks[peer] = make(layers, batch, "compile" in peer)
        programs[peer] = Program(step, batch)
        for _ in range(_CHECKED):
            step(batch)
    weights = {peer: _weights(model) for peer, model in models.items()}
    timings = interleave(programs, rounds, _ROUND_NS)
    expected, by_hand = weights[BY_HAND], timings[BY_HAND].rounds
    return {
        peer: {
            "microseconds": Spread.of(timing.rounds).median / 1000,
            "ratio": asdict(Spread.of(timing.rounds / by_hand)),
            "distance": max(
                float(abs(one - other).max())
                for one, other in zip(weights[peer], expected, strict=True)
            ),
            "part": next(
                (one.part for one in getattr(networks[peer], "traces", ()) if one.part), None
            ),
        }
        for peer, timing in timings.items()
    }


def _batch(strategy: Any, shape: Sequence[int], size: int) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    parts = [
        {"x": rng.random((size, *shape), "float32"), "y": rng.integers(0, 4, size)}
        for _ in _DEVICES
    ]

    def part(key: str) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group][key])
        )

    return {key: part(key) for key in ("x", "y")}


def _model(layers: Callable[[], list[Any]]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential(layers())


def _weights(model: Any) -> list[Any]:
    return [copy.numpy() for weight in model.weights for copy in weight.value.values]


def _by_hand(layers: Callable[[], list[Any]], batch: Any, compiles: bool) -> tuple[Any, Any, None]:
    """Return the step as it is written with `tf.distribute`, and its model."""
    import keras
    import tensorflow as tf

    model = _model(layers)
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    weights = [one.value for one in model.trainable_variables]
    strategy = tf.distribute.get_strategy()

    def gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            scores = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y, scores, from_logits=True)
            loss = tf.reduce_mean(losses)
            share = loss / len(_DEVICES)
        return [loss, scores, *tape.gradient(share, weights)]

    def on_device(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        compiled = tf.function(gradients, jit_compile=True, autograph=False)
        loss, scores, *found = (compiled if compiles else gradients)(x, y)
        optimizer.apply(found, model.trainable_variables)
        return loss, scores

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        loss, scores = strategy.run(on_device, args=(batch["x"], batch["y"]))
        return {
            "loss": strategy.reduce("MEAN", loss, axis=None),
            "pred": tf.concat(strategy.experimental_local_results(scores), 0),
        }

    return tf.function(step, autograph=False).get_concrete_function(batch), model, None


def _fastnet(layers: Callable[[], list[Any]], batch: Any, compiles: bool) -> tuple[Any, Any, Any]:
    """Return fastnet's step, its model and its network."""
    import keras

    from fastnet.network import TFNetwork, build
    from fastnet.op.tensorop.loss import CrossEntropy
    from fastnet.op.tensorop.model import ModelOp, UpdateOp

    model = build(lambda: _model(layers), lambda: keras.optimizers.SGD(LEARNING_RATE))
    ops = [
        ModelOp(model, "x", "pred"),
        CrossEntropy(("pred", "y"), "loss", from_logits=True),
        UpdateOp(model, "loss"),
    ]
    network = TFNetwork(ops, compile=compiles)
    network("train", 1, desired_output_keys=["loss", "pred"]).__enter__()
    return network.run_step, model, network


def page(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the page of the measurements, by workload and peer."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions("tf").items())
    rows = [
        [
            name,
            peer + (f" ({one['part']})" if one["part"] else ""),
            f"{one['microseconds']:.0f}",
            f"{one['ratio']['median']:.2f}",
            f"{one['ratio']['low']:.2f} to {one['ratio']['high']:.2f}",
        ]
        for name, by_peer in found.items()
        for peer, one in by_peer.items()
    ]
    columns = ["train step", "peer", "a step, µs", f"ratio to the {BY_HAND}", "quartiles"]
    return (
        f"# Steps over several devices\n\nMeasured on {machine.processor()}: {versions}. "
        "Two devices of a CPU, on one core; plain SGD; a sample count is that of each device."
        f"\n\n{markdown_table(columns, rows)}\n"
    )


def main() -> None:
    """Measure, print the page, and save it on request."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the Markdown there")
    options = parser.parse_args()
    function = "bench.devices:measure"
    text = page({name: processes.call(function, name, options.rounds) for name in WORKLOADS})
    print(text)
    if options.save is not None:
        options.save.write_text(text)


if __name__ == "__main__":
    main()
