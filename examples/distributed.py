r"""Train on scikit-learn's digits in several processes, and end where one process does.

    torchrun --nproc_per_node=2 examples/distributed.py
    torchrun --nproc_per_node=2 examples/distributed.py --framework tf
    python examples/distributed.py          # the same program in one process

Each process trains on its part of every batch, and the gradients are averaged: by
DistributedDataParallel in torch (`--parallel fsdp` shards the model instead), by
MultiWorkerMirroredStrategy in TensorFlow. Each evaluates its part of what is held out, and the
results are gathered. Then the first process trains the same model by itself on the whole batches,
and both accuracies are printed. Ends with exit status 1 if they differ by more than one digit.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fastnet
from fastnet import distributed
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

BATCH_SIZE = 48
SEED = 3

Batch = dict[str, Any]


def make_model(framework: str) -> Any:
    """Make a model without anything that depends on the size of a part of a batch."""
    if framework == "torch":
        import torch
        from torch import nn

        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    import tensorflow as tf

    tf.keras.utils.set_random_seed(SEED)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def make_network(framework: str, **settings: Any) -> fastnet.BaseNetwork:
    model = fastnet.build(
        lambda: make_model(framework), optimizer_fn="adam", model_name="digits", **settings
    )
    return fastnet.Network(
        [
            ModelOp(model, "image", "logits"),
            CrossEntropy(("logits", "label"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
    )


def read_digits() -> tuple[Batch, Batch]:
    digits = load_digits()
    images = (digits.data / 16).astype("float32")
    split = train_test_split(
        images, digits.target.astype("int64"), test_size=0.25, random_state=SEED
    )
    return {"image": split[0], "label": split[2]}, {"image": split[1], "label": split[3]}


def batches(data: Batch, epoch: int, rank: int, count: int) -> Iterator[Batch]:
    """Draw the batches of an epoch, the same in each process, and cut out a process's part.

    What does not fill the last batch is left out: in training all have as many, of as many samples.
    """
    order = np.random.default_rng([SEED, epoch]).permutation(len(data["label"]))
    part = BATCH_SIZE // count
    for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        chosen = order[start + rank * part :][:part]
        yield {key: values[chosen] for key, values in data.items()}


def train(network: fastnet.BaseNetwork, data: Batch, epochs: int, rank: int, count: int) -> None:
    for epoch in range(1, epochs + 1):
        with network(mode="train", epoch=epoch, desired_output_keys={"loss"}):
            for batch in batches(data, epoch, rank, count):
                loss = network.run_step(batch)["loss"]
        if rank == 0 and epoch % 5 == 0:
            # this process's part only: gather would have it of all
            print(f"epoch {epoch}: loss {float(loss):.4f}", flush=True)


def evaluate(network: fastnet.BaseNetwork, held: Batch, rank: int, count: int) -> Batch:
    """Say of this process's part of the samples which are read right."""
    own = {key: values[rank::count] for key, values in held.items()}
    with network(mode="eval", epoch=1):
        logits = np.asarray(network.run_step(own)["logits"])
    return {"right": (logits.argmax(axis=-1) == own["label"]).astype("float64")}


def run(framework: str, parallel: str, epochs: int) -> int:
    """Train in all processes, then in one.

    Returns:
        The status to exit with.
    """
    data, held = read_digits()
    if framework == "tf":
        tell_tensorflow()
    with distributed.run(framework if launched() > 1 else None):
        rank, count = distributed.rank(), distributed.world_size()
        if BATCH_SIZE % count:
            raise ValueError(f"A batch of {BATCH_SIZE} cannot be cut into {count} equal parts.")
        settings = {"parallel": parallel} if framework == "torch" else {}
        network = make_network(framework, **settings)
        train(network, data, epochs, rank, count)
        right = distributed.gather(evaluate(network, held, rank, count))["right"]
    if rank:
        return 0
    together = float(right.mean())
    told = f"of {len(right)} digits right"
    if count > 1:
        print(f"{count} processes: {together:.2%} {told}")

    # from here on it is the only one, which nothing is to wait for
    os.environ.pop("TF_CONFIG", None)
    settings = {"parallel": None} if framework == "torch" else {}
    alone = network if count == 1 else make_network(framework, **settings)
    if count > 1:
        train(alone, data, epochs, 0, 1)
    by_itself = float(evaluate(alone, held, 0, 1)["right"].mean())
    print(f"1 process: {by_itself:.2%} {told}")
    return int(abs(together - by_itself) * len(right) > 1.5)


def launched() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def tell_tensorflow() -> None:
    """Tell TensorFlow of the processes that torchrun has started: where each of them listens."""
    if launched() == 1 or "TF_CONFIG" in os.environ:
        return
    from torch.distributed import TCPStore

    rank, count = int(os.environ["RANK"]), launched()
    # torchrun keeps this store for what its processes have to tell each other
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    with socket.socket() as free:
        free.bind(("", 0))
        store.set(f"tensorflow/{rank}", f"{socket.gethostname()}:{free.getsockname()[1]}")
        workers = [store.get(f"tensorflow/{place}").decode() for place in range(count)]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--framework", choices=("torch", "tf"), default="torch")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    chosen = given.parallel if launched() > 1 else "auto"
    sys.exit(run(given.framework, chosen, given.epochs))
