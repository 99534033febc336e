"""Warnings of updates that are missing, incomplete, or active outside of training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.conformance.frameworks import Framework, make_layers

BATCH = {"x": np.ones((4, 2), "float32"), "t": np.zeros((4, 2), "float32")}
LOSS = MeanSquaredError(("y", "t"), "loss")


def build(fw: Framework, name: str, optimizer: Any = "sgd") -> Any:
    return fw.build(make_layers(2, 2), optimizer, name=name)


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def enter(fw: Framework, network: Any, mode: str = "train", **context: Any) -> None:
    with fw.opened(network, mode, **context):
        network.run_step(BATCH)


class TestMissingUpdates:
    def ops(self, first: Any, second: Any, *ops: Any) -> list[Any]:
        passes = [ModelOp(first, "x", "z"), ModelOp(second, "z", "y")]
        return [*passes, LOSS, UpdateOp(second, "loss"), *ops]

    def test_model_that_losses_depend_on(self, fw: Framework) -> None:
        first, second = build(fw, "first"), build(fw, "second")
        network = fw.network(self.ops(first, second))
        with silent():
            enter(fw, network, "eval")
        with pytest.warns(UserWarning, match=r"'first' has an optimizer.*UpdateOp.*None") as caught:
            enter(fw, network)
        assert len(caught) == 1
        assert caught[0].filename.startswith(str(Path(__file__).parent))
        with silent():
            enter(fw, network)
            enter(fw, network, epoch=2, desired_output_keys=["loss"])

    def test_loss_without_an_update(self, fw: Framework) -> None:
        network = fw.network([ModelOp(build(fw, "line"), "x", "y"), LOSS])
        with pytest.warns(UserWarning, match="'line' has an optimizer"):
            enter(fw, network)

    def test_update_in_another_mode_only(self, fw: Framework) -> None:
        model = build(fw, "line")
        network = fw.network([ModelOp(model, "x", "y"), LOSS, UpdateOp(model, "loss", mode="eval")])
        with pytest.warns(UserWarning, match="'line' has an optimizer") as caught:
            enter(fw, network)
        assert len(caught) == 1

    def test_model_of_an_inner_op(self, fw: Framework) -> None:
        first, second = build(fw, "first"), build(fw, "second")
        passes = Fuse([ModelOp(first, "x", "z"), ModelOp(second, "z", "y")])
        network = fw.network([passes, LOSS, UpdateOp(second, "loss")])
        with pytest.warns(UserWarning, match="'first' has an optimizer"):
            enter(fw, network)

    @pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
    def test_two_networks_that_update_their_own_models(self, fw: Framework, copied: bool) -> None:
        if copied and not fw.copies_optimizers:
            pytest.skip("models with optimizers cannot be copied")
        first, second = build(fw, "first"), build(fw, "second")
        passes = [ModelOp(first, "x", "z"), ModelOp(second, "z", "y"), LOSS]
        networks = [fw.network([*passes, UpdateOp(one, "loss")]) for one in (first, second)]
        if copied:
            networks = copy.deepcopy(networks)
        with silent():
            for network in networks:
                enter(fw, network)

    def test_models_that_need_no_update(self, fw: Framework) -> None:
        first, second, other = build(fw, "first", None), build(fw, "second"), build(fw, "other")
        frozen, fixed = build(fw, "frozen"), build(fw, "fixed")
        fw.freeze(frozen, 0)
        ops = [
            ModelOp(other, "x", "x1"),
            ModelOp(fixed, "x1", "x2", trainable=False, gradients=False),
            ModelOp(first, "x2", "x3"),
            ModelOp(frozen, "x3", "z"),
            ModelOp(second, "z", "y"),
            ModelOp(other, "y", "seen"),  # No loss depends on it.
        ]
        network = fw.network([*ops, LOSS, UpdateOp(second, "loss")])
        with silent():
            enter(fw, network)

    def test_updates_of_other_epochs_and_datasets(self, fw: Framework) -> None:
        first, second = build(fw, "first"), build(fw, "second")
        later = EpochScheduler({2: UpdateOp(first, "loss")})
        ops = self.ops(first, second, later)
        ops[3] = UpdateOp(second, "loss", ds_id="large")
        with silent():
            enter(fw, fw.network(ops), ds_id="small")

    def test_ops_of_the_program_may_update(self, fw: Framework) -> None:
        class Updating(TensorOp):
            def __init__(self, model: Any) -> None:
                super().__init__("loss", None)
                self.model = model

            def get_fe_models(self) -> set[Any]:
                return {self.model}

            def forward(self, data: Any, state: Any) -> None:
                pass

        first, second = build(fw, "first"), build(fw, "second")
        with silent():
            enter(fw, fw.network(self.ops(first, second, Updating(first))))


class TestOtherModes:
    @pytest.mark.parametrize("mode", [None, "eval", "!infer"])
    def test_update_outside_of_training(self, fw: Framework, mode: Any) -> None:
        model = build(fw, "line")
        update = UpdateOp(model, "loss", mode=mode)
        network = fw.network([ModelOp(model, "x", "y"), LOSS, update])
        before = fw.weights(model)
        with pytest.warns(UserWarning, match=r"UpdateOp.* updates 'line' in mode 'eval'") as caught:
            enter(fw, network, "eval")
        assert len(caught) == 1
        assert caught[0].filename.startswith(str(Path(__file__).parent))
        assert not all(map(np.array_equal, before, fw.weights(model)))
        with silent():
            enter(fw, network, "eval", epoch=2, desired_output_keys=["loss"])
            if mode == "!infer":
                enter(fw, network, "infer")
            if mode != "eval":
                enter(fw, network, "train")

    def test_update_in_training_only(self, fw: Framework) -> None:
        model = build(fw, "line")
        network = fw.network([ModelOp(model, "x", "y"), LOSS, UpdateOp(model, "loss")])
        with silent():
            enter(fw, network, "eval")


class TestPartialOptimizers:
    def network(self, model: Any, *ops: Any) -> TorchNetwork:
        return TorchNetwork([*ops, ModelOp(model, "x", "y"), LOSS, UpdateOp(model, "loss")])

    def half(self, optimizer_fn: Any, name: str = "half") -> Any:
        return fastnet.build(lambda: torch.nn.Linear(2, 2), optimizer_fn, model_name=name)

    def test_of_some_parameters(self) -> None:
        model = self.half(lambda p: torch.optim.SGD([next(p)], 0.1))
        network = self.network(model)
        before = model.bias.clone()
        text = r"of model 'half' .* not: bias\..*freeze"
        with pytest.warns(UserWarning, match=text) as caught, network("train"):
            network.run_step(BATCH)
        assert len(caught) == 1
        assert caught[0].filename.startswith(str(Path(__file__).parent))
        assert torch.equal(model.bias, before)
        with silent(), network("train", 2, desired_output_keys=["loss"]):
            pass

    def test_that_is_assigned(self) -> None:
        model = self.half("sgd")
        network = self.network(model)
        with silent(), network("train"):
            pass
        model.optimizer = torch.optim.SGD([model.weight], 0.1)
        with pytest.warns(UserWarning, match="'half'"), network("train"):
            pass

    def test_of_all_that_is_trainable(self) -> None:
        model = self.half(lambda p: torch.optim.SGD([next(p)], 0.1))
        model.bias.requires_grad = False
        with silent(), self.network(model)("train"):
            pass

    def test_beside_others(self) -> None:
        """The optimizers of other epochs, or of other models, may have the rest."""
        turns = EpochScheduler(
            {
                1: lambda p: torch.optim.SGD(list(p)[:1], 0.1),
                2: lambda p: torch.optim.SGD(list(p)[1:], 0.1),
            }
        )
        first = self.half(turns, "first")
        second = self.half(lambda p: torch.optim.SGD(list(p)[:1], 0.1), "second")
        other = self.half(lambda p: torch.optim.SGD([*p, second.bias], 0.1), "other")
        with silent(), self.network(first)("train"):
            pass
        with silent(), self.network(second, ModelOp(other, "x", "seen"))("train"):
            pass

    def test_that_is_not_used(self) -> None:
        model = self.half(lambda p: torch.optim.SGD([next(p)], 0.1))
        with silent(), TorchNetwork([ModelOp(model, "x", "y")])("train"):
            pass


def test_explaining_first_does_not_hide_a_warning() -> None:
    model = fastnet.build(lambda: torch.nn.Linear(2, 2), "sgd", model_name="line")
    network = TorchNetwork([ModelOp(model, "x", "y"), LambdaOp(torch.mean, "y", "m"), LOSS])
    with silent():
        assert network.explain("train").findings
    with pytest.warns(UserWarning, match="'line'"), network("train"):
        pass
