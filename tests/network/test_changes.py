"""Ops that change between openings, beside networks of new ops and loops by hand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, Normalize, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse, Repeat, Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import built, is_free, line, run, same_weights, sgd, twins

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])


def plus(number: float, inputs: str = "x", outputs: str = "y", **kwargs: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + number, inputs, outputs, **kwargs)


def tripled(self: Any, data: Any, state: Any) -> Any:
    return (data[0] if isinstance(data, list) else data) * 3


class TestForwards:
    def test_set_on_an_op(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        assert run(network, {"x": 1})["y"] == 2
        op.forward = lambda data, state: 7  # type: ignore[method-assign]
        assert run(network, {"x": 1})["y"] == 7
        del op.forward
        assert run(network, {"x": 1})["y"] == 2

    @pytest.mark.parametrize(
        "make",
        [
            lambda: plus(1),
            lambda: Fuse([plus(1)]),
            lambda: Fuse([Repeat(plus(1, "x", "y"), 1)]),
            lambda: Fuse([plus(1), Sometimes(plus(1, "y", "y"), 0.0)]),
        ],
    )
    def test_a_patched_class(self, make: Callable[[], Any]) -> None:
        network = TorchNetwork([make()])
        assert run(network, {"x": 1})["y"] == 2
        with mock.patch.object(LambdaOp, "forward", tripled):
            assert run(network, {"x": 1})["y"] == 3
        assert run(network, {"x": 1})["y"] == 2

    @pytest.mark.parametrize("cls", [ModelOp, UpdateOp, CrossEntropy, Fuse])
    def test_a_patched_class_of_the_library(self, cls: type) -> None:
        model = built(nn.Linear(2, 2), sgd())
        network = TorchNetwork(
            [
                Fuse([ModelOp(model, "x", "p")]),
                ModelOp(model, "x", "p"),
                CrossEntropy(("p", "t"), "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ]
        )
        batch = {"x": X, "t": torch.tensor([0, 1, 1])}
        run(network, batch, "train")
        patched = mock.patch.object(cls, "forward", side_effect=LookupError("patched"))
        with patched, pytest.raises(LookupError, match="patched"):
            run(network, batch, "train")
        assert is_free(network)
        run(network, batch, "train")

    def test_a_mock_that_counts(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        run(network, {"x": 1})
        with mock.patch.object(op, "forward", wraps=op.forward) as forward:
            assert run(network, {"x": 1})["y"] == 2
        assert forward.call_count == 1
        run(network, {"x": 1})
        assert forward.call_count == 1


class TestModels:
    def test_another_one(self) -> None:
        first, second = (
            built(model, sgd(), model_name=name)
            for model, name in zip(twins(lambda: nn.Linear(2, 1)), "ab", strict=True)
        )
        model_op, update = ModelOp(first, "x", "y"), UpdateOp(first, "loss")
        network = TorchNetwork([model_op, LambdaOp(lambda y: (y * y).mean(), "y", "loss"), update])
        run(network, {"x": X}, "train")
        model_op.model = update.model = second
        assert network.models == [first]  # until it is opened
        run(network, {"x": X}, "train")
        assert network.models == [second]
        # each was trained by one step, from the same weights
        assert same_weights(first, second)

    def test_one_of_the_same_name_is_refused_until_it_is_gone(self) -> None:
        first, second = (built(line, sgd(), model_name="m") for _ in range(2))
        one, other = ModelOp(first, "x", "y"), ModelOp(first, "x", "z")
        network = TorchNetwork([one, other])
        other.model = second
        for _ in range(2):
            with pytest.raises(AssertionError, match="Two models are called 'm' and 'm'"):
                run(network, {"x": X})
        assert is_free(network)
        one.model = second
        run(network, {"x": X})
        assert network.models == [second]

    def test_whether_it_is_trainable(self) -> None:
        model = built(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), sgd())
        op = ModelOp(model, "x", "y")
        network = TorchNetwork([op])
        run(network, {"x": X}, "train")
        assert model.training
        op.trainable = False
        result = run(network, {"x": X}, "train")["y"]
        assert not model.training
        assert torch.equal(result, model(X))

    def test_layers_are_listened_to_no_longer(self) -> None:
        model = built(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), None)
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers="0")
        network = TorchNetwork([op])
        op.intermediate_layers = ["1"]
        result = run(network, {"x": X})
        assert torch.equal(result["h"], result["y"])
        assert [len(layer._forward_hooks) for layer in model] == [0, 1]

    @pytest.mark.parametrize("plain", [False, True])
    def test_layers_named_in_the_list_that_there_is(self, plain: bool) -> None:
        model = built(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), None)
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers="0")
        network = TorchNetwork([op])
        if plain:
            op.intermediate_layers = ["0"]
        assert torch.equal(run(network, {"x": X})["h"], model[0](X))
        op.intermediate_layers[0] = "1"
        assert torch.equal(run(network, {"x": X})["h"], model(X))

    def test_gradients_that_were_added_up_stay(self) -> None:
        """Of two steps, with a setting changed in between that has no say in them."""
        weights = []
        for changes in (False, True):
            torch.manual_seed(0)
            model = built(nn.Linear(2, 1), sgd())
            update = UpdateOp(model, "loss", merge_grad=2)
            network = TorchNetwork(
                [
                    ModelOp(model, "x", "y"),
                    LambdaOp(lambda y: [y.mean(), y.mean()], "y", ["loss", "same"]),
                    update,
                ]
            )
            for _ in range(2):
                run(network, {"x": X}, "train")
                if changes:
                    update.loss_name = "same"
            weights.append(model.weight.detach().clone())
        assert torch.equal(*weights)

    def test_merging_fewer_steps_averages_all_that_were_merged(self) -> None:
        model, twin = twins(lambda: nn.Linear(2, 1))
        built(model, sgd())
        update = UpdateOp(model, "loss", merge_grad=4)
        ops = [ModelOp(model, "x", "y"), LambdaOp(lambda y: (y * y).mean(), "y", "loss"), update]
        network = TorchNetwork(ops)
        for number in range(4):
            if number == 3:
                update.merge_grad = 2
            run(network, {"x": X + number}, "train")
        optimizer = sgd()(twin.parameters())
        for number in range(4):
            ((twin(X + number) ** 2).mean() / 4).backward()
        optimizer.step()
        assert torch.allclose(model.weight, twin.weight)


class TestContainers:
    def test_lists_and_sets_that_ops_hold(self) -> None:
        op = LambdaOp(lambda *x: sum(x), ["x"], "y")
        network = TorchNetwork([op])
        assert run(network, {"x": 1, "z": 5})["y"] == 1
        op.inputs.append("z")
        assert run(network, {"x": 1, "z": 5})["y"] == 6
        op.outputs[0] = "w"
        assert run(network, {"x": 1, "z": 5}) == {"x": 1, "z": 5, "w": 6}
        op.mode.add("train")
        assert run(network, {"x": 1, "z": 5}) == {"x": 1, "z": 5}
        assert (op.inputs, op.outputs, op.mode) == (["x", "z"], ["w"], {"train"})
        assert isinstance(op.inputs, list)
        assert isinstance(op.mode, set)

    def test_plain_ones_that_were_put_in_their_place(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        names = ["y"]
        op.outputs = names  # the same as before, and no longer the op's own
        assert run(network, {"x": 1}) == {"x": 1, "y": 2}
        op.outputs.append("z")
        op.outputs.pop(0)
        assert run(network, {"x": 1}) == {"x": 1, "z": 2}

    def test_weights_of_classes(self) -> None:
        weights = {1: 1.0}
        op = CrossEntropy(("x", "t"), "loss", from_logits=True, class_weights=weights)
        network = TorchNetwork([op])
        batch = {"x": X, "t": torch.tensor([0, 1, 1])}
        run(network, batch, "eval")
        weights[1] = 100.0
        each = nn.functional.cross_entropy(X, batch["t"], reduction="none")
        expected = (each * torch.tensor([1.0, 100.0, 100.0])).mean()
        assert torch.allclose(run(network, batch, "eval")["loss"], expected)
        weights[1] = 100
        with pytest.raises(AssertionError, match="of class 1 is 100, of type int"):
            run(network, batch, "eval")
        assert is_free(network)

    def test_an_op_of_a_meta_op_that_has_the_same_keys(self) -> None:
        fuse = Fuse([plus(1)])
        network = TorchNetwork([fuse])
        run(network, {"x": 1})
        fuse.ops[0] = plus(5)
        assert run(network, {"x": 1})["y"] == 6

    def test_hooks_of_layers_after_settings_that_were_refused(self) -> None:
        model = built(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), None)
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers=["0"])
        network = TorchNetwork([op])
        op.intermediate_layers, op.outputs = ["0", "absent"], ["y", "h", "k"]
        for _ in range(3):
            with pytest.raises(KeyError, match="absent"):
                run(network, {"x": X})
        assert len(model[0]._forward_hooks) == 1

    def test_nones_and_tuples_among_the_ops_of_a_network(self) -> None:
        network = TorchNetwork([plus(1)])
        network.ops.append(None)
        assert run(network, {"x": 1})["y"] == 2
        network.ops = (plus(2), None)  # type: ignore[assignment]
        assert run(network, {"x": 1})["y"] == 3

    def test_ops_of_a_meta_op(self) -> None:
        fuse = Fuse([plus(1)])
        network = TorchNetwork([fuse])
        run(network, {"x": 1})
        fuse.ops.append(plus(10, "y", "z"))
        assert run(network, {"x": 1}) == {"x": 1, "y": 2, "z": 12}
        fuse.ops[0].outputs = ["w"]
        fuse.ops[1].inputs[0] = "w"
        assert run(network, {"x": 1}) == {"x": 1, "w": 2, "z": 12}
        fuse.ops[0].mode.add("train")
        with pytest.raises(ValueError, match="must share one mode"):
            run(network, {"x": 1})
        fuse.ops[1].mode.add("train")
        assert run(network, {"x": 1}) == {"x": 1}


class Foreign:
    """An op of nobody's classes, as FastEstimator's own are."""

    def __init__(self) -> None:
        self.inputs, self.outputs = ["x"], ["y"]
        self.mode: set[str] = set()
        self.ds_id: set[str] = set()
        self.in_list = self.out_list = False

    def forward(self, data: Any, state: Any) -> Any:
        return data + 1


class TestForeignOps:
    def test_each_of_their_attributes(self) -> None:
        op = Foreign()
        network = TorchNetwork([op])
        assert run(network, {"x": 1}) == {"x": 1, "y": 2}
        op.outputs[0] = "z"
        assert run(network, {"x": 1}) == {"x": 1, "z": 2}
        op.inputs = ["w"]
        assert run(network, {"w": 1}) == {"w": 1, "z": 2}
        op.in_list = True
        op.forward = lambda data, state: len(data)  # type: ignore[method-assign]
        assert run(network, {"w": 1}) == {"w": 1, "z": 1}
        op.out_list = True
        op.forward = lambda data, state: data  # type: ignore[method-assign]
        assert run(network, {"w": 1}) == {"w": 1, "z": 1}
        op.ds_id.add("a")
        assert run(network, {"w": 1}, ds_id="b") == {"w": 1}
        op.mode.add("train")
        assert run(network, {"w": 1}, ds_id="a") == {"w": 1}

    def test_a_patched_class(self) -> None:
        network = TorchNetwork([Foreign()])
        with mock.patch.object(Foreign, "forward", tripled):
            assert run(network, {"x": 2})["y"] == 6
        assert run(network, {"x": 2})["y"] == 3


class TestWhenItCounts:
    def test_not_in_the_opening_that_there_is(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        with network(mode="infer", epoch=1):
            op.outputs = ["z"]
            op.forward = lambda data, state: 0  # type: ignore[method-assign]
            assert network.run_step({"x": 1}) == {"x": 1, "y": 2}
        assert run(network, {"x": 1}) == {"x": 1, "z": 0}

    def test_what_is_no_concern_of_the_network_changes_no_layout(self) -> None:
        class Counting(TensorOp):
            count = 0

            def forward(self, data: Any, state: Any) -> Any:
                self.count += 1
                return data

        op = Counting("x", "y")
        network = TorchNetwork([op])
        run(network, {"x": 1})
        known = network._plans.built
        for _ in range(3):
            run(network, {"x": 1})
        assert op.count == 4
        assert network._plans.built == known

    def test_layouts_without_the_op_stay(self) -> None:
        op = plus(1, "x", "z", mode="eval")
        network = TorchNetwork([plus(1), op])
        kept = network._plans.find("train", 1, "", frozenset())
        changed = network._plans.find("eval", 1, "", frozenset())
        op.fn = lambda x: x * 5
        assert network._plans.find("train", 1, "", frozenset()) is kept
        assert network._plans.find("eval", 1, "", frozenset()) is not changed

    def test_a_wrong_value_is_refused_until_it_is_mended(self) -> None:
        op = Normalize("x", "y", mean=0.0, std=1.0, max_pixel_value=1.0)
        network = TorchNetwork([op])
        op.max_pixel_value = -1
        for _ in range(2):
            with pytest.raises(ValueError, match="max_pixel_value must be positive, not -1"):
                run(network, {"x": torch.ones(1, 1, 2, 2)})
            assert is_free(network)
        op.max_pixel_value = 2.0
        result = run(network, {"x": torch.ones(1, 1, 2, 2)})
        assert torch.allclose(result["y"], torch.full((1, 1, 2, 2), 0.5))


class TestNewOps:
    def test_are_built(self) -> None:
        class Built(TensorOp):
            built: tuple[Any, ...] = ()

            def build(self, framework: str, device: Any = None) -> None:
                self.built += (framework,)

        network = TorchNetwork([plus(1)])
        new = [Built("y", "z"), Built("z", "w"), Built("w", "v")]
        network.ops += [new[0], Fuse([new[1]]), EpochScheduler({1: new[2]})]
        for _ in range(2):
            assert run(network, {"x": 1})["v"] == 2
        assert [op.built for op in new] == [("torch",)] * 3

    def test_what_is_no_op_is_refused(self) -> None:
        network = TorchNetwork([plus(1)])
        network.ops.append("op")
        with pytest.raises(AssertionError, match="op 1 is str, not a TensorOp"):
            run(network, {"x": 1})
        network.ops.pop()
        assert run(network, {"x": 1})["y"] == 2

    def test_one_that_a_scheduler_made_up_and_that_changes(self) -> None:
        made = plus(1)

        class Making:
            def get_current_value(self, epoch: int) -> Any:
                return made

            def get_all_values(self) -> list[Any]:
                return []

        network = TorchNetwork([Making()])
        assert run(network, {"x": 1}) == {"x": 1, "y": 2}
        made.outputs[0] = "z"
        assert run(network, {"x": 1}) == {"x": 1, "z": 2}


class TestOtherItems:
    def test_postprocessing(self) -> None:
        op = NumpyLambdaOp(lambda x: x + 1, "x", "y")
        network = TorchNetwork([], op)
        run(network, {"x": torch.ones(2)})
        op.outputs = ["z"]
        op.fn = lambda x: x * 5
        assert run(network, {"x": torch.ones(2)})["z"].tolist() == [5, 5]

    def test_slicers(self) -> None:
        slicer = AxisSlicer(axis=0, slice="x", unslice=["y"])
        network = TorchNetwork([plus(1), plus(2, "x", "z")], slicers=slicer)
        batch = {"x": torch.arange(3)}
        assert run(network, batch, desired_output_keys=["y"])["y"].tolist() == [1, 2, 3]
        slicer.unslice_inputs.append("z")
        assert run(network, batch)["z"].tolist() == [2, 3, 4]
        slicer.mode = {"train"}
        assert run(network, batch)["z"].tolist() == [2, 3, 4]

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))]
    )
    def test_copies_of_ops(self, copied: Callable[[Any], Any]) -> None:
        op = copied(Fuse([Normalize("x", "y", 0.0, 1.0, 1.0), TensorOp("y", "z")]))
        network = TorchNetwork([op])
        images = torch.ones(1, 1, 2, 2)
        assert torch.allclose(run(network, {"x": images})["z"], images)
        op.ops[0].mean = 0.5
        assert torch.allclose(run(network, {"x": images})["z"], images - 0.5)


class TestSharedOps:
    """One op in two networks: its settings are resolved on the op, its plans in each network."""

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_change_that_is_taken_back_before_the_other_network_is_entered(
        self, wrapped: bool
    ) -> None:
        op = Normalize("x", "y", 0.0, 1.0, 1.0)
        one, other = (TorchNetwork([Fuse([op]) if wrapped else op]) for _ in range(2))
        images = torch.ones(1, 1, 2, 2)
        for network in (one, other):
            assert torch.allclose(run(network, {"x": images})["y"], images)
        op.mean = 0.5
        assert torch.allclose(run(one, {"x": images})["y"], images - 0.5)
        op.mean = 0.0
        assert torch.allclose(run(other, {"x": images})["y"], images)
        assert torch.allclose(run(one, {"x": images})["y"], images)

    @pytest.mark.parametrize("name", ["mean", "outputs", "mode"])
    def test_both_networks_keep_their_plans_after_a_change(self, name: str) -> None:
        op = Normalize("x", "y", 0.0, 1.0, 1.0)
        one, other = TorchNetwork([op]), TorchNetwork([op])
        batch = {"x": torch.ones(1, 1, 2, 2)}
        for network in (one, other):
            run(network, batch)
        setattr(op, name, {"mean": 0.5, "outputs": ["z"], "mode": {"infer", "eval"}}[name])
        built = []
        for _ in range(4):
            for network in (one, other):
                run(network, batch)
            built.append((one._plans.built, other._plans.built))
        assert built[-1] == built[1]
        assert min(built[-1]) > 1

    def test_a_change_before_a_network_is_copied(self) -> None:
        op = Normalize("x", "y", 0.0, 1.0, 1.0)
        network = TorchNetwork([op])
        images = torch.ones(1, 1, 2, 2)
        run(network, {"x": images})
        op.mean = 0.5
        for copied in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            result = run(copied(network), {"x": images})["y"]
            assert torch.allclose(result, images - 0.5)
