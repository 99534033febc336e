"""Ops that take gradients as values: by inputs, by weights, and to move inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.meta import Fuse, Repeat
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import MeanUnslicer, SlidingSlicer
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.failures import check_free
from tests.conformance.frameworks import FRAMEWORKS, Framework, make_layers, tf
from tests.conformance.oracle import make_batches

X = np.array([[1, -2, 3], [0.5, 4, -1]], dtype="float32")


def by_weights(batch: dict[str, Any], kernel: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Differentiate the mean squared error of a line by its kernel, bias and input."""
    x, t = batch["x"], batch["t"]
    error = 2 * (x @ kernel + bias - t) / t.size
    return x.T @ error, error.sum(0), error @ kernel.T


def line(fw: Framework) -> tuple[Any, Any, Any]:
    layers = make_layers(3, 2)
    return fw.build(layers, fw.sgd()), *layers[0]


def prediction(model: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        MeanSquaredError(("y", "t"), "loss", mode=None),
    ]


class TestGradientOp:
    def test_again_by_the_same_graph(self) -> None:
        network = FRAMEWORKS["torch"].network(
            [
                Watch("x"),
                LambdaOp(lambda x: (x**2, 0 * x), "x", ["y", "total"]),
                Repeat(
                    Fuse(
                        [
                            GradientOp("y", "g", inputs="x"),
                            LambdaOp(lambda total, g: total + g, ["total", "g"], "total"),
                        ]
                    ),
                    lambda total: total.max() < 30,
                ),
            ]
        )
        result = FRAMEWORKS["torch"].step(network, {"x": X})
        assert_same(result["total"], 8 * X)

    @pytest.mark.parametrize("given", [None, "grads"])
    @conforms
    def test_beside_an_update_by_the_same_graph(self, fw: Framework, given: Any) -> Any:
        model, kernel, bias = line(fw)
        batch = make_batches(1)[0]
        network = fw.network(
            [
                Watch("x"),
                *prediction(model),
                GradientOp("loss", "dx", inputs="x"),
                GradientOp("loss", "grads", model=model, mode="train"),
                UpdateOp(model, "loss", gradients=given),
            ]
        )
        result = fw.step(network, batch, "train", desired_output_keys={"dx", "loss"})
        by_kernel, by_bias, by_x = by_weights(batch, kernel, bias)
        assert_same(result["dx"], by_x)
        assert_same(fw.weights(model), [kernel - 0.1 * by_kernel, bias - 0.1 * by_bias])
        return result

    @conforms
    def test_inside_of_meta_ops(self, fw: Framework) -> Any:
        inner = Fuse(
            [
                Watch("x"),
                LambdaOp(lambda x: x**2, "x", "y"),
                GradientOp("y", "g", inputs="x"),
                LambdaOp(lambda x, g: x - 0.25 * g, ["x", "g"], "x"),
            ]
        )
        result = fw.step(fw.network([Repeat(inner, 3)]), {"x": X})
        # each time x becomes x / 2
        assert_same(result, {"x": X / 8, "y": (X / 4) ** 2, "g": X / 2})
        return result


def norms(fw: Framework, slope: Any) -> Any:
    """Return the norm of each row."""
    return slope.norm(dim=1) if fw.target == "torch" else tf.norm(slope, axis=1)


def penalized_by_hand(layers: Any, xs: list[Any], merges: int) -> tuple[list[Any], list[Any]]:
    """Train with the penalty of WGAN-GP in a loop of plain torch; return losses and weights."""
    weights = [torch.tensor(one, requires_grad=True) for layer in layers for one in layer]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    losses = []
    for place, array in enumerate(xs, start=1):
        x = torch.tensor(array, requires_grad=True)
        score = (x @ weights[0] + weights[1]).tanh() @ weights[2] + weights[3]
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        loss = score.mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        (loss / merges).backward()
        losses.append(loss.detach().numpy())
        if place % merges == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, [one.detach().numpy() for one in weights]


