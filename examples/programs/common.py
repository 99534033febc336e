"""What the programs share: data, seeds, the command line, and a record of what a run did."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# A dict: an array for each name. The whole data are one, and so is each batch of them.
Batch = dict[str, np.ndarray]

HELD_OUT = 0.25


@dataclass
class Options:
    """What a program is told.

    Args:
        framework: The framework to run in, "torch" or "tf".
        epochs: How often to go through the data.
        steps: How many steps an epoch has at most; None for all that the data give.
        seed: What the weights, the data and their order are drawn from.
    """

    framework: str
    epochs: int
    steps: int | None = None
    seed: int = 0


@dataclass
class Record:
    """What came of a run: losses of each step, figures of the whole, and final weights."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    weights: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def note(self, result: Mapping[str, Any], *keys: str) -> None:
        """Note the losses of a step."""
        for key in keys:
            self.losses.setdefault(key, []).append(float(result[key]))

    def keep_weights(self, **models: Any) -> None:
        """Keep a copy of what models have learned."""
        for name, model in models.items():
            self.weights[name] = weights_of(model)

    def save(self, path: str) -> None:
        """Save everything to one .npz file."""
        arrays: dict[str, Any] = {f"losses/{key}": each for key, each in self.losses.items()}
        arrays |= {f"figures/{key}": value for key, value in self.figures.items()}
        for name, values in self.weights.items():
            arrays |= {f"weights/{name}/{index}": value for index, value in enumerate(values)}
        np.savez(path, **arrays)

    def as_json(self) -> str:
        """Write losses and figures, and of the weights their norms."""
        norms = {
            name: [float(np.linalg.norm(value)) for value in values]
            for name, values in self.weights.items()
        }
        content = {"losses": self.losses, "figures": self.figures, "norms": norms}
        return json.dumps(content, indent=2)

    def as_text(self) -> str:
        """Write where each loss began and ended, and the figures."""
        lines = [
            f"{key}: {values[0]:.4f} at first, {values[-1]:.4f} after {len(values)} steps"
            for key, values in self.losses.items()
        ]
        lines += [f"{key}: {value:.4f}" for key, value in self.figures.items()]
        return "\n".join(lines)


def weights_of(model: Any) -> list[np.ndarray]:
    """Copy the weights of a model, of either framework."""
    if hasattr(model, "get_weights"):
        return list(model.get_weights())
    return [value.detach().cpu().numpy().copy() for value in model.state_dict().values()]


def main(
    description: str | None,
    train: Callable[[Options], Record],
    epochs: int,
    arguments: Sequence[str] | None = None,
) -> None:
    """Read the command line, run a program, and show what came of it.

    Args:
        description: The program's docstring.
        train: The program.
        epochs: How long it trains if the command line does not say.
        arguments: What to read instead of the command line.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--framework", choices=("torch", "tf"), default="torch", help="(torch)")
    parser.add_argument("--epochs", type=int, default=epochs, help=f"how long to train ({epochs})")
    parser.add_argument("--steps", type=int, help="at most that many steps in an epoch")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and order (0)")
    parser.add_argument("--json", action="store_true", help="print every loss, as JSON")
    parser.add_argument("--save", metavar="FILE", help="save losses and weights as .npz")
    given = parser.parse_args(arguments)
    if given.epochs < 1 or (given.steps is not None and given.steps < 1):
        parser.error("epochs and steps are at least 1")

    prepare(given.framework, given.seed)
    record = train(Options(given.framework, given.epochs, given.steps, given.seed))
    if given.save:
        record.save(given.save)
    print(record.as_json() if given.json else record.as_text())


def prepare(framework: str, seed: int) -> None:
    """Seed what a framework draws weights and dropouts from, and let it keep to one thread.

    Networks this small gain nothing from more threads, and sums do not depend on how they share.
    """
    if framework == "torch":
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
    else:
        import tensorflow as tf

        tf.keras.utils.set_random_seed(seed)


def channels(images: np.ndarray, framework: str) -> np.ndarray:
    """Add the axis of channels, of which there is one, where a framework has it."""
    return np.expand_dims(images, 1 if framework == "torch" else -1)


def read_digits(options: Options) -> tuple[Batch, Batch]:
    """Read scikit-learn's 1,797 scanned digits: those to train on, and a quarter held out."""
    digits = load_digits()
    images = channels(digits.images.astype("float32") / 16, options.framework)
    labels = digits.target.astype("int64")
    train_images, held_images, train_labels, held_labels = train_test_split(
        images, labels, test_size=HELD_OUT, stratify=labels, random_state=options.seed
    )
    return (
        {"image": train_images, "label": train_labels},
        {"image": held_images, "label": held_labels},
    )


def batches(
    data: Batch, size: int, order: np.random.Generator | None = None, limit: int | None = None
) -> Iterator[Batch]:
    """Cut data into batches.

    Args:
        data: The whole data.
        size: How many samples a batch has; the last one has what is left.
        order: Draws the order of the samples; without it they stay as they are.
        limit: How many batches to give at most.

    Yields:
        The batches.
    """
    count = len(next(iter(data.values())))
    places = np.arange(count) if order is None else order.permutation(count)
    for start in range(0, count, size)[:limit]:
        chosen = places[start : start + size]
        yield {key: values[chosen] for key, values in data.items()}


def joined(results: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Join what all batches have under a key."""
    return np.concatenate([np.asarray(result[key]) for result in results])
