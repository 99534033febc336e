"""Models that share parameters: scheduled ones, tied ones, and two heads on one encoder."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import fastnet
from fastnet import CompileOptions
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import FRAMEWORKS
from tests.conformance.shared_parameters import (
    CASES,
    EPOCHS,
    Case,
    HandWrittenLoop,
    TFModels,
    TorchModels,
    draw_batches,
    make_ops,
)

WAYS = {
    "torch": ("torch", False),
    "torch-compiled": ("torch", CompileOptions(backend="eager")),
    "tf-static": ("tf-static", False),
    "tf-eager": ("tf-eager", False),
    "tf-compiled": ("tf-static", True),
}


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{way}-{case}")
        for case in CASES
        for way in WAYS
        # Compilation takes long, so only one order of updates is compiled.
        if not way.endswith("compiled") or not (case.interleaved or case.merge > 1)
    ],
)
def test_weights_are_those_of_a_hand_written_loop(way: str, case: Case) -> None:
    name, compiled = WAYS[way]
    fw = FRAMEWORKS[name]
    models: Any = TorchModels() if fw.target == "torch" else TFModels()
    ops = make_ops(fastnet, fw.mean, models, case)
    network: Any = fw.network_class(ops, compile=compiled)
    expected = HandWrittenLoop(case, accumulates=fw.target == "torch").train()
    for epoch in EPOCHS:
        with fw.opened(network, "train", epoch):
            for step, x in enumerate(draw_batches(epoch)):
                network.run_step({"x": fw.tensor(x)})
                assert_same(models.values(), next(expected), f"epoch {epoch}, step {step}")
    if compiled:
        assert [one.fallback for one in network.traces if one.fallback] == []
