"""Checkpoints and weights of several processes, loaded by the same number or another."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import fastnet
from fastnet import distributed
from fastnet.backend import load_model, save_model
from fastnet.errors import RankError
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.torch.test_checkpoint import adam, momentum, rise, same, seed_all
from tests.ranks import ranks

pytestmark = pytest.mark.slow

STEPS, MERGED, SAMPLES = 9, 3, 12
ENGINES = ["ddp", "fsdp", None]


def model_fn(noisy: bool = True) -> Any:
    dropout = [nn.Dropout(0.5)] if noisy else []
    return nn.Sequential(nn.Linear(6, 7), *dropout, nn.Tanh(), nn.Linear(7, 3))


def with_buffers() -> Any:
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


class Noise(TensorOp):
    """Adds random numbers of three libraries, and counts."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="x")
        self.steps = 0

    def forward(self, data: Any, state: Any) -> Any:
        self.steps += 1
        return data + rise()

    def state_dict(self) -> Any:
        return {"steps": self.steps, "rank": distributed.rank()}

    def load_state_dict(self, state: Any) -> None:
        self.steps, self.was = state["steps"], state["rank"]


def rank_count() -> tuple[int, int]:
    return distributed.rank(), distributed.world_size()


def batch(step: int, rank: int = 0, count: int = 1) -> dict[str, Any]:
    """A rank's part of a step's samples, which are the same however many ranks there are."""
    source = torch.Generator().manual_seed(step)
    x, t = torch.randn(SAMPLES, 6, generator=source), torch.randn(SAMPLES, 3, generator=source)
    return {"x": x.chunk(count)[rank], "t": t.chunk(count)[rank]}


