"""Epochs of steps over a loader."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import fastnet
from fastnet.network import TorchNetwork, epoch_loop
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import is_free


class Clock:
    """A clock that only moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(epoch_loop, "perf_counter", clock)
    return clock


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The progress bars, which are redrawn at every step."""
    import tqdm

    made: list[Any] = []

    class Bar(tqdm.tqdm):  # type: ignore[type-arg]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, file=io.StringIO(), mininterval=0, miniters=1)
            made.append(self)

        @property
        def text(self) -> str:
            return str(self.fp.getvalue())

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    return made


def plus_one() -> TorchNetwork:
    return TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: -y, "y", "z")])


def batches(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": torch.full((2,), float(number))} for number in range(count)]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from batches()


class TestLoop:
    def test_a_loader_whose_length_is_not_known(self, bars: list[Any]) -> None:
        loader = DataLoader(Stream(), batch_size=None)
        assert len(list(fastnet.steps(plus_one(), loader, "infer", progress=True))) == 3

    def test_what_is_shown_is_returned_by_a_network_that_returns_nothing(self) -> None:
        network = fastnet.Network([LambdaOp(torch.sum, "x", "y")], returns=None)
        for _, result in fastnet.steps(network, batches(), "infer", show="y"):
            assert "y" in result

    def test_each_batch_comes_with_its_result(self) -> None:
        network, data = plus_one(), batches()
        epoch = fastnet.steps(network, data, "infer")
        for number, (batch, result) in enumerate(epoch):
            assert batch is data[number]
            assert torch.equal(result["y"], data[number]["x"] + 1)
            assert epoch.count == number + 1
        assert epoch.count == 3
        assert is_free(network)

    def test_trains_like_a_hand_written_loop(self) -> None:
        torch.manual_seed(0)
        data = [{"x": torch.randn(4, 3), "y": torch.randn(4, 2)} for _ in range(5)]
        made = torch.nn.Linear(3, 2)
        twin = torch.nn.Linear(3, 2)
        twin.load_state_dict(made.state_dict())
        model = fastnet.build(lambda: made, lambda p: torch.optim.SGD(p, lr=0.1))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        network = TorchNetwork(
            [
                ModelOp(model, "x", "y_pred"),
                MeanSquaredError(("y_pred", "y"), "loss"),
                UpdateOp(model, "loss"),
            ]
        )
        losses = [float(result["loss"]) for _, result in fastnet.steps(network, data, "train")]
        for batch, loss in zip(data, losses, strict=True):
            optimizer.zero_grad()
            expected = torch.nn.functional.mse_loss(twin(batch["x"]), batch["y"])
            expected.backward()
            optimizer.step()
            assert loss == pytest.approx(float(expected), rel=1e-6)
        assert torch.equal(made.weight, twin.weight)

    def test_a_loop_that_is_left_early(self) -> None:
        network = plus_one()
        for _, result in fastnet.steps(network, batches(), "infer"):
            assert result["y"] is not None
            break
        assert is_free(network)

    def test_a_step_that_fails(self) -> None:
        network = plus_one()
        epoch = fastnet.steps(network, [{"x": 1}, {"other": 1}], "infer")
        with pytest.raises(KeyError, match="other"):
            list(epoch)
        assert epoch.count == 1
        assert is_free(network)

    @pytest.mark.parametrize("batch", [None, (torch.ones(2), torch.ones(2)), [1, 2]])
    def test_a_batch_that_is_no_dict_is_refused_by_the_step(self, batch: Any) -> None:
        network = plus_one()
        with pytest.raises(TypeError, match=type(batch).__name__):
            list(fastnet.steps(network, [batch], "infer"))
        assert is_free(network)

    def test_a_dict_of_arrays_is_no_loader(self) -> None:
        arrays = {"x": torch.ones(4, 2), "t": torch.ones(4)}
        with pytest.raises(TypeError, match=r"steps .*\['x', 't'\].*from_tensor_slices"):
            fastnet.steps(plus_one(), arrays, "infer")  # type: ignore[arg-type]

    def test_the_mode_the_epoch_and_the_dataset(self) -> None:
        seen: list[Any] = []

        class Look(fastnet.op.tensorop.TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                seen.append((state["mode"], state["epoch"]))
                return data

        network = TorchNetwork([Look("x", "y", ds_id="a")])
        list(fastnet.steps(network, batches(1), "eval", 7, "a"))
        list(fastnet.steps(network, batches(1), "eval", 7, "b"))
        assert seen == [("eval", 7)]

    def test_wanted_keys_and_those_that_are_shown(self) -> None:
        epoch = fastnet.steps(plus_one(), [{"x": 1}], "infer", desired_output_keys=["z"])
        assert [result for _, result in epoch] == [{"x": 1, "z": -2}]
        epoch = fastnet.steps(plus_one(), [{"x": 1}], "infer", desired_output_keys="z", show="y")
        assert [result for _, result in epoch] == [{"x": 1, "y": 2, "z": -2}]

    def test_samplers_are_told_the_epoch(self) -> None:
        sampler: DistributedSampler[Any] = DistributedSampler(
            batches(), num_replicas=1, rank=0, shuffle=True
        )
        loader = DataLoader(batches(), batch_size=None, sampler=sampler)
        list(fastnet.steps(plus_one(), loader, "train", 5))
        assert sampler.epoch == 5

    def test_a_second_iteration_counts_anew(self) -> None:
        epoch = fastnet.steps(plus_one(), batches(), "infer")
        assert len(list(epoch)) == len(list(epoch)) == epoch.count == 3
        assert repr(epoch) == "Steps(mode='infer', epoch=1, count=3)"


class TestTimes:
    def test_of_the_loader_and_of_steps(self, clock: Clock) -> None:
        def slow_loader() -> Iterator[dict[str, Any]]:
            for batch in batches():
                clock.now += 3
                yield batch
            clock.now += 50

        def slow_op(x: Any) -> Any:
            clock.now += 1
            return x

        network = TorchNetwork([LambdaOp(slow_op, "x", "y")])
        epoch = fastnet.steps(network, slow_loader(), "infer")
        assert epoch.waiting_share == 0
        for _ in epoch:
            clock.now += 1000  # the loop's own
        assert (epoch.waited, epoch.ran) == (9, 3)
        assert epoch.waiting_share == 0.75
        assert epoch.in_body == 3000

    def test_of_a_loop_that_is_left(self, clock: Clock) -> None:
        epoch = fastnet.steps(
            TorchNetwork([LambdaOp(lambda x: x, "x", "y")]), list(batches()), "infer"
        )
        for _ in epoch:
            clock.now += 7
            if epoch.count == 2:
                break
        assert (epoch.count, epoch.in_body) == (2, 14)

    def test_in_a_profile(self, clock: Clock) -> None:
        def slow_loader() -> Iterator[dict[str, Any]]:
            for batch in batches():
                clock.now += 3
                yield batch

        network = plus_one()
        with fastnet.profile(network) as profile:
            list(fastnet.steps(network, slow_loader(), "infer"))
        (row,) = [row for row in profile.entries if row.name == "wait for data"]
        assert (row.count, row.mean, row.section) == (3, 3, "infer")
        assert "infer: wait for data" in str(profile)


class TestBar:
    def test_says_what_was_asked_for(self, bars: list[Any], clock: Clock) -> None:
        def op(x: Any) -> Any:
            clock.now += 1
            return x.mean()

        def loader() -> Iterator[dict[str, Any]]:
            for batch in batches():
                clock.now += 1
                yield batch

        network = TorchNetwork([LambdaOp(op, "x", "loss")])
        list(fastnet.steps(network, loader(), "eval", 4, progress=True, show="loss"))
        (bar,) = bars
        assert bar.total is None
        assert "eval 4: 3step" in bar.text
        assert "loss=2, waiting for data=50%" in bar.text
        assert bar.n == 3

    def test_knows_how_many_there_are(self, bars: list[Any]) -> None:
        list(fastnet.steps(plus_one(), batches(), "train", progress=True))
        assert bars[0].total == 3
        assert "100%" in bars[0].text

    def test_is_closed_when_a_step_raises(self, bars: list[Any]) -> None:
        with pytest.raises(KeyError):
            list(fastnet.steps(plus_one(), [{"x": 1}, {}], "infer", progress=True))
        assert bars[0].fp.getvalue().endswith("\n")

    def test_what_shows_it_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        network = plus_one()
        assert len(list(fastnet.steps(network, batches(), "infer"))) == 3
        with pytest.raises(ModuleNotFoundError, match="tqdm"):
            list(fastnet.steps(network, batches(), "infer", progress=True))
        assert is_free(network)

    def test_there_is_none_unless_asked_for(self, bars: list[Any]) -> None:
        list(fastnet.steps(plus_one(), batches(), "infer"))
        assert bars == []


def test_a_key_to_show_that_the_result_lacks(bars: list[Any]) -> None:
    network = plus_one()
    with pytest.raises(KeyError, match=r"'yy'.* Did you mean 'y'"):
        list(fastnet.steps(network, batches(), "infer", progress=True, show="yy"))
    assert is_free(network)
