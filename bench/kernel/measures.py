"""The calls of the kernel whose instructions are counted, and how they combine to a figure.

A figure is the difference of two calls that differ in one respect only (41 ops and one), divided by
that difference. Unless stated otherwise, the kernel calls functions written in C: an op is
`dict.get`, which returns its input, and a tensor is an int, whose `conjugate` stands for `detach`.
So a figure is that of the kernel and of this function, without the interpreter's loop.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from fastnet._execute import BoundPlan, KernelPlan
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, resolve
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet._stamps import StampLog
from fastnet._trace import Signature, TensorAdapter, TensorSpec
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import LambdaOp

_T = TypeVar("_T")

FEW, MANY = 1, 41
VALUE = "value"
STATE: dict[str, Any] = {"mode": "infer", "epoch": 1, "deferred": {}}
_DETACH = NestMap(int, int.conjugate)


@dataclass(frozen=True)
class Call:
    """A function of the kernel and its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Measure:
    """A figure: the instructions of one unit of the kernel's work.

    Attributes:
        name: Its name in the committed figures.
        title: Its name in the table.
        more: A call with more of the work.
        less: A call with less of it, or None if the whole call is counted.
        times: The difference between the two, in units.
    """

    name: str
    title: str
    more: Call
    less: Call | None = None
    times: int = 1


def _growing(
    name: str, title: str, make: Callable[[int], Call], few: int = FEW, many: int = MANY
) -> Measure:
    """Return the measure of one unit, of which `make` makes many."""
    return Measure(name, title, make(many), make(few), many - few)


def measures() -> list[Measure]:
    """Return all measures, in the order of the table, with new classes."""
    return [
        Measure("step", "a step of one op", _chain(1)),
        _growing("op", "an op: read, call, write", _chain),
        _growing("op_method", "the same, of a method in Python", _methods),
        _growing("op_lists", "the same, two values read and two written", _methods_of_two),
        _growing("op_timed", "an op of a step that is profiled", _chain_timed),
        _growing("key_read", "a key that an op reads", _reading),
        _growing("key_moved", "the same, moved to a device", _moving),
        _growing("key_returned", "a key that an op writes and the step returns", _writing),
        _growing("key_detached", "the same, detached", _detaching),
        _growing("nest_leaf", "a leaf of a nest detached", _leaves),
        _growing("nest_level", "a dict around it", _levels, 1, 11),
        _growing("slice", "a slice of a batch", _cutting),
        _growing("unslice", "a slice merged", _joining),
        Measure("read_op", "the keys of an op looked up, once per network", _read_op()),
        _growing("resolve_op", "an op resolved, once per entry", _resolving),
        _growing("lay_out_op", "an op added to a plan, once per entry", _laying_out),
        _growing("plan_op", "an op of a network that is entered for the first time", _planning),
        _growing("enter_op", "an op of a network that is entered again", _entering),
        Measure("match_batch", "a batch of one tensor matched, and a result merged", _matching(1)),
        _growing("match_tensor", "a tensor of a batch matched", _matching),
    ]


def _anew(cls: type[_T]) -> type[_T]:
    """Return a new class like `cls`, which is in no cache of the interpreter."""
    return type(cls.__name__, (cls,), {})


