"""References and memory stay as they are, however many steps run."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastnet.errors import MissingKeyError
from tests.containers import Plain
from tests.kernel.ops import Delete, Nothing, Op, entry_of, new_state, plan_of
from tests.kernel.traces import Array, Framework, Pair, Step, Store, Tensor, Traced
from tests.reference import Kernel, load

State = dict[str, Any]

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="counts references as CPython does"
)


# How many steps are many.
MANY = 20_000


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    """The compiled kernel: plain Python counts its references by itself."""
    return load("compiled")


@contextmanager
def steady(*watched: Any, blocks: int = 120) -> Iterator[None]:
    """Insist that a block of code leaves no object, memory or reference behind."""
    gc.collect()
    counts = [sys.getrefcount(each) for each in watched]
    objects, allocated = len(gc.get_objects()), sys.getallocatedblocks()
    yield
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == counts
    assert len(gc.get_objects()) - objects < 20
    assert sys.getallocatedblocks() - allocated < blocks


class Callee:
    """Every kind of callable, none of which keeps what it is given."""

    def method(self, data: Any, state: State) -> Any:
        return data

    def listed(self, data: list[Any], state: State) -> Any:
        return data

    def __call__(self, data: Any, state: State) -> Any:
        return data


def function(data: Any, state: State) -> Any:
    return data


def name(data: list[Any], state: State) -> dict[str, Any]:
    return dict(zip(["x", "d"], data, strict=True))


def repeat(times: int, work: Callable[[], Any]) -> None:
    for _ in range(times):
        work()


def test_steps(kernel: Kernel) -> None:
    callee = Callee()
    ops = [
        Op("x", "a"),
        Op("a", "b"),
        Op(["a", "b"], ["c", "a"]),
        Op(["c", "a"], ["x", "d"]),
        Op(["x", "d"], ["e", "f"]),
        Op("d"),
        Op("e", "g"),
        Delete(["e", "f"]),
    ]
    forwards = [
        callee.method,
        function,
        callee.listed,
        name,
        callee,
        lambda data, state: None,
        function,
        ops[-1].forward,
    ]
    value, batch, state = Nothing(), {}, new_state()
    batch.update(x=value, other=value)
    mapped = kernel.NestMap(Nothing, lambda leaf: leaf)
    plan = plan_of(kernel, ops, {"g", "a"}, forwards, to_device=mapped, detach=mapped)
    assert plan.step(batch, state) == {"x": value, "other": value, "g": value, "a": value}
    watched = (value, batch, state, callee, function, name, plan, *ops, *forwards)
    timed = entry_of(kernel, plan, "step_timed")
    with steady(*watched, "x", "g"):
        repeat(MANY // 2, lambda: plan.step(batch, state))
        repeat(MANY // 4, lambda: plan.run(batch, state))
        repeat(MANY // 4, lambda: timed(batch, state))


def raise_deferred() -> None:
    raise ArithmeticError("deferred")


def fail(data: Any, state: State) -> Any:
    raise ArithmeticError("op")


def too_many(data: Any, state: State) -> Any:
    return [data] * 3


def other_keys(data: Any, state: State) -> Any:
    return {"z": data, "v": data}


def defer(data: Any, state: State) -> Any:
    state["deferred"].setdefault("model", []).extend([raise_deferred] * 3)
    state["undo"].update(a=raise_deferred, b=list)
    return data


FAILING: dict[str, tuple[list[Op], type[Exception]]] = {
    "op": ([Op("x", "y", function), Op(["y", "x"], "z", fail)], ArithmeticError),
    "too many": ([Op("x", "y", function), Op("y", ["z", "w"], too_many)], ValueError),
    "other keys": ([Op("x", "y", function), Op("y", ["z", "w"], other_keys)], ValueError),
    "no parts": ([Op("x", "y", function), Op("y", ["z"], function)], TypeError),
    "deferred": ([Op("x", "y", defer)], ArithmeticError),
    "missing": ([Op("x", "y", function), Op(["y", "absent"], "z", function)], MissingKeyError),
    "deleted": ([Op("x", "y", function), Delete("y"), Op(["x", "y"])], MissingKeyError),
    "many slots": ([Op("x", [f"k{n}" for n in range(99)], function), Op()], TypeError),
}


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("entry", ["run", "step_timed"])
def test_failing_steps(kernel: Kernel, case: str, entry: str) -> None:
    ops, error = FAILING[case]
    value, batch, state = Nothing(), {}, new_state()
    batch["x"] = value
    plan = plan_of(kernel, ops)
    run = entry_of(kernel, plan, entry)

    def step() -> None:
        try:
            run(batch, state)
        except error:
            return
        raise AssertionError("this step must fail")

    repeat(10, step)
    with steady(value, batch, state, function, fail, plan, error, *ops, "x", "y"):
        repeat(MANY // 20, step)


@pytest.mark.parametrize("fails", ["never", "to_device", "detach", "mode in", "mode out"])
def test_what_surrounds_the_ops(kernel: Kernel, fails: str) -> None:
    value, state, batch = Nothing(), new_state(), {}
    batch["x"] = [value]

    def guard(name: str) -> Callable[[Any], Any]:
        def call(given: Any) -> Any:
            if fails == name:
                raise ArithmeticError(name)
            return given

        return call

    def write(given: Any) -> None:
        guard("mode in" if given == "needed" else "mode out")(given)

    plan = plan_of(
        kernel,
        [Op("x", "y", function)],
        to_device=kernel.NestMap(Nothing, guard("to_device")),
        detach=kernel.NestMap(Nothing, guard("detach")),
        grad_mode=(lambda: "before", write, "needed"),
    )

    def step() -> None:
        try:
            plan.step(batch, state)
        except ArithmeticError:
            assert fails != "never"
            return
        assert fails == "never"

    repeat(10, step)
    with steady(value, state, batch, write, plan):
        repeat(MANY // 20, step)


def test_plans_come_and_go(kernel: Kernel) -> None:
    ops = [Op(f"k{index}", f"k{index + 1}", function) for index in range(20)]
    refused = [*ops, Op("x", ["y", "z"], out_list=False)]
    value = Nothing()

    def open_and_run() -> None:
        plan = plan_of(kernel, ops, {"k20"})
        plan.run({"k0": value}, {})
        try:
            plan_of(kernel, refused)
        except ValueError:
            return
        raise AssertionError("this plan must be refused")

    repeat(10, open_and_run)
    with steady(value, function, *ops):
        repeat(MANY // 200, open_and_run)


def test_a_plan_in_a_cycle_is_collected(kernel: Kernel) -> None:
    class Holder:
        def forward(self, data: Any, state: State) -> Any:
            return data

    def make() -> weakref.ref[Holder]:
        holder = Holder()
        holder.plan = plan_of(kernel, [Op("x", "y")], forwards=[holder.forward])  # type: ignore[attr-defined]
        assert holder.plan.run({"x": 1}, {}) == {"y": 1}  # type: ignore[attr-defined]
        return weakref.ref(holder)

    watched = [make() for _ in range(10)]
    gc.collect()
    assert [each() for each in watched] == [None] * 10


def traced_step(kernel: Kernel, outputs: dict[str, Any] | None = None) -> Any:
    """A step that logs nothing, over the keys "x" and "y"."""
    framework = Framework(kernel)
    framework.traced = framework.called = Forgetful()
    return framework.step(["x", "y"], outputs or {"z": "x", "first": "first"}, ["epoch"])


class Forgetful(list[Any]):
    def append(self, value: Any) -> None:
        pass


def test_traced_steps(kernel: Kernel) -> None:
    tensor, state = Tensor("float", 4), {"epoch": Tensor("int")}
    nest = [
        {"a": [tensor, "text", 2.5], "b": (tensor, None), 3: Plain(tensor, {1, 2})},
        Store({"a": tensor, "b": bytearray(b"a")}),
        [Array(), Pair("kind", [tensor, tensor])],
    ]
    batch, other = {"x": nest, "y": tensor}, {"x": [nest], "y": tensor}
    step = traced_step(kernel)

    def both() -> None:
        # turn by turn, so that each finds the trace of the other in front
        step.step(batch, state)
        step.step(other, state)
        assert step.fits(batch)

    repeat(10, both)
    assert len(step.programs) == 2
    signatures = [signature for signature, _ in step.programs]
    watched = (tensor, state, batch, other, *signatures, step.adapter, Tensor, Plain, Store)
    with steady(*watched, "x", "z"):
        repeat(MANY // 20, both)


def test_traces_come_and_go(kernel: Kernel) -> None:
    tensor, state = Tensor("float", 4), {"epoch": Tensor("int")}
    step = traced_step(kernel)
    numbers = iter(range(10**9))

    def once() -> None:
        number = 1_000_000 + next(numbers)
        batch = {"x": [number, {"a": tensor, "b": "text"}], "y": tensor}
        assert not step.fits(batch)
        step.step(batch, state)
        assert step.fits(batch)
        assert not step.fits({"x": tensor, "y": tensor})

    repeat(40, once)
    with steady(tensor, state, step.adapter, "text", "x"):
        repeat(MANY // 50, once)
    assert len(step.programs) == 16


@pytest.mark.parametrize(
    "fails", ["type_of", "shape_of", "convert", "flatten", "pack", "call", "key"]
)
def test_failing_traced_steps(kernel: Kernel, fails: str) -> None:
    failing = False

    def guard(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*given: Any) -> Any:
            if failing and name == fails:
                raise ArithmeticError(name)
            return call(*given)

        return guarded

    names = ("type_of", "shape_of", "convert", "flatten", "pack")
    framework = Framework(kernel)
    adapter = framework.new_adapter(
        **{name: guard(name, getattr(framework.adapter, name)) for name in names}
    )
    tensor = Tensor("float", 4)
    value = [tensor, (tensor,), Array("float", 4), Pair("kind", [tensor, tensor])]
    forms = [adapter.form_of(value)]
    call = guard("call", lambda tensors: tensors)
    step = Step(kernel, ["x"], adapter, lambda values: Traced(call, forms, {"y": forms[0]}))
    batch = {"x": value}
    step.step(batch, {})
    failing = True

    def once() -> None:
        try:
            step.step({} if fails == "key" else batch, {})
        except (ArithmeticError, KeyError):
            return
        raise AssertionError("this step must fail")

    repeat(10, once)
    signature, _ = step.programs[0]
    with steady(tensor, value, batch, adapter, signature, *forms, ArithmeticError, "x"):
        repeat(MANY // 20, once)


def test_signature_in_a_cycle_is_collected(kernel: Kernel) -> None:
    class Holder:
        def pack(self, kind: Any, tensors: list[Any]) -> list[Any]:
            return []

    def make() -> weakref.ref[Holder]:
        holder = Holder()
        adapter = Framework(kernel).new_adapter(pack=holder.pack)
        # Not as an attribute, which would be a constant of the form that changes with it.
        holder.signatures = iter(  # type: ignore[attr-defined]
            [kernel.Signature(["x"], adapter, [adapter.form_of([holder, Tensor()])], {})]
        )
        return weakref.ref(holder)

    watched = [make() for _ in range(10)]
    gc.collect()
    assert [each() for each in watched] == [None] * 10


def test_memory_outside_of_objects(kernel: Kernel) -> None:
    """What the kernel allocates for itself is counted by tracemalloc alone."""
    ops = [Op(f"k{index}", f"k{index + 1}", function) for index in range(150)]
    failing = [*ops, Op("k150", "k151", fail)]

    def work() -> None:
        for chain in (ops, failing):
            plan = plan_of(kernel, chain)
            for run in (plan.run, entry_of(kernel, plan, "step_timed")):
                try:
                    run({"k0": 1}, {})
                except ArithmeticError:
                    continue

    tracemalloc.start()
    try:
        repeat(5, work)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        repeat(60, work)
        gc.collect()
        # a single plan or set of slots left behind each time would be far more
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
