"""Layers that act differently in training, whoever last changed their mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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


class NoFlag(nn.Module):
    """A model that takes its mode from a call of `train`, and not from its flag."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.scale = 1.0

    def train(self, mode: bool = True) -> NoFlag:
        super().train(mode)
        self.scale = 3.0 if mode else 7.0
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * 0 + self.scale


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

    def test_in_turns(self) -> None:
        model, twin = twins(Image)
        network = fastnet.Network(supervised(built(model)))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
        for epoch, batch in enumerate(images(4), start=1):
            torch.manual_seed(epoch)
            run(network, batch, "train", epoch)
            torch.manual_seed(epoch)
            twin.train()
            nn.functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            twin.eval()
            assert torch.equal(run(network, batch, "eval", epoch)["y"], twin(batch["x"]))
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

    def test_by_an_op_of_the_same_step(self) -> None:
        model = built(Image)
        seen: list[bool] = []
        model.norm.register_forward_hook(lambda module, *_: seen.append(module.training))

        class Freeze(ModelOp):
            def forward(self, data: Any, state: Any) -> Any:
                model.norm.eval()
                return super().forward(data, state)

        run_all(fastnet.Network([Freeze(model, "x", "y")]), images(3))
        assert seen == [True] * 3

    def test_a_flag_that_is_written_to(self) -> None:
        model = built(Image)
        network = fastnet.Network([ModelOp(model, "x", "y")])
        (batch,) = images()
        with network(mode="eval", epoch=1):
            network.run_step(batch)
            model.drop.training = True
            first = network.run_step(batch)["y"]
            assert torch.equal(first, network.run_step(batch)["y"])
            assert not model.drop.training

    def test_a_layer_that_is_new_in_the_next_opening(self) -> None:
        model = built(Image)
        network = fastnet.Network([ModelOp(model, "x", "y")])
        (batch,) = images()
        run(network, batch, "eval")
        model.drop = nn.Sequential(nn.Dropout(0.9))
        assert torch.equal(run(network, batch, "eval")["y"], run(network, batch, "eval")["y"])
        assert not model.drop[0].training

    def test_a_layer_that_is_new_within_an_opening(self) -> None:
        model = built(Image)
        network = fastnet.Network([ModelOp(model, "x", "y")])
        (batch,) = images()
        with network(mode="eval", epoch=1):
            network.run_step(batch)
            model.drop = nn.Sequential(nn.Dropout(0.9))
            first = network.run_step(batch)["y"]
            assert torch.equal(first, network.run_step(batch)["y"])
        assert not model.drop[0].training


class TestOverriddenTrain:
    def test_from_the_first_step_on(self) -> None:
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

    def test_inside_another_model(self) -> None:
        model = built(lambda: nn.Sequential(FrozenNorm(), nn.Linear(4, 4)))
        run_all(fastnet.Network(supervised(model)), images(2))
        assert int(model[0].norm.num_batches_tracked) == 0

    def test_one_with_effects_of_its_own(self) -> None:
        model = built(NoFlag)
        network = fastnet.Network([ModelOp(model, "x", "y")])
        batch = {"x": torch.ones(1, 2)}
        assert float(run(network, batch, "train")["y"]) == 3
        assert float(run(network, batch, "eval")["y"]) == 7
        model.scale = 5.0
        assert float(run(network, batch, "eval")["y"]) == 7
        assert float(run(network, batch, "train")["y"]) == 3
