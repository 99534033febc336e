"""Classify handwritten digits.

    python examples/digits.py
    torchrun --standalone --nproc_per_node=2 examples/digits.py

Run again after it was stopped, it resumes. docs/pytorch.md explains each part.
"""

from __future__ import annotations

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from fastnet import build, distributed, load_checkpoint, save_checkpoint, steps
from fastnet.backend import save_model, set_lr
from fastnet.network import Network
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import cosine_decay


def make_loaders(batch_size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    samples = [
        {"image": image, "label": label} for image, label in zip(images, labels, strict=True)
    ]
    rank, size = distributed.rank(), distributed.world_size()
    sampler = DistributedSampler(samples[:1500], size, rank, shuffle=True)
    train = DataLoader(samples[:1500], batch_size // size, sampler=sampler)
    return train, DataLoader(samples[1500 + rank :: size], batch_size)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 4 * 4, 10),
    )


def evaluate(network, loader, epoch):
    results = network.iter_transform(loader, "eval", epoch, desired_output_keys=["right"])
    own = torch.cat([result["right"] for result in results]).float()
    return distributed.gather({"right": own})["right"].mean().item()


def main(epochs, patience):
    torch.manual_seed(0)  # the same weights on each rank
    model = build(
        make_model,
        lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        model_name="reader",
        mixed_precision="bfloat16",
    )
    network = Network(
        [
            ModelOp(model, "image", "scores"),
            CrossEntropy(["scores", "label"], "loss", from_logits=True),
            LambdaOp(
                lambda scores, label: scores.argmax(1) == label,
                inputs=["scores", "label"],
                outputs="right",
                mode="eval",
            ),
            UpdateOp(model, "loss", merge_grad=2),
        ]
    )
    torch.manual_seed(distributed.rank())  # dropout differs from rank to rank
    train_loader, eval_loader = make_loaders(batch_size=32)
    first, best, best_epoch = 1, 0.0, 0
    if os.path.exists("run.ckpt"):
        saved = load_checkpoint("run.ckpt", network)
        first, best, best_epoch = saved.epoch + 1, saved.values["best"], saved.values["best_epoch"]
    for epoch in range(first, epochs + 1):
        set_lr(model, cosine_decay(epoch, cycle_length=8, init_lr=3e-3))
        losses = [result["loss"] for _, result in steps(network, train_loader, "train", epoch)]
        loss, accuracy = torch.stack(losses).mean().item(), evaluate(network, eval_loader, epoch)
        if distributed.is_main():
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}")
        if accuracy > best:
            best, best_epoch = accuracy, epoch
            save_model(model, "best")
        save_checkpoint(
            "run.ckpt", network, epoch=epoch, values={"best": best, "best_epoch": best_epoch}
        )
        if epoch - best_epoch >= patience:
            break
    if distributed.is_main():
        print(f"the best accuracy was {best:.3f}, after epoch {best_epoch}: best/reader.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--patience", type=int, default=3)
    with distributed.run():
        main(**vars(parser.parse_args()))
