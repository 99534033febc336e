"""Data through a network, in whatever form it comes."""

from __future__ import annotations

import collections
import copy
import sys
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
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.slicer import AxisSlicer
from tests.network.programs import (
    built,
    is_free,
    line,
    regression,
    same_weights,
    weights,
)


class Look(TensorOp):
    """Hands its input through, and notes the state of each step."""

    def __init__(self) -> None:
        super().__init__("x", "y")
        self.states: list[dict[str, Any]] = []

    def forward(self, data: Any, state: Any) -> Any:
        self.states.append({key: state[key] for key in ("mode", "epoch", "warmup", "eager")})
        return data + 1


@pytest.fixture
def look() -> Look:
    return Look()


@pytest.fixture
def network(look: Look) -> TorchNetwork:
    return TorchNetwork([look])


def some(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": np.full(2, float(number))} for number in range(count)]


def check(results: Any, count: int = 3) -> None:
    assert type(results) is list
    assert len(results) == count
    for number, result in enumerate(results):
        assert type(result) is collections.ChainMap
        assert torch.equal(result["x"], torch.full((2,), float(number), dtype=torch.float64))
        assert torch.equal(result["y"], result["x"] + 1)


class Pipeline:
    """What FastEstimator's Pipeline looks like from outside."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.log: list[Any] = []

    def __call__(self, mode: str, epoch: int, ds_id: str, shuffle: bool) -> Pipeline:
        self.log.append((mode, epoch, ds_id, shuffle))
        return self

    def __enter__(self) -> Any:
        self.log.append("enter")
        return self.data

    def __exit__(self, *exc: object) -> None:
        self.log.append("exit")


class TestForms:
    def test_a_batch(self, network: TorchNetwork, look: Look) -> None:
        result = network.transform({"x": 1.5, "name": "a"}, mode="eval", epoch=4, ds_id="d")
        assert type(result) is collections.ChainMap
        assert result == {"x": 1.5, "name": "a", "y": 2.5}
        assert isinstance(result["x"], torch.Tensor)
        assert look.states == [{"mode": "eval", "epoch": 4, "warmup": False, "eager": True}]
        assert is_free(network)

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

    def test_without_ops_nothing_was_written(self) -> None:
        result = TorchNetwork([]).transform({"x": 1}, "infer")
        assert result.maps == [{}, {"x": 1}]

    def test_of_slices_there_is_one_dict(self, look: Look) -> None:
        network = TorchNetwork([look], slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y"]))
        assert type(network.transform({"x": np.arange(3)}, mode="infer")) is dict

    def test_a_derived_class_may_add_to_a_step(self) -> None:
        class Adding(TorchNetwork):
            def run_step(self, batch: Any) -> dict[str, Any]:
                return {**super().run_step(batch), "more": 7}

        result = Adding([LambdaOp(lambda x: x, "x", "y")]).transform({"x": 2}, mode="infer")
        assert result.maps == [{"y": 2, "more": 7}, {"x": 2}]

    def test_defaults(self, network: TorchNetwork, look: Look) -> None:
        network.transform({"x": 1}, "infer")
        assert look.states == [{"mode": "infer", "epoch": 1, "warmup": False, "eager": True}]

    @pytest.mark.parametrize("kind", [collections.OrderedDict, collections.ChainMap])
    def test_another_mapping(self, network: TorchNetwork, kind: Any) -> None:
        assert network.transform(kind({"x": 1}), mode="infer") == {"x": 1, "y": 2}

    @pytest.mark.parametrize("kind", [list, tuple, iter, collections.deque])
    def test_several(self, network: TorchNetwork, look: Look, kind: Any) -> None:
        check(network.transform(kind(some()), mode="infer"))
        assert [state["eager"] for state in look.states] == [False] * 3
        assert is_free(network)

    @pytest.mark.parametrize("kind", [list, iter])
    def test_none(self, network: TorchNetwork, kind: Any) -> None:
        assert network.transform(kind([]), mode="infer") == []

    def test_a_generator_is_drawn_a_batch_at_a_time(self, look: Look) -> None:
        log: list[str] = []

        def generate() -> Iterator[dict[str, Any]]:
            for batch in some():
                log.append("drawn")
                yield batch

        network = TorchNetwork([look, LambdaOp(lambda x: log.append("run"), "x", None)])
        check(network.transform(generate(), mode="infer"))
        assert log == ["drawn", "run"] * 3

    def test_a_data_loader(self, network: TorchNetwork) -> None:
        loader = DataLoader(some(6), batch_size=2)
        results = network.transform(loader, mode="test")
        assert [result["y"].shape for result in results] == [(2, 2)] * 3
        assert float(results[2]["y"][1, 0]) == 6

    @pytest.mark.parametrize("as_loader", [False, True])
    def test_a_pipeline(self, network: TorchNetwork, as_loader: bool) -> None:
        data = DataLoader(some(), batch_size=None) if as_loader else some()
        pipeline = Pipeline(data)
        check(network.transform(pipeline, mode="eval", epoch=5, ds_id="d"))
        assert pipeline.log == [("eval", 5, "d", False), "enter", "exit"]

    def test_a_pipeline_whose_loader_raises(self, network: TorchNetwork) -> None:
        def generate() -> Iterator[dict[str, Any]]:
            yield from some(1)
            raise OSError("no disk")

        pipeline = Pipeline(generate())
        with pytest.raises(OSError, match="no disk"):
            network.transform(pipeline, mode="eval")
        assert pipeline.log[-1] == "exit"
        assert is_free(network)

    def test_a_batch_that_fails(self, network: TorchNetwork) -> None:
        with pytest.raises(KeyError):
            network.transform([{"x": 1}, {"z": 1}], mode="infer")
        assert is_free(network)
        check(network.transform(some(), mode="infer"))

    @pytest.mark.parametrize(
        ("data", "name"),
        [
            (3, "int"),
            (None, "NoneType"),
            ("abc", "str"),
            ([3], "int"),
            (torch.ones(2), "Tensor"),
            (["x"], "str"),
        ],
    )
    def test_no_data(self, network: TorchNetwork, data: Any, name: str) -> None:
        with pytest.raises(TypeError, match=rf"a dict of values by key.*(not|got) {name}\."):
            network.transform(data, mode="infer")
        assert is_free(network)


class TestWantedKeys:
    @pytest.mark.parametrize("data", [{"x": 1}, [{"x": 1}]], ids=["a batch", "several"])
    def test_no_others_come_back(self, data: Any) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 3, "y", "z")]
        )
        result = network.transform(data, "infer", desired_output_keys=["z"])
        assert result in ({"x": 1, "z": 6}, [{"x": 1, "z": 6}])

    def test_of_slices(self, look: Look) -> None:
        network = TorchNetwork(
            [look, LambdaOp(lambda y: -y, "y", "z")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "z"]),
        )
        result = network.transform({"x": np.arange(3)}, "infer", desired_output_keys=["z"])
        assert result["z"].tolist() == [-1, -2, -3]
        assert set(result) == {"x", "z"}


class TestOneByOne:
    def test_each_batch_is_run_when_its_result_is_asked_for(self, look: Look) -> None:
        log: list[str] = []

        def generate() -> Iterator[dict[str, Any]]:
            for batch in some():
                log.append("drawn")
                yield batch

        network = TorchNetwork([look, LambdaOp(lambda x: log.append("run"), "x", None)])
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

    def test_a_pipeline_that_is_left_early(self, network: TorchNetwork) -> None:
        pipeline = Pipeline(some())
        for result in network.iter_transform(pipeline, "eval", 5, "d"):
            assert result["y"] is not None
            break
        assert pipeline.log == [("eval", 5, "d", False), "enter", "exit"]
        assert is_free(network)

    def test_wanted_keys(self, network: TorchNetwork) -> None:
        (result,) = network.iter_transform(some(1), "infer", desired_output_keys=["y"])
        assert "y" in result

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ({"x": 1}, r"iter_transform .*\['x'\].* list"),
            ("abc", "an iterable of batches, .* not str"),
            (3, "an iterable of batches, .* not int"),
        ],
    )
    def test_no_batches(self, network: TorchNetwork, data: Any, text: str) -> None:
        with pytest.raises(TypeError, match=text):
            network.iter_transform(data, "infer")
        assert is_free(network)


class TestTheCallersData:
    def test_is_not_touched(self, network: TorchNetwork) -> None:
        batch = {"x": np.ones(2), "nest": {"list": [1, np.ones(1)]}, "word": "a", "none": None}
        before = copy.copy(batch)
        nest, inner = batch["nest"], batch["nest"]["list"]
        number, array = inner
        for data in (batch, [batch], iter([batch]), Pipeline([batch])):
            result = network.transform(data, mode="infer")
            result = result[0] if isinstance(result, list) else result
            assert list(batch) == list(before)
            assert all(batch[key] is value for key, value in before.items())
            assert nest == {"list": inner}
            assert inner[0] is number
            assert inner[1] is array
            assert isinstance(result["nest"]["list"][1], torch.Tensor)
            assert result["word"] == "a"
            assert result["none"] is None

    def test_tensors_are_used_as_they_are(self, network: TorchNetwork) -> None:
        x = torch.ones(2)
        assert network.transform({"x": x}, mode="infer")["x"] is x

    def test_a_list_is_not_changed(self, network: TorchNetwork) -> None:
        data = some()
        before = list(data)
        network.transform(data, mode="infer")
        assert data == before
        assert all(one is other for one, other in zip(data, before, strict=True))


class TestWhatItDoes:
    def test_training_too(self) -> None:
        model = built(line)
        network = TorchNetwork(regression(model))
        before = weights(model)
        network.transform([{"x": np.ones((3, 2), "float32")}] * 2, mode="train")
        assert not same_weights(model, before)

    def test_slicers_and_postprocessing(self, look: Look) -> None:
        network = TorchNetwork(
            [look],
            NumpyLambdaOp(lambda y: y.sum(), "y", "z"),
            AxisSlicer(axis=0, slice="x", unslice=["x", "y", "z"]),
        )
        assert network.transform({"x": np.arange(3)}, mode="infer")["z"] == 6
        assert len(look.states) == 3
        assert [state["eager"] for state in look.states] == [False] * 3

    def test_a_network_that_is_in_use(self, network: TorchNetwork) -> None:
        with network(mode="infer", epoch=1):
            with pytest.raises(ValueError, match="open already"):
                network.transform({"x": 1}, mode="infer")
            assert network.run_step({"x": 1})["y"] == 2

    def test_a_derived_class_may_look_at_each_batch(self) -> None:
        class Doubling(TorchNetwork):
            def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
                return super()._do_transform({key: 2 * value for key, value in batch.items()})

        network = Doubling([LambdaOp(lambda x: x, "x", "y")])
        assert network.transform({"x": 2}, mode="infer")["y"] == 4
        assert network.transform([{"x": 2}], mode="infer")[0]["y"] == 4


class TestProgress:
    @pytest.fixture(autouse=True)
    def _needs_tqdm(self) -> None:
        pytest.importorskip("tqdm")

    @pytest.mark.parametrize("kind", [list, tuple, lambda data: DataLoader(data, batch_size=None)])
    def test_where_the_length_is_known(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str], kind: Any
    ) -> None:
        check(network.transform(kind(some()), mode="infer", progress=True))
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "transform" in shown.err
        assert "3/3" in shown.err

    def test_of_a_pipelines_loader(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check(network.transform(Pipeline(some()), mode="infer", progress=True))
        assert "3/3" in capsys.readouterr().err

    @pytest.mark.parametrize("progress", [True, False])
    def test_nothing_where_it_is_not(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str], progress: bool
    ) -> None:
        network.transform(iter(some()), mode="infer", progress=progress)
        network.transform(some()[0], mode="infer", progress=progress)
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", "")

    def test_nothing_unless_asked_for(
        self, network: TorchNetwork, capsys: pytest.CaptureFixture[str]
    ) -> None:
        network.transform(some(), mode="infer")
        network.transform(some(), "infer", 1, "")
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", "")

    def test_tqdm_is_needed_only_for_a_bar(
        self, network: TorchNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        check(network.transform(some(), mode="infer"))
        with pytest.raises(ModuleNotFoundError, match="tqdm"):
            network.transform(some(), mode="infer", progress=True)
        assert is_free(network)
