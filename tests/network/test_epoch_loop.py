"""Epochs of steps over a loader."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import fastnet
from fastnet.network import TorchNetwork, epoch_loop
from fastnet.op.tensorop import LambdaOp
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


class TestLoop:
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
        assert repr(epoch) == "Steps(mode='infer', epoch=1, count=3)"
        assert is_free(network)

    def test_a_step_that_fails(self) -> None:
        network = plus_one()
        epoch = fastnet.steps(network, [{"x": 1}, {"other": 1}], "infer")
        with pytest.raises(KeyError, match="other"):
            list(epoch)
        assert epoch.count == 1
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
        epochs: list[int] = []

        class Noting(DistributedSampler[Any]):
            def set_epoch(self, epoch: int) -> None:
                epochs.append(epoch)
                super().set_epoch(epoch)

        sampler: Any = Noting(batches(1), num_replicas=1, rank=0)
        loader: Any = DataLoader(batches(1), batch_size=None, sampler=sampler)
        list(fastnet.steps(network, loader, "eval", 7, "a"))
        list(fastnet.steps(network, loader, "eval", 7, "b"))
        assert seen == [("eval", 7)]
        assert sampler.epoch == 7
        assert epochs == [7, 7]
        epochs.clear()
        batched: Any = DataLoader([{"x": 1.0}], batch_size=1, sampler=sampler)
        list(fastnet.steps(network, batched, "eval", 8, "b"))
        assert epochs == [8]

    def test_wanted_keys_and_those_that_are_shown(self) -> None:
        epoch = fastnet.steps(plus_one(), [{"x": 1}], "infer", desired_output_keys=["z"])
        assert [result for _, result in epoch] == [{"x": 1, "z": -2}]
        epoch = fastnet.steps(plus_one(), [{"x": 1}], "infer", desired_output_keys="z", show="y")
        assert [result for _, result in epoch] == [{"x": 1, "y": 2, "z": -2}]


def test_times_of_the_loader_and_of_steps(clock: Clock) -> None:
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

    def test_what_shows_it_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        network = plus_one()
        assert len(list(fastnet.steps(network, batches(), "infer"))) == 3
        with pytest.raises(ModuleNotFoundError, match="tqdm"):
            list(fastnet.steps(network, batches(), "infer", progress=True))
        assert is_free(network)


def test_a_key_to_show_that_the_result_lacks(bars: list[Any]) -> None:
    network = plus_one()
    with pytest.raises(KeyError, match=r"'yy'.* Did you mean 'y'"):
        list(fastnet.steps(network, batches(), "infer", progress=True, show="yy"))
    assert is_free(network)
