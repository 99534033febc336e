"""Opening a network: who is in, what it shows, and what it leaves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.network import BaseNetwork, TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import (
    batches,
    built,
    is_free,
    line,
    mlp,
    regression,
    run,
    run_all,
    same_weights,
    supervised,
    weights,
)


def in_use() -> Any:
    return pytest.raises(ValueError, match=r"TorchNetwork is open already.*copy\.copy\(network\)")


def not_open() -> Any:
    return pytest.raises(ValueError, match=r'TorchNetwork is not open.*with network\(mode="train"')


def doubling() -> TorchNetwork:
    return TorchNetwork([LambdaOp(lambda x: 2 * x, "x", "y")])


class TestEntering:
    def test_gives_the_network_itself(self) -> None:
        network = doubling()
        assert network(mode="infer", epoch=1) is network
        with network as entered:
            assert entered is network
            assert entered.run_step({"x": 2}) == {"x": 2, "y": 4}

    def test_arguments_by_place(self) -> None:
        network = doubling()
        with network("eval", 3, "a", {"y"}, True, True):
            assert network.ctx_state["mode"] == "eval"
            assert network.ctx_state["epoch"] == 3
            assert network.ctx_state["warmup"] is True
            assert network.ctx_state["eager"] is True
            assert network.ctx_outputs == {"y"}

    def test_a_second_configuration_is_refused(self) -> None:
        network = doubling()
        with network(mode="infer", epoch=1):
            with in_use():
                network(mode="train", epoch=2)
            assert network.ctx_state["mode"] == "infer"
            assert network.run_step({"x": 1})["y"] == 2
        assert is_free(network)

    def test_another_network_inside_a_step(self) -> None:
        inner = doubling()
        outer = TorchNetwork([LambdaOp(lambda x: run(inner, {"x": x})["y"] + 1, "x", "y")])
        assert run(outer, {"x": 3})["y"] == 7
        model = built(line)
        training = TorchNetwork(
            [*regression(model), LambdaOp(lambda x: run(inner, {"x": x}), "x", "z")]
        )
        before = weights(model)
        assert torch.equal(
            run(training, {"x": torch.ones(1, 2)}, "train")["z"]["y"], torch.full((1, 2), 2.0)
        )
        assert not same_weights(model, before)

    def test_two_networks_of_the_same_ops_at_once(self) -> None:
        model = built(mlp)
        ops = supervised(model)
        one, two = fastnet.Network(ops), fastnet.Network(ops)
        (batch,) = batches(1)
        with one(mode="train", epoch=1), two(mode="eval", epoch=1):
            for _ in range(3):
                one.run_step(batch)
                assert torch.equal(two.run_step(batch)["y"], model(batch["x"]))

    @pytest.mark.parametrize("nested", [True, False])
    def test_ops_shared_by_two_open_networks_are_left_as_they_were(self, nested: bool) -> None:
        model = built(mlp)
        ops = [*supervised(model), UpdateOp(model, "loss")]
        one, two = fastnet.Network(ops), fastnet.Network(ops)
        one(mode="train", epoch=1).__enter__()
        two(mode="train", epoch=1).__enter__()
        for network in (two, one) if nested else (one, two):
            network.__exit__(None, None, None)
        assert [op.retain_graph for op in ops[2:]] == [False, False]


class TestNotOpen:
    def test_run_step_of_a_network_that_is_only_configured(self) -> None:
        network = doubling()
        network(mode="infer", epoch=1)
        with not_open():
            network.run_step({"x": 1})

    def test_run_step_after_leaving(self) -> None:
        network = doubling()
        run(network, {"x": 1})
        with not_open():
            network.run_step({"x": 1})

    def test_run_step_of_a_network_that_was_never_configured(self) -> None:
        network = doubling()
        with not_open(), network:
            pass
        assert run(network, {"x": 1})["y"] == 2

    def test_a_configuration_is_good_for_one_entry(self) -> None:
        network = doubling()
        run(network, {"x": 1})
        with not_open(), network:
            pass

    def test_the_last_configuration_counts(self) -> None:
        network = doubling()
        network(mode="train", epoch=1)
        network(mode="test", epoch=7)
        with network:
            assert (network.ctx_state["mode"], network.ctx_state["epoch"]) == ("test", 7)

    def test_a_configuration_that_failed_takes_the_one_before_with_it(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=None, mode="train"),
        )
        network(mode="infer", epoch=1)
        with pytest.raises(ValueError, match="un-slices"):
            network(mode="train", epoch=1)
        with not_open(), network:
            pass

    def test_the_name_of_a_derived_class(self) -> None:
        class MyNetwork(TorchNetwork):
            pass

        with pytest.raises(ValueError, match="This MyNetwork is not open"):
            MyNetwork([]).run_step({})


class TestNeverEntered:
    def test_leaves_no_trace(self) -> None:
        model = built(mlp, EpochScheduler({1: "sgd", 2: "adam"}))
        ops = supervised(model)
        ops.insert(2, UpdateOp(model, "loss"))
        network = fastnet.Network(ops)
        before = [copy.copy(vars(op)) for op in ops]
        optimizer = model.current_optimizer
        flags = [module.training for module in model.modules()]
        for mode, epoch in (("train", 2), ("eval", 1), ("train", 1)):
            network(mode=mode, epoch=epoch, warmup=True)
        assert [vars(op) for op in ops] == before
        assert model.current_optimizer is optimizer
        assert [module.training for module in model.modules()] == flags
        assert not hasattr(model, "fe_input_spec")
        run_all(network, batches(2), epoch=2)
        assert is_free(network)

    def test_by_another_thread_it_is_not_seen(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        network = doubling()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(network, mode="train", epoch=1).result()
        assert not network.ctx_state
        with not_open(), network:
            pass


class TestWhatIsShown:
    @pytest.fixture
    def network(self) -> TorchNetwork:
        self.model = built(mlp)
        self.other = built(lambda: nn.Linear(4, 4))
        self.ops = [
            ModelOp(self.model, "x", "y"),
            ModelOp(self.other, "y", "z", mode="infer"),
            LambdaOp(lambda y, t: (y.sum(1) - t).mean(), ["y", "t"], "loss", mode="!infer"),
            UpdateOp(self.model, "loss"),
            Delete("y", mode="test"),
        ]
        self.pops = [NumpyLambdaOp(lambda y, w: y + w, ["y", "w"], "v", mode="infer")]
        self.slicers = [AxisSlicer(axis=0, slice="q", unslice=["q", "y"], mode="eval")]
        return TorchNetwork(self.ops, self.pops, self.slicers)

    def test_in_training(self, network: TorchNetwork) -> None:
        with network(mode="train", epoch=2, ds_id="a", warmup=True) as opened:
            assert opened.ctx_inputs == {"x", "t"}
            assert opened.ctx_gpu_inputs == {"x", "t"}
            assert opened.ctx_outputs == {"y", "loss"}
            assert opened.ctx_ops == [self.ops[0], self.ops[2], self.ops[3]]
            assert opened.ctx_postprocessing == []
            assert opened.ctx_slicers == []
            assert opened.ctx_models == {self.model}
            state = {key: opened.ctx_state[key] for key in opened.ctx_state if key != "tape"}
            assert state == {
                "mode": "train",
                "epoch": 2,
                "warmup": True,
                "req_grad": True,
                "deferred": {},
                "eager": False,
            }
            with opened.ctx_state["tape"]:  # a context that does nothing
                pass
        assert is_free(network)

    def test_with_postprocessing(self, network: TorchNetwork) -> None:
        with network(mode="infer", epoch=1) as opened:
            assert opened.ctx_inputs == {"x", "w"}
            assert opened.ctx_gpu_inputs == {"x"}
            assert opened.ctx_outputs == {"y", "z", "v"}
            assert opened.ctx_postprocessing == self.pops
            assert opened.ctx_models == {self.model, self.other}
            assert opened.ctx_state["req_grad"] is False
        assert is_free(network)

    def test_with_a_delete(self, network: TorchNetwork) -> None:
        with network(mode="test", epoch=1) as opened:
            assert opened.ctx_outputs == {"loss"}

    def test_with_slicers(self, network: TorchNetwork) -> None:
        keys = {"desired_output_keys": {"y"}}
        with network(mode="eval", epoch=1, **keys) as opened:
            assert opened.ctx_inputs == {"x", "t", "q"}
            assert opened.ctx_gpu_inputs == {"x", "t"}
            assert opened.ctx_outputs == {"y"}
            assert opened.ctx_slicers == self.slicers

    def test_from_configuration_on(self, network: TorchNetwork) -> None:
        network(mode="train", epoch=2)
        assert network.ctx_ops == [self.ops[0], self.ops[2], self.ops[3]]
        assert network.ctx_state["epoch"] == 2

    def test_what_is_shown_is_a_copy(self, network: TorchNetwork) -> None:
        with network(mode="train", epoch=1) as opened:
            opened.ctx_ops.clear()
            opened.ctx_models.clear()
            opened.ctx_outputs.clear()
            assert len(opened.ctx_ops) == 3
            assert opened.ctx_models == {self.model}
            assert opened.ctx_outputs == {"y", "loss"}

    def test_attributes_of_a_network(self, network: TorchNetwork) -> None:
        assert isinstance(network, BaseNetwork)
        assert network.ops == self.ops
        assert network.postprocessing == self.pops
        assert network.slicers == self.slicers
        assert network.models == [self.model, self.other]
        assert network.target_type == "torch"
        assert isinstance(network.device, torch.device)
        assert network.mixed_precision is False
        assert network.get_loss_keys() == {"loss"}

    def test_nones_are_left_out_and_single_items_are_taken(self) -> None:
        op = LambdaOp(lambda x: x, "x", "y")
        pop = NumpyLambdaOp(lambda y: y, "y", "z")
        slicer = AxisSlicer(axis=0, slice="x", unslice=None)
        network = TorchNetwork([None, op, None], [None, pop], slicer)
        assert (network.ops, network.postprocessing, network.slicers) == ([op], [pop], [slicer])
        network = TorchNetwork(op, pop, None)
        assert (network.ops, network.postprocessing, network.slicers) == ([op], [pop], [])

    def test_the_callers_lists_are_not_the_networks(self) -> None:
        ops = [LambdaOp(lambda x: x, "x", "y")]
        network = TorchNetwork(ops)
        ops.clear()
        assert run(network, {"x": 1}) == {"x": 1, "y": 1}