class _Op:
    """The attributes of an op that the kernel reads, with a `forward` written in C."""

    mode: frozenset[str] = frozenset()
    ds_id: frozenset[str] = frozenset()

    def __init__(
        self, inputs: list[str], outputs: list[str], forward: Callable[[Any, Any], Any]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.in_list = len(inputs) > 1
        self.out_list = len(outputs) > 1
        self.forward = forward


def _keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def _ops(count: int) -> list[_Op]:
    """Return a chain of ops that return what they are given."""
    keys = _keys(count + 1)
    identity = {VALUE: VALUE}.get
    op = _anew(_Op)
    return [op([key], [after], identity) for key, after in pairwise(keys)]


def _plan(ops: list[Any], wanted: set[str], **maps: NestMap) -> KernelPlan:
    table = KeyTable()
    specs = [OpSpec(op, table) for op in ops]
    return KernelPlan(
        table, specs, [op.forward for op in ops], resolve(table, specs, [], [], wanted), **maps
    )


def _chain(length: int) -> Call:
    plan = _plan(_ops(length), {f"k{length}"})
    return Call(plan.step, ({"k0": VALUE}, STATE))


def _chain_timed(length: int) -> Call:
    plan = _plan(_ops(length), {f"k{length}"})
    log = StampLog()
    # Reserve the memory of all time stamps.
    log.stamp_many(0, 10_000)
    log.keep(0)
    return Call(BoundPlan(plan, STATE).step_timed, ({"k0": VALUE}, log))


class _Identity(_Op):
    """An op whose `forward` is a method in Python; with two inputs it returns both."""

    def __init__(self, inputs: list[str], outputs: list[str]) -> None:
        super().__init__(inputs, outputs, self._forward)

    def _forward(self, data: Any, state: dict[str, Any]) -> Any:
        return data


def _identities(length: int, width: int = 1) -> list[_Identity]:
    """Return a chain of identity ops that read and write `width` keys each."""
    keys = [[f"k{index}_{column}" for column in range(width)] for index in range(length + 1)]
    return [_Identity(inputs, outputs) for inputs, outputs in pairwise(keys)]


def _methods(length: int, width: int = 1) -> Call:
    ops = _identities(length, width)
    plan = _plan(ops, set(ops[-1].outputs))
    return Call(plan.step, ({key: object() for key in ops[0].inputs}, STATE))


def _methods_of_two(length: int) -> Call:
    return _methods(length, 2)


def _reading(count: int, **maps: NestMap) -> Call:
    """Return a step of one op that reads `count` keys and one more."""
    keys = _keys(count + 1)
    plan = _plan([_anew(_Op)(keys, ["made"], operator.is_)], {"made"}, **maps)
    return Call(plan.step, (dict.fromkeys(keys, 1000), STATE))


def _moving(count: int) -> Call:
    return _reading(count, to_device=_DETACH)


def _writing(count: int, **maps: NestMap) -> Call:
    """Return a step of one op that writes `count` keys and one more."""
    keys = _keys(count + 1)
    made = {VALUE: (1000,) * len(keys)}
    plan = _plan([_anew(_Op)(["read"], keys, made.get)], set(keys), **maps)
    return Call(plan.step, ({"read": VALUE}, STATE))


def _detaching(count: int) -> Call:
    return _writing(count, detach=_DETACH)


def _leaves(count: int) -> Call:
    return Call(_DETACH, (dict.fromkeys(_keys(count), 1000),))


def _levels(depth: int) -> Call:
    nest: Any = 1000
    for _ in range(depth):
        nest = {"inner": nest}
    return Call(_DETACH, (nest,))


class _Slicer:
    """The attributes of a slicer that the kernel reads; its slices exist already."""

    def __init__(self, pieces: list[tuple[str]]) -> None:
        self.slice_inputs = self.unslice_inputs = ["x"]
        self.slice_batches = {(VALUE,): pieces}.get

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return slices


def _cutting(count: int) -> Call:
    return Call(forward_slicers, ([_anew(_Slicer)([(VALUE,)] * count)], {"x": VALUE}))


def _joining(count: int) -> Call:
    batch = {"x": VALUE}
    return Call(reverse_slicers, ([_anew(_Slicer)([])], [batch] * count, batch))


def _read_op() -> Call:
    return Call(OpSpec, (_anew(_Op)(["a"], ["b"], operator.is_), KeyTable()))


def _resolving(length: int) -> Call:
    table = KeyTable()
    specs = [OpSpec(op, table) for op in _ops(length)]
    return Call(resolve, (table, specs, [], [], {f"k{length}"}))


def _laying_out(length: int) -> Call:
    ops = _ops(length)
    table = KeyTable()
    specs = [OpSpec(op, table) for op in ops]
    resolution = resolve(table, specs, [], [], {f"k{length}"})
    return Call(KernelPlan, (table, specs, [op.forward for op in ops], resolution))


def _network(count: int) -> BaseNetwork:
    return BaseNetwork(
        "np", None, [LambdaOp(abs, key, after) for key, after in pairwise(_keys(count + 1))]
    )


def _planning(count: int) -> Call:
    network, numbers = _network(count), itertools.count()
    # A plan is found again for the same dataset.
    return Call(lambda: network._plan_cache.find("infer", 1, f"{next(numbers)}", frozenset()), ())


def _entering(count: int) -> Call:
    return Call(_enter_and_leave, (_network(count),))


def _enter_and_leave(network: BaseNetwork) -> None:
    with network("infer", epoch=1):
        pass


class _Tensor:
    """A type and a shape."""

    __slots__ = ("shape", "type")

    def __init__(self, type: str, shape: tuple[int, ...]) -> None:
        self.type = type
        self.shape = shape


def _matching(count: int) -> Call:
    """Return a function that matches a batch, and merges its first tensor into it as a result."""
    tensor = _anew(_Tensor)
    adapter = TensorAdapter(
        tensor,
        operator.attrgetter("type"),
        operator.attrgetter("shape"),
        convert=lambda value: None,
        flatten=lambda value: None,
        pack=lambda kind, tensors: None,
    )
    batch = {key: tensor("float32", (8, 16)) for key in _keys(count)}
    forms = [adapter.form_of(value) for value in batch.values()]
    signature = Signature(batch, adapter, forms, {"out": TensorSpec()})

    def match_and_merge(data: dict[str, Any]) -> dict[str, Any]:
        tensors = signature.match(data)
        assert tensors is not None
        return signature.merge(tensors[:1], data)

    return Call(match_and_merge, (batch,))
