"""Tests of the plan that runs the ops of a network."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import os
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from fastnet.errors import MissingKeyError
from tests.kernel.ops import Delete, Op, entry_of, new_state, plan_of, shown
from tests.reference import Kernel

State = dict[str, Any]


def add_one(data: Any, state: State) -> Any:
    return data + 1


def raise_(error: BaseException) -> Callable[[Any, State], Any]:
    def forward(data: Any, state: State) -> Any:
        raise error

    return forward


class Deferred:
    """A deferred function that logs its calls."""

    def __init__(self, log: list[str], name: str, fails: BaseException | None = None) -> None:
        self.log = log
        self.name = name
        self.fails = fails

    def __call__(self) -> None:
        self.log.append(f"{self.name} ran")
        if self.fails is not None:
            raise self.fails

    def discard(self) -> None:
        self.log.append(f"{self.name} discarded")


def defer(function: Any, key: str = "model") -> Callable[[Any, State], Any]:
    def forward(data: Any, state: State) -> Any:
        state["deferred"].setdefault(key, []).append(function)
        return data

    return forward


class ModelOutput(collections.OrderedDict[Any, Any]):
    """Can be indexed by key and by integer, like the results of Hugging Face's models."""

    def __getitem__(self, key: Any) -> Any:
        values = dict(self.items())
        return values[key] if isinstance(key, str) else tuple(values.values())[key]


class TestWriting:
    """The values that are written for a result of forward."""

    @pytest.mark.parametrize(
        ("outputs", "out_list", "returned", "written"),
        [
            ([], None, 3, {}),  # nothing is written, so nothing has to have parts
            ("y", None, [3], {"y": [3]}),
            ("y", True, [3], {"y": 3}),
            (["y"], False, [3], {"y": [3]}),
            (["y", "z"], None, (3, 4), {"y": 3, "z": 4}),
            (["y", "y"], None, [3, 4], {"y": 4}),
            ("y", None, {"y": 3}, {"y": {"y": 3}}),
            (["y", "z"], None, {"z": 4, "w": 5, "y": 3}, {"y": 3, "z": 4}),
            (["y", "z"], None, collections.OrderedDict(z=4, y=3), {"y": 3, "z": 4}),
            (["y", "z"], None, types.MappingProxyType({"z": 4, "y": 3}), {"y": 3, "z": 4}),
            (["y", "z"], None, ModelOutput(z=4, y=3), {"y": 3, "z": 4}),
            (["y", "z"], None, collections.UserDict(z=4, y=3), {"y": 3, "z": 4}),
            (["y", "z"], None, os.terminal_size((3, 4)), {"y": 3, "z": 4}),
        ],
    )
    def test_forms(
        self,
        kernel: Kernel,
        outputs: Any,
        out_list: bool | None,
        returned: Any,
        written: dict[str, Any],
    ) -> None:
        op = Op(None, outputs, lambda data, state: returned, out_list=out_list)
        assert plan_of(kernel, [op]).run({}, new_state()) == written
        store = {"x": 1}
        kernel.write_outputs_by_op(op, store, returned)
        assert store == {"x": 1, **written}

    def test_a_list_that_shrinks_while_it_is_written(self, kernel: Kernel) -> None:
        class Cruel:
            def __del__(self) -> None:
                kept.clear()

        kept: list[Any] = [1, 2, 3]
        ops = [
            Op(None, "x", lambda data, state: Cruel()),
            # Overwriting x releases the object, which clears the list.
            Op("x", ["x", "y", "z"], lambda data, state: kept),
        ]
        assert plan_of(kernel, ops).run({}, {}) == {"x": 1, "y": 2, "z": 3}