class TestHigherOrder:
    @pytest.mark.parametrize("merges", [1, 2])
    @conforms
    def test_a_penalty_of_the_slope(self, fw: Framework, merges: int) -> Any:
        layers = make_layers(3, 8, 1)
        model = fw.build(layers, fw.sgd())
        network = fw.network(
            [
                Watch("x"),
                ModelOp(model, "x", "score"),
                GradientOp("score", "constant", inputs="x"),
                GradientOp("score", "slope", inputs="x", higher_order=True),
                LambdaOp(
                    lambda score, slope: fw.mean(score) + 10 * fw.mean((norms(fw, slope) - 1) ** 2),
                    ["score", "slope"],
                    "loss",
                ),
                UpdateOp(model, "loss", merge_grad=merges),
            ]
        )
        batches = make_batches(4)
        wanted = {"loss", "slope", "constant"}
        results = fw.steps(network, batches, "train", desired_output_keys=wanted)
        losses, weights = penalized_by_hand(layers, [one["x"] for one in batches], merges)
        assert_same([one["loss"] for one in results], losses)
        assert_same(fw.weights(model), weights)
        for result in results:
            assert_same(result["slope"], result["constant"])
        return results, fw.weights(model)

    @conforms
    def test_by_weights(self, fw: Framework) -> Any:
        model, kernel, bias = line(fw)
        network = fw.network(
            [
                *prediction(model),
                GradientOp("loss", "grads", model=model, higher_order=True, mode="train"),
                LambdaOp(
                    lambda loss, grads: loss + sum(fw.mean(one**2) for one in grads),
                    ["loss", "grads"],
                    "total",
                    mode="train",
                ),
                UpdateOp(model, "total"),
            ]
        )
        batches = make_batches(3)
        results = fw.steps(network, batches, "train", desired_output_keys={"total"})
        weights = [torch.tensor(one, requires_grad=True) for one in (kernel, bias)]
        for batch, result in zip(batches, results, strict=True):
            x, t = map(torch.tensor, (batch["x"], batch["t"]))
            loss = ((x @ weights[0] + weights[1] - t) ** 2).mean()
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            total = loss + sum((one**2).mean() for one in grads)
            assert_same(result["total"], total.detach().numpy())
            with torch.no_grad():
                for one, grad in zip(weights, torch.autograd.grad(total, weights), strict=True):
                    one -= 0.1 * grad
        assert_same(fw.weights(model), [one.detach().numpy() for one in weights])
        return results

    @conforms
    def test_of_each_part_of_a_batch(self, fw: Framework) -> Any:
        """A slicer trains on one half after the other."""
        layers = make_layers(3, 8, 1)
        model = fw.build(layers, fw.sgd())
        ops = [
            Watch("x"),
            ModelOp(model, "x", "score"),
            GradientOp("score", "slope", inputs="x", higher_order=True),
            LambdaOp(
                lambda score, slope: fw.mean(score) + 10 * fw.mean((norms(fw, slope) - 1) ** 2),
                ["score", "slope"],
                "loss",
            ),
            UpdateOp(model, "loss"),
        ]
        slicers = [SlidingSlicer([2, -1], slice="x", unslice=None), MeanUnslicer("loss")]
        batch = make_batches(1)[0]
        result = fw.step(
            fw.network(ops, slicers=slicers), batch, "train", desired_output_keys={"loss"}
        )
        losses, weights = penalized_by_hand(layers, [batch["x"][:2], batch["x"][2:]], 1)
        assert_same(float(result["loss"]), float(np.mean(losses)))
        assert_same(fw.weights(model), weights)
        return fw.weights(model)

    def test_a_penalty_alone_of_a_first_order_gradient(self, fw: Framework) -> None:
        model, *_ = line(fw)
        network = fw.network(
            [
                Watch("x"),
                ModelOp(model, "x", "y"),
                GradientOp("y", "slope", inputs="x"),
                LambdaOp(lambda slope: fw.mean(slope**2), "slope", "loss"),
                UpdateOp(model, "loss"),
            ]
        )
        with pytest.raises((RuntimeError, ValueError), match="only with higher_order=True"):
            fw.step(network, make_batches(1)[0], "train")
        check_free(network)


@pytest.mark.parametrize(
    ("mode", "clips"),
    [("train", (None, None)), ("train", (-0.5, 0.5)), ("eval", (0.5, 0.5))],
)
@conforms
def test_fgsm(fw: Framework, mode: str, clips: tuple[Any, Any]) -> Any:
    model, kernel, bias = line(fw)
    low, high = clips
    network = fw.network(
        [
            Watch("x"),
            *prediction(model),
            FGSM("x", "loss", "moved", epsilon=0.05, clip_low=low, clip_high=high),
            ModelOp(model, "moved", "y2"),
            MeanSquaredError(("y2", "t"), "loss2", mode=None),
            UpdateOp(model, "loss2"),
        ]
    )
    batches = make_batches(2)
    results = fw.steps(network, batches[:1], mode)
    x = batches[0]["x"]
    sign = np.sign(by_weights(batches[0], kernel, bias)[2])
    moved = np.clip(x + np.float32(0.05) * sign, low or x.min(), high or x.max())
    assert_same(results[0]["moved"], moved)
    if mode == "train":
        # only the weights get gradients, through the moved inputs
        by_kernel, by_bias, _ = by_weights({**batches[0], "x": moved}, kernel, bias)
        assert_same(fw.weights(model), [kernel - 0.1 * by_kernel, bias - 0.1 * by_bias])
    else:
        assert_same(fw.weights(model), [kernel, bias])
    results += fw.steps(network, batches[1:], mode)
    return results, fw.weights(model)


def test_fgsm_without_a_watch_in_front(fw: Framework) -> None:
    network = fw.network(
        [
            Watch("w"),
            LambdaOp(lambda x, w: x**2 + w, ["x", "w"], "loss"),
            FGSM("x", "loss", "moved"),
        ]
    )
    batch = {"x": X, "w": X}
    for _ in range(2):
        # torch's own error, or fastnet's where TensorFlow gives no gradient
        with pytest.raises((RuntimeError, ValueError)) as caught:
            fw.step(network, batch)
        words = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert "FGSM" in words
        assert "Watch" in words
        check_free(network)
