"""Ranks that are at different places of a program hear of it, wherever each of them is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn

import fastnet
from fastnet import distributed
from fastnet.backend import load_model, save_model
from fastnet.backend.torch.meetings import Meetings
from fastnet.errors import RankError
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.launched import ended, in_ranks, rank_count
from tests.ranks import ranks

ADVICE = (
    "All ranks call save_checkpoint, load_checkpoint, gather and barrier, with the same path and "
    "as often. Put no `if distributed.is_main():` around them, and nothing else that comes out "
    "differently on ranks, such as whether there is a file."
)


def apart(first: str, second: str) -> str:
    return (
        f"The ranks are at different places of the program: rank 0 is {first}, rank 1 {second}. "
        f"{ADVICE}"
    )


def network_of(parallel: Any = "ddp") -> Any:
    torch.manual_seed(0)
    model = fastnet.build(
        lambda: nn.Linear(3, 1),
        lambda p: torch.optim.SGD(p, 0.1),
        model_name="net",
        parallel=parallel,
    )
    return fastnet.Network(
        [ModelOp(model, "x", "y"), MeanSquaredError(("y", "t"), "loss"), UpdateOp(model, "loss")]
    )


def train(network: Any, steps: int = 2, after: Any = None) -> None:
    with network(mode="train", epoch=1):
        for step in range(steps):
            network.run_step({"x": torch.ones(2, 3), "t": torch.ones(2, 1)})
            if after is not None:
                after(step)


# --------------------------------------------------------------------------- programs


def save_at_the_end(network: Any) -> None:
    train(network)
    if distributed.is_main():
        fastnet.save_checkpoint("run.ckpt", network)


def save_between_epochs(network: Any) -> None:
    train(network)
    if distributed.is_main():
        fastnet.save_checkpoint("run.ckpt", network)
    train(network)


def save_between_steps(network: Any) -> None:
    def save(step: int) -> None:
        if step == 1 and distributed.is_main():
            fastnet.save_checkpoint("run.ckpt", network)

    train(network, 4, save)


def load_where_there_is_one(network: Any) -> None:
    if distributed.rank() == 1:
        fastnet.load_checkpoint("run.ckpt", network)
    train(network)


def gather_on_one(network: Any) -> None:
    train(network)
    if distributed.is_main():
        distributed.gather({"loss": 1.0})
    distributed.barrier()


def transform_on_one(network: Any) -> None:
    if distributed.is_main():
        fastnet.save_checkpoint("run.ckpt", network)
    network.transform([{"x": torch.ones(2, 3), "t": torch.ones(2, 1)}], mode="train")


def save_by_rank(network: Any) -> None:
    fastnet.save_checkpoint(f"g{distributed.rank()}.ckpt", network)


def load_by_rank(network: Any) -> None:
    fastnet.load_checkpoint(f"g{distributed.rank()}.ckpt", network)


PROGRAMS = {
    save_at_the_end: ("in save_checkpoint('run.ckpt')", "at the end of run()"),
    save_between_epochs: (
        "in save_checkpoint('run.ckpt')",
        "at the opening of a network for training",
    ),
    save_between_steps: ("in save_checkpoint('run.ckpt')", "in step 3 of its training"),
    load_where_there_is_one: (
        "at the opening of a network for training",
        "in load_checkpoint('run.ckpt')",
    ),
    gather_on_one: ("in gather", "in barrier"),
    save_by_rank: ("in save_checkpoint('g0.ckpt')", "in save_checkpoint('g1.ckpt')"),
    load_by_rank: ("in load_checkpoint('g0.ckpt')", "in load_checkpoint('g1.ckpt')"),
}


def run(program: Any, folder: str, compare: bool = True) -> None:
    os.chdir(folder)
    with distributed.run(compare_ranks=compare):
        program(network_of())


@pytest.mark.slow
class TestInARun:
    @pytest.mark.parametrize("program", list(PROGRAMS), ids=lambda one: one.__name__)
    def test_each_rank_raises_the_same(self, program: Any, tmp_path: Path) -> None:
        text = f"fastnet.errors.RankError: {apart(*PROGRAMS[program])}\n"
        before = time.monotonic()
        for one in ended(2, run, program, str(tmp_path), seconds=100):
            assert str(one.error).count(text) == 1
            assert one.exitcode == 0  # nothing of it has ended the process
        assert time.monotonic() - before < 60
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("program", "there"),
        [
            # without the comparison of openings their first step is where one is found
            (save_between_epochs, "in step 1 of its training"),
            (transform_on_one, "in transform"),
        ],
    )
    def test_where_openings_are_not_compared(
        self, program: Any, there: str, tmp_path: Path
    ) -> None:
        text = apart("in save_checkpoint('run.ckpt')", there)
        for one in ended(2, run, program, str(tmp_path), False, seconds=100):
            assert f"fastnet.errors.RankError: {text}\n" in str(one.error)

    def test_one_that_does_not_come(self) -> None:
        text = (
            "Rank 0 is in gather, and has waited for 2 seconds for other ranks to come there. All "
            "ranks call it; fastnet.distributed.run(timeout=...) has them wait longer."
        )
        for one in ended(2, waits, seconds=100):
            assert f"RankError: {text}" in str(one.error)

    def test_many_meetings(self, tmp_path: Path) -> None:
        assert in_ranks(3, meets_often, str(tmp_path)) == [[1.0] * 250] * 3


def waits() -> None:
    with distributed.run(timeout=2):
        if distributed.is_main():
            distributed.gather({"loss": 1.0})
        for _ in range(600):
            time.sleep(0.1)


def meets_often(folder: str) -> list[float]:
    found = []
    with distributed.run():
        network = network_of()
        for step in range(250):
            found.append(distributed.gather({"rank": distributed.rank()})["rank"])
            if step % 50 == 0:
                train(network, after=lambda step: distributed.barrier())
                fastnet.save_checkpoint(f"{folder}/run.ckpt", network)
                fastnet.load_checkpoint(f"{folder}/run.ckpt", network)
            if step % 50 == distributed.rank():
                with network(mode="eval", epoch=1):
                    network.run_step({"x": torch.ones(2, 3), "t": torch.ones(2, 1)})
    return found


@pytest.mark.slow
class TestInAGroupOfTheProgram:
    def test_each_rank_raises_the_same_and_goes_on(self, tmp_path: Path) -> None:
        folder = str(tmp_path)
        path = f"{folder}/run.ckpt"
        saving = f"in save_checkpoint({path!r})"
        opening = "at the opening of a network for training"
        for errors, mean in ranks(2)(meets_apart, folder):
            assert errors == [
                apart(saving, "in gather"),
                apart(saving, opening),
                apart("in barrier", f"in load_checkpoint({path!r})"),
                apart("in load_model", f"in save_model, to '{folder}/net'"),
                apart(f"in save_checkpoint('{folder}/g0')", f"in save_checkpoint('{folder}/g1')"),
            ]
            assert mean == 0.5
        assert os.listdir(tmp_path) == []


def meets_apart(folder: str) -> Any:
    rank, _ = rank_count()
    network, sharded = network_of(), network_of("fsdp")
    path, missing = f"{folder}/run.ckpt", f"{folder}/other.pt"
    pairs: list[Any] = [
        (
            lambda: fastnet.save_checkpoint(path, network),
            lambda: distributed.gather({"rank": rank}),
        ),
        (lambda: fastnet.save_checkpoint(path, network), lambda: train(network)),
        (distributed.barrier, lambda: fastnet.load_checkpoint(path, network)),
        (
            lambda: load_model(sharded.models[0], missing),
            lambda: save_model(sharded.models[0], folder),
        ),
        (lambda: fastnet.save_checkpoint(f"{folder}/g{rank}", network),) * 2,
    ]
    open(missing, "wb").close()
    errors = []
    for pair in pairs:
        with pytest.raises(RankError) as raised:
            pair[rank]()
        errors.append(str(raised.value))
    dist.barrier()
    if rank == 0:
        os.unlink(missing)
    return errors, distributed.gather({"rank": rank})["rank"]


# --------------------------------------------------------------------------- the store


def two() -> tuple[Any, Meetings, Meetings]:
    store = dist.HashStore()
    return store, Meetings(store, 0, 2), Meetings(store, 1, 2)


class TestMeetings:
    def test_it_is_complete_once_all_have_come(self) -> None:
        _, first, second = two()
        assert second.come("in gather") is None
        assert not second.is_complete()
        assert first.come("in gather") is None
        assert first.is_complete()
        assert second.is_complete()

    def test_whoever_is_elsewhere_is_told(self) -> None:
        _, first, second = two()
        assert second.come("in gather") is None
        assert first.come("in barrier") == apart("in barrier", "in gather")

    def test_steps_that_another_one_has_not_taken(self) -> None:
        """Only those begun without having been where it waits."""
        store, first, second = two()
        steps = {"first": 0, "second": 0}
        ends = [
            first.count_also(lambda: steps["first"]),
            second.count_also(lambda: steps["second"]),
        ]
        steps.update(first=2, second=2)
        assert second.passed_by(store, "in step 2") is None
        first.come("in gather")
        assert second.passed_by(store, "in step 2") is None
        steps["second"] = 3
        assert second.passed_by(store, "in step 3") == apart("in gather", "in step 3")
        steps["second"] = 2
        second.come("in gather")
        steps.update(first=5, second=5)
        for end in ends:
            end()
        second.come("in barrier")
        assert first.passed_by(store, "in step 1") is None
        first.count_also(lambda: 0)
        assert first.passed_by(store, "in step 1") == apart("in step 1", "in barrier")

    def test_the_store_does_not_grow(self) -> None:
        store, first, second = two()
        sizes = []
        for _ in range(300):
            for one in (first, second):
                assert one.come("in gather") is None
            assert second.is_complete()
            assert first.is_complete()
            sizes.append(store.num_keys())
        assert sizes[150] == sizes[299]
