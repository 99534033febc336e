"""Data through a network, in whatever form it comes."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import FRAMEWORKS, Framework, make_layers
from tests.conformance.oracle import Line, make_batches

BATCHES = make_batches(4)


def predicting(fw: Framework) -> tuple[Any, Line]:
    layers = make_layers(3, 2)
    model = fw.build(layers, fw.sgd(0.1))
    network = fw.network(
        [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y, t: fw.mean((y - t) ** 2), ["y", "t"], "loss", mode="!infer"),
            UpdateOp(model, "loss"),
        ],
        [NumpyLambdaOp(lambda y: y.argmax(1), "y", "label", mode="infer")],
    )
    return network, Line(*layers[0])


def expected(line: Line, batch: Any) -> dict[str, Any]:
    y = line.predict(batch).astype("float32")
    return {**batch, "y": y, "label": y.argmax(1)}


class TestForms:
    @pytest.mark.parametrize("kind", ["arrays", "tensors", "torch tensors", "other tensors"])
    @conforms
    def test_one_batch(self, fw: Framework, kind: str) -> Any:
        if kind == "other tensors":
            pytest.importorskip("tensorflow")
        network, line = predicting(fw)
        if fw.name == "tf-static":
            # there is a trace from now on, which serves a single batch too
            fw.step(network, BATCHES[0], "infer")
        maker = {
            "arrays": None,
            "tensors": fw,
            "torch tensors": FRAMEWORKS["torch"],
            "other tensors": FRAMEWORKS["torch" if fw.target == "tf" else "tf-eager"],
        }[kind]
        results = []
        for batch in BATCHES[:2]:
            given = batch if maker is None else maker.tensors(batch)
            kept = dict(given)
            result = network.transform(given, "infer")
            assert type(result) is ChainMap
            assert all(given[key] is kept[key] for key in kept)
            results.append(fw.arrays(result))
            assert_same(results[-1], expected(line, batch))
        return results

    @conforms
    def test_numbers_and_nests(self, fw: Framework) -> Any:
        """Ops are given floats; the result has all numbers of the batch as tensors."""
        network = fw.network(
            [
                LambdaOp(lambda x, n: x + n["m"][0], ["x", "n"], "y"),
                LambdaOp(lambda x, n: n["k"] * 2, ["x", "n"], "z"),
            ]
        )
        batch = {"x": 1.5, "n": {"m": [2.0, "text", None], "k": 3}, "s": "text", "none": None}
        result = fw.arrays(network.transform(batch, "infer"))
        assert type(batch["n"]["k"]) is int
        assert_same(
            result,
            {
                "x": np.array(1.5),
                "n": {"m": [np.array(2.0), "text", None], "k": np.array(3)},
                "s": "text",
                "none": None,
                "y": 3.5,
                "z": np.array(6),
            },
        )
        return result

    @pytest.mark.parametrize("make", [list, tuple, iter], ids=str)
    @conforms
    def test_several_batches(self, fw: Framework, make: Any) -> Any:
        network, line = predicting(fw)
        results = network.transform(make(BATCHES), "infer")
        assert type(results) is list
        results = fw.arrays(results)
        assert_same(results, [expected(line, batch) for batch in BATCHES])
        return results

    @conforms
    def test_a_data_loader(self, fw: Framework) -> Any:
        network = fw.network([LambdaOp(lambda x, n: [x + 1, n * 2], ["x", "n"], ["y", "m"])])
        items: Any = [
            {"x": np.full(2, number, "float32"), "n": number, "name": f"item {number}"}
            for number in range(5)
        ]
        results = fw.arrays(network.transform(DataLoader(items, batch_size=2), "infer"))
        assert [result["m"].tolist() for result in results] == [[0, 2], [4, 6], [8]]
        assert results[1]["name"] == ["item 2", "item 3"]
        return results


class TestContexts:
    @conforms
    def test_modes_epochs_and_datasets(self, fw: Framework) -> Any:
        seen: list[Any] = []

        class Look(LambdaOp):
            def forward(self, data: Any, state: Any) -> Any:
                seen.append((state["mode"], state["warmup"]))
                return data[0] + 1

        network = fw.network(
            [Look(lambda: None, "x", "y", mode="!train"), LambdaOp(abs, "x", "z", ds_id="a")]
        )
        batch = {"x": np.float32(-1)}
        results = [
            fw.arrays(network.transform(batch, "eval", epoch=2, ds_id="b")),
            fw.arrays(network.transform(batch, "train", ds_id="a")),
            fw.arrays(network.transform([batch], "test", 5, "a")),
        ]
        assert [set(one) for one in results[:2]] == [{"x", "y"}, {"x", "z"}]
        assert set(results[2][0]) == {"x", "y", "z"}
        assert seen == [("eval", False), ("test", False)]
        return results

    @conforms
    def test_training(self, fw: Framework) -> Any:
        network, line = predicting(fw)
        (model,) = network.models
        results = [fw.arrays(network.transform(BATCHES[0], "train"))]
        assert_same(results[0]["loss"], line.train(BATCHES[0]))
        assert_same(fw.weights(model), line.weights)
        results += fw.arrays(network.transform(BATCHES, "train", epoch=2))
        for batch in BATCHES:
            line.train(batch)
        assert_same(fw.weights(model), line.weights)
        return results
