r"""Train a small convolutional network to classify handwritten digits, and time a step of it.

The data are the 1,797 scanned digits of 8 x 8 pixels in scikit-learn. The network never trains on
a quarter of them, and the accuracy on these counts. The exit status is 1 if it is below 97 %.

    fastnet demo
    fastnet demo --framework tf

The model and a hand-written training step are in digits_torch.py and digits_tf.py; everything else
is the same in both frameworks. To inspect the network:

    fastnet explain fastnet.demo.digits:torch_network --outputs loss
    fastnet profile fastnet.demo.digits:torch_network \
        --batch image:float32:32x1x8x8,label:int64:32:10
"""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fastnet
from fastnet.backend import to_tensor
from fastnet.op.numpyop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler

EPOCHS = 20
HELD_OUT = 0.25
BATCH_SIZE = 32
GOAL = 0.97
ROUNDS = 50
STEPS = 10  # in a round of timing

# A batch is a dict with a name for each tensor. The data are one batch of numpy arrays.
Batch = dict[str, Any]


def make_network(framework: ModuleType, epochs: int) -> fastnet.BaseNetwork:
    """Make the network: its ops, and the keys that they read and write."""
    # Adam converges fast; small steps of SGD at the end refine the result.
    optimizer = EpochScheduler({1: "adam", max(2, epochs * 3 // 4): "sgd"})
    model = fastnet.build(framework.make_model, optimizer_fn=optimizer, model_name="digits")
    return fastnet.Network(
        ops=[
            ModelOp(model, inputs="image", outputs="logits"),
            # Infer mode has no label, so the loss is not computed there.
            CrossEntropy(inputs=("logits", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),  # in "train" mode only
        ],
        # Postprocessing runs last, on numpy arrays.
        pops=LambdaOp(
            fn=lambda logits: logits.argmax(axis=-1),
            inputs="logits",
            outputs="guess",
            mode="!train",
        ),
    )


def read_digits(seed: int, channel_axis: int) -> tuple[Batch, Batch]:
    """Return the training data and the held-out data."""
    digits = load_digits()
    images = np.expand_dims(digits.images.astype("float32") / 16, channel_axis)
    labels = digits.target.astype("int64")
    train_images, held_images, train_labels, held_labels = train_test_split(
        images, labels, test_size=HELD_OUT, stratify=labels, random_state=seed
    )
    return (
        {"image": train_images, "label": train_labels},
        {"image": held_images, "label": held_labels},
    )


def batches(data: Batch, target_type: str, order: np.ndarray | None = None) -> Iterator[Batch]:
    """Split data into batches of tensors."""
    if order is None:
        order = np.arange(len(data["label"]))
    for start in range(0, len(order), BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        batch = {key: values[chosen] for key, values in data.items()}
        yield to_tensor(batch, target_type)


def train(network: fastnet.BaseNetwork, data: Batch, held: Batch, epochs: int) -> float:
    """Train, evaluate after each epoch, and return the last accuracy on the held-out data."""
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        order = np.random.permutation(len(data["label"]))
        # Enter the network for an epoch, and run it step by step. Only the loss is returned.
        with network(mode="train", epoch=epoch, desired_output_keys={"loss"}):
            for batch in batches(data, network.target_type, order):
                loss = network.run_step(batch)["loss"]
        accuracy = evaluate(network, held, epoch)
        print(f"epoch {epoch}: loss {float(loss):.4f}, accuracy {accuracy:.1%}", flush=True)
    return accuracy


def evaluate(network: fastnet.BaseNetwork, held: Batch, epoch: int) -> float:
    """Return the accuracy on the held-out digits."""
    # `transform` enters the network, runs every batch, and returns all results.
    held_batches = batches(held, network.target_type)
    results = network.transform(held_batches, mode="eval", epoch=epoch)
    is_right = [np.asarray(result["guess"]) == np.asarray(result["label"]) for result in results]
    return float(np.concatenate(is_right).mean())


def run(framework_name: str, epochs: int, seed: int) -> int:
    """Train, evaluate, time a step, and return the exit status."""
    framework = import_module(f"fastnet.demo.digits_{framework_name}")
    # More threads do not speed up a network this small.
    framework.use_one_thread()
    framework.set_seed(seed)
    np.random.seed(seed)
    data, held = read_digits(seed, framework.CHANNEL_AXIS)
    network = make_network(framework, epochs)
    accuracy = train(network, data, held, epochs)
    print(f"{accuracy:.2%} of {len(held['label'])} held-out digits are classified correctly.")

    show_step_cost(framework, next(batches(data, framework_name)))
    if accuracy < GOAL:
        print(f"That is less than the goal of {GOAL:.0%}. Try more --epochs.", file=sys.stderr)
        return 1
    return 0


def show_step_cost(framework: ModuleType, batch: Batch) -> None:
    """Print the median time of a training step, of fastnet and of a hand-written loop."""
    framework.set_seed(0)
    loop = framework.make_training_step(framework.make_model())
    framework.set_seed(0)  # The same weights again.
    model = fastnet.build(framework.make_model, "sgd", model_name="timed")
    network = fastnet.Network(
        [
            ModelOp(model, inputs="image", outputs="logits"),
            CrossEntropy(inputs=("logits", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ]
    )
    with network(mode="train", epoch=1):
        ours, theirs = network.run_step(batch), loop(batch)
        for key in ("logits", "loss"):
            np.testing.assert_allclose(np.asarray(ours[key]), np.asarray(theirs[key]), rtol=1e-4)
        steps = [lambda: loop(batch), lambda: network.run_step(batch)]
        rounds = [[timeit.timeit(step, number=STEPS) for step in steps] for _ in range(ROUNDS + 1)]
    # The first round warms up.
    medians = (statistics.median(times) for times in zip(*rounds[1:], strict=True))
    loop_time, fastnet_time = (seconds / STEPS * 1e6 for seconds in medians)
    print(
        f"A training step of {len(batch['label'])} images on one thread: {fastnet_time:.0f} us, "
        f"{fastnet_time / loop_time:.2f} of a hand-written loop's {loop_time:.0f} us "
        f"(medians of {ROUNDS} interleaved rounds)."
    )


def torch_network() -> fastnet.BaseNetwork:
    """Make the network in PyTorch, untrained."""
    return make_network(import_module("fastnet.demo.digits_torch"), EPOCHS)
