"""The programs of examples/programs, compiled by XLA, beside the same ones as graphs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

import fastnet
from fastnet import CompileOptions
from fastnet.network import TFNetwork
from tests.network.keras_models import keras

pytestmark = [pytest.mark.tf, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[4] / "examples" / "programs"
PROGRAMS = ("adversarial", "autoencoder", "classifier", "gan", "growing", "volumes")


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("common", *PROGRAMS):
        sys.modules.pop(name, None)


# a bias in front of BatchNorm, whose gradient is what rounding leaves, and the mean that follows it
_NOISE = (1, 4)


def run(name: str, monkeypatch: pytest.MonkeyPatch, compile: Any) -> tuple[Any, list[TFNetwork]]:
    made: list[TFNetwork] = []
    make = fastnet.Network

    def note(*args: Any, **options: Any) -> Any:
        made.append(make(*args, **options, compile=compile))
        return made[-1]

    program = importlib.import_module(name)
    with monkeypatch.context() as patch:
        patch.setattr(fastnet, "Network", note)
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        options = importlib.import_module("common").Options("tf", epochs=2, steps=10)
        return program.train(options), made


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_as_a_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # dropout is to draw the same in both
    options = CompileOptions(fallback_random=True)
    compiled, networks = run(name, monkeypatch, compile=options)
    plain, _ = run(name, monkeypatch, compile=False)
    assert any(trace.compile_seconds for network in networks for trace in network.traces)
    assert compiled.losses.keys() == plain.losses.keys()
    for key, losses in compiled.losses.items():
        np.testing.assert_allclose(losses, plain.losses[key], 1e-4, 1e-5, err_msg=key)
    for key, weights in compiled.weights.items():
        for place, (one, other) in enumerate(zip(weights, plain.weights[key], strict=True)):
            if name == "classifier" and place in _NOISE:
                continue
            np.testing.assert_allclose(one, other, 1e-3, 1e-4, err_msg=key)
