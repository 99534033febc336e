"""Models that are updated: gradients, merges, deferred updates, several models, frozen layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, TakeGradients, make_layers
from tests.conformance.oracle import Line, make_batches


def regression(model: Any, **update: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        MeanSquaredError(("y", "t"), "loss"),
        UpdateOp(model, "loss", **update),
    ]


def check(x: Any, ok: str) -> Any:
    """Let a step fail that is not to be well."""
    if ok != "yes":
        raise ZeroDivisionError(ok)
    return x


class TestOneModel:
    @pytest.mark.parametrize("kind", ["sgd", "adam", "momentum"])
    @conforms
    def test_classifier(self, fw: Framework, kind: str) -> Any:
        optimizer = fw.sgd(0.05, momentum=0.9) if kind == "momentum" else kind
        model = fw.build(make_layers(3, 5, 4), optimizer)
        network = fw.network(
            [
                ModelOp(model, "x", "y"),
                CrossEntropy(("y", "label"), "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ]
        )
        before = fw.weights(model)
        source = np.random.default_rng(1)
        batches = [
            {**batch, "label": source.integers(0, 4, len(batch["x"]))}
            for batch in make_batches(10, size=6)
        ]
        # another size, as at an epoch's end
        batches[4] = {key: value[:2] for key, value in batches[4].items()}
        results = [
            fw.steps(network, batches, "train"),
            fw.steps(network, batches[:2], "eval"),
            fw.steps(network, batches[:5], "train", 2),
        ]
        assert not np.allclose(fw.weights(model)[0], before[0], atol=1e-4)
        losses = [result["loss"] for result in results[0]]
        assert len({float(loss) for loss in losses}) == len(losses)
        return results, fw.weights(model)

    @pytest.mark.parametrize("mode", ["eval", "test", "infer", "warmup"])
    @conforms
    def test_when_nothing_is_updated(self, fw: Framework, mode: str) -> Any:
        layers = make_layers(3, 4, 2)
        model = fw.build(layers, fw.sgd(0.1))
        network = fw.network(regression(model))
        context = {"warmup": True} if mode == "warmup" else {}
        results = fw.steps(
            network, make_batches(2), "train" if mode == "warmup" else mode, **context
        )
        assert ("loss" in results[0]) == (mode != "infer")
        assert_same(fw.weights(model), [one for layer in layers for one in layer])
        return results


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@conforms
def test_given_gradients_some_of_which_are_none(fw: Framework) -> Any:
    layers = make_layers(3, 4, 2)
    model = fw.build(layers, fw.sgd(0.1))
    network = fw.network(
        [
            ModelOp(model, "x", "y"),
            MeanSquaredError(("y", "t"), "loss"),
            TakeGradients(fw, model, "loss", "g"),
            LambdaOp(lambda g: [None, None, *g[2:]], "g", "g", mode="train"),
            UpdateOp(model, "loss", gradients="g"),
        ]
    )
    fw.steps(network, make_batches(2), "train", desired_output_keys={"loss"})
    weights = fw.weights(model)
    assert_same(weights[:2], list(layers[0]))
    assert not np.allclose(weights[2], layers[1][0])
    return weights


class TestDeferredUpdates:
    @pytest.mark.parametrize("defer", [False, True])
    @conforms
    def test_what_later_ops_see(self, fw: Framework, defer: bool) -> Any:
        layers = make_layers(3, 2)
        line = Line(*layers[0])
        model = fw.build(layers, fw.sgd(0.1))
        network = fw.network([*regression(model, defer=defer), ModelOp(model, "x", "after")])
        results = []
        for batch in make_batches(3):
            before = line.predict(batch)
            line.train(batch)
            result = fw.step(network, batch, "train")
            expected = before if defer else line.predict(batch)
            assert_same(result["after"], expected.astype("float32"))
            assert_same(fw.weights(model), line.weights)
            results.append(result)
        return results

    @conforms
    def test_ops_own_entries_run_in_order_after_the_last_op(self, fw: Framework) -> Any:
        log: list[str] = []

        class Later(LambdaOp):
            def forward(self, data: Any, state: Any) -> Any:
                log.append(f"op {self.outputs[0]}")
                for name in self.outputs[0]:
                    later = lambda name=name: log.append(f"later {name}")  # noqa: E731
                    state["deferred"].setdefault(name, []).append(later)
                return data[0] + 1

        ops = [Later(lambda: None, "x", "ab"), Later(lambda: None, "x", "c")]
        network = fw.network([*ops, Later(lambda: None, "x", "a")])
        result = fw.step(network, {"x": np.ones(2, "float32")})
        assert log == ["op ab", "op c", "op a", "later a", "later a", "later b", "later c"]
        return result

    @conforms
    def test_a_step_that_fails_updates_nothing_that_it_put_off(self, fw: Framework) -> Any:
        layers = make_layers(3, 2)
        line = Line(*layers[0])
        model = fw.build(layers, fw.sgd(0.1))

        network = fw.network(
            [*regression(model, defer=True), LambdaOp(check, ["x", "ok"], "checked")]
        )
        weights = []
        for batch, ok in zip(make_batches(4), ["yes", "no", "no", "yes"], strict=True):
            if ok == "yes":
                fw.step(network, {**batch, "ok": ok}, "train")
                line.train(batch)
            else:
                with pytest.raises(ZeroDivisionError):
                    fw.step(network, {**batch, "ok": ok}, "train")
            assert_same(fw.weights(model), line.weights)
            weights.append(fw.weights(model))
        return weights

    @conforms
    def test_what_a_step_that_fails_has_merged_does_not_count(self, fw: Framework) -> Any:
        if fw.name == "tf-eager":
            pytest.skip("in TensorFlow a step that fails while it runs may count")
        layers = make_layers(3, 2)
        line = Line(*layers[0])
        model = fw.build(layers, fw.sgd(0.1))

        network = fw.network(
            [*regression(model, merge_grad=3), LambdaOp(check, ["x", "ok"], "checked")]
        )
        *good, bad = make_batches(4)
        fw.step(network, {**good[0], "ok": "yes"}, "train")
        with pytest.raises(ZeroDivisionError):
            fw.step(network, {**bad, "ok": "no"}, "train")
        for batch in good[1:]:
            assert_same(fw.weights(model), line.weights)
            fw.step(network, {**batch, "ok": "yes"}, "train")
        parts = zip(*map(line.gradients, good), strict=True)
        line.descend(tuple(sum(part) / 3 for part in parts))
        assert_same(fw.weights(model), line.weights)
        return fw.weights(model)


@pytest.mark.parametrize("gradients", [False, True])
@conforms
def test_a_model_that_others_gradients_go_through_or_not(fw: Framework, gradients: bool) -> Any:
    layers = make_layers(3, 2, seed=1)
    below = fw.build(layers, fw.sgd(0.1), name="below")
    above = fw.build(make_layers(2, 2, seed=2), fw.sgd(0.1), name="above")
    network = fw.network(
        [
            ModelOp(below, "x", "h", trainable=False, gradients=gradients),
            ModelOp(above, "h", "y"),
            MeanSquaredError(("y", "t"), "loss"),
            LambdaOp(lambda h: fw.mean(h), "h", "size"),
            *([UpdateOp(below, "loss")] if gradients else []),
            UpdateOp(above, "loss"),
        ]
    )
    results = fw.steps(network, make_batches(3), "train")
    assert np.allclose(fw.weights(below)[0], layers[0][0]) == (not gradients)
    return results, fw.weights(below), fw.weights(above)
