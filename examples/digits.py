"""Train a small convolutional network to read handwritten digits, and see what a step costs.

The data are the 1,797 scanned digits of 8 x 8 pixels that ship with scikit-learn. A quarter of them
is held out: the network never trains on these, and its accuracy on them is what counts. Ends with
exit status 1 if less than 97 % of them are read right.

    python examples/digits.py
    python examples/digits.py --epochs 30 --seed 7
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from step_cost import show_step_cost
from torch import nn
from tqdm import tqdm

import fastnet
from fastnet.op.numpyop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler

HELD_OUT = 0.25
BATCH_SIZE = 32
GOAL = 0.97

# What a network runs on is a dict: a name for each tensor.
Batch = dict[str, Any]


def make_model() -> nn.Module:
    """Make the convolutional network: images of shape (batch, 1, 8, 8) to (batch, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def make_network(epochs: int) -> fastnet.BaseNetwork:
    """Say what happens to a batch: which ops run, which keys they read and write, and when."""
    # Adam gets most of the way fast. Small steps of SGD at the end settle what it has found.
    optimizer = EpochScheduler(
        {
            1: lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
            max(2, epochs * 3 // 4): lambda parameters: torch.optim.SGD(
                parameters, lr=0.01, momentum=0.9
            ),
        }
    )
    model = fastnet.build(make_model, optimizer_fn=optimizer, model_name="digits")
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


def read_digits(seed: int) -> tuple[Batch, Batch]:
    """Read the data, as one big batch to train on and one that is held out."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[:, None]  # (sample, channel, row, column)
    labels = digits.target.astype("int64")
    parts = train_test_split(images, labels, test_size=HELD_OUT, stratify=labels, random_state=seed)
    train_images, held_images, train_labels, held_labels = map(torch.from_numpy, parts)
    return (
        {"image": train_images, "label": train_labels},
        {"image": held_images, "label": held_labels},
    )


def batches(data: Batch, order: torch.Tensor | None = None) -> Iterator[Batch]:
    """Cut data into batches, in an order if one is given."""
    if order is None:
        order = torch.arange(len(data["label"]))
    for chosen in order.split(BATCH_SIZE):
        yield {key: values[chosen] for key, values in data.items()}


def train(network: fastnet.BaseNetwork, data: Batch, held: Batch, epochs: int) -> float:
    """Train, and evaluate after each epoch; give the last accuracy on what is held out."""
    accuracy = 0.0
    count = -(-len(data["label"]) // BATCH_SIZE)
    with tqdm(total=epochs * count, unit="step", mininterval=0.5) as progress:
        for epoch in range(1, epochs + 1):
            # The first path: open the network for an epoch, and run it step by step.
            # Only the loss is asked for, so nothing else is kept or brought back from a GPU.
            with network(mode="train", epoch=epoch, desired_output_keys={"loss"}):
                for batch in batches(data, torch.randperm(len(data["label"]))):
                    loss = network.run_step(batch)["loss"]
                    progress.update()
            accuracy = evaluate(network, held, epoch)
            progress.set_postfix(
                epoch=epoch,
                loss=f"{loss.item():.4f}",
                accuracy=f"{accuracy:.1%}",
                refresh=False,
            )
    return accuracy


def evaluate(network: fastnet.BaseNetwork, held: Batch, epoch: int) -> float:
    """Give the share of the held-out digits that the network reads right."""
    # The second path: `transform` opens the network, runs every batch, and gives all results.
    results = network.transform(batches(held), mode="eval", epoch=epoch)
    right = [result["guess"] == result["label"] for result in results]
    return torch.cat(right).float().mean().item()


def main() -> int:
    """Run the program; give its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="how long to train (20)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds to time a step in (30)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and split (0)")
    options = parser.parse_args()
    if options.epochs < 1 or options.rounds < 1:
        parser.error("epochs and rounds are at least 1")

    # A network this small gains nothing from more threads, and timings of one are comparable.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data, held = read_digits(options.seed)
    network = make_network(options.epochs)
    accuracy = train(network, data, held, options.epochs)
    print(f"{accuracy:.2%} of {len(held['label'])} held-out digits are read right.")

    show_step_cost(make_model, next(batches(data)), options.rounds)
    if accuracy < GOAL:
        print(f"That is less than the goal of {GOAL:.0%}. Try more --epochs.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
