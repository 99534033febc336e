"""Random training programs, over random sequences of openings: equal to the bit, or both fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations.sides import Sides, assert_same, batches, momenta, steps

NAMES = ("front", "back")
OPTIMIZERS = ("sgd", "adam", "rmsprop", "adagrad")


@dataclass(frozen=True)
class Update:
    """An UpdateOp, perhaps a scheduled one, perhaps with an op after it."""

    model: int
    loss: int
    merge: int
    defer: bool
    turns: tuple[bool, ...]
    mode: Any
    followed: bool


@dataclass(frozen=True)
class Run:
    """An opening, and how many steps it is open for."""

    mode: str
    epoch: int
    ds_id: str
    wanted: set[str] | None
    count: int
    warmup: bool


updates = st.lists(
    st.builds(
        Update,
        model=st.integers(0, 1),
        loss=st.integers(0, 1),
        merge=st.sampled_from([1, 1, 1, 2, 3]),
        defer=st.booleans(),
        turns=st.sampled_from([(), (), (), (True, False), (False, True, True)]),
        mode=st.sampled_from(["train", "train", "!infer"]),
        followed=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
runs = st.lists(
    st.builds(
        Run,
        mode=st.sampled_from(["train", "train", "train", "eval", "infer"]),
        epoch=st.integers(1, 4),
        ds_id=st.sampled_from(["", "other"]),
        wanted=st.sampled_from([None, {"y"}, {"loss 0"}, {"y", "loss 0", "loss 1"}]),
        count=st.integers(1, 3),
        warmup=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=4,
)
optimizers = st.one_of(
    st.sampled_from(OPTIMIZERS),
    st.lists(st.sampled_from(OPTIMIZERS), min_size=2, max_size=3),
    st.dictionaries(st.integers(1, 4), st.sampled_from(OPTIMIZERS), min_size=1).map(
        lambda values: {1: "sgd", **values}
    ),
)


def scheduled(lib: Any, optimizer: Any) -> Any:
    if isinstance(optimizer, list):
        return lib.schedule.RepeatScheduler(list(optimizer))
    if isinstance(optimizer, dict):
        return lib.schedule.EpochScheduler(dict(optimizer))
    return optimizer


def mean_loss(code: Any, y: Any) -> Any:
    return code.square().mean() + y.abs().mean()


def make_network(
    lib: Any, models: list[Any], drawn: list[Update], second_loss: Any = mean_loss
) -> Any:
    ops, op = lib.op.tensorop.model, lib.op.tensorop
    graph: list[Any] = [
        ops.ModelOp(models[0], "x", "code"),
        ops.ModelOp(models[1], "code", "y"),
        op.LambdaOp(lambda y: y * 2, "y", "y", ds_id="other"),
        op.loss.CrossEntropy(
            ("y", "onehot"), "loss 0", from_logits=True, form="categorical", mode=None
        ),
        op.LambdaOp(second_loss, ["code", "y"], "loss 1"),
    ]
    for update in drawn:
        made = ops.UpdateOp(
            models[update.model],
            f"loss {update.loss}",
            mode=update.mode,
            merge_grad=update.merge,
            defer=update.defer,
        )
        if update.turns:
            made = lib.schedule.RepeatScheduler([made if on else None for on in update.turns])
        graph.append(made)
        if update.followed:
            graph.append(op.LambdaOp(lambda y: y + 0, "y", "y"))
    return lib.Network(graph)


@settings(max_examples=120)
@given(updates, runs, optimizers, optimizers)
def test_any_training(
    sides: Sides, drawn: list[Update], program_runs: list[Run], first: Any, second: Any
) -> None:
    def program(lib: Any) -> Any:
        models = lib.build(
            lambda: [
                torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.2)),
                torch.nn.Linear(4, 3),
            ],
            [scheduled(lib, first), scheduled(lib, second)],
            model_name=list(NAMES),
        )
        network = make_network(lib, models, drawn)
        told: list[Any] = []
        try:
            for run in program_runs:
                told.append(
                    steps(
                        network,
                        batches(run.count, seed=run.epoch),
                        run.mode,
                        run.epoch,
                        run.ds_id,
                        run.wanted,
                        warmup=run.warmup,
                    )
                )
                told.append([model.state_dict() for model in models])
                told[-1] = [{key: one.clone() for key, one in each.items()} for each in told[-1]]
        except (KeyError, RuntimeError) as error:
            # a graph that is gone or overwritten; or FastEstimator's own fault
            return type(error)
        return told, [momenta(model) for model in models]

    expected, actual = sides.run(program)
    # see TestUpdatesOfTwoModels in test_mended.py
    assume(expected is not KeyError)
    assert_same(actual, expected)
