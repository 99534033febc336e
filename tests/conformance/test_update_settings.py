"""Updates that clip, merge, report and are averaged, and their rates, beside a loop in numpy."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.backend import get_lr, set_lr
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import FRAMEWORKS, Framework, TakeGradients, make_layers, tf
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression

LAYERS = make_layers(3, 2)
REPORTS: Any = {"stepped": "stepped", "total": "total", "grad_norm": "norm"}
CLIPS: list[dict[str, Any]] = [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}]


@pytest.fixture(params=FRAMEWORKS)
def fw(request: pytest.FixtureRequest) -> Framework:
    """The framework that a program runs in, compiled steps included."""
    return FRAMEWORKS[request.param]


class Loop:
    """Trains a line by the averages of windows of batches."""

    def __init__(self, clip_norm: float | None = None, clip_value: float | None = None) -> None:
        self.line = Line(*LAYERS[0])
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.average: Any = None

    def step(self, window: list[Any], decay: float = 0.9) -> float:
        """Update by a window, average weights, and return the norm of the gradients."""
        each = [self.line.gradients(batch) for batch in window]
        means = [sum(parts) / len(window) for parts in zip(*each, strict=True)]
        norm = float(np.sqrt(sum((one**2).sum() for one in means)))
        if self.clip_norm is not None:
            means = [one * min(1, self.clip_norm / norm) for one in means]
        if self.clip_value is not None:
            means = [one.clip(-self.clip_value, self.clip_value) for one in means]
        self.line.descend(tuple(means))
        now = self.line.weights
        before = self.average or now
        self.average = [
            decay * old + (1 - decay) * new for old, new in zip(before, now, strict=True)
        ]
        return norm


@pytest.mark.parametrize(
    ("clip", "merge", "defer", "last"),
    [
        (CLIPS[0], 1, False, True),
        (CLIPS[0], 3, True, True),
        (CLIPS[1], 3, False, True),
        (CLIPS[1], 1, True, False),
        (CLIPS[2], 3, False, False),
    ],
)
def test_is_a_hand_written_loop(
    fw: Framework, clip: dict[str, Any], merge: int, defer: bool, last: bool
) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    ema = EMA(model, decay=0.9)
    ops = regression(model, merge_grad=merge, defer=defer, outputs=REPORTS, **clip)
    # an update that does not stand last is not put off by the network
    after = [] if last else [LambdaOp(lambda x: x, "x", "copy")]
    evaluate = ModelOp(ema.averaged, "x", "averaged", mode="eval")
    network = fw.network([*ops, *after, ema, evaluate])
    batches, loop = make_batches(7), Loop(**clip)
    for number, result in enumerate(fw.steps(network, batches, "train"), 1):
        assert result["stepped"].dtype == bool
        assert result["stepped"].shape == result["norm"].shape == ()
        assert result["stepped"] == (number % merge == 0)
        assert result["total"].shape == ()
        np.testing.assert_allclose(result["total"], loop.line.loss(batches[number - 1]), rtol=1e-5)
        if number % merge:
            assert np.isnan(result["norm"])
        else:
            norm = loop.step(batches[number - merge : number])
            np.testing.assert_allclose(result["norm"], norm, rtol=1e-4)
    assert_same(fw.weights(model), loop.line.weights)
    kernel, bias = loop.average
    assert_same(fw.weights(ema.averaged), [kernel, bias])
    result = fw.step(network, batches[0], "eval")
    assert_same(result["averaged"], (batches[0]["x"] @ kernel + bias).astype("float32"))


def warming(fw: Framework) -> Any:
    least = min if fw.target == "torch" else tf.minimum
    return lambda n: least((1 + n) / (3 + n), 0.6)


def byol(fw: Framework) -> Any:
    cos = math.cos if fw.target == "torch" else tf.cos
    return lambda n: 1 - 0.5 * (cos(math.pi * n / 5) + 1) / 2


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("decay", [warming, byol])
def test_decays_by_the_number_of_updates(fw: Framework, decay: Any, merge: int) -> None:
    """The number begins at 1 in the second update, and goes on where a state was saved."""
    model = fw.build(LAYERS, fw.sgd(0.1))
    ema = EMA(model, decay=decay(fw))
    network = fw.network([*regression(model, merge_grad=merge), ema])
    batches, loop, numbers = make_batches(8 * merge), Loop(), decay(FRAMEWORKS["torch"])
    for start in (0, 4 * merge):
        fw.steps(network, batches[start : start + 4 * merge], "train", epoch=1 + start)
        for index in range(start, start + 4 * merge, merge):
            update = index // merge
            loop.step(batches[index : index + merge], numbers(update) if update else 0.0)
        assert_same(fw.weights(ema.averaged), loop.average)
        assert ema.state_dict()["updates"] == 4 + start // merge
        ema.load_state_dict(json.loads(json.dumps(ema.state_dict())))
    if fw.name == "torch-compiled":
        traces = network.traces  # type: ignore[attr-defined]
        assert len(traces) <= (1 if merge == 1 else 3)
        assert not any(trace.fallback for trace in traces)
    ema.load_state_dict({**ema.state_dict(), "updates": 0})
    fw.step(network, batches[0], "train", epoch=9)
    if merge == 1:
        assert_same(fw.weights(ema.averaged), fw.weights(model))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_decays_are_as_exact_as_the_weights(fw: Framework, dtype: str, scheduled: bool) -> None:
    if fw.target == "torch":
        model = fw.build(LAYERS, fw.sgd(0.1)).to(getattr(torch, dtype))
        put: Any = lambda value: [one.data.fill_(value) for one in model.parameters()]  # noqa: E731
    else:
        layers = tf.keras.layers
        model = fastnet.build(
            lambda: tf.keras.Sequential([layers.Input((3,)), layers.Dense(2, dtype=dtype)]),
            fw.sgd(0.1),
        )

        def put(value: float) -> None:
            for one in model.weights:
                one.assign(tf.fill(one.shape, tf.cast(value, dtype)))

    ema = EMA(model, decay=(lambda n: 0.999) if scheduled else 0.999)
    follow = ema.follow if fw.target == "torch" or fw.eager else tf.function(ema.follow)
    for value in (1.0, 100.0):
        put(value)
        follow(True)
    for weight in fw.weights(ema.averaged):
        assert weight.dtype == dtype
        # one rounding of the result, and two of the terms
        spacing = {"float64": 2e-16, "float32": 1e-7, "float16": 5e-4}[dtype]
        np.testing.assert_allclose(weight, 0.999 * 1 + 0.001 * 100, rtol=2 * spacing)


def test_decays_that_are_none(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1), "m")
    with pytest.raises(ValueError, match=r"EMA of 'm'.* is 2 after 1 updates.*from 0 to 1"):
        EMA(model, decay=lambda n: 2)
    ema = EMA(model, decay=warming(fw))
    text = str(fw.network([*regression(model), ema]).explain("train"))
    assert "averages weights with the decay of <lambda>" in text


@pytest.mark.parametrize("eager", [True, False])
def test_decays_of_python_numbers_in_a_graph(eager: bool) -> None:
    """`math.cos` takes a tensor only if it has a value."""
    fw = FRAMEWORKS["tf-eager" if eager else "tf-static"]
    model = fw.build(LAYERS, fw.sgd(0.1), "m")
    ema = EMA(model, decay=lambda n: math.cos(n) ** 2)
    network = fw.network([*regression(model), ema])
    if eager:
        fw.steps(network, make_batches(2), "train")
        return
    with pytest.raises(TypeError) as caught:
        fw.step(network, make_batches(1)[0], "train")
    notes = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "the decay of the EMA of 'm'" in notes
    assert "functions of tf" in notes


@pytest.mark.parametrize("decay", [0, 1])
def test_decays_of_averages_are_from_0_to_1(fw: Framework, decay: int) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    ema = EMA(model, decay=decay)
    network = fw.network([*regression(model), ema])
    each = []
    for batch in make_batches(3):
        fw.step(network, batch, "train")
        each.append(fw.weights(model))
    assert_same(fw.weights(ema.averaged), each[0 if decay else -1])


@pytest.mark.parametrize("rest", ["carry", "flush", "drop"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_left_at_an_epochs_end(fw: Framework, rest: str, inside: bool) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    *ops, update = regression(model, merge_grad=3, rest=rest, clip_norm=0.2)
    network = fw.network([*ops, Fuse([update]) if inside else update])
    first, second, loop = make_batches(5), make_batches(4, seed=1), Loop(clip_norm=0.2)
    fw.steps(network, first, "train")
    fw.steps(network, first[:1], "eval")
    fw.steps(network, second, "train", 2)
    windows = {
        "carry": [first[:3], [*first[3:], second[0]], second[1:]],
        "flush": [first[:3], first[3:], second[:3], second[3:]],
        "drop": [first[:3], second[:3]],
    }
    for window in windows[rest]:
        loop.step(window)
    assert_same(fw.weights(model), loop.line.weights)
    assert update.state_dict()["merged"] == 0


@pytest.mark.parametrize("rest", ["flush", "drop"])
def test_an_error_carries_what_is_left(fw: Framework, rest: str) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    ops = regression(model, merge_grad=2, rest=rest)
    network, (batch,) = fw.network(ops), make_batches(1)
    with pytest.raises(KeyboardInterrupt), fw.opened(network, "train"):  # noqa: PT012
        network.run_step(fw.tensors(batch))
        raise KeyboardInterrupt
    assert_same(fw.weights(model), list(LAYERS[0]))
    assert ops[2].state_dict()["merged"] == 1


@pytest.mark.parametrize("lowered", [1, 2])
def test_a_lower_merge_grad_averages_what_was_merged_before(fw: Framework, lowered: int) -> None:
    """After 2 of 3 steps were merged, the third one updates with the average of the three."""
    model = fw.build(LAYERS, fw.sgd(0.1))
    ops = regression(model, merge_grad=3)
    network, batches, loop = fw.network(ops), make_batches(5), Loop()
    fw.steps(network, batches[:2], "train")
    ops[2].merge_grad = lowered
    fw.steps(network, batches[2:], "train")
    for first, last in itertools.pairwise([0, 3, *range(3 + lowered, 6, lowered)]):
        loop.step(batches[first:last])
    assert_same(fw.weights(model), loop.line.weights)


def test_a_warmup_takes_no_step(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    ema = EMA(model)
    network = fw.network([*regression(model, outputs=REPORTS, merge_grad=2, rest="flush"), ema])
    (batch,) = make_batches(1)
    (result,) = fw.steps(network, [batch], "train", warmup=True)
    assert not result["stepped"]
    np.testing.assert_allclose(result["total"], Line(*LAYERS[0]).loss(batch), rtol=1e-5)
    assert np.isnan(result["norm"])
    for one in (model, ema.averaged):
        assert_same(fw.weights(one), list(LAYERS[0]))


@pytest.mark.parametrize("place", ["last", "deferred", "before another op"])
def test_two_updates_of_one_model(fw: Framework, place: str) -> None:
    """They take one step together at the end of a torch network, or deferred; otherwise two."""
    model, line = fw.build(LAYERS, fw.sgd(0.1, momentum=0.5)), Line(*LAYERS[0])
    ops = [
        ModelOp(model, "x", "y"),
        *[
            LambdaOp(lambda y, t, k=k: fw.mean((y - k * t) ** 2), ["y", "t"], f"loss {k}")
            for k in (1, 3)
        ],
        *[UpdateOp(model, f"loss {k}", defer=place == "deferred") for k in (1, 3)],
    ]
    network = fw.network(ops if place == "last" else [*ops, LambdaOp(lambda x: x, "x", "copy")])
    together = fw.target == "torch" and place != "before another op"
    speed = [0.0 * weight for weight in line.weights]
    for batch in make_batches(3):
        fw.step(network, batch, "train")
        each = [line.gradients({**batch, "t": k * batch["t"]}) for k in (1, 3)]
        sums = [tuple(map(sum, zip(*each, strict=True)))]
        for gradients in sums if together else each:
            speed = [0.5 * old + new for old, new in zip(speed, gradients, strict=True)]
            line.descend(tuple(speed))
    assert_same(fw.weights(model), line.weights)


def test_total_of_losses_of_samples(fw: Framework) -> None:
    """It is their mean, and is not changed with the loss afterwards."""
    model = fw.build(LAYERS, fw.sgd(0.1))
    ops = [
        ModelOp(model, "x", "y"),
        LambdaOp(lambda y, t: fw.mean((y - t) ** 2, 1), ["y", "t"], "loss"),
        UpdateOp(model, "loss", outputs={"total": "total"}, model_losses=False),
        LambdaOp(lambda loss: loss * 2, "loss", "loss"),
    ]
    network, line = fw.network(ops), Line(*LAYERS[0])
    for batch in make_batches(3):
        result = fw.step(network, batch, "train")
        np.testing.assert_allclose(result["total"], line.train(batch), rtol=1e-5)
    assert_same(fw.weights(model), line.weights)


def test_given_gradients_are_clipped(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    take = TakeGradients(fw, model, "loss", "g")
    *ops, update = regression(model, gradients="g", clip_norm=0.1, outputs=REPORTS)
    network, (batch,), loop = fw.network([*ops, take, update]), make_batches(1), Loop(clip_norm=0.1)
    result = fw.step(network, batch, "train", desired_output_keys={"norm", "total"})
    assert np.isnan(result["total"])
    np.testing.assert_allclose(result["norm"], loop.step([batch]), rtol=1e-5)
    assert_same(fw.weights(model), loop.line.weights)


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_nan_gradients_that_are_not_scaled_are_applied(fw: Framework, clip: Any) -> None:
    """As a hand-written loop does."""
    model = fw.build(LAYERS, fw.sgd(0.1))
    network = fw.network(regression(model, outputs=REPORTS, **clip))
    (batch,) = make_batches(1)
    result = fw.step(network, {**batch, "x": batch["x"] * np.float32("nan")}, "train")
    assert result["stepped"]
    assert np.isnan(result["norm"])
    assert all(np.isnan(one).all() for one in fw.weights(model))


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_a_step_that_overflows_is_none(fw: Framework, clip: dict[str, Any]) -> None:
    """Where losses are scaled; an average does not count it either."""
    halves: Any = {"torch": "fp16", "tf": True}[fw.target]
    model = fw.build(LAYERS, fw.sgd(0.1), mixed_precision=halves)
    ema = EMA(model, decay=0.9)
    predict, _, update = regression(model, outputs=REPORTS, **clip)
    error = LambdaOp(lambda y, t: fw.mean((fw.cast(y, "float32") - t) ** 2), ["y", "t"], "loss")
    network = fw.network([predict, error, update, ema])
    (batch,), loop = make_batches(1), Loop(**clip)
    # so near to the targets that float16 can hold the gradients of a scaled loss
    batch["t"] = (loop.line.predict(batch) + 0.2 * batch["t"]).astype("float32")
    for factor in (1, 6e4, 1):
        before = fw.weights(model), fw.weights(ema.averaged)
        (result,) = fw.steps(network, [{**batch, "x": batch["x"] * np.float32(factor)}], "train")
        assert result["stepped"] == (factor == 1)
        assert result["total"] == result["loss"]  # It is unscaled.
        if result["stepped"]:
            # unscaled, and before it is clipped
            np.testing.assert_allclose(result["norm"], loop.step([batch]), rtol=3e-2)
        else:
            assert np.isnan(result["norm"])
            assert_same((fw.weights(model), fw.weights(ema.averaged)), before)
    for own, expected in zip(fw.weights(ema.averaged), loop.average, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-2, atol=1e-2)


def test_an_update_of_a_frozen_layer_leaves_it_out_of_the_norm(fw: Framework) -> None:
    layers = make_layers(3, 4, 2)
    model = fw.build(layers, fw.sgd(0.1))
    network = fw.network(
        [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y: fw.mean(y), "y", "loss"),
            UpdateOp(model, "loss", outputs=REPORTS),
        ]
    )
    fw.freeze(model, 0)
    (batch,) = make_batches(1)
    result = fw.step(network, batch, "train")
    moved = [before - now for now, before in zip(fw.weights(model)[2:], layers[1], strict=True)]
    norm = np.sqrt(sum((one**2).sum() for one in moved)) / 0.1
    np.testing.assert_allclose(result["norm"], norm, rtol=1e-3)
    assert_same(fw.weights(model)[:2], list(layers[0]))


RATES = {
    "sgd": (0.01, 0.01),
    "adam": (0.001, 0.001),
    "rmsprop": (0.01, 0.001),
    "adadelta": (1.0, 0.001),
}


def decaying(fw: Framework, rate: float = 0.5, decay: float = 0.25) -> Any:
    if fw.target == "torch":
        return lambda parameters: torch.optim.SGD(parameters, rate, weight_decay=decay)
    return lambda: tf.keras.optimizers.SGD(rate, weight_decay=decay)


def build(fw: Framework, optimizer: Any) -> Any:
    return fw.build(LAYERS, optimizer, name="net")


@pytest.mark.parametrize("name", RATES)
def test_of_a_name(fw: Framework, name: str) -> None:
    rate = get_lr(build(fw, name))
    assert type(rate) is float
    assert rate == pytest.approx(RATES[name][fw.target == "tf"])


def test_counts_from_the_next_step_on(fw: Framework) -> None:
    """A decay is taken off with the update: w - rate * (gradient + decay * w)."""
    model, line = build(fw, decaying(fw)), Line(*LAYERS[0])
    network = fw.network(regression(model))
    with fw.opened(network, "train"):
        for batch, rate, decay in zip(
            make_batches(4), (0.5, np.float64(0.25), 0, 2.0), (0.25, 0.5, 0.5, 0.0), strict=True
        ):
            set_lr(model, rate, weight_decay=decay)
            assert get_lr(model) == rate
            network.run_step(fw.tensors(batch))
            by_kernel, by_bias = line.gradients(batch)
            line.descend((by_kernel + decay * line.kernel, by_bias + decay * line.bias), rate)
            assert_same(fw.weights(model), line.weights)
    if fw.name != "torch-compiled":  # A rate or a decay of 0 is another program.
        assert len(getattr(network, "traces", [])) == (fw.name == "tf-static")


def test_what_cannot_be_set(fw: Framework) -> None:
    model = build(fw, "adam" if fw.target == "tf" else torch.optim.Rprop)
    with pytest.raises(ValueError, match=r"'net'.*(Adam|Rprop)"):
        set_lr(model, 0.1, weight_decay=0.1)
    assert get_lr(model) == pytest.approx(0.01 if fw.target == "torch" else 0.001)
    for call in (get_lr, lambda model: set_lr(model, 0.1)):
        with pytest.raises(ValueError, match="'net' has no optimizer"):
            call(build(fw, None))
        with pytest.raises(AssertionError, match=r"fastnet\.build"):
            call(fw.make_model(LAYERS))
        with pytest.raises(ValueError, match="int"):
            call(3)


class TestGroupsOfTorch:
    def build(self) -> Any:
        def optimizer(parameters: Any) -> Any:
            first, second = parameters
            return torch.optim.AdamW(
                [{"params": [first]}, {"params": [second], "lr": 0.25, "weight_decay": 0.5}],
                torch.tensor(0.5),
            )

        return build(FRAMEWORKS["torch"], optimizer)

    def test_the_first_is_read_and_all_are_set(self) -> None:
        model = self.build()
        groups = model.current_optimizer.param_groups
        rate = groups[0]["lr"]
        assert get_lr(model) == 0.5
        set_lr(model, 2)
        assert [float(group["lr"]) for group in groups] == [2.0, 2.0]
        # a tensor, which a captured step may read, stays the same
        assert groups[0]["lr"] is rate
        assert [group["weight_decay"] for group in groups] == [0.01, 0.5]
        set_lr(model, 0.5, weight_decay=0.125)
        assert [group["weight_decay"] for group in groups] == [0.125, 0.125]


class TestKeras:
    def test_a_schedule_stays(self) -> None:
        decay = tf.keras.optimizers.schedules.ExponentialDecay(0.4, 1, 0.5)
        model = build(FRAMEWORKS["tf-eager"], lambda: tf.keras.optimizers.SGD(decay))
        with pytest.raises(ValueError, match=r"'net' cannot be set.*SGD.*with a number"):
            set_lr(model, 0.1)
        assert get_lr(model) == pytest.approx(0.4)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_the_weight_decay_changes_with_the_rate(self, mixed: bool) -> None:
        """As FastEstimator's LRScheduler does it."""
        make = lambda: tf.keras.optimizers.AdamW(0.5, weight_decay=0.25)  # noqa: E731
        model = FRAMEWORKS["tf-eager"].build(LAYERS, make, mixed_precision=mixed)
        set_lr(model, 0.25)
        optimizer = getattr(model.current_optimizer, "inner_optimizer", model.current_optimizer)
        assert float(optimizer.weight_decay) == 0.125
        set_lr(model, 0.125, weight_decay=0.5)
        assert float(optimizer.weight_decay) == 0.5
        assert get_lr(model) == 0.125


