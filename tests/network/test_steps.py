"""What a step reads, returns and leaves alone."""

from __future__ import annotations

import collections
import dataclasses
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastnet.errors import MissingKeyError
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import Delete as NumpyDelete
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.missing_keys import deleted
from tests.network.programs import (
    batches,
    built,
    line,
    mlp,
    raising,
    regression,
    run,
    supervised,
)


def chain(**network: Any) -> TorchNetwork:
    """Return a -> b -> c -> d, each one more."""
    steps = zip("abc", "bcd", strict=True)
    return TorchNetwork([LambdaOp(lambda x: x + 1, *keys) for keys in steps], **network)


class TestResult:
    def test_is_a_new_plain_dict_over_the_batch(self) -> None:
        batch = {"a": 1, "other": "kept"}
        result = run(chain(), batch)
        assert type(result) is dict
        assert result == {"a": 1, "other": "kept", "b": 2, "c": 3, "d": 4}
        assert batch == {"a": 1, "other": "kept"}

    def test_can_be_written_to(self) -> None:
        batch = {"x": torch.ones(2)}
        network = TorchNetwork([LambdaOp(lambda x: x, "x", "x")])
        result = run(network, batch)
        result["x"] = None
        result["new"] = 1
        del result["x"]
        assert list(batch) == ["x"]
        assert torch.equal(batch["x"], torch.ones(2))

    def test_a_key_of_the_batch_that_is_written_over(self) -> None:
        batch = {"x": torch.zeros(2)}
        network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "x")] * 3)
        with network(mode="infer", epoch=1):
            for _ in range(3):
                assert torch.equal(network.run_step(batch)["x"], torch.full((2,), 3.0))
        assert torch.equal(batch["x"], torch.zeros(2))

    @pytest.mark.parametrize(
        "kind",
        [
            collections.OrderedDict,
            collections.ChainMap,
            collections.UserDict,
            MappingProxyType,
            lambda batch: collections.defaultdict(int, batch),
        ],
    )
    def test_any_mapping_is_a_batch(self, kind: Any) -> None:
        batch = kind({"a": 1, "other": 2})
        result = run(chain(), batch)
        assert type(result) is dict
        assert result == {"a": 1, "other": 2, "b": 2, "c": 3, "d": 4}
        assert dict(batch) == {"a": 1, "other": 2}

    def test_a_defaultdict_makes_up_no_key(self) -> None:
        batch = collections.defaultdict(int, {"b": 1})
        with pytest.raises(KeyError):
            run(chain(), batch)
        assert dict(batch) == {"b": 1}

    def test_values_need_not_be_tensors(self) -> None:
        batch = {"x": np.ones(2, "float32"), "words": ["a", "b"], "none": None}
        network = TorchNetwork([LambdaOp(lambda words: len(words), "words", "n")])
        result = run(network, batch)
        assert result["n"] == 2
        assert all(result[key] is value for key, value in batch.items())

    def test_arrays_become_tensors_for_a_model(self) -> None:
        model = built(line)
        network = TorchNetwork([ModelOp(model, "x", "y")])
        x = np.ones((3, 2), "float32")
        assert torch.equal(run(network, {"x": x})["y"], model(torch.ones(3, 2)).detach())


class TestDetached:
    class Pair(NamedTuple):
        left: Any
        right: Any

    @dataclasses.dataclass(frozen=True)
    class Record:
        value: Any

    def test_results_hold_no_graph_at_any_depth(self) -> None:
        model = built(mlp)
        (batch,) = batches(1)

        def nest(y: torch.Tensor) -> Any:
            return {"list": [y, (y, 3)], "pair": self.Pair(y, "a"), "record": self.Record(y)}

        network = TorchNetwork([*supervised(model), LambdaOp(nest, "y", "nest")])
        result = run(network, batch, "train")
        found = result["nest"]
        for tensor in (
            result["y"],
            result["loss"],
            found["list"][0],
            found["list"][1][0],
            found["pair"].left,
            found["record"].value,
        ):
            assert not tensor.requires_grad
            assert tensor.grad_fn is None
        assert type(found["pair"]) is self.Pair
        assert type(found["record"]) is self.Record

    def test_what_no_op_touched_is_the_callers_own(self) -> None:
        batch = {"a": 1, "leaf": torch.ones(2, requires_grad=True)}
        assert run(chain(), batch)["leaf"] is batch["leaf"]