class Run:
    """A run of one rank, with random numbers, scheduled optimizers and merged gradients."""

    def __init__(self, parallel: Any, seed: int, noisy: bool = True) -> None:
        seed_all(seed)
        self.place = rank_count()
        self.model = fastnet.build(
            lambda: model_fn(noisy),
            EpochScheduler({1: adam, 2: momentum}),
            model_name="net",
            parallel=parallel,
        )
        self.noise = Noise() if noisy else None
        merge = 1 if parallel is None and self.place[1] > 1 else MERGED
        self.update = UpdateOp(self.model, "loss", merge_grad=merge)
        ops = [ModelOp(self.model, "x", "y"), MeanSquaredError(("y", "t"), "loss"), self.update]
        self.network = fastnet.Network([self.noise, *ops])
        # each rank draws its own
        seed_all(100 * seed + self.place[0])

    def go(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            with self.network(mode="train", epoch=1 + step // 6):
                losses.append(float(self.network.run_step(batch(step, *self.place))["loss"]))
        return losses

    def weights(self) -> dict[str, Any]:
        return whole_weights(self.model)

    def optimizers(self) -> list[Any]:
        return [memories(self.model, one) for one in self.model.optimizer.get_all_values()]


def whole_weights(model: Any) -> dict[str, Any]:
    """Return full weights on every rank, without fastnet."""
    inner = getattr(model, "module", model)
    return {name: full(value).clone() for name, value in inner.state_dict().items()}


def memories(model: Any, optimizer: Any) -> list[dict[str, Any]]:
    state = optimizer.state_dict()["state"]
    return [
        {name: full(one).clone() for name, one in state[place].items()} for place in sorted(state)
    ]


def full(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def assert_close(one: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(one[name], value, rtol=1e-5, atol=1e-6)


class TestGoingOn:
    @pytest.mark.parametrize("parallel", ENGINES)
    @pytest.mark.parametrize("before", [4, 6, 8])
    def test_as_if_it_had_not_stopped(self, tmp_path: Path, parallel: Any, before: int) -> None:
        """In the middle of merged steps, with random numbers that each rank has its own of."""
        done = ranks(2)(stopped_and_gone_on, str(tmp_path / "run.ckpt"), parallel, before)
        # Without an engine each rank trains alone, and resumes from the weights of rank 0.
        for one in done if parallel else done[:1]:
            assert one["told"] == (2, before, {"best": 0.5})
            assert one["losses"][0] == one["losses"][1]
            assert same(one["weights"][0], one["weights"][1])
            assert same(one["optimizers"][0], one["optimizers"][1])
        assert [one["was"] for one in done] == [0, 1]
        assert done[0]["losses"] != done[1]["losses"]
        assert os.listdir(tmp_path) == ["run.ckpt"]

    @pytest.mark.parametrize(
        ("saved_by", "loaded_by", "count"),
        [
            ("ddp", "fsdp", 3),
            ("fsdp", "ddp", 3),
            ("ddp", None, 1),
            ("fsdp", None, 1),
            (None, "ddp", 2),
            (None, "fsdp", 2),
        ],
    )
    def test_on_another_number_of_ranks(
        self, tmp_path: Path, saved_by: Any, loaded_by: Any, count: int
    ) -> None:
        """Saved between two merged steps; equal to a hand-written loop."""
        path = str(tmp_path / "run.ckpt")
        if saved_by is None:
            save_early(path, None, 4)
        else:
            ranks(2)(save_early, path, saved_by, 4)
        loaded = [go_on(path, None)] if count == 1 else ranks(count)(go_on, path, loaded_by)
        expected = hand_written_loop(STEPS)
        for one in loaded:
            assert_close(one, expected)

    def test_weighted_steps_on_another_number_of_ranks(self, tmp_path: Path) -> None:
        """Saved by ranks with batches of 3 and 9 samples; equal to a loop on all of them."""
        path = str(tmp_path / "run.ckpt")
        ranks(2)(save_weighted, path, 4)
        expected = hand_written_loop(6)
        assert_close(go_on_weighted(path), expected)
        for one in ranks(2)(go_on_weighted, path):
            assert_close(one, expected)
        one_rank = str(tmp_path / "one.ckpt")
        save_weighted(one_rank, 4)
        for one in ranks(2)(go_on_weighted, one_rank):
            assert_close(one, expected)

    def test_random_numbers_of_more_ranks_and_of_fewer(self, tmp_path: Path) -> None:
        """Each rank resumes its own; a new rank keeps its own."""
        path = str(tmp_path / "run.ckpt")
        saved = ranks(2)(save_and_draw, path)
        assert saved[0] != saved[1]
        seed_all(77)
        assert ranks(3)(load_and_draw, path) == [*saved, drawn()]
        assert load_and_draw(path) == saved[0]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_unfrozen_layers(tmp_path: Path, parallel: str) -> None:
    """Like a hand-written loop on all samples that unfreezes the first layer in its third step."""
    seed_all(0)
    model = model_fn(noisy=False)
    model[0].requires_grad_(False)
    optimizer = momentum(model.parameters())
    for step in range(6):
        if step == 2:
            model[0].requires_grad_(True)
        data = batch(step)
        ((model(data["x"]) - data["t"]) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for one in ranks(2)(unfreeze_and_resume, str(tmp_path / "run.ckpt"), parallel):
        assert_close(one, dict(model.state_dict()))


def test_a_load_that_fails_on_one_rank_changes_nothing(tmp_path: Path) -> None:
    first, second = ranks(2)(load_where_it_lacks, str(tmp_path))
    assert "failed on rank 1" in first
    assert first.startswith("RankError: ")
    assert second.startswith("FileNotFoundError: There is no checkpoint 'run.ckpt'")


class TestModels:
    @pytest.mark.parametrize("parallel", ENGINES)
    def test_saved_once_and_loaded_by_any_number(self, tmp_path: Path, parallel: Any) -> None:
        trained, memory = ranks(2)(train_and_save, str(tmp_path), parallel)[0]
        assert sorted(os.listdir(tmp_path)) == ["net.pt", "net_opt.pt"]
        # files are torch's own, of whole tensors by their plain names
        weights = torch.load(tmp_path / "net.pt")
        assert same(dict(weights), trained)
        assert weights._metadata[""] == {"version": 1}
        plain = with_buffers()
        plain.load_state_dict(weights)
        optimizer = adam(plain.parameters())
        optimizer.load_state_dict(torch.load(tmp_path / "net_opt.pt"))
        assert same(memories(plain, optimizer), memory)
        # The next step equals that of a hand-written loop.
        loss = ((plain(batch(7)["x"]) - batch(7)["t"]) ** 2).mean()
        loss.backward()
        optimizer.step()
        built = load_and_step(str(tmp_path), None)
        assert same(built["weights"], dict(weights))
        assert same(built["optimizer"], memory)
        assert same(built["after"], dict(plain.state_dict()))
        for engine in ("ddp", "fsdp"):
            for one in ranks(3)(load_and_step, str(tmp_path), engine):
                assert same(one["weights"], dict(weights))
                assert same(one["optimizer"], memory)

    def test_one_process_may_save_what_is_not_sharded(self, tmp_path: Path) -> None:
        """Many a program lets the first process save, which must not wait for the others."""
        assert ranks(2)(save_alone, str(tmp_path)) == [["net.pt"], None]


def stopped_and_gone_on(path: str, parallel: Any, before: int) -> dict[str, Any]:
    whole = Run(parallel, 0)
    losses = whole.go(0, STEPS)
    first = Run(parallel, 0)
    early = first.go(0, before)
    fastnet.save_checkpoint(path, first.network, epoch=2, step=before, values={"best": 0.5})
    first.go(before, STEPS)  # This changes nothing in the file.
    second = Run(parallel, 1)
    told = fastnet.load_checkpoint(path, second.network)
    return {
        "told": tuple(told),
        "losses": (losses, early + second.go(before, STEPS)),
        "weights": (whole.weights(), second.weights()),
        "optimizers": (whole.optimizers(), second.optimizers()),
        "was": second.noise.was,
    }


def unfreeze_and_resume(path: str, parallel: str) -> dict[str, Any]:
    def make(seed: int) -> tuple[Any, Any]:
        def frozen() -> Any:
            model = model_fn(noisy=False)
            model[0].requires_grad_(False)
            return model

        seed_all(seed)
        model = fastnet.build(frozen, momentum, model_name="net", parallel=parallel)
        ops = [ModelOp(model, "x", "y"), MeanSquaredError(("y", "t"), "loss")]
        return model, fastnet.Network([*ops, UpdateOp(model, "loss")])

    def run(network: Any, first: int, last: int) -> None:
        with network("train"):
            for step in range(first, last):
                network.run_step(batch(step, *rank_count()))

    model, network = make(0)
    run(network, 0, 2)
    getattr(model, "module", model)[0].requires_grad_(True)
    run(network, 2, 4)
    fastnet.save_checkpoint(path, network)
    resumed, other = make(1)
    fastnet.load_checkpoint(path, other)
    run(other, 4, 6)
    return whole_weights(resumed)


def save_early(path: str, parallel: Any, before: int) -> None:
    run = Run(parallel, 0, noisy=False)
    run.go(0, before)
    fastnet.save_checkpoint(path, run.network)


def go_on(path: str, parallel: Any) -> Any:
    run = Run(parallel, 1, noisy=False)
    fastnet.load_checkpoint(path, run.network)
    run.go(4, STEPS)
    return run.weights()


def hand_written_loop(steps: int) -> dict[str, Any]:
    """All samples in one process, as a loop in torch."""
    seed_all(0)
    model = model_fn(noisy=False)
    optimizers = [make(model.parameters()) for make in (adam, momentum)]
    for step in range(steps):
        data = batch(step)
        (((model(data["x"]) - data["t"]) ** 2).mean() / MERGED).backward()
        if step % MERGED == MERGED - 1:
            optimizers[step // 6].step()
            model.zero_grad()
    return dict(model.state_dict())


class WeightedRun:
    """A run of one rank that merges gradients weighted by the number of samples."""

    def __init__(self, seed: int) -> None:
        seed_all(seed)
        self.rank, self.count = rank_count()
        parallel = "ddp" if self.count > 1 else None
        self.model = fastnet.build(
            lambda: model_fn(noisy=False), adam, model_name="net", parallel=parallel
        )
        update = UpdateOp(self.model, "loss", merge_grad=MERGED, weight="count")
        ops = [ModelOp(self.model, "x", "y"), MeanSquaredError(("y", "t"), "loss"), update]
        self.network = fastnet.Network(ops)

    def go(self, first: int, last: int) -> None:
        with self.network("train"):
            for step in range(first, last):
                data = batch(step)
                if self.count > 1:
                    data = {key: value.split([3, 9])[self.rank] for key, value in data.items()}
                self.network.run_step({**data, "count": torch.tensor(len(data["x"]))})


def save_weighted(path: str, before: int) -> None:
    run = WeightedRun(0)
    run.go(0, before)
    fastnet.save_checkpoint(path, run.network)


def go_on_weighted(path: str) -> Any:
    run = WeightedRun(1)
    fastnet.load_checkpoint(path, run.network)
    run.go(4, 6)
    return whole_weights(run.model)


def load_where_it_lacks(folder: str) -> str:
    """As on two machines, of which one does not see the other's folder."""
    run = Run("fsdp", 0)
    run.go(0, 4)
    own = os.path.join(folder, str(run.place[0]))
    os.mkdir(own)
    with contextlib.chdir(own):
        fastnet.save_checkpoint("run.ckpt", run.network)
        run.go(4, 7)
        before = run.weights(), run.optimizers()
        with pytest.raises((RankError, FileNotFoundError)) as caught:
            fastnet.load_checkpoint("run.ckpt", run.network)
    assert same((run.weights(), run.optimizers()), before)
    run.go(7, STEPS)
    return f"{type(caught.value).__name__}: {caught.value}"


def built(parallel: Any, seed: int = 0) -> tuple[Any, Any]:
    seed_all(seed)
    model = fastnet.build(with_buffers, adam, model_name="net", parallel=parallel)
    ops = [ModelOp(model, "x", "y"), MeanSquaredError(("y", "t"), "loss"), UpdateOp(model, "loss")]
    return model, fastnet.Network(ops)


def train_and_save(folder: str, parallel: Any) -> Any:
    model, network = built(parallel)
    with network(mode="train", epoch=1):
        for step in range(2):
            network.run_step(batch(step, *rank_count()))
    path = save_model(model, folder, save_optimizer=True)
    assert path == f"{folder}/net.pt"
    return whole_weights(model), memories(model, model.current_optimizer)


def load_and_step(folder: str, parallel: Any) -> dict[str, Any]:
    model, network = built(parallel, seed=1)
    load_model(model, f"{folder}/net.pt", load_optimizer=True)
    loaded = whole_weights(model), memories(model, model.current_optimizer)
    place = rank_count()
    with network(mode="train", epoch=1):
        network.run_step(batch(7, *place))
    return {"weights": loaded[0], "optimizer": loaded[1], "after": whole_weights(model)}


def save_alone(folder: str) -> Any:
    model, _ = built("ddp")
    found = None
    if rank_count()[0] == 0:
        save_model(model, folder)
        found = os.listdir(folder)
    torch.distributed.barrier()
    return found


def save_and_draw(path: str) -> Any:
    run = Run("ddp", 0)
    fastnet.save_checkpoint(path, run.network)
    return drawn()


def load_and_draw(path: str) -> Any:
    run = Run("auto", 0)
    seed_all(77)
    fastnet.load_checkpoint(path, run.network)
    return drawn()


def drawn() -> tuple[float, float, float]:
    return random.random(), np.random.random_sample(), float(torch.rand(()))
