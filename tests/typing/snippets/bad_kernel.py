"""Mistakes that a type checker finds. Each `# expect` names the error of its line."""

from __future__ import annotations

from fastnet._execute import Plan
from fastnet._nest import NestMap
from fastnet._resolve import KeySet, KeyTable, OpSpec, SlicerSpec, resolve, select
from fastnet._slice import forward_slicers
from fastnet._trace import Parts, Slot, TensorKind, Trace, TracedStep, map_form
from fastnet.errors import add_note, describe_op

table = KeyTable()
table.intern(3)  # expect: arg-type
table.intern()  # expect: call-arg
print(table.keys)  # expect: attr-defined
KeySet(["x"])  # expect: arg-type
KeySet(table, [1, 2])  # expect: list-item
keys = KeySet(table)
keys["x"]  # expect: index
print(keys.words)  # expect: attr-defined
names: list[str] = keys.names()  # expect: assignment

spec = OpSpec(object(), table)
OpSpec(object())  # expect: call-arg
OpSpec(object(), table, deletes="yes")  # expect: arg-type
spec.runs_in("train")  # expect: call-arg
spec.runs_in(None, "")  # expect: arg-type
select(spec, "train", None)  # expect: arg-type
resolution = resolve(table, [spec], [], [])
resolve(table, [spec], [], [spec])  # expect: list-item
resolve(table, [SlicerSpec(object(), table)], [], [])  # expect: list-item
print(resolution.missing)  # expect: attr-defined

plan = Plan(table, [spec], [lambda data, state: data], resolution)
Plan(table, [spec], [lambda: 0], resolution)  # expect: list-item
Plan(table, [spec], [], resolution, move=abs)  # expect: arg-type
Plan(table, [spec], [], resolution, setting=(lambda: 0, lambda value: None))  # expect: arg-type
plan.run({"x": 1})  # expect: call-arg
plan.run([1], {})  # expect: arg-type
plan.predict({"x": 1}, {})  # expect: attr-defined
plan.ops = ()  # expect: misc
count: int = plan.step({}, {})  # expect: assignment

nest = NestMap(int)  # expect: call-arg
NestMap("int", abs)  # expect: arg-type
NestMap(int, abs, when=True)  # expect: arg-type
text: str = NestMap(int, abs)([1])  # expect: assignment
forward_slicers(None, {})  # expect: arg-type
describe_op(object(), "first")  # expect: arg-type
add_note("text", "note")  # expect: arg-type


error: KeyError = plan.missing({})  # expect: assignment
Slot(int, 3)  # expect: arg-type
Slot(int, ("a",))  # expect: arg-type
Parts("pair")  # expect: call-arg
Parts("pair", [int])  # expect: list-item
TensorKind(int, type, len, abs, abs)  # expect: call-arg
kind = TensorKind(complex, type, lambda one: (), lambda one: None, lambda one: None, max)
kind.take(1, 2)  # expect: attr-defined
Trace(len, [], {})  # expect: arg-type
trace = Trace(list, [], {"y": Slot()})
Trace(list, [], [("y", Slot())])  # expect: arg-type
trace.inputs = []  # expect: misc
step = TracedStep(["x"], kind, lambda values: trace)
TracedStep(["x"], kind, lambda values: None)  # expect: return-value
TracedStep(["x"], None, lambda values: trace)  # expect: arg-type
step.traces = [None]  # expect: list-item
step.step({"x": 1})  # expect: call-arg
step.fits([1])  # expect: arg-type
map_form([1])  # expect: call-arg


class MyPlan(Plan):  # expect: misc
    pass