class TestDesiredKeys:
    @pytest.mark.parametrize(
        ("desired", "new"),
        [
            (None, "bcd"),
            (set(), "bcd"),
            ([], "bcd"),
            ({"d"}, "d"),
            (["b", "c"], "bc"),
            (("c",), "c"),
            (frozenset("bd"), "bd"),
            ({"a"}, ""),
            ({"nothing of this name"}, ""),
            ({"c", "nothing of this name"}, "c"),
            ("c", "c"),
        ],
    )
    def test_of_ops(self, desired: Any, new: str) -> None:
        network = chain()
        with network(mode="infer", epoch=1, desired_output_keys=desired):
            result = network.run_step({"a": 1, "other": 2})
            assert network.ctx_outputs == set(new)
        assert result == {
            "a": 1,
            "other": 2,
            **{key: " abcd".index(key) for key in new},
        }

    def test_a_word_is_one_key(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x, "x", "loss")])
        assert run(network, {"x": 1}, desired_output_keys="loss") == {"x": 1, "loss": 1}

    def test_what_postprocessing_reads_comes_back_too(self) -> None:
        network = chain(postprocessing=NumpyLambdaOp(lambda b: b * 10, "b", "e"))
        result = run(network, {"a": 1}, desired_output_keys={"d"})
        assert set(result) == {"a", "b", "d", "e"}
        assert result["e"] == 20

    def test_an_op_runs_though_nobody_wants_its_output(self) -> None:
        ran: list[int] = []
        network = TorchNetwork([LambdaOp(ran.append, "x", "y")])
        assert run(network, {"x": 1}, desired_output_keys={"z"}) == {"x": 1}
        assert ran == [1]

    def test_the_callers_set_is_not_kept(self) -> None:
        network = chain()
        wanted = {"d"}
        with network(mode="infer", epoch=1, desired_output_keys=wanted):
            wanted.add("b")
            assert set(network.run_step({"a": 1})) == {"a", "d"}
        with network(mode="infer", epoch=1, desired_output_keys=wanted):
            assert set(network.run_step({"a": 1})) == {"a", "b", "d"}


class TestDelete:
    def test_the_key_does_not_come_back_and_the_batch_keeps_it(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x + 1, "x", ["y"][0]), Delete("y"), LambdaOp(lambda x: x, "x", "z")]
        )
        assert run(network, {"x": 1}) == {"x": 1, "z": 1}

    def test_a_key_of_the_batch(self) -> None:
        network = TorchNetwork([Delete(["x", "w"]), LambdaOp(lambda: 3, None, "w")])
        batch = {"x": 1, "w": 2}
        assert run(network, batch) == {"x": 1, "w": 3}
        assert batch == {"x": 1, "w": 2}

    def test_read_after_it(self) -> None:
        network = TorchNetwork(
            [
                LambdaOp(lambda x: x, "x", "y"),
                Delete("y"),
                LambdaOp(lambda y: y, "y", "z"),
            ]
        )
        with raising(
            MissingKeyError,
            deleted(
                "LambdaOp (op 2, inputs ['y'], outputs ['z'])", "y", "Delete (op 1, inputs ['y'])"
            ),
        ):
            run(network, {"x": 1})


class TestNothingInForce:
    @pytest.mark.parametrize(
        "ops",
        [
            [],
            [None],
            [LambdaOp(lambda x: x, "x", "y", mode="train")],
            [EpochScheduler({5: LambdaOp(lambda x: x, "x", "y")})],
            [LambdaOp(lambda x: x, "x", "y", ds_id="elsewhere")],
        ],
    )
    def test_returns_the_batch(self, ops: Any) -> None:
        network = TorchNetwork(ops)
        batch = {"x": torch.ones(1), "z": 3}
        with network(mode="infer", epoch=1) as opened:
            assert opened.ctx_ops == []
            assert opened.ctx_models == set()
            assert opened.ctx_outputs == set()
            result = network.run_step(batch)
        assert result == batch
        assert result is not batch
        assert run(network, {}) == {}

    def test_postprocessing_alone(self) -> None:
        network = TorchNetwork([], postprocessing=NumpyLambdaOp(lambda x: x + 1, "x", "y"))
        assert torch.equal(run(network, {"x": torch.ones(2)})["y"], torch.full((2,), 2.0))


class TestGradMode:
    class Look(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            state["seen"] = torch.is_grad_enabled()
            if data is None:
                raise RuntimeError("no data")
            return data

    @pytest.mark.parametrize("outside", [True, False])
    @pytest.mark.parametrize("mode", ["train", "eval", "test", "infer"])
    @pytest.mark.parametrize("fails", [True, False])
    def test_is_on_only_for_ops_that_take_gradients(
        self, outside: bool, mode: str, fails: bool
    ) -> None:
        look = self.Look("z", "z")
        network = TorchNetwork([look, *regression(built(line))])
        batch = {"x": torch.ones(1, 2), "z": None if fails else 1}
        with torch.set_grad_enabled(outside), network(mode=mode, epoch=1):
            # a step in training that is not allowed gradients fails, which is not the point here
            try:
                network.run_step(batch)
            except RuntimeError:
                assert fails or not outside
            assert torch.is_grad_enabled() == outside
            assert network.ctx_state["seen"] == (mode == "train" and outside)
            assert network.ctx_state["req_grad"] == (mode == "train")

    def test_is_put_back_after_an_op_that_changes_it(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: torch.set_grad_enabled(True), "x", "y")])
        with torch.no_grad():
            run(network, {"x": 1})
            assert not torch.is_grad_enabled()
        network = TorchNetwork([LambdaOp(lambda x: torch.set_grad_enabled(False), "x", "y")])
        run(network, {"x": 1})
        assert torch.is_grad_enabled()

    def test_in_inference_mode(self) -> None:
        model = built(line)
        with torch.inference_mode():
            result = run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": torch.ones(1, 2)})
        assert result["y"].is_inference()


