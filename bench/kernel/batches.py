"""The same traced function, called in three ways: by hand, through a signature, by a TracedStep.

Tensors are plain Python objects with a type and a shape, and what was traced returns one that is
there already, so that nothing but the way to it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from fastnet._trace import Parts, Slot, TensorKind, Trace, TracedStep, map_form

Step = Callable[[dict[str, Any]], Any]


class Tensor:
    """A type and a shape.

    Args:
        type: The type.
        shape: The length of each axis.
    """

    __slots__ = ("shape", "type")

    def __init__(self, type: str, shape: tuple[int, ...]) -> None:
        self.type = type
        self.shape = shape


STATE: dict[str, Any] = {"mode": "infer", "epoch": Tensor("int32", ())}
RESULT = Tensor("float32", (8, 10))


def kind_of(tensor: type) -> TensorKind:
    """Return how tensors of a class are read."""
    return TensorKind(
        tensor,
        attrgetter("type"),
        attrgetter("shape"),
        convert=lambda value: None,
        split=lambda value: None,
        join=lambda kind, tensors: None,
    )


KIND = kind_of(Tensor)


def _tensors(count: int) -> list[Tensor]:
    return [Tensor("float32", (8, 16)) for _ in range(count)]


BATCHES: dict[str, dict[str, Any]] = {
    "2 tensors": {"x": Tensor("float32", (8, 16)), "y": Tensor("int64", (8,))},
    "20 tensors": {f"x{place}": tensor for place, tensor in enumerate(_tensors(20))},
    "nest of 12": {
        "x": dict(zip("abcd", _tensors(4), strict=True)),
        "y": [tuple(_tensors(4)), _tensors(4)],
    },
    "constants": {"x": Tensor("float32", (8, 16)), "name": "digits", "size": 16, "rate": 0.5},
}


def call(tensors: list[Any]) -> list[Any]:
    """Stand for what was traced: one tensor comes back, whatever goes in."""
    return [RESULT]


def by_hand(batch: dict[str, Any]) -> Step:
    """Return the step that a person would write who knows the batch, and checks nothing."""
    code = ", ".join(_paths(batch, "batch"))
    # written out as source, because a person would not loop over the keys
    return eval(  # type: ignore[no-any-return]
        f"lambda batch: {{**batch, 'out': call([STATE['epoch'], {code}])[0]}}", globals()
    )


def by_signature(batch: dict[str, Any]) -> Step:
    """Return the step that looks its function up by the type and the shape of every tensor."""
    functions: dict[Any, Callable[[list[Any]], list[Any]]] = {}

    def describe(value: Any, tensors: list[Any]) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value)
            return value.type, value.shape
        if isinstance(value, dict):
            return tuple([(key, describe(part, tensors)) for key, part in value.items()])
        if isinstance(value, list | tuple):
            return type(value), tuple([describe(part, tensors) for part in value])
        return type(value), value

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        tensors = [STATE["epoch"]]
        signature = describe(batch, tensors)
        function = functions.setdefault(signature, call)
        return {**batch, "out": function(tensors)[0]}

    return step


def by_traced_step(batch: dict[str, Any]) -> Step:
    """Return a TracedStep that leaves the first axis of each tensor open."""

    def widen(part: Slot | Parts) -> Any:
        assert isinstance(part, Slot)
        return Slot(part.type, (None, *part.shape[1:]) if part.shape else part.shape)

    def trace(values: list[Any]) -> Trace:
        forms = [map_form(KIND.form_of(value), widen) for value in values]
        return Trace(call, forms, {"out": Slot()})

    step = TracedStep(batch, KIND, trace, context=["epoch"]).step
    return lambda batch: step(batch, STATE)


def _paths(value: Any, path: str) -> list[str]:
    """List the source that reads each tensor of a batch."""
    if isinstance(value, Tensor):
        return [path]
    if not isinstance(value, dict | list | tuple):
        return []
    places = value.items() if isinstance(value, dict) else enumerate(value)
    return [found for place, part in places for found in _paths(part, f"{path}[{place!r}]")]


WAYS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "by hand": by_hand,
    "signature in Python": by_signature,
    "TracedStep": by_traced_step,
}
