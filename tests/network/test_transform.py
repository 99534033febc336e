"""Data through a network, in whatever form it comes."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fastnet.network import TorchNetwork
from fastnet.op.numpyop import Delete as NumpyDelete
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from tests.network.programs import Pipeline, is_free


@pytest.fixture
def network() -> TorchNetwork:
    return TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])


def some(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": np.full(2, float(number))} for number in range(count)]


def check(results: Any, count: int = 3) -> None:
    assert type(results) is list
    assert len(results) == count
    for number, result in enumerate(results):
        assert type(result) is collections.ChainMap
        assert torch.equal(result["x"], torch.full((2,), float(number), dtype=torch.float64))
        assert torch.equal(result["y"], result["x"] + 1)


class TestForms:
    def test_what_was_written_is_over_what_was_read(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x * 2, "x", "x"), LambdaOp(lambda x: x + 1, "x", "y")],
            [NumpyLambdaOp(lambda y: y + 1, "y", "z"), NumpyDelete("word")],
        )
        batch = {"x": 1.0, "word": "a", "more": "b"}
        for result in (network.transform(batch, "infer"), *network.transform([batch], "infer")):
            assert result.maps == [{"x": 2, "y": 3, "z": 4}, {"x": 1, "more": "b"}]
            assert list(result) == ["x", "more", "y", "z"]
            result["more"] = "c"
            assert result.maps[0]["more"] == "c"
            assert batch == {"x": 1.0, "word": "a", "more": "b"}


class TestOneByOne:
    def test_each_batch_is_run_when_its_result_is_asked_for(self) -> None:
        log: list[str] = []

        def generate() -> Iterator[dict[str, Any]]:
            for batch in some():
                log.append("drawn")
                yield batch

        network = TorchNetwork([LambdaOp(lambda x: log.append("run") or x + 1, "x", "y")])
        results = network.iter_transform(generate(), "infer")
        assert log == []
        assert is_free(network)
        first = next(results)
        assert log == ["drawn", "run"]
        check([first, *results])
        assert log == ["drawn", "run"] * 3
        assert is_free(network)

    def test_results_are_not_kept(self, network: TorchNetwork) -> None:
        results = network.iter_transform(some(), "infer")
        kept = weakref.ref(next(results)["y"])
        next(results)
        assert kept() is None

    def test_the_network_is_in_use_until_it_is_closed(self, network: TorchNetwork) -> None:
        results: Any = network.iter_transform(some(), "infer")
        next(results)
        with pytest.raises(ValueError, match="is open already"):
            network.transform({"x": 1}, "infer")
        results.close()
        assert is_free(network)

    def test_a_pipeline_that_is_left_early_or_raises(self, network: TorchNetwork) -> None:
        def generate() -> Iterator[dict[str, Any]]:
            yield from some(1)
            raise OSError("no disk")

        pipelines = Pipeline(some()), Pipeline(generate())
        next(network.iter_transform(pipelines[0], "eval", 5, "d"))
        with pytest.raises(OSError, match="no disk"):
            network.transform(pipelines[1], "eval", 5, "d")
        for pipeline in pipelines:
            assert pipeline.log == [("eval", 5, "d", False), "enter", "exit"]
        assert is_free(network)


def test_a_derived_class_may_change_batches_and_results() -> None:
    class Doubling(TorchNetwork):
        def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
            return super()._do_transform({key: 2 * value for key, value in batch.items()})

        def run_step(self, batch: Any) -> dict[str, Any]:
            return {**super().run_step(batch), "more": 7}

    network = Doubling([LambdaOp(lambda x: x, "x", "y")])
    for result in (network.transform({"x": 2}, "infer"), *network.transform([{"x": 2}], "infer")):
        assert result.maps == [{"y": 4, "more": 7}, {"x": 4}]


class TestProgress:
    @pytest.fixture(autouse=True)
    def _needs_tqdm(self) -> None:
        pytest.importorskip("tqdm")

    @pytest.mark.parametrize(
        "kind", [list, tuple, lambda data: DataLoader(data, batch_size=None), Pipeline]
    )
    def test_where_the_length_is_known(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str], kind: Any
    ) -> None:
        check(network.transform(kind(some()), mode="infer", progress=True))
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "transform" in shown.err
        assert "3/3" in shown.err

    @pytest.mark.parametrize("progress", [True, False])
    def test_nothing_where_it_is_not(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str], progress: bool
    ) -> None:
        network.transform(iter(some()), mode="infer", progress=progress)
        network.transform(some()[0], mode="infer", progress=progress)
        network.transform(some(), mode="infer")
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", "")
