"""What ops return, under the keys that it is for: by name, or one value for each."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.numpyop import NumpyOp
from fastnet.op.numpyop.meta import Fuse as NumpyFuse
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from tests.conformance.agreement import assert_same
from tests.conformance.failures import check_free, words_of
from tests.conformance.frameworks import Framework

X = np.arange(6, dtype="float32").reshape(3, 2)
Wrap = Callable[[Any], list[Any]]


class ModelOutput(collections.OrderedDict[Any, Any]):
    """Answers to names and to places, as the results of Hugging Face's models do."""

    def __getitem__(self, key: Any) -> Any:
        values = dict(self.items())
        return values[key] if isinstance(key, str) else tuple(values.values())[key]


class Pair(NamedTuple):
    y: Any
    z: Any


MAPPINGS: dict[str, Callable[[dict[str, Any]], Mapping[str, Any]]] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "ModelOutput": ModelOutput,
    "proxy": MappingProxyType,
}

# an op by itself, and inside of others; "y" and "z" are there before
AROUND: dict[str, Wrap] = {
    "alone": lambda op: [op],
    "Fuse": lambda op: [Fuse([op])],
    "Fuse of two": lambda op: [Fuse([TensorOp("x", "x"), op])],
    "OneOf": lambda op: [OneOf(op, op)],
    "Repeat": lambda op: [Repeat(op, 2)],
    "Sometimes": lambda op: [
        LambdaOp(lambda x: [x, x], "x", ["y", "z"]),
        Sometimes(op, 1.0),
    ],
}

WRAPPED = list(AROUND)[1:]

WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "other keys": (
        lambda x: {"y": x, "w": x},
        ValueError,
        "writes ['y', 'z'] by name from the dict that its forward returned",
    ),
    "more": (
        lambda x: [x, x, x],
        ValueError,
        "has 2 outputs, but its forward returned 3 values",
    ),
    "fewer": (
        lambda x: (x,),
        ValueError,
        "has 2 outputs, but its forward returned 1 value",
    ),
    "a tensor": (lambda x: x, TypeError, "{tensor}"),
    "a namedtuple": (lambda x: Pair(x, x), TypeError, "Pair"),
    "a generator": (lambda x: (each for each in (x, x)), TypeError, "generator"),
    "a set": (lambda x: {1, 2}, TypeError, "set"),
    "a string": (lambda x: "ab", TypeError, "str"),
}


def text_of(which: str, tensor: str) -> tuple[type[Exception], str]:
    """Return an error's type, and the beginning of what it says after the op."""
    _, kind, text = WRONG[which]
    if kind is TypeError:
        text = f"writes a list of outputs, but its forward returned {text.format(tensor=tensor)}."
    return kind, text


@pytest.mark.parametrize(
    ("around", "kind"),
    [*(("alone", kind) for kind in MAPPINGS), *((around, "ModelOutput") for around in WRAPPED)],
)
def test_a_mapping_writes_by_name(fw: Framework, around: str, kind: str) -> None:
    def name(x: Any) -> Any:
        return MAPPINGS[kind]({"other": x, "z": x + 2, "y": x + 1})

    ops = AROUND[around](LambdaOp(name, "x", ["y", "z"]))
    for mode in ("train", "infer"):
        result = fw.step(fw.network(ops), {"x": X}, mode)
        assert_same(result, {"x": X, "y": X + 1, "z": X + 2})


@pytest.mark.parametrize("kind", MAPPINGS)
def test_one_output(fw: Framework, kind: str) -> None:
    """In a list it is read by name; by itself it is whatever was returned."""

    def name(x: Any) -> Any:
        return MAPPINGS[kind]({"other": x, "y": x + 1})

    listed = fw.step(fw.network([LambdaOp(name, "x", ["y"])]), {"x": X})
    assert_same(listed, {"x": X, "y": X + 1})
    bare = fw.step(fw.network([LambdaOp(lambda x: {"y": x + 1}, "x", "y")]), {"x": X})
    assert_same(bare, {"x": X, "y": {"y": X + 1}})


@pytest.mark.parametrize(
    ("around", "which"),
    [*(("alone", which) for which in WRONG), *((around, "fewer") for around in WRAPPED)],
)
def test_all_else_is_an_error(fw: Framework, around: str, which: str) -> None:
    network = fw.network(AROUND[around](LambdaOp(WRONG[which][0], "x", ["y", "z"])))
    tensor = type(fw.tensor(X)).__name__ if fw.name != "tf-static" else "SymbolicTensor"
    kind, text = text_of(which, tensor)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            fw.step(network, {"x": X})
        first = words_of(caught.value)[0]
        if (fw.name, around) == ("tf-static", "OneOf"):
            # TensorFlow's own switch has made something of it before
            assert "OneOf (op 0," in "".join(words_of(caught.value))
            continue
        own = "OneOf" if around == "OneOf" else "LambdaOp"
        assert first.startswith(f"{own} (")
        assert text in first
    check_free(network)


class Each(NumpyOp):
    """Returns what a function makes of each sample."""

    def __init__(self, fn: Callable[[Any], Any], inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.fn = fn

    def forward(self, data: Any, state: Any) -> Any:
        return self.fn(data)


@pytest.mark.parametrize(
    "make",
    [NumpyLambdaOp, Each, lambda *settings: NumpyFuse([NumpyLambdaOp(*settings)])],
    ids=["batches", "samples", "Fuse"],
)
def test_of_postprocessing(fw: Framework, make: Callable[..., Any]) -> None:
    def name(x: Any) -> Any:
        return {"other": x, "z": x + 2, "y": x + 1}

    result = fw.step(fw.network([], [make(name, "x", ["y", "z"])]), {"x": X})
    assert_same(result, {"x": X, "y": X + 1, "z": X + 2})
    for which, (returned, kind, _) in WRONG.items():
        with pytest.raises(kind) as caught:
            fw.step(fw.network([], [make(returned, "x", ["y", "z"])]), {"x": X})
        assert text_of(which, "ndarray")[1] in words_of(caught.value)[0]
        assert "(op 0, inputs ['x'], outputs ['y', 'z'])" in "".join(words_of(caught.value))
