r"""Train a small convolutional network to read handwritten digits, and see what a step costs.

The data are the 1,797 scanned digits of 8 x 8 pixels that ship with scikit-learn. A quarter of them
is held out: the network never trains on these, and its accuracy on them is what counts. Ends with
exit status 1 if less than 97 % of them are classified correctly.

    fastnet demo
    fastnet demo --framework tf
    fastnet demo --epochs 30 --seed 7

Everything here is the same in both frameworks. What is not, namely the model and its optimizers, is
in digits_torch.py and digits_tf.py, beside a training step written by hand to compare with.

The network is also there to be looked into:

    fastnet explain fastnet.demo.digits:torch_network --outputs loss
    fastnet profile fastnet.demo.digits:torch_network \
        --batch image:float32:32x1x8x8,label:int64:32:10
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import fastnet
from fastnet.backend import to_tensor
from fastnet.demo.step_cost import show_step_cost
from fastnet.op.numpyop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler

EPOCHS = 20
HELD_OUT = 0.25
BATCH_SIZE = 32
GOAL = 0.97

# What a network runs on is a dict: a name for each tensor. The whole data are one of numpy arrays.
Batch = dict[str, Any]


def make_network(framework: ModuleType, epochs: int) -> fastnet.BaseNetwork:
    """Say what happens to a batch: which ops run, which keys they read and write, and when."""
    # Adam gets most of the way fast. Small steps of SGD at the end settle what it has found.
    optimizer = EpochScheduler(
        {1: framework.make_adam, max(2, epochs * 3 // 4): framework.make_sgd}
    )
    model = fastnet.build(framework.make_model, optimizer_fn=optimizer, model_name="digits")
    return fastnet.Network(
        ops=[
            ModelOp(model, inputs="image", outputs="logits"),
            # a loss is for training and evaluation: there is no label to infer with
            CrossEntropy(inputs=("logits", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),  # in "train" mode only
        ],
        # Postprocessing gets numpy arrays, on the CPU, once the rest is done.
        pops=LambdaOp(
            fn=lambda logits: logits.argmax(axis=-1),
            inputs="logits",
            outputs="guess",
            mode="!train",
        ),
    )


def read_digits(seed: int, channel_axis: int) -> tuple[Batch, Batch]:
    """Read the data, as one big batch to train on and one that is held out."""
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
    """Cut data into batches of a framework's tensors, in an order if one is given."""
    if order is None:
        order = np.arange(len(data["label"]))
    for start in range(0, len(order), BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        batch = {key: values[chosen] for key, values in data.items()}
        yield to_tensor(batch, target_type)


def train(network: fastnet.BaseNetwork, data: Batch, held: Batch, epochs: int) -> float:
    """Train, and evaluate after each epoch; give the last accuracy on what is held out."""
    accuracy = 0.0
    count = -(-len(data["label"]) // BATCH_SIZE)
    with tqdm(total=epochs * count, unit="step", disable=None) as progress:
        for epoch in range(1, epochs + 1):
            order = np.random.permutation(len(data["label"]))
            # The first path: open the network for an epoch, and run it step by step.
            # Only the loss is asked for, so nothing else is kept or brought back from a GPU.
            with network(mode="train", epoch=epoch, desired_output_keys={"loss"}):
                for batch in batches(data, network.target_type, order):
                    loss = network.run_step(batch)["loss"]
                    progress.update()
            accuracy = evaluate(network, held, epoch)
            progress.set_postfix(
                epoch=epoch,
                loss=f"{float(loss):.4f}",
                accuracy=f"{accuracy:.1%}",
                refresh=False,
            )
    return accuracy


def evaluate(network: fastnet.BaseNetwork, held: Batch, epoch: int) -> float:
    """Return the share of the held-out digits that the network reads right."""
    # The second path: `transform` opens the network, runs every batch, and gives all results.
    given = batches(held, network.target_type)
    results = network.transform(given, mode="eval", epoch=epoch)
    right = [np.asarray(result["guess"]) == np.asarray(result["label"]) for result in results]
    return float(np.concatenate(right).mean())


def run(framework_name: str, epochs: int, rounds: int, seed: int) -> int:
    """Train, evaluate, and time a step.

    Args:
        framework_name: The framework to run in, "torch" or "tf".
        epochs: How long to train.
        rounds: How often a step is timed.
        seed: What the weights, the order of the data and what is held out are drawn from.

    Returns:
        The status to exit with: 1 if too few digits are classified correctly.
    """
    framework = parts_for(framework_name)
    # A network this small gains nothing from more threads, and timings of one are comparable.
    framework.use_one_thread()
    framework.set_seed(seed)
    np.random.seed(seed)
    data, held = read_digits(seed, framework.CHANNEL_AXIS)
    network = make_network(framework, epochs)
    accuracy = train(network, data, held, epochs)
    print(f"{accuracy:.2%} of {len(held['label'])} held-out digits are classified correctly.")

    show_step_cost(framework, next(batches(data, framework_name)), rounds)
    if accuracy < GOAL:
        print(f"That is less than the goal of {GOAL:.0%}. Try more --epochs.", file=sys.stderr)
        return 1
    return 0


def parts_for(framework_name: str) -> ModuleType:
    """Import what the program needs of a framework, and of that one alone."""
    return import_module(f"fastnet.demo.digits_{framework_name}")


def torch_network() -> fastnet.BaseNetwork:
    """Make the network in PyTorch, untrained."""
    return make_network(parts_for("torch"), EPOCHS)


def tf_network() -> fastnet.BaseNetwork:
    """Make the network in TensorFlow, untrained."""
    return make_network(parts_for("tf"), EPOCHS)
