"""Tests of signatures, and of steps by traced functions that they find."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import pytest

from fastnet._trace import GuardedReaders
from tests.containers import CONTAINERS as ALL_CONTAINERS
from tests.containers import Ice, Plain
from tests.kernel.traces import Framework, Store, Tensor, shapes_of
from tests.reference import Kernel

CONTAINERS = [make for make in ALL_CONTAINERS if not isinstance(make(1), set | frozenset)]


def make_default(data: dict[str, Any]) -> Any:
    return collections.defaultdict(int, data)


@pytest.fixture
def framework(kernel: Kernel) -> Framework:
    return Framework(kernel)


class TestStep:
    def test_traces_once_and_calls_with_flat_tensors(self, framework: Framework) -> None:
        step = framework.step(["x", "y"], context=["epoch"], outputs={"z": "first"})
        x, y, epoch = Tensor("float", 4, 3), Tensor("int", 4), Tensor("int")
        state = {"epoch": epoch, "mode": "train"}
        batch = {"y": y, "x": x, "other": "kept"}
        result = step.step(batch, state)
        assert result == {"y": y, "x": x, "other": "kept", "z": epoch}
        assert batch == {"y": y, "x": x, "other": "kept"}
        again = step.step(batch, state)
        assert again == result
        assert again is not result
        assert framework.traced == [[x, y]]
        assert framework.called == [[epoch, x, y]] * 2


class TestSignature:
    def test_matching_and_merging(self, kernel: Kernel, framework: Framework) -> None:
        slot, x, y = kernel.TensorSpec("float", (2,)), Tensor("float", 2), Tensor("float", 2)
        outputs = {"z": slot, "nest": [slot, 1]}
        signature = kernel.Signature(["x", "y"], framework.adapter, [slot, [slot]], outputs)
        assert signature.keys == ("x", "y")
        assert signature.outputs == outputs
        batch = {"x": x, "y": [y], "other": 1}
        assert signature.match(batch) == [x, y]
        assert signature.match({"x": x, "y": (y,)}) is None
        assert signature.match({"x": x, "y": [Tensor("int", 2)]}) is None
        merged = signature.merge([y, x], batch)
        assert merged == {**batch, "z": y, "nest": [x, 1]}
        assert batch == {"x": x, "y": [y], "other": 1}
        with pytest.raises(RuntimeError, match="returned 1 tensors, but its outputs have 2"):
            signature.merge([x], batch)
        with pytest.raises(KeyError, match=r"^'y'$"):
            signature.match({"x": x})
        with pytest.raises(TypeError, match="batch"):
            signature.match([x])

    def test_number_of_keys_differs_from_forms(self, kernel: Kernel, framework: Framework) -> None:
        signature = kernel.Signature(["x"], framework.adapter, [], {})
        assert signature.match({"x": 1}) is None


class TestMatchingForms:
    """A form matches a value, or another form."""

    def test_value(self, kernel: Kernel, framework: Framework) -> None:
        adapter = framework.adapter
        form = [kernel.TensorSpec("float", (None, 2)), {"a": 1}]
        assert adapter.matches(form, [Tensor("float", 3, 2), {"a": 1}])
        assert not adapter.matches(form, [Tensor("float", 3, 2), {"a": 2}])
        assert not adapter.matches(form, [Tensor("float", 2, 3), {"a": 1}])

    def test_form(self, kernel: Kernel) -> None:
        wide, narrow = kernel.TensorSpec("float", (None, 2)), kernel.TensorSpec("float", (3, 2))
        matches = kernel.FORMS.matches
        assert matches({"a": wide}, {"a": narrow})
        assert not matches({"a": narrow}, {"a": wide})
        assert not matches(wide, kernel.TensorSpec("int", (3, 2)))
        assert matches(kernel.CompositeSpec("kind", [wide]), kernel.CompositeSpec("kind", [narrow]))
        assert not matches(
            kernel.CompositeSpec("kind", [wide]), kernel.CompositeSpec("other", [narrow])
        )
        assert not matches(wide, kernel.CompositeSpec("kind", [narrow]))
        assert not matches([wide, 1], [narrow, True])


class TestContainers:
    @pytest.mark.parametrize("make", CONTAINERS)
    def test_a_form_is_not_changed_with_the_batch(
        self, framework: Framework, make: Callable[[Any], Any]
    ) -> None:
        inner: list[Any] = [Tensor("float", 4), 1]
        data = make(inner)
        step = framework.step(["x"])
        step.step({"x": data}, {})
        inner.append(Tensor("float", 4))
        assert framework.step_count(step, {"x": data}) == 2
        inner.pop()
        inner[1] = 2
        assert framework.step_count(step, {"x": data}) == 3
        if isinstance(data, MutableMapping) and not isinstance(data, collections.Counter):
            data["new"] = 3
        elif isinstance(data, list):
            data.append(3)
        else:
            return
        assert framework.step_count(step, {"x": data}) == 4

    @pytest.mark.parametrize("make", [dict, collections.UserDict, make_default])
    def test_keys_in_another_order(self, framework: Framework, make: Callable[..., Any]) -> None:
        a, b = Tensor("float", 4), Tensor("float", 4)
        step = framework.step(["x"], outputs={"y": "x"})
        for _ in range(2):
            step.step({"x": make({"a": a, "b": b})}, {})
            # Code that iterates over the keys depends on their order.
            result = step.step({"x": make({"b": b, "a": a})}, {})
            assert list(result["y"].items()) == [("b", b), ("a", a)]
        assert framework.called == [[a, b], [b, a]] * 2
        assert len(framework.traced) == 2


class Loud(str):
    pass


class TestConstants:
    @pytest.mark.parametrize(
        "likes",
        [
            (1, True, 1.0, 1 + 0j, np.True_),
            (0.0, -0.0, 0, False),
            (0j, -0j, complex(0.0, -0.0)),
            ("text", Loud("text")),
            (b"a", bytearray(b"a"), "a"),
            ((1,), (True,), (1.0,), [1]),
            ({1}, {True}, {1.0}, frozenset([1])),
            ({(1, 2)}, {(True, 2)}),
            ({1: 2}, {True: 2}, {1.0: 2}, {1: 2.0}),
            ({(1,): 2}, {(True,): 2}),
            (Plain(1, 2), Plain(True, 2), Ice(1, 2)),
            (None, False, (), [], {}, set()),
        ],
    )
    def test_equal_constants_of_other_types_are_traced_again(
        self, framework: Framework, likes: tuple[Any, ...]
    ) -> None:
        step = framework.step(["x"])
        for count, constant in enumerate(likes, 1):
            assert framework.step_count(step, {"x": constant}) == count
        for constant in likes:
            assert framework.step_count(step, {"x": constant}) == len(likes)

    def test_a_constant_that_cannot_be_compared(self, framework: Framework) -> None:
        class Hostile:
            def __eq__(self, other: object) -> bool:
                raise OSError("do not compare me")

            __hash__ = None  # type: ignore[assignment]

        class Doubtful:
            def __eq__(self, other: object) -> Any:
                return self

            def __bool__(self) -> bool:
                raise ValueError("neither")

            def __hash__(self) -> int:
                return 0

        for cls in (Hostile, Doubtful):
            step, constant = framework.step(["x"]), cls()
            framework.traced.clear()
            assert framework.step_count(step, {"x": constant}) == 1
            assert framework.step_count(step, {"x": constant}) == 1
            assert framework.step_count(step, {"x": cls()}) == 2

    @pytest.mark.parametrize("shape", [(), (2,)])
    def test_arrays_of_objects(self, framework: Framework, shape: tuple[int, ...]) -> None:
        # Their comparisons are arrays, so each matches only itself.
        step = framework.step(["x"])
        array = np.full(shape, "text", dtype=object)
        assert framework.step_count(step, {"x": array}) == 1
        assert framework.step_count(step, {"x": array}) == 1
        flat = np.full((array.size, 1), "text", dtype=object)
        assert framework.step_count(step, {"x": flat}) == 2
        assert framework.step_count(step, {"x": flat}) == 2

    @pytest.mark.parametrize(
        ("make", "change"),
        [
            (lambda: bytearray(b"a"), lambda data: data.append(98)),
            (lambda: collections.deque([1]), lambda data: data.append(2)),
            (lambda: {1}, lambda data: data.add(2)),
            (lambda: collections.UserList([1]), lambda data: data.append(2)),
        ],
    )
    def test_a_constant_that_the_program_changes(
        self, framework: Framework, make: Callable[[], Any], change: Callable[[Any], None]
    ) -> None:
        step = framework.step(["x"], outputs={"y": "x"})
        data = make()
        result = step.step({"x": data}, {})["y"]
        assert result == data
        assert result is not data
        # The trace keeps a copy of its own.
        change(result)
        assert framework.step_count(step, {"x": data}) == 1
        change(data)
        assert framework.step_count(step, {"x": data}) == 2
        assert framework.step_count(step, {"x": make()}) == 2
        assert step.step({"x": make()}, {})["y"] == make()


def test_constants_in_outputs_are_copied(kernel: Kernel, framework: Framework) -> None:
    slot, tensor = kernel.TensorSpec(), Tensor()
    outputs = {"a": slot, "b": "text", "c": [1, "a"], "d": (None, 2.5), "e": {"k": slot}}
    signature = kernel.Signature([], framework.adapter, [], outputs)
    expected = {"a": tensor, "b": "text", "c": [1, "a"], "d": (None, 2.5), "e": {"k": tensor}}
    result = signature.merge([tensor, tensor], {})
    assert result == expected
    result["c"].append(3)
    assert signature.merge([tensor, tensor], {}) == expected


class TestErrors:
    @pytest.mark.parametrize("make", CONTAINERS[::5])
    def test_a_container_that_contains_itself(
        self, kernel: Kernel, framework: Framework, make: Callable[[Any], Any]
    ) -> None:
        inner: list[Any] = []
        data = make(inner)
        inner.append(data)
        with pytest.raises(RecursionError):
            framework.adapter.form_of(data)
        with pytest.raises(RecursionError):
            kernel.map_form(data, len)
        step = framework.step(["x"])
        with pytest.raises(RecursionError):
            step.step({"x": data}, {})
        step.step({"x": make([])}, {})
        # along a form the walk ends
        assert not step.fits({"x": data})
        assert not step.fits({"x": inner})

    def test_a_container_that_is_nested_too_deep(
        self, kernel: Kernel, framework: Framework
    ) -> None:
        def nest(depth: int) -> Any:
            data: Any = Tensor()
            for _ in range(depth):
                data = [data]
            return data

        step = framework.step(["x"], outputs={"y": "x"})
        shallow = step.step({"x": nest(50)}, {})["y"]
        assert shapes_of(shallow) == shapes_of(nest(50))
        deep = nest(100_000)
        with pytest.raises(RecursionError):
            step.step({"x": deep}, {})
        with pytest.raises(RecursionError):
            kernel.map_form(deep, len)
        signature = kernel.Signature(["x"], framework.adapter, [deep], {})
        with pytest.raises(RecursionError) as caught:
            signature.match({"x": nest(100_000)})
        if kernel.compiled:
            assert str(caught.value).endswith(" while matching a batch")

    @pytest.mark.parametrize("make", [dict, list, Store])
    def test_data_that_a_callback_changes(
        self, framework: Framework, make: Callable[..., Any]
    ) -> None:
        changing = False

        def type_of(tensor: Tensor) -> Any:
            if changing:
                data.clear()
            return tensor.type

        adapter = framework.new_adapter(type_of=type_of)
        step = framework.step(["x"], adapter=adapter)
        tensors = [Tensor() for _ in range(50)]
        data = make(tensors) if issubclass(make, list) else make(dict(enumerate(tensors)))
        step.step({"x": data}, {})
        changing = True
        # Python's own KeyError or RuntimeError may come of it, but no other thing's memory
        with contextlib.suppress(KeyError, RuntimeError):
            assert step.fits({"x": data}) in (True, False)
        assert len(data) == 0
        changing = False
        assert not step.fits({"x": data})


def test_readings_stop_at_the_gate() -> None:
    def refuse(value: object) -> None:
        raise AssertionError(value)

    both = GuardedReaders(type, list, len, tuple)
    assert both([1, 2]) == (2, (1, 2))
    assert GuardedReaders(type, list, refuse)("text") == (str,)
    with pytest.raises(AssertionError):
        GuardedReaders(type, str, refuse)("text")
