"""Averages of weights and schedules of learning rates in torch, beside hand-written loops."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import (
    ExponentialLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse, Repeat, Sometimes
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.schedule import EpochScheduler
from tests.network.programs import (
    Image,
    batches,
    built,
    line,
    mlp,
    run_all,
    same_weights,
    sgd,
    supervised,
    twins,
)
from tests.network.torch.compiled.steps import QUICK
from tests.op.tensorop.model.test_torch_update import by_hand


def ops_of(model: Any, ema: EMA | None, *after: Any, **update: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y", mode="train"),
        ModelOp(model if ema is None else ema.averaged, "x", "y", mode="!train"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss", **update),
        ema,
        *after,
    ]


def halving(optimizer: torch.optim.Optimizer) -> ExponentialLR:
    return ExponentialLR(optimizer, 0.5)


def classified(twin: nn.Module) -> Any:
    return lambda batch: cross_entropy(twin(batch["x"]), batch["t"])


def images(count: int) -> list[dict[str, Any]]:
    return batches(count, (1, 8, 8))


@pytest.mark.parametrize(
    ("use_buffers", "merge", "first"), [(False, 1, True), (True, 1, False), (True, 2, True)]
)
def test_an_average_is_torchs(use_buffers: bool, merge: int, first: bool) -> None:
    model, twin = twins(Image)
    built(model, sgd())
    ema = EMA(model, decay=0.8, use_buffers=use_buffers)
    *ops, op = ops_of(model, ema, merge_grad=merge)
    network = TorchNetwork([op, *ops] if first else [*ops, op])
    average = get_ema_multi_avg_fn(0.8)
    averaged = AveragedModel(twin, multi_avg_fn=average, use_buffers=use_buffers)
    data = images(6)
    for one in (model, twin):
        one.drop.p = 0.0  # type: ignore[union-attr,unused-ignore]
    run_all(network, data)
    for start in range(0, 6, merge):
        by_hand(twin, [data[start : start + merge]], classified(twin))
        averaged.update_parameters(twin)
    for own, other in zip(
        ema.averaged.state_dict().values(), averaged.module.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    (result,) = run_all(network, data[:1], mode="eval")
    torch.testing.assert_close(result["y"], averaged.eval()(data[0]["x"]).detach())


def test_a_step_that_a_scaler_passes_over_does_not_count() -> None:
    model = built(mlp, sgd(), mixed_precision="fp16")
    network = TorchNetwork(ops_of(model, None, LRSchedule(model, halving)))
    data = batches(4)
    data[1]["x"] *= 1e6
    run_all(network, data)
    assert fastnet.backend.get_lr(model) == pytest.approx(0.1 * 0.5**3)


@pytest.mark.parametrize("per", ["update", "epoch"])
@pytest.mark.parametrize("merge", [1, 2])
def test_a_schedule_is_stepped_as_by_hand(per: Any, merge: int) -> None:
    model, twin = twins(mlp)
    built(model, sgd())
    schedule = LRSchedule(model, lambda optimizer: ExponentialLR(optimizer, 0.7), per)
    network = TorchNetwork(ops_of(model, None, schedule, merge_grad=merge))
    optimizer = sgd()(twin.parameters())
    by_hand = ExponentialLR(optimizer, 0.7)
    data = batches(4)
    for epoch in (1, 2, 3):
        run_all(network, data, epoch=epoch)
        run_all(network, data, mode="eval", epoch=epoch)
        for step, batch in enumerate(data, 1):
            (cross_entropy(twin(batch["x"]), batch["t"]) / merge).backward()
            if step % merge == 0:
                optimizer.step()
                optimizer.zero_grad()
                if per == "update":
                    by_hand.step()
        if per == "epoch":
            by_hand.step()
        assert fastnet.backend.get_lr(model) == optimizer.param_groups[0]["lr"]
    assert same_weights(model, twin)


def test_each_optimizer_of_a_schedule_has_its_own() -> None:
    source = EpochScheduler({1: sgd(0.1), 2: sgd(0.4)})
    model = built(line, source, model_name="m")
    schedule = LRSchedule(model, halving, "epoch")
    network = TorchNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "y"), schedule])
    rates = []
    for epoch in (1, 2, 3):
        run_all(network, [{"x": torch.ones(2, 2)}], epoch=epoch)
        rates.append([one.param_groups[0]["lr"] for one in model.optimizer.get_all_values()])
    assert rates == [[0.05, 0.4], [0.05, 0.2], [0.05, 0.1]]


@pytest.mark.parametrize("way", ["checkpoint", "copy", "pickle"])
def test_training_goes_on_bit_for_bit(way: str, tmp_path: Path) -> None:
    def make() -> tuple[TorchNetwork, EMA]:
        model = built(twins(mlp)[0], sgd(momentum=0.9), model_name="m")
        ema = EMA(model, decay=0.8)
        schedule = LRSchedule(
            model, lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=20), "update"
        )
        return TorchNetwork(ops_of(model, ema, schedule, clip_norm=0.1, merge_grad=2)), ema

    network, _ = make()
    run_all(network, batches(5))
    if way == "checkpoint":
        path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network, epoch=1)
        other, _ = make()
        fastnet.load_checkpoint(path, other)
    else:
        other = copy.deepcopy(network) if way == "copy" else pickle.loads(pickle.dumps(network))
    for each in (network, other):
        run_all(each, batches(5, seed=1), epoch=2)
    own, copies = (sorted(each.models, key=lambda one: one.model_name) for each in (network, other))
    assert [one.model_name for one in copies] == ["m", "m_ema"]
    for one, twin in zip(own, copies, strict=True):
        assert same_weights(one, twin)
        assert one is not twin
    rates = [each[0].current_optimizer.param_groups[0]["lr"] for each in (own, copies)]
    assert rates[0] == rates[1]


BAD = {
    "EMA(m, decay=2)": ["EMA of 'm'", "decay=2", "from 0 to 1"],
    "EMA(m, decay='a')": ["EMA of 'm'", "decay='a'", "from 0 to 1"],
    "LRSchedule(m, make, per='step')": ["LRSchedule of 'm'", "per='step'", "['update', 'epoch']"],
    "LRSchedule(m, 3)": ["LRSchedule of 'm'", "got 3", "a function that takes an optimizer"],
    "LRSchedule(m, StepLR)": ["StepLR", "'step_size'", "`lambda optimizer: StepLR(optimizer, "],
    "LRSchedule(m, lambda: 3)": ["<lambda>", "0 positional arguments", "takes an optimizer"],
    "LRSchedule(m, plateau)": ["ReduceLROnPlateau", "['metrics']", "in your own loop"],
    "LRSchedule(m, make(other.optimizer))": ["ExponentialLR of another optimizer", "SGD"],
    "LRSchedule(bare, make)": ["LRSchedule of 'bare'", "has none", "optimizer_fn"],
}


@pytest.mark.parametrize("made", BAD)
def test_what_is_refused(made: str) -> None:
    names = {
        "EMA": EMA,
        "LRSchedule": LRSchedule,
        "m": built(line, sgd(), model_name="m"),
        "other": built(line, sgd(), model_name="other"),
        "bare": built(line, None, model_name="bare"),
        "make": halving,
        "plateau": ReduceLROnPlateau,
        "StepLR": StepLR,
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        eval(made, names)
    assert not [part for part in BAD[made] if part not in str(caught.value)]


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_no_op_updates(inside: bool) -> None:
    model = built(line, sgd(), model_name="m")
    ops = [ModelOp(model, "x", "y"), Fuse([UpdateOp(model, "y")]) if inside else None, EMA(model)]
    with pytest.raises(ValueError, match=rf"EMA \(op {1 + inside}\).*'m'.*no active op"):
        TorchNetwork(ops)(mode="train", epoch=1)


@pytest.mark.parametrize("meta", [lambda op: Fuse([op]), lambda op: Fuse([Fuse([op])]), Sometimes])
@pytest.mark.parametrize("make", [EMA, lambda model: LRSchedule(model, halving)])
def test_op_inside_of_another_cannot_follow_updates(meta: Any, make: Any) -> None:
    model = built(mlp, sgd(), model_name="m")
    network = TorchNetwork([*supervised(model), meta(make(model))])
    with pytest.raises(
        ValueError, match=r"\(op 3\) holds (EMA|LRSchedule) of model 'm'.*list of ops"
    ):
        run_all(network, batches(1))


@pytest.mark.parametrize("make", [EMA, lambda model: LRSchedule(model, halving)])
@pytest.mark.parametrize("meta", [lambda op: Fuse([op]), lambda op: Repeat(op, 2), Sometimes])
def test_inner_update_is_refused(make: Any, meta: Any) -> None:
    model = built(line, sgd(), model_name="m")
    again = [ModelOp(model, "x", "y"), UpdateOp(model, "y", defer=True)]
    ops = [ModelOp(model, "x", "y"), meta(UpdateOp(model, "y")), *again, make(model)]
    with pytest.raises(ValueError, match=rf"{type(ops[4]).__name__} \(op 4.*'m'.*\(op 1.*Put"):
        TorchNetwork(ops)(mode="train", epoch=1)


@pytest.mark.parametrize("make", [EMA, lambda model: LRSchedule(model, halving)])
def test_another_model_is_refused(make: Any) -> None:
    model, other = (built(line, sgd(), model_name=name) for name in "ab")
    op = make(model)
    network = TorchNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "y"), op])
    op.model = other
    with pytest.raises(ValueError, match=rf"{type(op).__name__}.*'a'.*'b'"):
        network(mode="train", epoch=1)


@pytest.mark.parametrize("per", ["update", "epoch"])
def test_an_optimizer_without_a_schedule(per: Any) -> None:
    model = built(mlp, sgd(), model_name="a")
    network = TorchNetwork(ops_of(model, None, LRSchedule(model, halving, per)))
    (batch,) = batches(1)
    run_all(network, [batch])
    model.current_optimizer = model.optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match=r"LRSchedule.*'a'.*Adam.*Make a new"):
        run_all(network, [batch], epoch=2)


@pytest.mark.parametrize("state", [None, {}, {"schedulers": 3}, {"schedulers": [{}, {}]}])
def test_states_that_are_not_theirs(state: Any) -> None:
    model = built(line, sgd())
    schedule, ema = LRSchedule(model, halving), EMA(model)
    schedule.exit_call()
    for op, text in ((schedule, "LRSchedule"), (ema, "EMA")):
        before = op.state_dict()
        with pytest.raises(ValueError, match=rf"The state to load .* that of (an|the) {text}"):
            op.load_state_dict(state)
        assert op.state_dict() == before


def test_states_of_other_classes_and_models() -> None:
    model, other = (built(line, sgd(), model_name=name) for name in "ab")

    def chain(optimizer: Any) -> Any:
        return SequentialLR(
            optimizer, [StepLR(optimizer, 2), ExponentialLR(optimizer, 0.5)], milestones=[3]
        )

    def other_chain(optimizer: Any) -> Any:
        return SequentialLR(
            optimizer, [ExponentialLR(optimizer, 0.5), StepLR(optimizer, 2)], milestones=[3]
        )

    schedule = LRSchedule(model, halving)
    refused = [
        (LRSchedule(model, lambda one: StepLR(one, 2)), schedule, r"StepLR.*where.*ExponentialLR"),
        (LRSchedule(other, halving), schedule, r"model_name 'b', where .* of 'a' is 'a'"),
        (LRSchedule(model, other_chain), LRSchedule(model, chain), r"\(StepLR, ExponentialLR\)"),
        (EMA(other), EMA(model), r"model_name 'b', where .* of 'a' is 'a'"),
        (EMA(model), schedule, r"not that of an LRSchedule: it has no 'schedulers'"),
    ]
    for source, op, text in refused:
        before = op.state_dict()
        with pytest.raises(ValueError, match=text):
            op.load_state_dict(source.state_dict())
        assert op.state_dict() == before
    schedule.advance()
    again = LRSchedule(model, halving)
    again.load_state_dict(schedule.state_dict())
    assert again.state_dict() == schedule.state_dict()


def test_layers_that_changed_places_are_averaged_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 4), nn.Linear(16, 4)
            self.tied = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.first(x) - self.second(x)
            return result

    model = built(Two, sgd(), model_name="m")
    ema = EMA(model, decay=0.5)
    network = TorchNetwork(ops_of(model, ema))
    expected = copy.deepcopy(model.state_dict())
    for index, batch in enumerate(batches(3)):
        if index == 1:
            first = model.first
            del model.first
            model.first = first  # It comes after the second layer now.
        run_all(network, [batch])
        for name, value in model.state_dict().items():
            expected[name] = value.clone() if index == 0 else expected[name].lerp(value, 0.5)
    for name, mean in ema.averaged.state_dict().items():
        torch.testing.assert_close(mean, expected[name])
    del model.tied
    with pytest.raises(ValueError, match=r"EMA of 'm' was made before .*'tied.bias'.* Make a new"):
        run_all(network, batches(1))


@pytest.mark.parametrize(
    ("settings", "clips"),
    [({"clip_norm": 0.5}, "to the norm 0.5"), ({"clip_value": 0.25}, "to the value 0.25")],
)
def test_explain_tells_of_them(settings: Any, clips: str) -> None:
    model = built(line, sgd(), model_name="m")
    schedule = LRSchedule(model, halving, "epoch")
    update = UpdateOp(model, "y", merge_grad=4, rest="flush", **settings)
    network = TorchNetwork([ModelOp(model, "x", "y"), update, EMA(model), schedule])
    text = " ".join(str(network.explain("train")).split())
    assert f"averages 4 steps, flushes the rest; clips {clips}" in text
    assert "averages weights with the decay 0.999; model 'm', 'm_ema'" in text
    assert "steps ExponentialLR after each epoch; model 'm'" in text


class TestLayersInEvaluation:
    """Layers that the user keeps in evaluation stay so while the others train."""

    @pytest.mark.parametrize("given", [nn.BatchNorm2d, "norm", ["norm", nn.Dropout]])
    @pytest.mark.parametrize("compile", [False, QUICK])
    def test_is_a_hand_written_loop(self, given: Any, compile: Any) -> None:
        model, twin = twins(Image)
        for one in (model, twin):
            one.drop.p = 0.0  # type: ignore[union-attr,unused-ignore]
        built(model, sgd())
        network = TorchNetwork(
            [
                ModelOp(model, "x", "y", eval_layers=given),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ],
            compile=compile,
        )
        for epoch in (1, 2):
            data = images(3)
            run_all(network, data, epoch=epoch)
            twin.norm.eval()  # type: ignore[union-attr,unused-ignore,operator]
            by_hand(twin, [[batch] for batch in data], classified(twin))
            assert not model.norm.training
            assert model.conv.training
            run_all(network, data, mode="eval", epoch=epoch)
            assert not any(one.training for one in model.modules())
        for own, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)

    def test_what_is_refused(self) -> None:
        model = built(Image, sgd(), model_name="m")
        with pytest.raises(KeyError, match=r"eval_layers.*'norn'.*Did you mean 'norm'"):
            ModelOp(model, "x", "y", eval_layers="norn")
        with pytest.raises(ValueError, match=r"ModelOp.*'m' has 3.*eval_layers"):
            ModelOp(model, "x", "y", eval_layers=3)  # type: ignore[arg-type]


def test_a_decay_that_is_written_counts_from_the_next_context_on() -> None:
    model = built(mlp, sgd())
    ema = EMA(model, decay=0.8)
    network = TorchNetwork(ops_of(model, ema))
    run_all(network, batches(2))
    before = ema.averaged[0].weight.clone()
    ema.decay = 0.25
    run_all(network, batches(1, seed=1))
    expected = 0.25 * before + 0.75 * model[0].weight
    torch.testing.assert_close(ema.averaged[0].weight, expected.detach())


def test_an_epoch_that_ends_by_an_error_is_none() -> None:
    model = built(line, sgd(0.1), model_name="m")
    schedule = LRSchedule(model, halving, "epoch")
    network = TorchNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "y"), schedule])
    with pytest.raises(KeyError), network(mode="train", epoch=1):
        network.run_step({})
    assert fastnet.backend.get_lr(model) == 0.1
    run_all(network, [{"x": torch.ones(2, 2)}], warmup=True)
    assert fastnet.backend.get_lr(model) == 0.1
    run_all(network, [{"x": torch.ones(2, 2)}])
    assert fastnet.backend.get_lr(model) == 0.05


class Counting(FollowsUpdates):
    """Counts updates in a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, mode="train", ds_id=None)
        self.count = torch.zeros(())

    def follow(self, stepped: Any = True) -> None:
        self.advance()

    def advance(self) -> None:
        self.count += 1


