"""The findings of `explain`: on networks with one mistake each, and on random networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

import fastnet
from fastnet.errors import MissingKeyError
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse, Sometimes
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
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


def without(ops: list[Any], places: set[int | None]) -> list[Any]:
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


def found(explanation: Any, kind: str) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """List the ops and the keys of the findings of a kind."""
    return [(one.indices, one.keys) for one in explanation.findings if one.kind == kind]


class TestUnneeded:
    def test_nothing_to_find(self) -> None:
        assert classifier().explain("train", desired_output_keys=["loss"]).findings == ()

    def test_ops_that_only_feed_such_ops(self) -> None:
        network = classifier(passing("y", "a"), passing("a", "b"), passing("b", "c"))
        explanation = network.explain("train", desired_output_keys=["loss"])
        assert explanation.unneeded == {3, 4, 5}
        assert "not needed" in str(explanation)
        assert "Op 3, LambdaOp (y -> a)" in texts(explanation, "unneeded_op")[0]
        assert "'a' is read only by op 4" in texts(explanation, "unneeded_op")[0]
        assert network.explain("train", desired_output_keys=["loss", "b"]).unneeded == {5}

    def test_a_model_that_still_learns(self) -> None:
        model = fastnet.build(lambda: torch.nn.BatchNorm1d(4), None, model_name="norm")
        network = TorchNetwork([ModelOp(model, "x", "y"), passing("x", "z")])
        (text,) = texts(network.explain("train", desired_output_keys=["z"]), "unneeded_op")
        assert "running averages" in text

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
        assert [item.has_effects for item in explanation.ops] == [False, True, True, False]
        assert explanation.unneeded == {3}
        assert texts(explanation, "unwritten_key") == []  # the keys that Fuse reads are the batch's

    def test_postprocessing_nobody_needs(self) -> None:
        network = TorchNetwork(
            [passing("x", "y"), passing("x", "z")],
            [LambdaArray(lambda y: y, "y", "label"), LambdaArray(lambda z: z, "z", "picture")],
        )
        explanation = network.explain("infer", desired_output_keys=["picture"])
        assert [item.unneeded for item in explanation.postprocessing] == [True, False]
        assert explanation.unneeded == {0}
        (text,) = texts(explanation, "unneeded_op")
        assert "'y' is read only by postprocessing op 0, which is not needed either" in text

    def test_all_outputs_are_returned_by_default(self) -> None:
        """An op without a reader is no finding, unless other keys were asked for."""
        network = classifier(passing("y", "mean"))
        explanation = network.explain("train")
        assert explanation.findings == ()
        assert "Findings (none)" in str(explanation)
        assert "desired_output_keys limits them" in str(explanation)
        wanted = str(network.explain("train", desired_output_keys=["loss", "mean"]))
        assert "desired_output_keys limits them" not in wanted


class TestMissing:
    @pytest.mark.parametrize(
        ("key", "kind", "part"),
        [
            ("y_perd", "unwritten_output", "Did you mean 'y_pred'?"),
            ("score", "unwritten_output", "LambdaOp would, but runs in mode 'eval' only"),
            ("gone", "unwritten_output", "that an op writes is deleted"),
        ],
    )
    def test_keys_that_nothing_makes(self, key: str, kind: str, part: str) -> None:
        network = TorchNetwork(
            [
                passing("x", "y_pred"),
                passing("x", "score", mode="eval"),
                passing("x", "gone"),
                passing("gone", "used"),
                Delete("gone"),
            ]
        )
        explanation = network.explain("train", desired_output_keys=["y_pred", "used", key])
        (finding,) = explanation.findings
        assert (finding.kind, finding.keys) == (kind, (key,))
        assert part in finding.text
        # no claim about keys where the network cannot be entered
        broken = network.explain("train", epoch=0, desired_output_keys=["y_pred", "used"])
        assert broken.error is not None
        assert broken.findings == ()

    @pytest.mark.parametrize(
        ("ops", "read", "part"),
        [
            (
                [passing("x", "y"), Delete("y")],
                "y",
                "is deleted before postprocessing op 0, LambdaOp",
            ),
            ([passing("x", "y", mode="eval")], "y", "LambdaOp would, but runs in mode 'eval' only"),
            ([passing("x", "y_pred")], "y_prd", "Did you mean 'y_pred', which op 0"),
        ],
    )
    def test_keys_that_postprocessing_reads(self, ops: list[Any], read: str, part: str) -> None:
        network = TorchNetwork(ops, LambdaArray(lambda y: y, read, "z"))
        explanation = network.explain("infer", desired_output_keys=["z"])
        (text,) = texts(explanation, "unwritten_key")
        assert part in text

    @pytest.mark.parametrize(
        ("written", "read"),
        [("score", "scores"), ("y_pred", "y_perd"), ("logits", "Logits"), ("mask", "masc")],
    )
    def test_a_misspelled_key(self, written: str, read: str) -> None:
        network = TorchNetwork([passing("x", "z"), passing("x", written), passing(read, "w")])
        explanation = network.explain("infer")
        assert found(explanation, "unwritten_key") == [((2, 1), (read, written))]
        (text,) = texts(explanation, "unwritten_key")
        assert f"op 2, LambdaOp ({read} -> w)" in text
        assert f"op 1, LambdaOp (x -> {written})" in text

    def test_a_key_that_only_an_inactive_op_writes(self) -> None:
        network = TorchNetwork([passing("x", "y", mode="train"), passing("y", "z")])
        explanation = network.explain("eval")
        assert found(explanation, "unwritten_key") == [((0,), ("y",))]
        (text,) = texts(explanation, "unwritten_key")
        assert "op 0, LambdaOp (y -> z)" in text
        assert "LambdaOp would, but runs in mode 'train' only." in text
        with network("eval"), pytest.raises(MissingKeyError):
            network.run_step({"x": torch.ones(1)})
        assert texts(network.explain("train"), "unwritten_key") == []
        augmented = TorchNetwork([passing("x", "x", mode="train"), passing("x", "z")])
        assert texts(augmented.explain("eval"), "unwritten_key") == []

    @pytest.mark.parametrize("key", ["x", "y"])
    def test_a_key_that_is_deleted_before(self, key: str) -> None:
        network = TorchNetwork([passing("x", "y"), Delete(key), passing(key, "z")])
        assert found(network.explain("infer"), "unwritten_key") == [((2,), (key,))]
        with network("infer"), pytest.raises(MissingKeyError, match="deleted"):
            network.run_step({"x": torch.ones(1), "y": torch.ones(1)})

    def test_a_loss_that_no_op_computes(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        network = TorchNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "loss")])
        assert found(network.explain("train"), "unwritten_key") == [((1,), ("loss",))]

    @pytest.mark.parametrize(
        "ops",
        [
            [passing("x", "y_pred"), passing("y_true", "y")],
            [passing("x", "view1"), passing("view2", "y")],
            [passing("image_a", "image_a"), passing("image_b", "y")],
            [passing("scores", "y"), passing("x", "score")],
            [passing("x", "score"), passing("x", "scores"), passing("scores", "y")],
        ],
    )
    def test_similar_keys_that_are_meant(self, ops: list[Any]) -> None:
        assert texts(TorchNetwork(ops).explain("infer"), "unwritten_key") == []

    def test_a_training_without_updates(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        fixed = fastnet.build(lambda: torch.nn.Linear(4, 3), None, model_name="fixed")
        fixed.requires_grad_(False)
        passes = [ModelOp(fixed, "x", "x2"), ModelOp(model, "x", "y"), EMA(model, 0.9)]
        network = TorchNetwork([*passes, CrossEntropy(("y", "t"), "loss", from_logits=True)])
        (text,) = texts(network.explain("train"), "no_update")
        assert "['line'] in mode 'train'" in text
        assert "UpdateOp" in text
        assert texts(network.explain("eval"), "no_update") == []
        assert TorchNetwork(passes[:1]).explain("train").findings == ()
        fixed.requires_grad_(True)  # Without an optimizer it could be trained as well.
        (text,) = texts(TorchNetwork(passes[:1]).explain("train"), "no_update")
        assert "['fixed']" in text
        assert "optimizer_fn" in text
        later = EpochScheduler({2: UpdateOp(model, "loss")})
        scheduled = TorchNetwork([*network.ops, later])
        assert texts(scheduled.explain("train"), "no_update") == []
        evaluated = TorchNetwork([*network.ops, UpdateOp(model, "loss", mode="eval")])
        assert len(texts(evaluated.explain("train"), "no_update")) == 1
        other = fastnet.build(lambda: torch.nn.Linear(4, 4), "sgd", model_name="other")
        network = TorchNetwork([ModelOp(other, "x", "x"), *scheduled.ops])
        (text,) = texts(network.explain("train"), "no_update")
        assert "['other']" in text

    def test_an_update_for_another_dataset(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
        update = UpdateOp(model, "loss", ds_id="large")
        network = TorchNetwork([ModelOp(model, "x", "y"), loss, update])
        (text,) = texts(network.explain("train", ds_id="small"), "no_update")
        assert "['line'] are not updated: UpdateOp runs for ds_id 'large' only" in text
        assert texts(network.explain("train", ds_id="large"), "no_update") == []

    @pytest.mark.filterwarnings("ignore:The optimizer of model 'half'")
    def test_parameters_without_an_optimizer(self) -> None:
        half = fastnet.build(
            lambda: torch.nn.Linear(4, 3),
            lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=0.1),
            model_name="half",
        )
        fixed = fastnet.build(lambda: torch.nn.Linear(4, 4), None, model_name="fixed")
        network = TorchNetwork(
            [
                ModelOp(fixed, "x", "x2"),
                ModelOp(half, "x2", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(half, "loss"),
            ]
        )
        named = sorted(texts(network.explain("train"), "no_optimizer"))
        assert len(named) == 2
        assert "model 'fixed': weight, bias" in named[0]
        assert "model 'half': bias" in named[1]
        assert texts(network.explain("eval"), "no_optimizer") == []
        before = half.bias.clone()
        with network("train"):
            network.run_step({"x": torch.ones(2, 4), "t": torch.tensor([0, 1])})
        assert torch.equal(half.bias, before)
        fixed.requires_grad_(False)
        half.bias.requires_grad = False
        assert texts(network.explain("train"), "no_optimizer") == []

    def test_parameters_of_an_optimizer_of_another_epoch(self) -> None:
        """The epochs of a scheduler may train different parts of a model."""

        def half(part: slice) -> Any:
            return lambda parameters: torch.optim.SGD(list(parameters)[part], lr=0.1)

        turns: Any = RepeatScheduler([half(slice(1)), half(slice(1, None))])
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), turns)
        loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
        network = TorchNetwork([ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")])
        assert network.explain("train").findings == ()

    def test_parameters_in_the_optimizer_of_another_model(self) -> None:
        encoder = fastnet.build(lambda: torch.nn.Linear(4, 4), None, model_name="encoder")
        decoder = fastnet.build(
            lambda: torch.nn.Linear(4, 3),
            lambda parameters: torch.optim.SGD([*encoder.parameters(), *parameters], lr=0.1),
            model_name="decoder",
        )
        network = TorchNetwork(
            [
                ModelOp(encoder, "x", "z"),
                ModelOp(decoder, "z", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(decoder, "loss"),
            ]
        )
        assert network.explain("train").findings == ()
        # Nor is there a finding if the encoder has the same optimizer.
        encoder.optimizer = encoder.current_optimizer = decoder.optimizer
        assert network.explain("train").findings == ()


class TestFirstOrder:
    """Losses that depend on gradients which they take for constants."""

    @staticmethod
    def network(*, fused: bool = False, given: str | None = None, **options: Any) -> TorchNetwork:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        slope = GradientOp("y", "slope", inputs="x", **options)
        return TorchNetwork(
            [
                Watch("x"),
                ModelOp(model, "x", "y"),
                Fuse([slope, passing("slope", "slope")]) if fused else slope,
                passing("slope", "norm"),
                passing(["y", "norm"], "loss"),
                UpdateOp(model, "loss", gradients=given),
            ]
        )

    @pytest.mark.parametrize("fused", [False, True])
    def test_a_penalty(self, fused: bool) -> None:
        network = self.network(fused=fused)
        explanation = network.explain("train", desired_output_keys=["loss"])
        assert found(explanation, "first_order") == [((2, 5), ("slope", "loss"))]
        (text,) = texts(explanation, "first_order")
        assert "depends on 'slope', which op 2" in text
        assert "higher_order=True" in text
        # With the graph of the gradient there is nothing to note.
        again = self.network(fused=fused, higher_order=True).explain("train")
        assert found(again, "first_order") == []

    def test_other_uses(self) -> None:
        """Gradients to update with, losses that overwrite what depends on one, and other modes."""
        assert found(self.network(given="slope").explain("train"), "first_order") == []
        network = self.network()
        assert found(network.explain("eval"), "first_order") == []
        network.ops[4] = passing(["y", "y"], "loss")
        assert found(network.explain("train"), "first_order") == []
        network.ops[3:5] = [passing("y", "slope"), passing(["y", "slope"], "loss")]
        assert found(network.explain("train"), "first_order") == []

    def test_comes_after_all_others(self) -> None:
        network = self.network()
        network.ops.insert(3, passing("y", "idle"))
        kinds = [
            one.kind for one in network.explain("train", desired_output_keys=["loss"]).findings
        ]
        assert kinds == ["unneeded_op", "first_order"]


class TestUnwatched:
    """Gradients with respect to values that no Watch has read."""

    @pytest.mark.parametrize("fused", [False, True])
    @pytest.mark.parametrize(
        "gradient", [GradientOp("y", "slope", inputs="x"), FGSM("x", "y", "slope")]
    )
    def test_of_the_batch(self, fused: bool, gradient: Any) -> None:
        double = passing("x", "y")
        network = TorchNetwork([double, Fuse([gradient]) if fused else gradient])
        assert found(network.explain("train"), "unwatched") == [((1,), ("x",))]
        (text,) = texts(network.explain("train"), "unwatched")
        assert "Put Watch('x') in front" in text
        network.ops.insert(0, Watch("x"))
        assert found(network.explain("train"), "unwatched") == []

    def test_of_what_an_op_writes_or_a_model_has(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
        ops = [
            ModelOp(model, "x", "y"),
            passing("y", "z"),
            GradientOp(["z", "z"], ["slope", "other"], inputs=["y", "x"]),
            GradientOp("z", "weights", model=model),
        ]
        assert found(TorchNetwork(ops).explain("train"), "unwatched") == [((2,), ("x",))]


class TestNeeded:
    """Programs without the ops that are not needed."""

    @given(drawn=shapes(), after=shapes(most=3), desired=desired_keys)
    @settings(max_examples=40)
    def test_the_same_is_wanted_and_there(self, drawn: Any, after: Any, desired: Any) -> None:
        ops, postprocessing = make_ops(drawn), make_postprocessing(after)
        explanation = TorchNetwork(ops, postprocessing).explain("infer", 1, "", desired)
        rest = without(ops, {*explanation.unneeded})
        unneeded = {one.index for one in explanation.postprocessing if one.unneeded}
        rest_after = without(postprocessing, unneeded)
        everything = wanted_results(ops, postprocessing, desired)
        assert everything is not None
        assert wanted_results(rest, rest_after, desired) == everything
