"""Tests of the plan that runs the ops of a network."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernel.ops import Delete, Op, entry_of, new_state, plan_of, shown
from tests.reference import Kernel

State = dict[str, Any]


def add_one(data: Any, state: State) -> Any:
    return data + 1


def raise_(error: BaseException) -> Callable[[Any, State], Any]:
    def forward(data: Any, state: State) -> Any:
        raise error

    return forward


class TestWriting:
    """The values that are written for a result of forward."""

    def test_a_list_that_shrinks_while_it_is_written(self, kernel: Kernel) -> None:
        class Cruel:
            def __del__(self) -> None:
                kept.clear()

        kept: list[Any] = [1, 2, 3]
        ops = [
            Op(None, "x", lambda data, state: Cruel()),
            # Overwriting x drops the object, which clears the list.
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
    """When values are dropped."""

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
            kernel.KernelPlan(table, [spec], [add_one], kernel.resolve(table, [], [], []))

    def test_a_bound_plan_without_a_plan(self, kernel: Kernel) -> None:
        if not kernel.compiled:
            pytest.skip("the reference cannot crash")
        with pytest.raises(TypeError):
            kernel.BoundPlan(None, {})
        with pytest.raises(TypeError):
            kernel.BoundPlan(plan_of(kernel, []), None)
        with pytest.raises(TypeError):
            kernel.BoundPlan.__new__(kernel.BoundPlan)