def test_compiled_step_advances_followers_of_a_program() -> None:
    model = built(mlp, "sgd")
    follower = Counting(model)
    network = TorchNetwork([*supervised(model), follower], compile=QUICK)
    run_all(network, batches(5))
    assert follower.count == 5
    assert [trace.fallback for trace in network.traces] == [None]


def test_average_of_a_model_that_is_updated_with_another_is_refused() -> None:
    encoder = built(line, None, model_name="encoder")
    decoder = built(
        lambda: nn.Linear(1, 1),
        lambda own: torch.optim.SGD([*encoder.parameters(), *own], 0.1),
        model_name="decoder",
    )
    ops = [ModelOp(encoder, "x", "z"), ModelOp(decoder, "z", "y"), UpdateOp(decoder, "y")]
    network = TorchNetwork([*ops, EMA(encoder)])
    expected = r"'encoder', but its weights are updated with those of model 'decoder'.*of its own"
    with pytest.raises(ValueError, match=expected), network("train", 1):
        pass


def test_model_whose_weights_another_optimizer_updates_lacks_no_update() -> None:
    encoder = built(line, sgd(), model_name="encoder")
    decoder = built(
        lambda: nn.Linear(1, 1),
        lambda own: torch.optim.SGD([*encoder.parameters(), *own], 0.1),
        model_name="decoder",
    )
    ops = [ModelOp(encoder, "x", "z"), ModelOp(decoder, "z", "y"), UpdateOp(decoder, "y")]
    network = TorchNetwork(ops)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with network("train", 1):
            network.run_step({"x": torch.ones(2, encoder.weight.shape[1])})
