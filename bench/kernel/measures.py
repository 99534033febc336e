"""What the kernel's instructions are counted for: calls of it, and how they combine to a figure.

A figure is the difference of two calls that differ in one respect only (41 ops, and one), divided
by how much of it there is, so that what both have in common cancels out. Where nothing else is
said, what the kernel calls is a function written in C: an op is `dict.get`, which returns what it
is given, and a tensor is an int, whose `conjugate` stands for `detach`. So a figure is the
kernel's and that function's, and no interpreter's loop is in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from bench.kernel.batches import Tensor, kind_of
from bench.kernel.chains import STATE, Chain
from fastnet._execute import Plan
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, resolve
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet._stamps import StampLog
from fastnet._trace import Slot, Trace, TracedStep
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import LambdaOp

_T = TypeVar("_T")

FEW, MANY = 1, 41
VALUE = "value"
_DETACH = NestMap(int, int.conjugate)


@dataclass(frozen=True)
class Call:
    """A function of the kernel, and what it is called with, again and again."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Measure:
    """A figure: the instructions of one thing that the kernel does.

    Attributes:
        name: How the committed figures call it.
        title: How the table calls it.
        more: A call that does it.
        less: A call that does less of it, or None if the whole call is meant.
        times: How much more the first call does of it.
    """

    name: str
    title: str
    more: Call
    less: Call | None = None
    times: int = 1


def _growing(
    name: str, title: str, make: Callable[[int], Call], few: int = FEW, many: int = MANY
) -> Measure:
    """Return the measure of one of what `make` makes many of."""
    return Measure(name, title, make(many), make(few), many - few)


def measures() -> list[Measure]:
    """Return all that is counted, in the order of the table, with classes of its own."""
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
        _growing("slice", "a minibatch cut from a batch", _cutting),
        _growing("unslice", "a minibatch joined", _joining),
        Measure("read_op", "an op's keys looked up, once a network", _read_op()),
        _growing("resolve_op", "an op resolved, once an opening", _resolving),
        _growing("lay_out_op", "an op laid out in a plan, once an opening", _laying_out),
        _growing("plan_op", "an op of a network that is entered for the first time", _planning),
        _growing("enter_op", "an op of a network that is entered again", _entering),
        Measure("traced_step", "a traced step of one tensor", _traced(1)),
        _growing("traced_tensor", "a tensor of a traced step", _traced),
        _growing("loop_op", "beside it: a method in Python, in a loop by hand", _by_hand),
        _growing("dict_op", "beside it: the same, values in a dict", _by_dict),
    ]


def _anew(cls: type[_T]) -> type[_T]:
    """Return a class like `cls` that no cache of the interpreter knows."""
    return type(cls.__name__, (cls,), {})


class _Op:
    """An op as far as the kernel looks at it, with a forward that is written in C."""

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


def _plan(ops: list[Any], wanted: set[str], **maps: NestMap) -> Plan:
    table = KeyTable()
    specs = [OpSpec(op, table) for op in ops]
    return Plan(
        table,
        specs,
        [op.forward for op in ops],
        resolve(table, specs, [], [], wanted),
        **maps,
    )


def _chain(length: int) -> Call:
    plan = _plan(_ops(length), {f"k{length}"})
    return Call(plan.step, ({"k0": VALUE}, STATE))


def _chain_timed(length: int) -> Call:
    plan = _plan(_ops(length), {f"k{length}"})
    log = StampLog()
    # Room for all the stamps there will be, so that none of them has to ask for more.
    log.stamp_many(0, 10_000)
    log.keep(0)
    return Call(plan.step_timed, ({"k0": VALUE}, STATE, log))


def _methods(length: int, width: int = 1) -> Call:
    chain = Chain(length, width)
    return Call(chain.plan().step, (chain.batch, STATE))


def _methods_of_two(length: int) -> Call:
    return _methods(length, 2)


def _reading(count: int, **maps: NestMap) -> Call:
    """Return a step of one op that reads `count` keys and one more."""
    keys = _keys(count + 1)
    plan = _plan([_anew(_Op)(keys, ["made"], operator.is_)], {"made"}, **maps)
    return Call(plan.step, (dict.fromkeys(keys, 1000), STATE))


def _moving(count: int) -> Call:
    return _reading(count, move=_DETACH)


def _writing(count: int, **maps: NestMap) -> Call:
    """Return a step of one op that writes `count` keys and one more."""
    keys = _keys(count + 1)
    made = {VALUE: (1000,) * len(keys)}
    plan = _plan([_anew(_Op)(["read"], keys, made.get)], set(keys), **maps)
    return Call(plan.step, ({"read": VALUE}, STATE))


def _detaching(count: int) -> Call:
    return _writing(count, release=_DETACH)


def _leaves(count: int) -> Call:
    return Call(_DETACH, (dict.fromkeys(_keys(count), 1000),))


def _levels(depth: int) -> Call:
    nest: Any = 1000
    for _ in range(depth):
        nest = {"inner": nest}
    return Call(_DETACH, (nest,))


class _Slicer:
    """A slicer as far as the kernel looks at it: its pieces are there already."""

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
    return Call(Plan, (table, specs, [op.forward for op in ops], resolution))


def _network(count: int) -> BaseNetwork:
    return BaseNetwork(
        "np", None, [LambdaOp(abs, key, after) for key, after in pairwise(_keys(count + 1))]
    )


def _planning(count: int) -> Call:
    return Call(_network(count)._plans.draft, ("infer", 1, "", frozenset()))


def _entering(count: int) -> Call:
    return Call(_enter_and_leave, (_network(count),))


def _enter_and_leave(network: BaseNetwork) -> None:
    with network("infer", epoch=1):
        pass


def _traced(count: int) -> Call:
    """Return a traced step whose function gives its first tensor back."""
    tensor = _anew(Tensor)
    kind = kind_of(tensor)
    batch = {key: tensor("float32", (8, 16)) for key in _keys(count)}
    first = operator.itemgetter(slice(0, 1))

    def trace(values: list[Any]) -> Trace:
        return Trace(first, [kind.form_of(value) for value in values], {"out": Slot()})

    return Call(TracedStep(batch, kind, trace).step, (batch, STATE))


def _by_hand(length: int) -> Call:
    chain = Chain(length)
    return Call(chain.by_hand(), (chain.batch,))


def _by_dict(length: int) -> Call:
    chain = Chain(length)
    return Call(chain.by_dict(), (chain.batch,))
