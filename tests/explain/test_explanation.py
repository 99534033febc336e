"""Explanations compared with entered networks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import Delete, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.explain.programs import (
    batch,
    desired_keys,
    make_ops,
    make_postprocessing,
    passing,
    shapes,
)


def rich_network() -> TorchNetwork:
    """Return a network with one of everything."""
    model = fastnet.build(
        lambda: torch.nn.Linear(4, 3), EpochScheduler({1: "sgd", 3: "adam"}), model_name="line"
    )
    return TorchNetwork(
        [
            passing("x", "x", mode="train"),
            Sometimes(passing("x", "x"), prob=0.25),
            ModelOp(model, "x", "y"),
            RepeatScheduler([passing("y", "twice"), None, passing("y", "thrice")]),
            passing("y", "only_a", ds_id="a"),
            passing("y", "not_a", ds_id="!a"),
            Delete("extra"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ],
        postprocessing=[
            LambdaArray(lambda y: y.argmax(-1), "y", "label", mode="!train"),
            EpochScheduler({2: LambdaArray(lambda w: w + 1, "w", "w")}),
        ],
        slicers=[
            AxisSlicer(axis=0, slice=["x", "t"], unslice=["y"], mode="train"),
            MeanUnslicer(["loss", "only_a", "not_a", "twice", "thrice", "x"], mode="train"),
        ],
    )


def named(items: Any) -> list[tuple[str, list[str], list[str]]]:
    return [
        (
            type(item).__name__,
            list(getattr(item, "inputs", None) or getattr(item, "slice_inputs", [])),
            list(getattr(item, "outputs", None) or getattr(item, "unslice_inputs", [])),
        )
        for item in items
    ]


def explained(items: Any) -> list[tuple[str, list[str], list[str]]]:
    return [(item.name, list(item.inputs), list(item.outputs)) for item in items]


class TestActive:
    """The active items, and the keys."""

    @pytest.mark.parametrize("desired", [None, ["loss"], ["label", "w"]], ids=str)
    @pytest.mark.parametrize("ds_id", ["", "a", "b"])
    @pytest.mark.parametrize("mode", ["train", "eval", "infer"])
    def test_as_opened(self, mode: str, ds_id: str, desired: list[str] | None) -> None:
        network = rich_network()
        for epoch in (1, 2, 3, 6):
            explanation = network.explain(mode, epoch, ds_id, desired)
            opened = network(mode, epoch, ds_id, desired)
            assert explained(explanation.ops) == named(opened.ctx_ops)
            assert explained(explanation.postprocessing) == named(opened.ctx_postprocessing)
            assert explained(explanation.slicers) == named(opened.ctx_slicers)
            assert explanation.inputs == opened.ctx_inputs
            assert explanation.device_inputs == opened.ctx_gpu_inputs
            assert set(explanation.outputs) == opened.ctx_outputs
            assert set(explanation.models) == {model.model_name for model in opened.ctx_models}
            takes = any(item.takes_gradients for item in explanation.ops)
            assert takes == opened.ctx_state["req_grad"]
            assert explanation.error is None
            with opened:
                for name, text in explanation.models.items():
                    (model,) = opened.ctx_models
                    optimizer = model.current_optimizer
                    rate = optimizer.param_groups[0]["lr"]
                    assert name == "line"
                    assert text == f"{type(optimizer).__name__} (learning rate {rate:.6g})"

    def test_each_item_is_active_or_has_a_reason(self) -> None:
        explanation = rich_network().explain("train", 2, "b")
        listed = [*explanation.ops, *explanation.inactive["ops"]]
        assert [item.index for item in explanation.ops] == list(range(len(explanation.ops)))
        assert len(listed) == 10
        reasons = {item.outputs: item.reason for item in explanation.inactive["ops"]}
        assert reasons == {
            ("twice",): "RepeatScheduler gives nothing in epoch 2",
            ("thrice",): "RepeatScheduler gives nothing in epoch 2",
            ("only_a",): "runs for ds_id 'a' only",
        }
        (label,) = explanation.inactive["postprocessing"]
        assert label.reason == "runs in mode 'eval' or 'test' or 'infer' only"
        for opening, output, reason in (
            (("train", 1, "a"), "not_a", "does not run for ds_id 'a'"),
            (("eval", 1), "thrice", "RepeatScheduler gives LambdaOp in epoch 1"),
        ):
            inactive = rich_network().explain(*opening).inactive["ops"]
            assert [item.reason for item in inactive if item.outputs == (output,)] == [reason]

    @given(drawn=shapes(), after=shapes(most=3), desired=desired_keys)
    @settings(max_examples=30)
    def test_results_come_from_where_it_says(
        self, drawn: Any, after: Any, desired: list[str]
    ) -> None:
        network = TorchNetwork(make_ops(drawn), make_postprocessing(after))
        explanation = network.explain("infer", 1, "", desired)
        network("infer", 1, "", desired)
        assert explanation.inputs == network.ctx_inputs
        assert explanation.device_inputs == network.ctx_gpu_inputs
        assert set(explanation.outputs) == network.ctx_outputs
        given_batch = batch()
        needed = {key: given_batch[key] for key in explanation.inputs}
        with network:
            result = network.run_step(needed)
        said = {key.name for key in explanation.keys if key.result is not None}
        assert set(result) == said
        for key in explanation.keys:
            if key.result == "batch":
                assert torch.equal(result[key.name], needed[key.name])
                # what postprocessing reads went through an array
                assert result[key.name] is needed[key.name] or key.postprocessing_readers
            elif key.result == "ops":
                assert isinstance(result[key.name], torch.Tensor)
                assert key.returned
            elif key.result == "postprocessing":
                assert key.postprocessing_writers

    def test_deferred_updates(self) -> None:
        log: list[tuple[str, bool]] = []

        class Update(TensorOp):
            """Takes gradients, and may be put off."""

            def __init__(self, name: str, defer: bool = False) -> None:
                super().__init__(inputs="x")
                self.name = name
                self.defer = defer

            def fe_retain_graph(self, retain: bool | None = None) -> bool:
                return False

            def forward(self, data: Any, state: Any) -> None:
                log.append((self.name, self.defer))

        ops = [Update("a"), Update("b", True), passing("x", "y"), Update("c"), Update("d")]
        network = TorchNetwork(ops)
        explanation = network.explain()
        with network(mode="train", epoch=1):
            network.run_step({"x": torch.ones(1)})
        told = [item.deferred for item in explanation.ops if item.name == "Update"]
        assert told == [deferred for _, deferred in log] == [False, True, True, True]
        assert [item.takes_gradients for item in explanation.ops] == [True, True, False, True, True]

    def test_what_is_inside_of_meta_ops(self) -> None:
        one, two = passing("x", "x"), passing("x", "x")
        network = TorchNetwork(
            [
                OneOf(one, two, probs=[0.25, 0.75]),
                Sometimes(Fuse([passing("x", "x"), passing("x", "z")]), prob=0.5),
                Repeat(passing("x", "x"), 3),
                Repeat(passing("x", "x"), lambda x: x < 3, max_iter=4),
            ]
        )
        ops = network.explain("infer").ops
        assert [item.setting for item in ops] == [
            "probs=[0.25, 0.75]",
            "prob=0.5",
            "repeat=3",
            "repeat=<lambda>, max_iter=4",
        ]
        (fuse,) = ops[1].ops
        assert explained(fuse.ops) == named([passing("x", "x"), passing("x", "z")])
        assert [len(item.ops) for item in ops] == [2, 1, 1, 1]
        text = str(network.explain("infer"))
        assert "\n         LambdaOp  x -> z\n" in text


class TestNothingHappens:
    """An explanation leaves everything as it was."""

    def test_the_network_stays_as_it_is(self) -> None:
        network = rich_network()
        network("train", 1)
        configured = network.ctx_state
        (model,) = network.models
        optimizer = model.current_optimizer
        weights = [parameter.clone() for parameter in model.parameters()]
        explanation = network.explain("train", 3, desired_output_keys=["loss"])
        explanation._repr_html_()
        assert network.ctx_state is configured
        assert model.current_optimizer is optimizer
        assert all(map(torch.equal, model.parameters(), weights))

    def test_an_open_network_can_be_explained(self) -> None:
        network = TorchNetwork([passing("x", "y")])
        with network(mode="train", epoch=1):
            explanation = network.explain("eval", 2)
            assert network.ctx_state["mode"] == "train"
            assert set(network.run_step({"x": torch.ones(1)})) == {"x", "y"}
        assert (explanation.mode, explanation.epoch) == ("eval", 2)


class _Fails:
    """A scheduler that does not know what to give."""

    def get_current_value(self, epoch: int) -> Any:
        raise LookupError(f"no plan for epoch {epoch}")

    def get_all_values(self) -> list[Any]:
        return [passing("x", "y")]


class TestFailures:
    """Where an opening fails, an explanation says how, and goes on."""

    @pytest.mark.parametrize(
        ("changes", "opening"),
        [
            ({}, {"mode": "trian"}),
            ({}, {"desired_output_keys": ["y", 3]}),
            ({}, {"epoch": "one"}),
            ({"slicers": [AxisSlicer(axis=0, slice="x", unslice=None)]}, {}),
            ({"slicers": [AxisSlicer(axis=0, slice="x", unslice=end) for end in (None, "y")]}, {}),
            ({"slicers": [MeanUnslicer("y")]}, {}),
            ({"more": [_Fails()]}, {}),
        ],
        ids=["mode", "desired", "epoch", "pieces", "clash", "no cut", "scheduler"],
    )
    def test_says_what_an_opening_raises(
        self, changes: dict[str, Any], opening: dict[str, Any]
    ) -> None:
        ops = [passing("x", "y"), EpochScheduler({1: passing("y", "z")}), *changes.get("more", [])]
        network = TorchNetwork(ops, slicers=changes.get("slicers"))
        opening = {"mode": "infer", "epoch": 1, **opening}
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its text is compared
            network(**opening)
        explanation = network.explain(**opening)
        assert explanation.error == f"{type(caught.value).__name__}: {caught.value}"
        assert ("LambdaOp", ["x"], ["y"]) in explained(explanation.ops)
        lives = {key.name: key.lifetimes for key in explanation.keys}
        assert lives["x"][0].readers == (0,)
        assert "Entering the network would fail with " in str(explanation)
        for form in (explanation.to_dot(), explanation.to_mermaid(), explanation._repr_html_()):
            assert "LambdaOp" in form

    def test_ops_that_the_kernel_refuses(self) -> None:
        op = passing("x", ["y", "z"])
        op.out_list = False
        network = TorchNetwork([op, passing("y", "y")])
        with pytest.raises(ValueError, match="its out_list is False") as caught:
            network("infer", 1)
        explanation = network.explain("infer")
        assert explanation.error == f"ValueError: {caught.value}"
        assert explained(explanation.ops) == named(network.ops)
        ends = {key.name: [life.end for life in key.lifetimes] for key in explanation.keys}
        assert ends == {"x": ["unknown"], "y": ["overwritten", "unknown"], "z": ["unknown"]}
        assert "unknown" in str(explanation)

    def test_an_optimizer_that_fails(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(1, 1), "sgd", model_name="line")
        network = TorchNetwork([ModelOp(model, "x", "y")])
        model.optimizer = _Fails()
        with pytest.raises(LookupError), network("train", 1):
            pass
        explanation = network.explain()
        assert explanation.error == "LookupError: no plan for epoch 1"
        assert explanation.models == {"line": "LookupError: no plan for epoch 1"}
        assert explanation.schedules[-1].values == ((1, "LookupError: no plan for epoch 1"),)


def test_as_a_dict() -> None:
    explanation = rich_network().explain("train", 1, "a", ["loss", "lost"])
    data = explanation.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["version"] == 4
    assert data["inputs"] == sorted(explanation.inputs)
    assert [op["name"] for op in data["ops"]] == [item.name for item in explanation.ops]
    assert data["inactive"]["ops"][0]["reason"] == explanation.inactive["ops"][0].reason
    assert {key["name"]: key["returned"] for key in data["keys"]} == {
        key.name: key.returned for key in explanation.keys
    }
