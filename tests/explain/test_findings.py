"""What is worth a look: found where it was planted, and true of random programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fastnet
from fastnet.errors import MissingKeyError
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse, Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer
from tests.explain.programs import (
    KEYS,
    batch,
    desired_keys,
    make_ops,
    make_postprocessing,
    passing,
    shapes,
)


def classifier(*more: Any, first: Any = ()) -> TorchNetwork:
    model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
    return TorchNetwork(
        [
            *first,
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
            *more,
        ]
    )


def texts(explanation: Any, kind: str) -> list[str]:
    return [finding.text for finding in explanation.findings if finding.kind == kind]


def wanted_results(
    ops: list[Any], postprocessing: list[Any], desired: list[str]
) -> dict[str, list[float]] | None:
    """Return what is wanted of a step, or None if it misses a key."""
    network = TorchNetwork(ops, postprocessing)
    try:
        with network("infer", 1, "", desired):
            result = network.run_step(batch())
    except MissingKeyError:
        return None
    return {key: result[key].tolist() for key in desired or KEYS if key in result}


def without(ops: list[Any], places: frozenset[int]) -> list[Any]:
    """Leave ops out, and do not delete again what is not written again."""
    rest: list[Any] = []
    gone: set[str] = set()
    for place, op in enumerate(ops):
        if place in places:
            continue
        if op.deletes_inputs:
            keys = [key for key in op.inputs if key not in gone]
            gone.update(keys)
            rest += [type(op)(keys)] if keys else []
        else:
            gone.difference_update(op.outputs)
            rest.append(op)
    return rest


class TestPlanted:
    """Costs that were put there are named."""

    def test_nothing_to_find(self) -> None:
        assert classifier().explain("train", desired_output_keys=["loss"]).findings == ()

    def test_an_op_nobody_needs(self) -> None:
        network = classifier(passing("y", "heat"))
        (finding,) = network.explain("train", desired_output_keys=["loss"]).findings
        assert (finding.kind, finding.places, finding.keys) == ("unneeded_op", (3,), ("heat",))
        assert finding.text == (
            "Nothing needs op 3, LambdaOp (y -> heat): 'heat' is neither read nor wanted back."
        )
        assert "NOT NEEDED" in str(network.explain("train", desired_output_keys=["loss"]))

    def test_ops_that_only_feed_such_ops(self) -> None:
        network = classifier(passing("y", "a"), passing("a", "b"), passing("b", "c"))
        explanation = network.explain("train", desired_output_keys=["loss"])
        assert explanation.unneeded == {3, 4, 5}
        assert texts(explanation, "unneeded_op")[:2] == [
            "Nothing needs op 3, LambdaOp (y -> a): 'a' is read only by op 4, which nothing needs "
            "either.",
            "Nothing needs op 4, LambdaOp (a -> b): 'b' is read only by op 5, which nothing needs "
            "either.",
        ]
        assert network.explain("train", desired_output_keys=["loss", "b"]).unneeded == {5}

    def test_overwritten_and_deleted(self) -> None:
        network = TorchNetwork(
            [passing("x", "y"), passing("x", "y"), passing("x", "z"), Delete("z")]
        )
        explanation = network.explain("infer")
        assert texts(explanation, "unneeded_op") == [
            "Nothing needs op 0, LambdaOp (x -> y): 'y' is overwritten by op 1 before it is read.",
            "Nothing needs op 2, LambdaOp (x -> z): 'z' is deleted before it is read.",
        ]

    def test_a_large_key_copied_for_nothing(self) -> None:
        network = classifier(first=[passing("volume", "small"), Delete("mask")])
        explanation = network.explain("train", desired_output_keys=["loss"])
        found = [one for one in explanation.findings if one.kind == "copied_for_nothing"]
        assert [(finding.places, finding.keys) for finding in found] == [
            ((1,), ("mask",)),
            ((0,), ("volume",)),
        ]
        where = (
            "On a GPU it would be copied to the device for nothing."
            if network.device.type == "cpu"
            else f"It is copied to {network.device} for nothing."
        )
        assert [finding.text for finding in found] == [
            f"The batch's 'mask' is read only by op 1, which deletes it. {where}",
            f"The batch's 'volume' is read only by op 0, which nothing needs. {where}",
        ]
        used = network.explain("train", desired_output_keys=["loss", "small"])
        assert [one.keys for one in used.findings] == [("mask",)]

    def test_a_model_that_still_learns(self) -> None:
        model = fastnet.build(lambda: torch.nn.BatchNorm1d(4), None, model_name="norm")
        network = TorchNetwork([ModelOp(model, "x", "y"), passing("x", "z")])
        (text,) = texts(network.explain("train", desired_output_keys=["z"]), "unneeded_op")
        assert text.endswith(
            " In mode 'train' it may still change what its model keeps of batches, such as running "
            "averages."
        )
        (text,) = texts(network.explain("eval", desired_output_keys=["z"]), "unneeded_op")
        assert text.endswith("wanted back.")

    def test_ops_that_do_more_than_write(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        training = [
            ModelOp(model, "x", "y", mode="train"),
            CrossEntropy(("y", "t"), "loss", from_logits=True, mode="train"),
        ]
        logs = LambdaOp(lambda z: None, "z")
        network = TorchNetwork(
            [
                passing("x", "z"),
                Fuse([*training, UpdateOp(model, "loss")]),
                Sometimes(Fuse([passing("z", "z"), logs])),
                Fuse([passing("x", "idle"), Delete("x")]),
            ]
        )
        explanation = network.explain("train", desired_output_keys=["z"])
        assert [item.acts for item in explanation.ops] == [False, True, True, False]
        assert explanation.unneeded == {3}

    def test_an_output_nobody_reads(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: [x, x], "x", ["a", "b"]), passing("a", "c")])
        (finding,) = network.explain("infer", desired_output_keys=["c"]).findings
        assert (finding.kind, finding.places, finding.keys) == ("unread_output", (0,), ("b",))
        assert finding.text == (
            "Of what op 0, LambdaOp (x -> a, b) writes, 'b' is neither read nor wanted back."
        )

    def test_postprocessing_nobody_needs(self) -> None:
        network = TorchNetwork(
            [passing("x", "y"), passing("x", "z")],
            [LambdaArray(lambda y: y, "y", "label"), LambdaArray(lambda z: z, "z", "shown")],
        )
        explanation = network.explain("infer", desired_output_keys=["shown"])
        assert explanation.unneeded_postprocessing == {0}
        assert explanation.unneeded == {0}
        assert texts(explanation, "unneeded_op") == [
            "Nothing needs op 0, LambdaOp (x -> y): 'y' comes back for postprocessing that nothing "
            "needs."
        ]

    def test_what_comes_back_by_default(self) -> None:
        """It is no fault to ask for nothing, nor to write what only comes back."""
        note = (
            "All that ops write comes back, as no keys were asked for; with desired_output_keys "
            "the others are dropped early."
        )
        network = classifier(passing("y", "shown"))
        explanation = network.explain("train")
        assert explanation.findings == ()
        text = str(explanation)
        assert "Findings (none)" in text
        assert note in " ".join(text.split())
        wanted = str(network.explain("train", desired_output_keys=["loss", "shown"]))
        assert note not in " ".join(wanted.split())

    def test_a_key_cut_for_nothing(self) -> None:
        network = TorchNetwork(
            [passing("x", "y")], slicers=[AxisSlicer(axis=0, slice=["x", "w"], unslice="y")]
        )
        explanation = network.explain("infer", desired_output_keys=["y"])
        assert texts(explanation, "cut_for_nothing") == [
            "AxisSlicer cuts 'w' into pieces, but no op reads the batch's own."
        ]

    def test_a_key_joined_that_was_never_cut(self) -> None:
        halves = AxisSlicer(axis=0, slice="x", unslice=["x", "w"])
        network = TorchNetwork([passing("x", "x")], slicers=[halves])
        explanation = network.explain("infer", desired_output_keys=["x"])
        assert texts(explanation, "joined_uncut") == [
            "AxisSlicer joins 'w', which no slicer cuts and no op makes: it gets the batch's own "
            "as often as there are minibatches."
        ]
        with network("infer", 1, "", ["x"]):
            result = network.run_step({"x": torch.ones(3), "w": torch.ones(2)})
        assert result["w"].shape == (3, 2)

    @pytest.mark.parametrize(
        ("mode", "key", "text"),
        [
            (
                "train",
                "y_perd",
                "The key 'y_perd' is wanted back, but nothing that is in force makes it. Did you "
                "mean 'y_pred'? It comes back only if the batch has it.",
            ),
            (
                "train",
                "score",
                "The key 'score' is wanted back, but nothing that is in force makes it: LambdaOp "
                "would, but runs in mode 'eval' only. It comes back only if the batch has it.",
            ),
            (
                "train",
                "gone",
                "The key 'gone' is wanted back, but a Delete deletes what was made. Keep it, or "
                "leave it out of desired_output_keys.",
            ),
        ],
    )
    def test_keys_that_nothing_makes(self, mode: str, key: str, text: str) -> None:
        network = TorchNetwork(
            [
                passing("x", "y_pred"),
                passing("x", "score", mode="eval"),
                passing("x", "gone"),
                passing("gone", "used"),
                Delete("gone"),
            ]
        )
        explanation = network.explain(mode, desired_output_keys=["y_pred", "used", key])
        assert [finding.text for finding in explanation.findings] == [text]

    def test_the_batch_has_what_it_has(self) -> None:
        network = TorchNetwork([passing("x", "y")])
        assert network.explain("infer", desired_output_keys=["x", "y"]).findings == ()


class TestNeeded:
    """Programs without the ops that it says nothing needs."""

    @given(drawn=shapes(), after=shapes(most=3), desired=desired_keys)
    @settings(max_examples=40)
    def test_the_same_is_wanted_and_there(self, drawn: Any, after: Any, desired: Any) -> None:
        ops, postprocessing = make_ops(drawn), make_postprocessing(after)
        explanation = TorchNetwork(ops, postprocessing).explain("infer", 1, "", desired)
        rest = without(ops, explanation.unneeded)
        rest_after = without(postprocessing, explanation.unneeded_postprocessing)
        everything = wanted_results(ops, postprocessing, desired)
        assert everything is not None
        assert wanted_results(rest, rest_after, desired) == everything

    @given(data=st.data(), drawn=shapes(), desired=desired_keys)
    @settings(max_examples=40)
    def test_every_other_op_counts(self, data: st.DataObject, drawn: Any, desired: Any) -> None:
        ops = make_ops(drawn)
        explanation = TorchNetwork(ops).explain("infer", 1, "", desired)
        needed = [
            item.place
            for item in explanation.ops
            if item.outputs and item.place not in explanation.unneeded
        ]
        assume(needed)
        place = data.draw(st.sampled_from(needed))
        without = [op for number, op in enumerate(ops) if number != place]
        assert wanted_results(without, [], desired) != wanted_results(ops, [], desired)

    @given(drawn=shapes(), desired=desired_keys)
    @settings(max_examples=25)
    def test_what_is_copied_for_nothing(self, drawn: Any, desired: Any) -> None:
        ops = make_ops(drawn)
        explanation = TorchNetwork(ops).explain("infer", 1, "", desired)
        named = {
            key
            for finding in explanation.findings
            if finding.kind == "copied_for_nothing"
            for key in finding.keys
        }
        rest = [
            op
            for place, op in enumerate(ops)
            if place not in explanation.unneeded and not isinstance(op, Delete)
        ]
        network = TorchNetwork(rest)("infer", 1, "", desired)
        assert explanation.device_inputs - network.ctx_gpu_inputs == named


class TestSeveralSteps:
    def network(self, between: Any = (), **settings: Any) -> tuple[TorchNetwork, list[int]]:
        """Return a network with two losses of a model, and where the optimizer counts its steps."""
        taken: list[int] = []

        class Counting(torch.optim.SGD):
            def step(self, *args: Any, **kwargs: Any) -> Any:
                taken.append(1)
                return super().step(*args, **kwargs)

        model = fastnet.build(
            lambda: torch.nn.Linear(4, 3), lambda found: Counting(found, lr=0.1), model_name="line"
        )
        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y: y.pow(2).mean(), "y", "a"),
            LambdaOp(lambda y: y.abs().mean(), "y", "b"),
            UpdateOp(model, "a", **settings),
            *([ModelOp(model, "x", "again")] if between else []),
            UpdateOp(model, "b", **settings),
        ]
        return TorchNetwork(ops), taken

    def steps_of(self, network: TorchNetwork) -> None:
        with network("train", 1):
            for _ in range(3):
                network.run_step({"x": torch.ones(2, 4)})

    def test_of_updates_with_a_pass_between_them(self) -> None:
        network, taken = self.network(between=True)
        (finding,) = [
            one for one in network.explain("train").findings if one.kind == "several_steps"
        ]
        assert finding.text == (
            "The optimizer of model 'line' takes 2 steps in a step of the network: ops 3 and 5 "
            "update it, one after the other. If one step by all of their losses is meant, add the "
            "losses up with a LambdaOp, and have one UpdateOp; or put them all off, with "
            "defer=True, and their gradients are added up."
        )
        assert finding.places == (3, 5)
        self.steps_of(network)
        assert len(taken) == 2 * 3

    @pytest.mark.parametrize("settings", [{}, {"between": True, "defer": True}], ids=str)
    def test_what_is_put_off_is_one_step(self, settings: Any) -> None:
        network, taken = self.network(**settings)
        assert texts(network.explain("train"), "several_steps") == []
        self.steps_of(network)
        assert len(taken) == 3

    def test_of_two_models(self) -> None:
        models = [
            fastnet.build(lambda: torch.nn.Linear(4, 1), "sgd", model_name=name) for name in "ab"
        ]
        ops = [op for one in models for op in (ModelOp(one, "x", "y"), UpdateOp(one, "y"))]
        assert texts(TorchNetwork(ops).explain("train"), "several_steps") == []