def weighted_batches(sizes: list[int]) -> list[dict[str, Any]]:
    """Make batches of some sizes, with the size as weight; an empty one has NaNs in four rows."""
    batches = []
    for seed, size in enumerate(sizes):
        (batch,) = make_batches(1, size=size or 4, seed=seed)
        batch["count"] = np.array(size, "int64")
        if not size:
            batch["x"][:] = np.nan
        batches.append(batch)
    return batches


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the batches that have a weight into a large one."""
    weighted = [one for one in batches if one["count"]]
    return {key: np.concatenate([one[key] for one in weighted]) for key in ("x", "t")}


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("clip", CLIPS[:2])
def test_weighted_windows_update_as_one_large_batch(
    fw: Framework, merge: int, clip: dict[str, Any]
) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    network = fw.network(
        regression(model, merge_grad=merge, weight="count", outputs=REPORTS, **clip)
    )
    batches, loop = weighted_batches([2, 11, 0, 3, 0, 0, 7, 1]), Loop(**clip)
    for number, result in enumerate(fw.steps(network, batches, "train"), 1):
        window = batches[number - merge : number]
        stepped = number % merge == 0 and any(one["count"] for one in window)
        assert result["stepped"] == stepped
        if stepped:
            norm = loop.step([joined(window)])
            np.testing.assert_allclose(result["norm"], norm, rtol=1e-4)
        else:
            assert np.isnan(result["norm"])
    assert_same(fw.weights(model), loop.line.weights)


def test_weights_are_carried_into_the_next_context_and_a_copy(fw: Framework) -> None:
    models = [fw.build(LAYERS, fw.sgd(0.1)) for _ in range(2)]
    ops = [regression(model, merge_grad=2, weight="count") for model in models]
    networks = list(map(fw.network, ops))
    batches, loop = weighted_batches([2, 11, 3]), Loop()
    fw.steps(networks[0], batches[:1], "train")
    state = ops[0][2].state_dict()
    assert (state["merged"], state["weight"]) == (1, 2)
    ops[1][2].load_state_dict(state)
    loop.step([joined(batches[:2])])
    for model, network in zip(models, networks, strict=True):
        fw.steps(network, batches[1:], "train", 2)
        assert_same(fw.weights(model), loop.line.weights)
    plain = UpdateOp(models[1], "loss", merge_grad=2)
    with pytest.raises(ValueError, match="merged with weights, but the op merges without weights"):
        plain.load_state_dict(ops[0][2].state_dict())


@pytest.mark.parametrize(
    ("weight", "found"),
    [(np.ones(3, "float32"), r"the shape \(3,\)"), ("many", "'many'"), (None, "None")],
)
def test_weights_are_single_numbers(fw: Framework, weight: Any, found: str) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    network = fw.network(regression(model, weight="count"))
    (batch,) = make_batches(1)
    error = f"UpdateOp of 'model' expects one number as its weight 'count'.* got .*{found}"
    with pytest.raises(Exception, match=error):
        fw.step(network, {**batch, "count": weight}, "train")
    assert_same(fw.weights(model), list(LAYERS[0]))
    for count in (np.array(False), np.array(2.0, "float32")):
        fw.step(network, {**batch, "count": count}, "train")
    loop = Loop()
    loop.step([batch])
    assert_same(fw.weights(model), loop.line.weights)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [{}, {"clip_value": 0.01}, {"merge_grad": 2}])
def test_gradients_that_are_not_finite_are_skipped(
    fw: Framework, value: float, settings: dict[str, Any]
) -> None:
    merge = settings.get("merge_grad", 1)
    model = fw.build(LAYERS, fw.adam(0.1))
    other = fw.build(LAYERS, fw.adam(0.1))
    ema, other_ema = EMA(model, decay=0.5), EMA(other, decay=0.5)
    network = fw.network(
        [*regression(model, skip_nonfinite=True, outputs=REPORTS, **settings), ema]
    )
    batches = make_batches(6)
    batches[2]["x"][0, 0] = value
    results = fw.steps(network, batches, "train")
    expected = [
        number % merge == merge - 1 and 2 not in range(number - merge + 1, number + 1)
        for number in range(6)
    ]
    assert [bool(result["stepped"]) for result in results] == expected
    assert [not np.isnan(result["norm"]) for result in results] == expected
    # A loop leaves the windows with the batch out.
    kept = batches[: 2 // merge * merge] + batches[2 // merge * merge + merge :]
    fw.steps(fw.network([*regression(other, **settings), other_ema]), kept, "train")
    assert_same(fw.weights(model), fw.weights(other))
    assert_same(fw.weights(ema.averaged), fw.weights(other_ema.averaged))


def test_without_skipping_gradients_that_are_not_finite_update(fw: Framework) -> None:
    model = fw.build(LAYERS, fw.sgd(0.1))
    (batch,) = make_batches(1)
    batch["x"][0, 0] = np.nan
    assert fw.step(fw.network(regression(model, outputs=REPORTS)), batch, "train")["stepped"]
    assert np.isnan(fw.weights(model)[0]).any()
