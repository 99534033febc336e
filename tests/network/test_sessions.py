"""Sessions that are left, measured and configured at unusual times."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp


class CollectingKey(str):
    """Collects garbage when an error or a title shows it."""

    collections = 0

    def __str__(self) -> str:
        type(self).collections += gc.collect() > 0
        return "x"


def test_generator_that_is_collected_while_a_profile_begins() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")])
    generator = network.iter_transform([{"x": torch.ones(1)}] * 2, "infer")
    next(generator)
    cycle: list[Any] = [generator]
    cycle.append(cycle)
    network.ops[0].inputs = [CollectingKey("x")]

    def begin_profile() -> None:
        with fastnet.profile(network):
            pass

    thread = threading.Thread(target=begin_profile, daemon=True)
    gc.disable()
    try:
        del generator, cycle
        thread.start()
        thread.join(timeout=60)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert CollectingKey.collections
    assert network.transform({"x": torch.ones(1)}, "infer")["y"].item() == 1


def test_profile_that_fails_to_begin_leaves_nothing_behind() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")])
    with network("infer", 1):
        network.ops[0].inputs = None
        with pytest.raises(TypeError), fastnet.profile(network):
            pass
        network.ops[0].inputs = ["x"]
        with fastnet.profile(network) as profile:
            network.run_step({"x": torch.ones(1)})
        assert profile.sections[0].steps == 1
        with (
            fastnet.profile(network) as outer,
            pytest.raises(ValueError, match="already"),
            fastnet.profile(network),
        ):
            pass
        assert not outer.sections


def test_transform_calls_the_network() -> None:
    modes: list[str] = []

    class Noting(TorchNetwork):
        def __call__(self, mode: Any, *args: Any, **kwargs: Any) -> Any:
            modes.append(mode)
            return super().__call__(mode, *args, **kwargs)

    network = Noting([LambdaOp(lambda x: x + 1, "x", "y")])
    assert network.transform({"x": torch.ones(1)}, "infer")["y"].item() == 2
    network.transform([{"x": torch.ones(1)}], "eval")
    assert modes == ["infer", "eval"]


def test_op_that_leaves_its_network() -> None:
    networks: list[Any] = []

    def leave(x: Any) -> Any:
        networks[0].__exit__(None, None, None)
        return x + 1

    networks.append(TorchNetwork([LambdaOp(leave, "x", "y")]))
    assert networks[0].transform({"x": torch.ones(1)}, "infer")["y"].item() == 2
