"""Losses where both frameworks lay predictions out alike: two axes, batch and classes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.tensorop.loss import CrossEntropy, LossOp, MeanSquaredError
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework

SOURCE = np.random.default_rng(0)
LOGITS = SOURCE.normal(size=(5, 3)).astype("float32")
CLASSES = np.array([0, 2, 1, 1, 0])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SOFT = SOURCE.dirichlet(np.ones(3), 5).astype("float32")
YES_NO = np.array([[1], [0], [1], [1], [0]], "float32")
PAIR = SOURCE.normal(size=(2, 24)).astype("float32")
WEIGHTS: dict[str, Any] = {"no": None, "two": {0: 0.5, 1: 2.0}, "one": {2: 3.0}}


def softmax(logits: Any) -> Any:
    powers = np.exp(logits)
    return (powers / powers.sum(1, keepdims=True)).astype("float32")


def sigmoid(logits: Any) -> Any:
    return (1 / (1 + np.exp(-logits))).astype("float32")


def weights_of(classes: Any, class_weights: dict[int, float]) -> Any:
    return np.array([class_weights.get(int(one), 1.0) for one in classes], "float32")


def compare(
    fw: Framework, pred: Any, true: Any, forms: list[Any], from_logits: bool, each: Any
) -> Any:
    """Run the op in all its ways, and compare with a loss that was worked out by hand.

    Args:
        fw: The framework.
        pred: Predictions.
        true: Truth.
        forms: The forms that mean the same here.
        from_logits: Whether predictions are logits.
        each: Given class weights, gives the loss of each sample.
    """
    settings = list(itertools.product(forms, WEIGHTS, (True, False)))
    ops = [
        CrossEntropy(
            ("pred", "true"),
            f"form {form}, {name} weights, average {average}",
            form=form,
            class_weights=WEIGHTS[name],
            average_loss=average,
            from_logits=from_logits,
        )
        for form, name, average in settings
    ]
    result = fw.step(fw.network(ops), {"pred": pred, "true": true}, "eval")
    for op, (_, name, average) in zip(ops, settings, strict=True):
        expected = each(WEIGHTS[name] or {})
        expected = np.array(expected.mean() if average else expected, "float32")
        assert_same(result[op.outputs[0]], expected, op.outputs[0])
    return result


@pytest.mark.parametrize("from_logits", [True, False], ids=["logits", "probabilities"])
class TestCrossEntropy:
    @pytest.mark.parametrize("truth", ["int64", "int32", "uint8", "column"])
    @conforms
    def test_sparse(self, fw: Framework, truth: str, from_logits: bool) -> Any:
        def each(weights: dict[int, float]) -> Any:
            logs = np.log(softmax(LOGITS))[np.arange(5), CLASSES]
            return -logs * weights_of(CLASSES, weights)

        pred = LOGITS if from_logits else softmax(LOGITS)
        true = CLASSES[:, None] if truth == "column" else CLASSES.astype(truth)
        return compare(fw, pred, true, ["sparse", None], from_logits, each)

    @pytest.mark.parametrize("truth", ["one-hot", "ints", "probabilities"])
    @conforms
    def test_categorical(self, fw: Framework, truth: str, from_logits: bool) -> Any:
        true = {"one-hot": ONE_HOT, "ints": ONE_HOT.astype("int64"), "probabilities": SOFT}[truth]

        def each(weights: dict[int, float]) -> Any:
            logs = np.log(softmax(LOGITS))
            return -(true * logs).sum(1) * weights_of(true.argmax(1), weights)

        pred = LOGITS if from_logits else softmax(LOGITS)
        return compare(fw, pred, true, ["categorical", None], from_logits, each)

    @pytest.mark.parametrize("truth", ["floats", "ints", "flat", "booleans"])
    @conforms
    def test_binary(self, fw: Framework, truth: str, from_logits: bool) -> Any:
        def each(weights: dict[int, float]) -> Any:
            return yes_or_no(LOGITS[:, :1], YES_NO, weights)[:, 0]

        pred = LOGITS[:, :1] if from_logits else sigmoid(LOGITS[:, :1])
        true: Any = {
            "floats": YES_NO,
            "ints": YES_NO.astype("int64"),
            "flat": YES_NO[:, 0],
            "booleans": YES_NO == 1,
        }[truth]
        return compare(fw, pred, true, ["binary", None], from_logits, each)

    @conforms
    def test_binary_of_several_columns(self, fw: Framework, from_logits: bool) -> Any:
        true = (SOFT > 0.3).astype("float32")

        def each(weights: dict[int, float]) -> Any:
            return yes_or_no(LOGITS, true, weights).mean(1)

        pred = LOGITS if from_logits else sigmoid(LOGITS)
        return compare(fw, pred, true, ["binary"], from_logits, each)

    @conforms
    def test_binary_without_columns(self, fw: Framework, from_logits: bool) -> Any:
        def each(weights: dict[int, float]) -> Any:
            return yes_or_no(LOGITS[:, 0], YES_NO[:, 0], weights)

        pred = LOGITS[:, 0] if from_logits else sigmoid(LOGITS[:, 0])
        return compare(fw, pred, YES_NO[:, 0], ["binary", None], from_logits, each)


def yes_or_no(logits: Any, true: Any, weights: dict[int, float]) -> Any:
    probabilities = sigmoid(logits)
    losses = -np.log(np.where(true == 1, probabilities, 1 - probabilities))
    return losses * weights_of(true.ravel(), weights).reshape(true.shape)


class TestCrossEntropyRuns:
    @conforms
    def test_everywhere_but_in_infer(self, fw: Framework) -> Any:
        network = fw.network([CrossEntropy(("pred", "true"), "loss", from_logits=True)])
        batch = {"pred": LOGITS, "true": CLASSES}
        results = [fw.step(network, batch, mode) for mode in ("train", "eval", "test", "infer")]
        assert ["loss" in result for result in results] == [True, True, True, False]
        return results

    @conforms
    def test_forms_seen_from_shapes_anew_in_each_step(self, fw: Framework) -> Any:
        network = fw.network([CrossEntropy(("pred", "true"), "loss", from_logits=True)])
        batches = [
            {"pred": LOGITS, "true": CLASSES},
            {"pred": LOGITS, "true": SOFT},
            {"pred": LOGITS[:, :1], "true": YES_NO},
            {"pred": LOGITS[:2], "true": CLASSES[:2]},
        ]
        results = fw.steps(network, batches, "eval")
        assert len({float(result["loss"]) for result in results}) == 4
        return results

    @pytest.mark.parametrize("form", ["sparse", "categorical", "binary"])
    @conforms
    def test_in_double_precision(self, fw: Framework, form: str) -> Any:
        pred = LOGITS.astype("float64")
        true = {"sparse": CLASSES, "categorical": ONE_HOT, "binary": ONE_HOT}[form]
        op = CrossEntropy(("pred", "true"), "loss", form=form, from_logits=True)
        result = fw.step(fw.network([op]), {"pred": pred, "true": true}, "eval")
        assert result["loss"].dtype == "float64"
        return result


class TestMeanSquaredError:
    @pytest.mark.parametrize("average", [True, False], ids=["mean", "each"])
    @pytest.mark.parametrize("shape", [(4, 3), (4, 1), (4,), (2, 3, 4)], ids=str)
    @conforms
    def test_shapes(self, fw: Framework, shape: tuple[int, ...], average: bool) -> Any:
        pred, true = (values[: np.prod(shape)].reshape(shape) for values in PAIR)
        network = fw.network([MeanSquaredError(("pred", "true"), "loss", average_loss=average)])
        result = fw.step(network, {"pred": pred, "true": true}, "test")
        each = ((pred - true) ** 2).mean(-1)
        assert_same(result["loss"], np.array(each.mean() if average else each))
        return result

    @conforms
    def test_modes_and_places(self, fw: Framework) -> Any:
        op = MeanSquaredError(["pred", "true"], "loss", mode=["infer", "eval"], ds_id="a")
        assert (op.pred_key, op.true_key) == ("pred", "true")
        network = fw.network([op, LossOp("loss", "same", mode="eval", ds_id="a")])
        batch = {"pred": LOGITS, "true": ONE_HOT}
        results = [
            fw.step(network, batch, mode, ds_id=ds_id)
            for mode in ("infer", "eval", "train")
            for ds_id in ("a", "b")
        ]
        assert [len(result) for result in results] == [3, 2, 4, 2, 2, 2]
        return results
