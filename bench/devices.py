"""What a train step spread over two devices takes in TensorFlow: `python -m bench.devices`.

Under MirroredStrategy, over two virtual devices of this CPU, on one core: the loop by hand, in
which XLA may compile what each device does up to its gradients, and fastnet's steps as a graph and
with `compile=True`. Rounds are interleaved, and a ratio is of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.program import Program
from bench.runner import answer, environment
from bench.tables import Table
from bench.timing import Spread, interleave

LEARNING_RATE = 0.01
BY_HAND = "by hand"
PEERS = (BY_HAND, "by hand, jit_compile", "fastnet", "fastnet, compile=True")
_DEVICES = ("CPU:0", "CPU:1")
_CHECKED = 3
_ROUND_NS = 20_000_000


def _mlp() -> list[Any]:
    import keras

    return [keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)]


def _lenet() -> list[Any]:
    import keras

    layers = keras.layers
    return [
        keras.Input((28, 28, 1)),
        layers.Conv2D(6, 5, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(120, activation="relu"),
        layers.Dense(4),
    ]


def _normed() -> list[Any]:
    import keras

    layers = keras.layers
    blocks = [
        (layers.Dense(32), layers.LayerNormalization(), layers.Activation("gelu"))
        for _ in range(20)
    ]
    return [keras.Input((32,)), *(one for block in blocks for one in block), layers.Dense(4)]


# by name: the layers, and how many samples a device has
WORKLOADS: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "MLP 16-32-4, 8 samples": (_mlp, 8),
    "LeNet, 32 samples": (_lenet, 32),
    "20 layers of 32, normed, 16 samples": (_normed, 16),
    "20 layers of 32, normed, 512 samples": (_normed, 512),
}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measure one workload in this process, which has not started TensorFlow yet.

    Args:
        name: The workload.
        rounds: How many rounds there are.

    Returns:
        For each peer the microseconds of a step, the ratio to the loop by hand (median and
        quartiles), how far its weights are from those of that loop after some steps, and what was
        compiled.
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
    made = {
        peer: (_by_hand if peer.startswith(BY_HAND) else _fastnet)(layers, batch, "compile" in peer)
        for peer in PEERS
    }
    steps = {peer: step for peer, (step, _, _) in made.items()}
    for step in steps.values():
        for _ in range(_CHECKED):
            step(batch)
    weights = {peer: _weights(model) for peer, (_, model, _) in made.items()}
    programs = {peer: Program(step, batch) for peer, step in steps.items()}
    timings = interleave(programs, rounds, _ROUND_NS)
    return {
        peer: {
            "microseconds": timing.spread.median / 1000,
            "ratio": timing.ratio_to(timings[BY_HAND]).__dict__,
            "distance": max(
                float(abs(one - other).max())
                for one, other in zip(weights[peer], weights[BY_HAND], strict=True)
            ),
            "part": made[peer][2](),
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


def _by_hand(layers: Callable[[], list[Any]], batch: Any, compiles: bool) -> tuple[Any, Any, Any]:
    """Return the step as it is written with `tf.distribute`, and the model."""
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

    concrete = tf.function(step, autograph=False).get_concrete_function(batch)
    return concrete, model, lambda: None


def _fastnet(layers: Callable[[], list[Any]], batch: Any, compiles: bool) -> tuple[Any, Any, Any]:
    """Return fastnet's step, the model, and what tells how many programs there are."""
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

    def part() -> str | None:
        return next((trace.part for trace in network.traces if trace.part), None)

    return network.run_step, model, part


def table(found: dict[str, dict[str, Any]]) -> Table:
    """Return the table of what was measured.

    Args:
        found: By workload what `measure` has returned.
    """
    rows = []
    for name, by_peer in found.items():
        for peer, one in by_peer.items():
            ratio = Spread(**one["ratio"])
            rows.append(
                [
                    name,
                    peer + (f" ({one['part']})" if one["part"] else ""),
                    f"{one['microseconds']:.0f}",
                    f"{ratio.median:.2f}",
                    f"{ratio.low:.2f} to {ratio.high:.2f}",
                ]
            )
    note = "Plain SGD; a sample count is that of each device. Ratios are to the loop by hand."
    columns = ["train step", "peer", "a step, µs", "ratio", "middle half"]
    return Table("Steps over two devices of a CPU, in one core", note, columns, rows)


def in_process(name: str, rounds: int) -> dict[str, Any]:
    """Measure one workload in a process of its own.

    Args:
        name: The workload.
        rounds: How many rounds there are.

    Returns:
        What `measure` returns.

    Raises:
        RuntimeError: If the process fails, with what it printed.
    """
    arguments = ["--rounds", str(rounds), "--child", name]
    found: dict[str, Any] = answer("bench.devices", arguments, environment())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write Markdown there too")
    parser.add_argument("--child", choices=WORKLOADS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(measure(options.child, options.rounds)))
        return 0
    page = table({name: in_process(name, options.rounds) for name in WORKLOADS}).to_markdown()
    versions = machine.versions("tf")
    note = ", ".join(f"{name} {version}" for name, version in versions.items())
    page = f"# Steps over several devices\n\nMeasured on {machine.processor()}: {note}.\n\n{page}\n"
    print(page)
    if options.save is not None:
        options.save.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