class TestFlow:
    def test_flow(self, kernel: Kernel) -> None:
        ops = [
            Op(["x", "x"], ["y", "unread"]),
            Op("y", "y"),
            Op(["y", "w"], "z"),
            Delete("z"),
            Op("x", "x"),
            Op(None, None),
        ]
        flow = plan_of(kernel, ops, {"y"}).flow
        assert [(reads, writes, set(dead)) for reads, writes, dead in flow] == [
            (("x", "x"), ("y", "unread"), {"unread"}),
            (("y",), ("y",), set()),
            (("y", "w"), ("z",), {"w"}),
            (("z",), (), {"z"}),
            (("x",), ("x",), {"x"}),
            ((), (), set()),
        ]
        assert plan_of(kernel, [Op(["x", "x"])]).flow == ((("x", "x"), (), ("x",)),)
        assert plan_of(kernel, []).flow == ()

    @pytest.mark.parametrize("count", [64, 65, 130])
    def test_more_slots_than_fit_on_the_stack(self, kernel: Kernel, count: int) -> None:
        keys = [f"k{number}" for number in range(count)]
        ops = [Op(key, after, add_one) for key, after in itertools.pairwise(keys)]
        plan = plan_of(kernel, ops)
        for _ in range(3):
            result = plan.run({"k0": 0}, {})
            assert list(result.items()) == [(key, index) for index, key in enumerate(keys)][1:]
        assert plan_of(kernel, ops, {keys[-1]}).run({"k0": 0}, {}) == {keys[-1]: count - 1}
        ops[count // 2] = Op(keys[count // 2], keys[count // 2 + 1], raise_(OSError("stop")))
        with pytest.raises(OSError, match="stop"):
            plan_of(kernel, ops).run({"k0": 0}, {})

    def test_an_op_that_runs_its_own_plan(self, kernel: Kernel) -> None:
        def sum_to(data: int, state: State) -> int:
            if data == 0:
                return 0
            return data + plan.run({"n": data - 1}, new_state())["sum"]

        plan = plan_of(kernel, [Op("n", "m"), Op("m", "sum", sum_to), Op("m", "m", add_one)])
        assert plan.run({"n": 50}, new_state()) == {"m": 51, "sum": 50 * 51 // 2}

    def test_an_op_that_drops_the_last_reference_to_its_plan(self, kernel: Kernel) -> None:
        holder: list[Any] = []
        ops = [Op("x", "y", lambda data, state: holder.clear() or data), Op("y", "z", add_one)]
        holder.append(plan_of(kernel, ops))
        del ops
        assert holder[0].run({"x": 1}, {}) == {"y": 1, "z": 2}


class TestDelete:
    def test_a_deleted_key_of_the_batch_stays_in_the_batch(self, kernel: Kernel) -> None:
        plan = plan_of(kernel, [Op("x", "y"), Delete(["x"])])
        assert plan.run({"x": 1}, {}) == {"y": 1}
        assert plan.step({"x": 1}, {}) == {"x": 1, "y": 1}


class TestErrorsOfOps:
    @pytest.mark.parametrize("entry", ["run", "step", "step_timed"])
    @pytest.mark.parametrize(
        "error", [KeyError("k"), StopIteration(3), KeyboardInterrupt(), GeneratorExit(), OSError()]
    )
    def test_every_error_keeps_its_type(
        self, kernel: Kernel, entry: str, error: BaseException
    ) -> None:
        plan = plan_of(kernel, [Op("x", "y", raise_(error))])
        with pytest.raises(type(error)) as caught:
            entry_of(kernel, plan, entry)({"x": 1}, new_state())
        assert caught.value is error
        if sys.version_info >= (3, 11):
            assert error.__notes__[-1] == "Raised by Op (op 0, inputs ['x'], outputs ['y'])."

    def test_ops_of_plans_within_plans_are_all_named(self, kernel: Kernel) -> None:
        inner = plan_of(kernel, [Op("a", "b", raise_(ValueError("deep")))])
        outer = plan_of(kernel, [Op("x", "y", lambda data, state: inner.run({"a": 1}, {}))])
        with pytest.raises(ValueError, match="deep") as caught:
            outer.run({"x": 1}, {})
        assert shown(caught.value) == (
            "deep\nRaised by Op (op 0, inputs ['a'], outputs ['b']).\n"
            "Raised by Op (op 0, inputs ['x'], outputs ['y'])."
        )


class TestRelease:
    """When values are released."""

    def test_a_destructor_that_runs_the_plan(self, kernel: Kernel) -> None:
        left = [3, 2, 1]
        results: list[Any] = []

        class Restless:
            def __del__(self) -> None:
                if left:
                    left.pop()
                    results.append(plan.run({"x": 1}, {}))

        ops = [
            Op("x", "y", lambda data, state: Restless()),
            Op("y", "z", lambda data, state: 5),
            Op("x", "y", lambda data, state: Restless()),
        ]
        plan = plan_of(kernel, ops, {"z"})
        assert plan.run({"x": 1}, {}) == {"z": 5}
        assert results == [{"z": 5}] * 3


class TestMoveAndRelease:
    def test_inputs_and_outputs(self, kernel: Kernel) -> None:
        move = kernel.NestMap(int, lambda value: value + 10)
        release = kernel.NestMap(int, lambda value: -value)
        ops = [Op("x", "y", add_one), Op(["x", "y"], "z", lambda data, state: [data, "text"])]
        plan = plan_of(kernel, ops, move=move, release=release)
        batch = {"x": 1, "other": 5}
        assert plan.run(batch, {}) == {"y": -12, "z": [[-11, -12], "text"]}
        assert plan.step(batch, {}) == {"x": 1, "other": 5, "y": -12, "z": [[-11, -12], "text"]}
        assert batch == {"x": 1, "other": 5}

    @pytest.mark.parametrize("which", ["move", "release"])
    def test_a_function_that_raises(self, kernel: Kernel, which: str) -> None:
        def fail(value: int) -> int:
            raise OSError("device full")

        log: list[str] = []
        ops = [Op("x", "y", defer(Deferred(log, "late")))]
        plan = plan_of(kernel, ops, **{which: kernel.NestMap(int, fail)})
        state = new_state()
        with pytest.raises(OSError, match="device full") as caught:
            plan.run({"x": 1}, state)
        assert shown(caught.value) == "device full"
        assert state["deferred"] == {}
        assert log == ([] if which == "move" else ["late ran"])


class TestDeferred:
    def test_functions_that_defer_others(self, kernel: Kernel) -> None:
        log: list[str] = []
        state = new_state()

        def first() -> None:
            log.append("first")
            state["deferred"].setdefault("later", []).append(Deferred(log, "late"))

        state["deferred"]["model"] = [first, Deferred(log, "second")]
        state["deferred"]["other"] = [Deferred(log, "third")]
        plan_of(kernel, []).run({}, state)
        assert log == ["first", "second ran", "third ran", "late ran"]
        assert state["deferred"] == {}

    def test_discarded_when_an_op_raises(self, kernel: Kernel) -> None:
        log: list[str] = []
        ops = [
            Op(None, None, defer(Deferred(log, "a"), "a")),
            Op(None, None, defer(lambda: log.append("never"), "b")),  # has no discard
            Op(None, None, defer(Deferred(log, "b"), "b")),
            Op(None, "y", raise_(ValueError("stop"))),
        ]
        state = new_state()
        with pytest.raises(ValueError, match="stop"):
            plan_of(kernel, ops).run({}, state)
        assert log == ["a discarded", "b discarded"]
        assert state["deferred"] == {}
        plan_of(kernel, [Op("x", "y")]).run({"x": 1}, state)
        assert len(log) == 2

    def test_discarded_when_one_of_them_raises(self, kernel: Kernel) -> None:
        log: list[str] = []
        functions = [
            Deferred(log, "a"),
            Deferred(log, "b", OSError("no step")),
            Deferred(log, "c"),
            lambda: log.append("never"),
        ]
        state = {"deferred": {"model": functions, "other": [Deferred(log, "d")]}}
        with pytest.raises(OSError, match="no step") as caught:
            plan_of(kernel, [Op("x", "y")]).run({"x": 1}, state)
        assert shown(caught.value) == "no step"
        # Only the functions that did not run must be discarded; the one that failed may be.
        assert [entry for entry in log if entry != "b discarded"] == [
            "a ran",
            "b ran",
            "c discarded",
            "d discarded",
        ]
        assert state["deferred"] == {}


class TestOnFailure:
    def test_only_after_a_failed_step(self, kernel: Kernel) -> None:
        log: list[str] = []
        ops = [Op("x", "y", lambda data, state: 1 / data)]
        plan = plan_of(kernel, ops, on_failure=[lambda: log.append("a"), lambda: log.append("b")])
        plan.run({"x": 1}, new_state())
        assert log == []
        with pytest.raises(ZeroDivisionError):
            plan.run({"x": 0}, {"deferred": {"model": [Deferred(log, "d")]}})
        assert log == ["d discarded", "a", "b"]
        with pytest.raises(MissingKeyError):
            plan.step({}, new_state())
        assert log[3:] == ["a", "b"]

    @pytest.mark.parametrize("deferred", [False, True])
    def test_a_function_that_raises_does_not_hide_the_error(
        self, kernel: Kernel, deferred: bool
    ) -> None:
        class Stuck:
            def __call__(self) -> None:
                raise OSError("stuck")

            discard = __call__

            def __repr__(self) -> str:
                return "Stuck()"

        log: list[str] = []
        ops = [Op(None, None, raise_(ValueError("op")))]
        stuck = [Stuck()]
        plan = plan_of(kernel, ops, on_failure=[*stuck[deferred:], lambda: log.append("b")])
        with pytest.raises(ValueError, match=r"^op") as caught:
            plan.run({}, {"deferred": {"model": stuck} if deferred else {}})
        assert log == ["b"]
        assert sorted(shown(caught.value).split("\n")[1:]) == [
            "Discarding Stuck() failed too: OSError('stuck')",
            "Raised by Op (op 0).",
        ]


def spans_of(plan: Any, log: Any, first: int = 0) -> list[tuple[Any, float]]:
    """List the span and the time of each stamp."""
    stamps = struct.iter_unpack("=dii", log.take())
    return [(plan.spans[row - first], at) for at, row, part in stamps]


class TestStepTimed:
    def test_values_are_moved_and_released_between_stamps(self, kernel: Kernel) -> None:
        seen: list[Any] = []

        def note(leaf: int) -> int:
            seen.append((leaf, len(log)))
            return leaf + 1

        nest = kernel.NestMap(int, note)
        ops = [Op(["x", "y"], ["a", "b"], lambda data, state: data)]
        plan, log = plan_of(kernel, ops, move=nest, release=nest), kernel.StampLog()
        batch = {"x": 10, "y": 20}
        assert kernel.BoundPlan(plan, new_state()).step_timed(batch, log) == {
            **batch,
            "a": 12,
            "b": 22,
        }
        spans = [span for span, _ in spans_of(plan, log)]
        named = [spans[at] for _, at in seen]
        values = dict(zip(named, (leaf for leaf, _ in seen), strict=True))
        assert values == {
            ("input", "x"): 10,
            ("input", "y"): 20,
            ("output", "a"): 11,
            ("output", "b"): 21,
        }


class Tape:
    """A context manager that logs when it is entered and left."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self) -> Tape:
        self.log.append("on")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.log.append("off" if kind is None else f"off after {kind.__name__}")


class TestBound:
    """A plan with the state and the context manager of its steps."""

    @pytest.mark.parametrize("entry", ["run", "step", "step_timed"])
    def test_each_step_enters_a_context_manager(self, kernel: Kernel, entry: str) -> None:
        log: list[str] = []
        tapes: list[Any] = []

        def note(data: Any, state: State) -> None:
            tapes.append(state["tape"])
            log.append("op")

        ops = [Op(None, None, note), Op(None, None, defer(lambda: log.append("deferred")))]
        state = {**new_state(), "tape": None}
        bound = kernel.BoundPlan(plan_of(kernel, ops), state, lambda: Tape(log), "tape")
        bound_entry(kernel, bound, entry)({})
        bound_entry(kernel, bound, entry)({})
        assert log == ["on", "op", "deferred", "off"] * 2
        assert [type(tape) for tape in tapes] == [Tape, Tape]
        assert tapes[0] is not tapes[1]
        assert bound.state is state
        assert state == {**new_state(), "tape": None}

    def test_entering_and_leaving_are_stamped(self, kernel: Kernel) -> None:
        plan = plan_of(kernel, [Op("x", "y", add_one)])
        log = kernel.StampLog()
        kernel.BoundPlan(plan, new_state()).step_timed({"x": 1}, log, 10, around=5)
        plain = rows_of(log)
        bound = kernel.BoundPlan(plan, new_state(), contextlib.nullcontext)
        bound.step_timed({"x": 1}, log, 10, around=5)
        assert rows_of(log) == [5, *plain, 5]

    @pytest.mark.parametrize("entry", ["run", "step", "step_timed"])
    @pytest.mark.parametrize(
        ("batch", "error"), [({"x": 1}, ZeroDivisionError), ({}, MissingKeyError)]
    )
    def test_a_step_that_fails(self, kernel: Kernel, batch: State, error: Any, entry: str) -> None:
        log: list[str] = []
        fails = Op("x", "y", raise_(ZeroDivisionError("x")))
        bound = kernel.BoundPlan(plan_of(kernel, [fails]), new_state(), lambda: Tape(log), "tape")
        with pytest.raises(error):
            bound_entry(kernel, bound, entry)(batch)
        assert log == ["on", f"off after {error.__name__}"]


def rows_of(log: Any) -> list[int]:
    return [row for _, row, _ in struct.iter_unpack("=dii", log.take())]


def bound_entry(kernel: Kernel, bound: Any, name: str) -> Any:
    if name != "step_timed":
        return getattr(bound, name)
    log = kernel.StampLog()
    return lambda batch: bound.step_timed(batch, log)


class TestForwards:
    """Forwards are any callables with the arguments (data, state)."""

    class Callee:
        def __init__(self) -> None:
            self.offset = 100

        def method(self, data: Any, state: State) -> Any:
            return data + self.offset

        @classmethod
        def of_class(cls, data: Any, state: State) -> Any:
            return cls, data

        def __call__(self, data: Any, state: State) -> Any:
            return data - self.offset

        def flexible(self, *args: Any, **kwargs: Any) -> Any:
            return len(args), kwargs

        def optional(self, data: Any, state: State, more: int = 7) -> Any:
            return data + more

    @pytest.mark.parametrize(
        ("forward", "result"),
        [
            (Callee().method, 103),
            (Callee.of_class, (Callee, 3)),
            (Callee(), -97),
            (Callee().flexible, (2, {})),
            (functools.partial(Callee().optional, more=1), 4),
            (types.MethodType(functools.partial(lambda *args: args[:2], 1), 2), (1, 2)),
            # Builtin functions, bound methods, types and slot wrappers.
            (math.pow, TypeError),
            ({3: "three"}.get, "three"),
            (slice, slice(3, {}, None)),
            ((3).__add__, TypeError),
            (None, TypeError),
        ],
    )
    def test_any_callable(self, kernel: Kernel, forward: Any, result: Any) -> None:
        plan = plan_of(kernel, [Op("x", "y")], forwards=[forward])
        for _ in range(3):
            if result is TypeError:
                with pytest.raises(TypeError):
                    plan.run({"x": 3}, {})
            else:
                assert plan.run({"x": 3}, {}) == {"y": result}

    @pytest.mark.parametrize("forward", [lambda: 0, lambda data: 0, lambda *, data, state: 0])
    def test_a_wrong_signature(self, kernel: Kernel, forward: Any) -> None:
        plan = plan_of(kernel, [Op("x", "y")], forwards=[forward])
        with pytest.raises(TypeError) as caught:
            plan.run({"x": 3}, {})
        assert shown(caught.value).endswith("\nRaised by Op (op 0, inputs ['x'], outputs ['y']).")


class TestGetInputsByOp:
    @pytest.mark.parametrize("mapping", [dict, lambda store: collections.ChainMap(store)])
    def test_copy_on_write(self, kernel: Kernel, mapping: Callable[[Any], Any]) -> None:
        np = pytest.importorskip("numpy")
        frozen, free = np.arange(3), np.arange(3)
        frozen.flags.writeable = False
        store = mapping({"frozen": frozen, "free": free, "text": "x"})
        keys = ["frozen", "free", "text"]
        first = kernel.get_inputs_by_op(Op(keys), store)
        assert first[0] is frozen
        data = kernel.get_inputs_by_op(Op(keys), store, copy_on_write=True)
        assert data[0] is not frozen
        assert data[0].flags.writeable
        assert data[0].tolist() == [0, 1, 2]
        assert store["frozen"] is data[0]
        assert data[1] is free
        data[0][0] = 9
        assert frozen.tolist() == [0, 1, 2]
        # The copy is writable, so it is not copied again.
        assert kernel.get_inputs_by_op(Op("frozen"), store, True) is data[0]


class TestSplitOutputs:
    def test_some_of_the_outputs(self, kernel: Kernel) -> None:
        op = Op("x", ["y", "z", "w"])
        assert kernel.split_outputs(op, [3], ["y"]) == (3,)
        with pytest.raises(ValueError, match="values") as caught:
            kernel.split_outputs(op, [3, 4, 5], ["y", "z"], source="model")
        assert "2 outputs besides its last 1" in str(caught.value)
        assert "model returned 3 values" in str(caught.value)


class TestMisuse:
    """Wrong arguments raise an error instead of crashing the interpreter."""

    def test_specs_of_another_table(self, kernel: Kernel) -> None:
        if not kernel.compiled:
            pytest.skip("the reference cannot crash")
        table, other = kernel.KeyTable(), kernel.KeyTable()
        for number in range(100_000):
            other.intern(f"k{number}")
        spec = kernel.OpSpec(Op("k99999", "k50000"), other)
        with pytest.raises(ValueError, match=r"Op \(op 0, inputs \['k99999'\].*another table"):
            kernel.Plan(table, [spec], [add_one], kernel.resolve(table, [], [], []))

    def test_a_bound_plan_without_a_plan(self, kernel: Kernel) -> None:
        if not kernel.compiled:
            pytest.skip("the reference cannot crash")
        with pytest.raises(TypeError):
            kernel.BoundPlan(None, {})
        with pytest.raises(TypeError):
            kernel.BoundPlan(plan_of(kernel, []), None)
        with pytest.raises(TypeError):
            kernel.BoundPlan.__new__(kernel.BoundPlan)
