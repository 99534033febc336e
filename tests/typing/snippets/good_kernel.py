"""A program over the kernel that a type checker accepts, and that runs."""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

from fastnet._execute import BoundPlan, Plan, get_inputs_by_op, write_outputs_by_op
from fastnet._nest import NestMap
from fastnet._resolve import (
    KeySet,
    KeyTable,
    OpSpec,
    Resolution,
    SlicerSpec,
    gather,
    resolve,
    same_items,
    select,
)
from fastnet._slice import check_slicers, forward_slicers, reverse_slicers
from fastnet._stamps import StampLog
from fastnet._trace import Parts, Slot, TensorKind, Trace, TracedStep, map_form
from fastnet.errors import MissingKeyError, describe_op, missing_key, nearest_name


class Double:
    def __init__(self) -> None:
        self.inputs = ["x"]
        self.outputs = ["y"]
        self.in_list = self.out_list = False

    def forward(self, data: int, state: dict[str, Any]) -> int:
        return 2 * data


class Halves:
    def __init__(self) -> None:
        self.slice_inputs = ["x"]
        self.unslice_inputs = ["y"]

    def slice_batches(self, batches: tuple[list[int], ...]) -> list[tuple[list[int], ...]]:
        return [tuple(batch[:1] for batch in batches), tuple(batch[1:] for batch in batches)]

    def _unslice_batch(self, slices: tuple[int, ...], key: str) -> int:
        return sum(slices)


op = Double()
table = KeyTable()
assert_type(table.intern("x"), int)
assert_type(len(table), int)

keys = KeySet(table, ["x"])
assert_type(keys.names(), set[str])
assert_type(list(keys), list[str])
assert_type(keys.copy(), KeySet)
assert_type("x" in keys, bool)

spec = OpSpec(op, table)
assert_type(spec.in_list, bool)
assert_type(spec.runs_in("train", None), bool)
chosen = select([spec], "train", "")
assert same_items(chosen, (spec,))
slicer_spec = SlicerSpec(Halves(), table)
assert_type(slicer_spec.slices, KeySet)
resolution = resolve(table, [spec], [], [slicer_spec], {"y"}, "mode 'train'")
assert_type(resolution, Resolution)
assert_type(resolution.device_inputs.names(), set[str])

ops, forwards, models, gradient_indices = gather([spec])
move = NestMap(int, abs, when="real")
plan = Plan(table, [spec], forwards, resolution, move=move, release=None)
assert_type(plan.run({"x": 1}, {}), dict[str, Any])
assert_type(plan.step({"x": 1}, {}), dict[str, Any])
log = StampLog()
assert_type(BoundPlan(plan, {}).step_timed({"x": 1}, log, 0, None, None), dict[str, Any])
assert_type(plan.spans, tuple[tuple[str, Any], ...])
assert_type(log.take(), bytes)
Plan(table, [], [], resolution, None, None, (lambda: True, lambda value: None, False))

store: dict[str, Any] = {"x": 4}
write_outputs_by_op(op, store, get_inputs_by_op(op, store, copy_on_write=True))
assert store == {"x": 4, "y": 4}

slicers = [Halves()]
check_slicers(slicers)
minibatches = forward_slicers(slicers, {"x": [1, 2]})
assert_type(minibatches, list[dict[str, Any]])
assert_type(reverse_slicers(slicers, minibatches, {"x": [1, 2]}), dict[str, Any])

# a nest keeps its type
assert_type(move([1, -2]), list[int])
assert_type(move((1, "two")), tuple[int, str])

kind = TensorKind(
    complex,
    type_of=type,
    shape_of=lambda tensor: (),
    convert=lambda value: complex(value) if isinstance(value, int) else None,
    split=lambda value: None,
    join=lambda kind, tensors: tensors,
)
assert plan.missing({"x": 1}) is None
assert_type(plan.missing({}), "KeyError | None")


def trace(values: list[Any]) -> Trace:
    return Trace(lambda tensors: tensors[1:], map(kind.form_of, values), {"y": Slot(complex, ())})


step = TracedStep(["x"], kind, trace, context=["epoch"])
assert_type(step.keys, tuple[str, ...])
assert_type(step.fits({"x": 1}), bool)
assert_type(step.step({"x": 1}, {"epoch": 0}), dict[str, Any])
assert_type(step.traces, list[Trace])
step.traces = (one for one in step.traces if one.outputs)
assert_type(step.traces[0].inputs, list[Any])
parts = Parts("pair", (Slot(float), Slot(float, (None, 3))))
assert_type(parts.slots[0].shape, "tuple[Any, ...] | None")
assert map_form([parts, 1], lambda part: 2) == [2, 1]

assert_type(describe_op(op, 1), str)
assert_type(nearest_name("x1", ["x"]), "str | None")
assert_type(missing_key(op, "x", ["y"]), MissingKeyError)
