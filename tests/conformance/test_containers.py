"""Containers of every class keep their class and attributes, by whichever way they go in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import torch

from fastnet.backend import cast, to_shape, to_tensor, to_type
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.slicer import AxisSlicer
from fastnet.util import detach_tensors, move_tensors_to_device
from tests.conformance.frameworks import FRAMEWORKS, Framework
from tests.containers import CONTAINERS, Labels, Picky, Point, Registry, Sealed, Store

pytestmark = pytest.mark.tf

Make = Callable[[Any], Any]

X = np.arange(6, dtype="float32").reshape(2, 3)


def holds_arrays(make: Make) -> bool:
    """Return whether a container may hold what has no hash."""
    try:
        make(X)
    except TypeError:
        return False
    return True


NESTED: list[Make] = [
    lambda leaf: Labels([Point(leaf, Registry("inner", a=leaf))], "outer"),
    lambda leaf: {"a": Picky(leaf, second=[leaf]), "b": Store("inner", c=(leaf,))},
]
MAKES = [make for make in CONTAINERS if holds_arrays(make)] + NESTED
EMPTY: list[Any] = [{}, [], (), Labels((), "none"), Registry("none"), Store("none")]

frameworks = pytest.mark.parametrize("fw", FRAMEWORKS.values(), ids=str)
makes = pytest.mark.parametrize("make", MAKES)


def spelled(value: Any) -> Any:
    """Spell a nest out: classes, places, attributes, and numbers whatever holds them."""
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return array.tolist()
    if isinstance(value, MutableMapping):
        parts: Any = [(key, spelled(part)) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = list(map(spelled, value))
    elif isinstance(value, set | frozenset):
        parts = sorted(map(spelled, value), key=repr)
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        parts = [(name, spelled(getattr(value, name))) for name in names]
    else:
        return value
    own = {name: one for name, one in getattr(value, "__dict__", {}).items() if type(one) is str}
    return type(value), parts, own


class HandThrough(TensorOp):
    """Notes what it is given, and hands it through."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[Any] = []

    def forward(self, data: Any, state: Any) -> Any:
        self.seen.append(type(data))
        return data


class KeepBatch(NumpyOp):
    """Hands whole batches of arrays through, and notes of which class they are."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[Any] = []

    def forward_batch(self, data: Any, state: Any) -> Any:
        self.seen.append(type(data))
        return data


@frameworks
@makes
class TestNetworks:
    def test_read_and_written(self, fw: Framework, make: Make) -> None:
        op = HandThrough("c", "d")
        network = fw.network([op, LambdaOp(lambda x: make(x + 1), "x", "e")])
        given = make(fw.tensor(X))
        with fw.opened(network):
            result = network.run_step({"c": given, "x": fw.tensor(X)})
        assert set(op.seen) == {type(given)}
        assert spelled(result["c"]) == spelled(result["d"]) == spelled(make(X))
        assert spelled(result["e"]) == spelled(make(X + 1))
        assert spelled(given) == spelled(make(X))

    def test_transformed(self, fw: Framework, make: Make) -> None:
        op = HandThrough("c", "d")
        network = fw.network([op])
        given = {"c": make(X), "b": make(X)}
        for result in (network.transform(given, "infer"), network.transform([given], "infer")[0]):
            for key in ("b", "c", "d"):
                assert spelled(result[key]) == spelled(make(X))
        assert set(op.seen) == {type(given["c"])}
        assert spelled(given) == spelled({"c": make(X), "b": make(X)})

    def test_postprocessed(self, fw: Framework, make: Make) -> None:
        op = KeepBatch("c", "d")
        network = fw.network([LambdaOp(lambda x: make(x), "x", "c")], pops=[op])
        with fw.opened(network):
            result = network.run_step({"x": fw.tensor(X)})
        assert op.seen == [type(result["d"])]
        assert spelled(result["c"]) == spelled(result["d"]) == spelled(make(X))

    def test_beside_what_is_sliced(self, fw: Framework, make: Make) -> None:
        op = HandThrough(["x", "c"], ["y", "z"])
        network = fw.network(
            [op, LambdaOp(lambda z, y: y + 1, ["z", "y"], "y")],
            slicers=[AxisSlicer(axis=0, slice="x", unslice="y")],
        )
        with fw.opened(network, desired_output_keys=["y"]):
            result = network.run_step({"x": fw.tensor(X), "c": make(fw.tensor(X))})
        assert spelled(result["c"]) == spelled(make(X))


@frameworks
@pytest.mark.parametrize("empty", EMPTY, ids=lambda empty: type(empty).__name__)
def test_empty_ones(fw: Framework, empty: Any) -> None:
    network = fw.network([HandThrough("c", "d")], pops=[KeepBatch("d", "d")])
    with fw.opened(network):
        result = network.run_step({"c": empty})
    again = network.transform({"c": empty}, "infer")
    for value in (result["c"], result["d"], again["c"], again["d"]):
        assert spelled(value) == spelled(empty)


@pytest.mark.parametrize("target", ["torch", "tf", "np"])
@makes
class TestConversions:
    def test_to_tensor(self, target: str, make: Make) -> None:
        assert spelled(to_tensor(make(X), target)) == spelled(make(X))

    def test_cast(self, target: str, make: Make) -> None:
        result = cast(to_tensor(make(X), target), "int64")
        assert spelled(result) == spelled(make(X.astype("int64")))

    def test_shapes_and_types(self, target: str, make: Make) -> None:
        data = to_tensor(make(X), target)
        assert type(to_shape(data)) is type(to_type(data)) is type(data)


@pytest.mark.parametrize("make", CONTAINERS + NESTED)
class TestTorchTensors:
    def test_detached(self, make: Make) -> None:
        weight = torch.ones(2, requires_grad=True)
        data = make(weight * 2)
        result = detach_tensors(data)
        assert type(result) is type(data)
        found: list[Any] = []
        collect(result, found)
        assert found
        assert not any(tensor.requires_grad for tensor in found)
        assert spelled(result) == spelled(detached_by_hand(make))

    def test_moved(self, make: Make) -> None:
        result = move_tensors_to_device(make(torch.ones(2)), "meta")
        found: list[Any] = []
        collect(result, found)
        assert {tensor.device.type for tensor in found} == {"meta"}


def detached_by_hand(make: Make) -> Any:
    return make(torch.full((2,), 2.0))


def collect(value: Any, found: list[Any]) -> None:
    """List the tensors of a nest."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, MutableMapping):
        for part in value.values():
            collect(part, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            collect(part, found)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            collect(getattr(value, field.name), found)


def test_numbers_in_sets() -> None:
    sealed = to_tensor(Sealed("name", 1, 2), "torch")
    assert type(sealed) is Sealed
    assert sealed.name == "name"
    assert sorted(one.item() for one in sealed) == [1, 2]
