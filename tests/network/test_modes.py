"""Layers that act differently in training, whoever last changed their mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastnet
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import (
    Image,
    batches,
    built,
    run,
    run_all,
    same_weights,
    supervised,
    twins,
    weights,
)


def images(count: int = 1) -> list[dict[str, Any]]:
    return batches(count, (1, 8, 8))


class FrozenNorm(Image):
    """The usual way to keep a batch norm as it is: `train` puts it back into evaluation."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "trainable", "training"),
        [
            ("train", True, True),
            ("train", False, False),
            ("eval", True, False),
            ("test", True, False),
            ("infer", True, False),
        ],
    )
    def test_mode_decides(self, mode: str, trainable: bool, training: bool) -> None:
        model, twin = twins(Image)
        built(model)
        network = fastnet.Network([ModelOp(model, "x", "y", trainable=trainable)])
        twin.train(training)
        for seed, batch in enumerate(images(3)):
            torch.manual_seed(seed)
            result = run(network, batch, mode)
            torch.manual_seed(seed)
            assert torch.equal(result["y"], twin(batch["x"]))
            assert all(module.training == training for module in model.modules())
        assert same_weights(model, twin)

    def test_one_model_in_two_ops_of_a_step(self) -> None:
        model = built(Image)
        seen: list[tuple[bool, bool]] = []
        model.norm.register_forward_hook(
            lambda module, *_: seen.append((module.training, model.drop.training))
        )
        network = fastnet.Network(
            [
                ModelOp(model, "x", "y"),
                ModelOp(model, "x", "z", trainable=False),
                ModelOp(model, "x", "w"),
            ]
        )
        run_all(network, images(2))
        assert seen == [(True, True), (False, False), (True, True)] * 2


class TestToggledByOthers:
    """Flags that the program changes while a network is open are set right at the next step."""

    @pytest.mark.parametrize("part", ["", "norm", "drop"])
    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_between_steps(self, part: str, mode: str) -> None:
        model = built(Image)
        network = fastnet.Network([ModelOp(model, "x", "y")])
        (batch,) = images()
        with network(mode=mode, epoch=1):
            for _ in range(3):
                network.run_step(batch)
                assert all(module.training == (mode == "train") for module in model.modules())
                model.get_submodule(part).train(mode != "train")


def test_an_overridden_train_counts_from_the_first_step_on() -> None:
    model = built(FrozenNorm)
    before = weights(model.norm)
    network = fastnet.Network(supervised(model))
    seen: list[tuple[bool, bool]] = []
    model.norm.register_forward_hook(
        lambda module, *_: seen.append((module.training, model.drop.training))
    )
    run_all(network, images(2))
    run_all(network, images(1), mode="eval")
    run_all(network, images(2))
    assert seen == [(False, True)] * 2 + [(False, False)] + [(False, True)] * 2
    assert torch.equal(model.norm.running_mean, before["running_mean"])
    assert int(model.norm.num_batches_tracked) == 0