class TestPostprocessing:
    def test_runs_on_arrays_and_gives_tensors(self) -> None:
        kinds: list[type] = []

        class Keep(NumpyOp):
            def forward_batch(self, data: Any, state: Any) -> Any:
                kinds.append(type(data))
                return data * 2

        network = TorchNetwork(
            [LambdaOp(lambda x: x + 1, "x", "y")], [Keep("y", "z"), Keep("z", "z")]
        )
        batch = {"x": torch.ones(2), "words": ["a"]}
        result = run(network, batch)
        assert kinds == [np.ndarray, np.ndarray]
        assert torch.equal(result["z"], torch.full((2,), 8.0))
        assert torch.equal(result["y"], torch.full((2,), 2.0))
        assert result["words"] is batch["words"]

    def test_a_delete(self) -> None:
        network = chain(
            postprocessing=[NumpyLambdaOp(lambda d: d, "d", "e"), NumpyDelete(["a", "b"])]
        )
        batch = {"a": torch.ones(1)}
        assert set(run(network, batch)) == {"c", "d", "e"}
        assert set(batch) == {"a"}

    def test_an_op_that_writes_into_what_it_reads(self) -> None:
        def wipe(x: Any) -> Any:
            x[:] = 0
            return x

        network = TorchNetwork([], postprocessing=NumpyLambdaOp(wipe, "x", "y"))
        batch = {"x": torch.ones(2)}
        result = run(network, batch)
        assert torch.equal(result["y"], torch.zeros(2))
        assert torch.equal(batch["x"], torch.ones(2))

    def test_by_mode_and_epoch(self) -> None:
        network = TorchNetwork(
            [],
            postprocessing=[
                NumpyLambdaOp(lambda x: x, "x", "train", mode="train"),
                EpochScheduler({2: NumpyLambdaOp(lambda x: x, "x", "late")}),
            ],
        )
        for mode, epoch, new in (
            ("train", 1, {"train"}),
            ("train", 2, {"train", "late"}),
            ("eval", 1, set()),
            ("eval", 3, {"late"}),
        ):
            assert set(run(network, {"x": 1}, mode, epoch)) == {"x", *new}

    def test_the_state_is_the_networks(self) -> None:
        class Look(NumpyOp):
            def forward_batch(self, data: Any, state: Any) -> Any:
                return np.array([state["epoch"]])

        network = TorchNetwork([], postprocessing=Look("x", "epoch"))
        assert run(network, {"x": 1}, epoch=7)["epoch"] == 7


class TestSlicers:
    def test_cut_run_joined(self) -> None:
        shapes: list[Any] = []

        def look(x: torch.Tensor, w: torch.Tensor) -> Any:
            shapes.append((tuple(x.shape), tuple(w.shape)))
            return [x * w, x.sum()]

        network = TorchNetwork(
            [LambdaOp(look, ["x", "w"], ["y", "sum"])],
            slicers=[AxisSlicer(axis=1, slice="x", unslice="y"), MeanUnslicer("sum")],
        )
        batch = {"x": torch.arange(6.0).reshape(2, 3), "w": torch.full((2,), 2.0), "other": "kept"}
        result = run(network, batch)
        assert shapes == [((2,), (2,))] * 3
        assert torch.equal(result["y"], 2 * batch["x"])
        assert result["sum"] == 5
        # what is not un-sliced is the batch's own
        assert all(result[key] is value for key, value in batch.items())

    def test_scheduled(self) -> None:
        counted: list[int] = []
        network = TorchNetwork(
            [LambdaOp(lambda x: (counted.append(1), x)[1], "x", "y")],
            slicers=EpochScheduler({2: AxisSlicer(axis=0, slice="x", unslice="y"), 3: None}),
        )
        for epoch, count in ((1, 1), (2, 3), (3, 1)):
            counted.clear()
            assert torch.equal(
                run(network, {"x": torch.arange(3)}, epoch=epoch)["y"], torch.arange(3)
            )
            assert len(counted) == count

    def test_postprocessing_sees_the_whole(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x + 1, "x", "y")],
            postprocessing=NumpyLambdaOp(lambda y: y.sum(), "y", "z"),
            slicers=AxisSlicer(axis=0, slice="x", unslice="y"),
        )
        assert run(network, {"x": torch.arange(3.0)})["z"] == 6
