"""Where one op cannot be captured the ops before and after it are, if gradients allow it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend.precision import Precision
from fastnet.network import TorchNetwork
from fastnet.network.torch.captured import parts
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.captured.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    mlp,
)

SEEN: list[float] = []


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    SEEN.clear()
    # so that few ops show what many do
    monkeypatch.setattr(parts, "FEWEST", 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*run op by op")
        yield


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def noted(x: torch.Tensor) -> torch.Tensor:
    """Look at values, which no captured step can."""
    SEEN.append(float(x.detach().sum()))
    return x * 1


def weighed(pred: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(pred.float(), y) * weight


def distance(pred: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (pred - other.detach()).square().mean()


def accuracy(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (pred.argmax(1) == y).float().mean()


def training(model: Any, **where: Any) -> list[Any]:
    """List the ops of a training step, with others at some places of it."""
    ops = {
        "first": LambdaOp(halved, "x", "x"),
        "second": LambdaOp(shifted, "x", "x"),
        "model": ModelOp(model, "x", "pred"),
        "loss": CrossEntropy(["pred", "y"], "loss", from_logits=True),
        "update": UpdateOp(model, "loss"),
        "metric": LambdaOp(accuracy, ["pred", "y"], "accuracy"),
        "twice": LambdaOp(shifted, "accuracy", "more"),
    }
    listed = []
    for name, op in ops.items():
        listed += where.get(name, [])
        listed.append(op)
    return [*listed, *where.get("end", [])]


def both(
    where: Callable[[], dict[str, Any]],
    data: list[dict[str, torch.Tensor]],
    mode: str = "train",
    optimizer: str = "adam",
    precision: Precision = False,
) -> TorchNetwork:
    """Run the same steps captured and op by op, and compare all of it."""
    results, models, seen = [], [], []
    network = None
    for compile in (False, QUICK):
        SEEN.clear()
        torch.manual_seed(0)
        model = fastnet.build(mlp, OPTIMIZERS[optimizer], mixed_precision=precision)
        network = TorchNetwork(training(model, **where()), compile=compile)
        with network(mode, 1):
            results.append([network.run_step(dict(batch)) for batch in data])
        models.append(model)
        seen.append(list(SEEN))
    assert network is not None
    for own, other in zip(*results, strict=True):
        assert own.keys() == other.keys()
        for key in own:
            torch.testing.assert_close(own[key], other[key], rtol=1e-5, atol=1e-6)
            assert not other[key].requires_grad
            assert own[key].dtype is other[key].dtype
    assert_same_weights(*models)
    assert len(seen[0]) == len(seen[1]) > 0
    assert seen[0] == pytest.approx(seen[1], rel=1e-4, abs=1e-5)
    return network


def told(network: TorchNetwork) -> list[tuple[str, bool]]:
    return [
        (f"{trace.reason}: {trace.part or 'all'}", trace.fallback is None)
        for trace in network.traces
    ]


def at(key: str) -> LambdaOp:
    return LambdaOp(noted, key, key)


def test_an_op_at_the_end_leaves_the_training_step_captured() -> None:
    network = both(lambda: {"end": [at("accuracy")]}, batches(5))
    first, second = told(network)
    assert first == ("first step: all", False)
    reason, captured = second
    assert captured
    assert "LambdaOp (op 0" in reason
    assert "LambdaOp (op 6" in reason


def test_an_op_at_the_beginning() -> None:
    network = both(lambda: {"first": [at("x")]}, batches(5))
    assert [captured for _, captured in told(network)] == [False, True]
    assert "LambdaOp (op 1" in told(network)[1][0]


def test_an_op_between_two_ops_that_take_no_gradients() -> None:
    network = both(
        lambda: {"twice": [at("accuracy")], "end": [LambdaOp(halved, "more", "more")]}, batches(5)
    )
    assert [captured for _, captured in told(network)] == [False, True, True]


def test_an_op_that_gradients_go_through_leaves_what_is_before_and_after_the_update() -> None:
    network = both(lambda: {"loss": [at("pred")]}, batches(6))
    (_, whole), (before, one), (after, two) = told(network)
    assert (whole, one, two) == (False, True, True)
    assert all(op in before for op in ("(op 0", "(op 1"))
    assert all(op in after for op in ("(op 6", "(op 7"))


@pytest.mark.parametrize("count", [3, 4])
def test_few_small_ops_are_not_worth_a_call(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ops = [LambdaOp(shifted, "x", "x") for _ in range(count)]
    network = TorchNetwork([*ops, at("x"), *ops], compile=QUICK)
    with network("infer", 1):
        for _ in range(4):
            found = network.run_step({"x": torch.zeros(2)})["x"]
            assert torch.equal(found, torch.full((2,), 2.0 * count))
    assert [captured for _, captured in told(network)] == [False] + [True, True] * (count == 4)


def test_several_ops_that_cannot() -> None:
    network = both(lambda: {"first": [at("x")], "end": [at("accuracy"), at("more")]}, batches(8))
    captured = [one for _, one in told(network)]
    assert captured.count(True) == 1
    assert any("(op 1" in reason and "(op 7" in reason for reason, one in told(network) if one)


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_without_gradients_all_that_is_around_the_op_is_captured(mode: str) -> None:
    network = both(lambda: {"loss": [at("pred")]}, batches(5), mode)
    assert [captured for _, captured in told(network)] == [False, True, True]


def test_an_op_that_deletes_runs_by_itself() -> None:
    data = batches(6)
    network = both(lambda: {"loss": [Delete("x")], "end": [at("accuracy")]}, data, "eval")
    assert [captured for _, captured in told(network)] == [False, True, True]


def test_numbers_of_python_that_an_op_counts_by() -> None:
    class Counting(TensorOp):
        calls = 0

        def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
            self.calls += 1
            SEEN.append(self.calls)
            return data * self.calls

    network = both(lambda: {"end": [Counting("accuracy", "counted")]}, batches(5))
    assert [captured for _, captured in told(network)] == [False, True]


def test_a_value_of_the_batch_that_no_graph_takes() -> None:
    data = [{**batch, "names": ("a", object())} for batch in batches(4)]

    def first(names: Any, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(len(names))
        return x * len(names)

    results = []
    for compile in (False, QUICK):
        model = built()
        network = TorchNetwork(
            training(model, first=[LambdaOp(first, ["names", "x"], "x")]), compile=compile
        )
        with network("train", 1):
            results.append([network.run_step(batch)["loss"] for batch in data])
    torch.testing.assert_close(*results)
    assert [captured for _, captured in told(network)] == [False, True]


class Whole(nn.Module):
    """Has a part in front of it that is a model of its own, too."""

    def __init__(self, front: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.back = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.back(x)
        return found


@pytest.mark.parametrize(
    ("reads", "loss", "parts"),
    # what the second learns of the first has a graph, if it takes no gradient
    [("y", nn.functional.cross_entropy, 2), ("first_pred", distance, 0)],
)
def test_two_models_that_read_the_same_are_divided_if_no_gradient_is_between(
    reads: str, loss: Callable[..., torch.Tensor], parts: int
) -> None:
    pairs, network = [], None
    data = [{**batch, "z": batch["y"].float()} for batch in batches(8)]
    for compile in (False, QUICK):
        SEEN.clear()
        torch.manual_seed(0)
        first, second = (fastnet.build(mlp, OPTIMIZERS["adam"]) for _ in range(2))
        network = TorchNetwork(
            [
                ModelOp(first, "x", "first_pred"),
                CrossEntropy(["first_pred", "y"], "first_loss", from_logits=True),
                UpdateOp(first, "first_loss"),
                at("z"),
                ModelOp(second, "x", "second_pred"),
                LambdaOp(loss, ["second_pred", reads], "second_loss"),
                UpdateOp(second, "second_loss"),
            ],
            compile=compile,
        )
        with network("train", 1):
            for batch in data:
                network.run_step(dict(batch))
        pairs.append((first, second))
        assert len(SEEN) == 8
    for own, other in zip(*pairs, strict=True):
        assert_same_weights(own, other)
    assert network is not None
    assert sum(captured for _, captured in told(network)) == parts


def test_parameters_that_are_thawed_are_trained_in_that_very_step() -> None:
    """Parts that no gradient went through are none any more when one has to."""
    models, network = [], None
    for compile in (False, QUICK):
        torch.manual_seed(0)
        front = fastnet.build(lambda: nn.Linear(6, 6), None)
        front.requires_grad_(False)
        model = fastnet.build(lambda front=front: Whole(front), OPTIMIZERS["sgd"])
        network = TorchNetwork(
            [
                LambdaOp(halved, "x", "x"),
                ModelOp(front, "x", "x"),
                at("x"),
                ModelOp(model, "x", "pred"),
                CrossEntropy(["pred", "y"], "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ],
            compile=compile,
        )
        before = front.weight.detach().clone()
        with network("train", 1):
            for place, batch in enumerate(batches(16)):
                front.requires_grad_(place in (5, 6, 12))
                network.run_step(batch)
        assert not torch.equal(front.weight, before)
        models.append(model)
    assert_same_weights(*models)
    assert network is not None
    assert sum(captured for _, captured in told(network)) >= 2


def test_updates_that_wait_run_after_all_ops() -> None:
    """What reads the weights in between reads those of before."""
    for mode in ("train", "eval"):
        losses = []
        for compile in (False, QUICK):
            model = built()
            network = TorchNetwork(
                [
                    ModelOp(model, "x", "pred"),
                    CrossEntropy(["pred", "y"], "loss", from_logits=True),
                    UpdateOp(model, "loss", defer=True),
                    at("loss"),
                    ModelOp(model, "x", "again"),
                    CrossEntropy(["again", "y"], "after", from_logits=True),
                ],
                compile=compile,
            )
            with network(mode, 1):
                losses.append([network.run_step(batch)["after"] for batch in batches(5)])
        torch.testing.assert_close(*losses)


HALVES: list[Precision] = ["bfloat16", "float16"]


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize(
    ("where", "key", "rows"),
    [("end", "accuracy", 1), ("first", "x", 1), ("loss", "pred", 2), ("twice", "accuracy", 2)],
)
def test_mixed_precision(precision: Precision, where: str, key: str, rows: int) -> None:
    more = [LambdaOp(halved, "more", "more")]
    for mode, count in (("train", rows), ("eval", 1 if where in ("end", "first") else 2)):
        network = both(
            lambda: {"end": more, where: [at(key), *(more if where == "end" else [])]},
            batches(6),
            mode,
            precision=precision,
        )
        captured = [one for _, one in told(network)]
        assert captured == [False, *[True] * count]
    names = [row.name for row in fastnet.profile(network, batches(6), mode="eval").rows]
    assert sum(name.startswith("Compiled") for name in names) == count


def test_a_scaler_in_several_rows() -> None:
    """An overflow in one row counts in the next, which shares the scaler."""
    scales, networks, models = [], [], []
    for compile in (QUICK, False):
        torch.manual_seed(0)
        one, two = (
            fastnet.build(mlp, OPTIMIZERS[name], mixed_precision="float16")
            for name in ("adam", "momentum")
        )
        one.optimizer.scaler.set_growth_interval(3)
        two.optimizer.scaler = one.optimizer.scaler
        ops: list[Any] = []
        for model, key in ((one, "x"), (two, "z")):
            ops += [
                ModelOp(model, key, f"pred {key}"),
                LambdaOp(weighed, [f"pred {key}", f"y {key}", f"weight {key}"], f"loss {key}"),
                UpdateOp(model, f"loss {key}"),
                at(f"seen {key}"),
            ]
        network = TorchNetwork(ops, compile=compile)
        with network("train", 1):
            for place, batch in enumerate(batches(24)):
                for key, overflows in (("x", (0, 9, 10)), ("z", (1, 10, 17))):
                    weight = torch.tensor(float("inf") if place in overflows else 1.0)
                    own = {"": batch["x"], "y ": batch["y"], "weight ": weight, "seen ": weight}
                    batch |= {f"{name}{key}": value for name, value in own.items()}
                network.run_step(batch)
                scales.append(one.optimizer.scaler.state_dict())
        networks.append(network)
        models += [one, two]
    assert scales[:24] == scales[24:]
    # the ops behind the first one that cannot are found to have another one in their turn
    assert [captured for _, captured in told(networks[0])] == [False, True, False, True]
    for model, other in zip(models[:2], models[2:], strict=True):
        assert_same_weights(model, other)


@pytest.mark.parametrize("precision", [False, "bfloat16"])
@pytest.mark.parametrize("where", ["row", "op", "within"])
def test_weights_that_are_read_after_an_update(precision: Precision, where: str) -> None:
    """Autocast goes on with what it has cast before; see that parts do."""
    found = []
    for compile in (QUICK, False):
        torch.manual_seed(0)
        model = fastnet.build(mlp, OPTIMIZERS["sgd"], mixed_precision=precision)
        again = [
            ModelOp(model, "x", "again"),
            CrossEntropy(["again", "y"], "after", from_logits=True),
        ]

        def look(x: torch.Tensor, model: Any = model) -> torch.Tensor:
            with torch.no_grad():
                SEEN.append(float(model(x).sum()))
                return x * SEEN[-1]

        ops = [
            LambdaOp(halved, "x", "x"),
            LambdaOp(shifted, "x", "x"),
            at("x"),
            ModelOp(model, "x", "pred"),
            CrossEntropy(["pred", "y"], "loss", from_logits=True),
            UpdateOp(model, "loss"),
            *(again if where == "within" else []),
            *([LambdaOp(look, "x", "looked")] if where == "op" else [at("loss")]),
            *(again if where == "row" else []),
        ]
        SEEN.clear()
        network = TorchNetwork(ops, compile=compile)
        with network("train", 1):
            results = [network.run_step(batch) for batch in batches(12)]
        found.append((results, list(SEEN), network))
    (results, seen, network), (expected, of_eager, _) = found
    for own, other in zip(results, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert seen == pytest.approx(of_eager, rel=1e-4, abs=1e-5)
    rows = {"row": 3, "op": 2, "within": 2}[where] if not precision else {"within": 2}.get(where, 1)
    assert [captured for _, captured in told(network)].count(True) == rows


def test_an_op_that_takes_gradients_by_itself() -> None:
    def slope(x: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(pred.sum(), x, retain_graph=True)
        return found

    def needing(x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_(True)

    results = []
    for compile in (False, QUICK):
        model = built()
        network = TorchNetwork(
            [
                LambdaOp(needing, "x", "x"),
                ModelOp(model, "x", "pred"),
                at("y"),
                LambdaOp(slope, ["x", "pred"], "slope"),
                CrossEntropy(["pred", "y"], "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ],
            compile=compile,
        )
        with network("train", 1):
            results.append([network.run_step(batch)["slope"] for batch in batches(5)])
    torch.testing.assert_close(*results)


def test_errors_name_the_op_by_its_place_and_lose_nothing() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1e6:
            raise ValueError("too much")
        return x

    model = built()
    network = TorchNetwork(
        training(model, end=[LambdaOp(fails, "accuracy", "accuracy")]), compile=QUICK
    )
    (batch,) = batches(1)
    with network("train", 1):
        for _ in range(4):
            network.run_step(batch)
        assert [captured for _, captured in told(network)] == [False, True]
        with pytest.raises(KeyError, match=r"CrossEntropy \(op 3, .*'y'"):
            network.run_step({"x": batch["x"]})
        with pytest.raises(RuntimeError, match="shapes") as caught:
            network.run_step({"x": torch.zeros(5, 7), "y": batch["y"]})
        assert any("ModelOp (op 2" in note for note in caught.value.__notes__)
        assert torch.isfinite(network.run_step(batch)["loss"])


def test_another_opening_goes_on_in_parts() -> None:
    model = built()
    network = TorchNetwork(training(model, end=[at("accuracy")]), compile=QUICK)
    for epoch in (1, 2, 3):
        with network("train", epoch):
            for batch in batches(3):
                network.run_step(batch)
    assert [captured for _, captured in told(network)] == [False, True]
    assert "steps are compiled in parts, because LambdaOp (op 7" in str(network.explain("train"))
    SEEN.clear()
    with network("train", 4, eager=True):
        network.run_step(batches(1)[0])
    assert len(SEEN) == 1


def test_a_profile_shows_the_part_as_one_row() -> None:
    model = built()
    network = TorchNetwork(training(model, end=[at("accuracy")]), compile=QUICK)
    data = batches(8)
    with network("train", 1):
        for batch in data:
            network.run_step(batch)
    found = fastnet.profile(network, data, mode="train")
    names = [row.name for row in found.rows]
    assert any(name.startswith("Compiled(x, y) ->") for name in names)
    assert any(name.startswith("LambdaOp[noted](accuracy)") for name in names)
    assert not any(name.startswith("ModelOp") for name in names)


def test_ops_of_which_none_can_run_as_without_compiling_from_the_next_opening_on() -> None:
    network = TorchNetwork([at("x"), at("x"), at("x")], compile=QUICK)
    data = [{"x": torch.ones(2)}] * 8
    with network("infer", 1):
        for batch in data:
            network.run_step(batch)
    assert not any(captured for _, captured in told(network))
    found = fastnet.profile(network, data, mode="infer")
    names = [row.name for row in found.rows]
    assert names.count("LambdaOp[noted](x) -> x") == 3
    assert not any(name.startswith("Compiled") for name in names)


def test_a_profile_of_a_network_that_has_not_run_shows_the_part_too() -> None:
    network = TorchNetwork(training(built(), end=[at("accuracy")]), compile=QUICK)
    found = fastnet.profile(network, batches(12), mode="train")
    names = [row.name for row in found.rows]
    assert any(name.startswith("Compiled(x, y) ->") for name in names)
    # of a step or two that ran before there were parts
    assert "ModelOp(x) -> pred" in names


def test_torchs_profiler_names_the_part() -> None:
    network = TorchNetwork(training(built(), end=[at("accuracy")]), compile=QUICK)
    data = batches(6)
    with network("train", 1):
        for batch in data:
            network.run_step(batch)
    with torch.profiler.profile() as profiled, network("train", 2):
        for batch in data:
            network.run_step(batch)
    counts = {event.key: event.count for event in profiled.key_averages()}
    assert [count for name, count in counts.items() if name.startswith("Compiled(x, y)")] == [6]
    assert counts["LambdaOp[noted](accuracy) -> accuracy"] == 6
    assert "LambdaOp[halved](x) -> x" not in counts
