"""Values that are no tensors of a network's own framework: converted, or left as they are."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.conformance.frameworks import FRAMEWORKS, Framework, tf


class ArrayLike:
    """Gives an array when numpy asks for it."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = np.asarray(values, dtype)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        values = self.values if dtype is None else self.values.astype(dtype)
        return values.copy() if copy else values


class Interface:
    """Tells numpy where its values lie."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = np.asarray(values, dtype)

    @property
    def __array_interface__(self) -> Any:
        return self.values.__array_interface__


class OnDevice:
    """Gives its values by DLPack alone, as what lies on a device does."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = torch.from_numpy(np.array(values, dtype))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("not without being asked to copy")

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Hostile:
    """Claims to be an array, and is none."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no values")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    value: Any
    name: str = "record"


class Color(enum.Enum):
    RED = 1


class Thing:
    """An object that is equal to nothing but itself."""


class Seeing(TensorOp):
    """Keeps what it is given, and hands it through."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(keys, [f"{key} out" for key in keys])
        self.seen: list[Any] = []

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        self.seen.append(data)
        return data


def hand_through(fw: Framework, batch: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return what an op sees of a batch, and what the results have under its inputs and outputs."""
    op = Seeing(list(batch))
    with fw.opened(fw.network([op])) as network:
        result = network.run_step({**batch, "rest": batch})
    assert result["rest"] is batch
    outputs = [result[f"{key} out"] for key in batch]
    return op.seen[0], [result[key] for key in batch], outputs


def dtype_of(value: Any) -> str:
    return str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch.")


def torch_tensor(values: Any, dtype: str = "float32") -> Any:
    return torch.tensor(values, dtype=getattr(torch, dtype))


MAKERS = [ArrayLike, Interface, OnDevice, torch_tensor, *([tf.cast] if tf else [])]
NESTS: list[Callable[[Any], Any]] = [
    lambda part: part,
    lambda part: [part],
    lambda part: (part, "a"),
    lambda part: {"a": {"b": [part, None]}},
    lambda part: Record(part),
]


def leaf_of(data: Any) -> Any:
    while isinstance(data, (dict, list, tuple, Record)):
        parts = data.values() if isinstance(data, dict) else data
        data = data.value if isinstance(data, Record) else next(iter(parts))
    return data


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_tensors_of_others_become_tensors_in_nests(fw: Framework, make: Any) -> None:
    stranger = make([1.0, 2.0], "float32")
    batch = {str(place): nest(stranger) for place, nest in enumerate(NESTS)}
    seen, inputs, outputs = hand_through(fw, batch)
    for data, given in zip([*inputs, *outputs], [*batch.values()] * 2, strict=True):
        assert type(data) is type(given) or data is leaf_of(data)
        assert fw.is_tensor(leaf_of(data))
        assert leaf_of(data).numpy().tolist() == [1.0, 2.0]
    own = torch.is_tensor if fw.target == "torch" else tf.is_tensor
    assert all(own(leaf_of(data)) for data in seen)
    # The batch itself is not changed.
    assert all(leaf_of(given) is stranger for given in batch.values())


def test_they_keep_their_dtypes(fw: Framework) -> None:
    batch = {
        f"{dtype} {make.__name__}": make([1, 0], dtype)
        for dtype in ("float32", "float64", "int64", "uint8", "bool", "float16", "bfloat16")
        for make in MAKERS
        # TensorFlow 2.15 takes no bool by DLPack, and numpy has no bfloat16.
        if not (dtype == "bool" and make is OnDevice)
        if dtype != "bfloat16" or make not in (ArrayLike, Interface, OnDevice)
    }
    seen, _, outputs = hand_through(fw, batch)
    for key, one, data in zip(batch, seen, outputs, strict=True):
        assert dtype_of(one) == dtype_of(data) == key.partition(" ")[0]
        assert fw.array(fw.cast(data, "float32")).tolist() == [1.0, 0.0]


THING = Thing()
UNCHANGED = [
    "a",
    b"a",
    2**80,
    1j,
    True,
    None,
    Color.RED,
    pathlib.Path("a"),
    THING,
    Thing,
    len,
    frozenset("ab"),
    {"a": (1, {"b": [None, "c"]})},
    Pair("a", 1),
    Record(1),
    np.array([THING, None]),
    np.array(["2020-01-01"], "datetime64[D]"),
    SimpleNamespace(a=1),
    MappingProxyType({"a": 1}),
    Hostile(),
]


def test_all_else_comes_as_it_is(fw: Framework) -> None:
    batch = {str(place): value for place, value in enumerate(UNCHANGED)}
    seen, inputs, outputs = hand_through(fw, batch)
    for given, one, data, output in zip(UNCHANGED, seen, inputs, outputs, strict=True):
        assert data is given
        assert type(one) is type(output) is type(given)
        for found in (one, output):
            assert np.array_equal(found, given) if isinstance(given, np.ndarray) else found == given


FLOATS = [0.1, np.float64(0.1)]


def weighted(fw: Framework) -> Any:
    return fw.network(
        [
            LambdaOp(lambda x, w: fw.mean(x) * w, ["x", "w"], "right"),
            LambdaOp(lambda x, w: w * fw.mean(x), ["x", "w"], "left"),
            LambdaOp(lambda x, n: fw.mean(x) * n["w"][0], ["x", "nest"], "nested"),
        ]
    )


@pytest.mark.parametrize("how", ["run_step", "transform", "transform of a list"])
@pytest.mark.parametrize("weight", FLOATS, ids=["float", "numpy"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floats_do_not_widen_a_loss(fw: Framework, how: str, weight: Any, dtype: str) -> None:
    if dtype == "float16" and fw.target == "tf" and type(weight) is not float:
        pytest.skip("a scalar of numpy has Keras's default dtype")
    batch = {"x": np.full(4, 3, dtype), "w": weight, "nest": {"w": [weight]}}
    network = weighted(fw)
    if how == "run_step":
        with fw.opened(network):
            result = network.run_step(batch)
        assert result["w"] is weight
    elif how == "transform":
        result = network.transform(batch, "infer")
    else:
        (result,) = network.transform([batch], "infer")
    if how != "run_step":
        # As in FastEstimator, the entries of the batch are returned as tensors.
        assert dtype_of(result["w"]) == dtype_of(result["nest"]["w"][0]) == "float64"
        assert batch["w"] is weight
    expected = fw.tensor(np.full((), 3, dtype)) * 0.1
    for key in ("right", "left", "nested"):
        assert dtype_of(result[key]) == dtype
        assert fw.array(result[key]) == fw.array(expected)


def test_a_changing_scalar_of_numpy_is_an_input_of_the_graph() -> None:
    network = weighted(FRAMEWORKS["tf-static"])
    for weight in (0.5, 0.25, 0.125):
        batch = {"x": np.ones(2, "float32"), "w": np.float64(weight), "nest": {"w": [1.0]}}
        with network("infer"):
            assert float(network.run_step(batch)["right"]) == weight
    assert len(network.traces) == 1


def test_float64_programs_keep_their_precision(fw: Framework) -> None:
    if fw.target == "tf":
        tf.keras.backend.set_floatx("float64")
    try:
        batch = {"x": np.full(4, 3.0), "w": np.float64(0.1), "nest": {"w": [0.1]}}
        with fw.opened(network := weighted(fw)):
            result = network.run_step(batch)
        for key in ("right", "left", "nested"):
            assert dtype_of(result[key]) == "float64"
            assert fw.array(result[key]) == 3 * np.float64(0.1)
    finally:
        if fw.target == "tf":
            tf.keras.backend.set_floatx("float32")
