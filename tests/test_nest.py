"""Tests of mapping functions over nested containers."""

from __future__ import annotations

import collections
import collections.abc
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.containers import (
    CONTAINERS,
    Checked,
    Ice,
    Labels,
    ManyFields,
    ManySlots,
    Picky,
    Plain,
    Point,
    Registry,
    Sealed,
    Sorted,
    Store,
)
from tests.leaks import left_behind
from tests.reference import Kernel, load


class Leaf:
    """Represents a tensor."""

    def __init__(self, value: Any = 0, live: Any = True) -> None:
        self.value = value
        self.live = live

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Leaf({self.value!r})"


class Derived(Leaf):
    pass


def bump(leaf: Leaf) -> Leaf:
    return type(leaf)(leaf.value + 1)


def twice(value: Any) -> Any:
    """Change any value that is no container."""
    return bump(value) if isinstance(value, Leaf) else 2 * value if value is not None else None


class TestContainers:
    @pytest.mark.parametrize("make", CONTAINERS)
    def test_types_survive(self, kernel: Kernel, make: Callable[[Any], Any]) -> None:
        data = make(Leaf(1))
        result = kernel.NestMap(Leaf, bump)(data)
        assert type(result) is type(data)
        assert result is not data
        assert result == make(Leaf(2))
        assert data == make(Leaf(1))

    def test_attributes_survive(self, kernel: Kernel) -> None:
        bumped = kernel.NestMap(Leaf, bump)
        assert bumped(Labels([Leaf()], "name")).name == "name"
        assert bumped(Registry("name", x=Leaf())).name == "name"
        assert bumped(Picky(Leaf(), second=1)).note == "kept"
        assert bumped(Checked(Leaf(), seed=7)).extra == "kept"
        assert bumped(Sorted("name", Leaf())).name == "name"
        assert bumped(Sealed("name", Leaf())).name == "name"
        assert bumped(Store("name", x=Leaf())).name == "name"
        made = bumped(collections.defaultdict(list, x=Leaf()))
        assert made["new"] == []

    def test_leaves_are_mapped_in_order(self, kernel: Kernel) -> None:
        calls: list[int] = []
        numbered = [Leaf(number) for number in range(30)]
        nest = [
            dict(zip("zyxa", numbered[:4], strict=True)),
            tuple(numbered[4:7]),
            ManyFields(*numbered[7:13]),
            ManySlots(*numbered[13:19]),
            Labels([Point(*numbered[19:21]), *numbered[21:25]]),
            collections.OrderedDict(b=numbered[25], a=numbered[26]),
        ]
        kernel.NestMap(Leaf, lambda leaf: calls.append(leaf.value))(nest)
        assert calls == list(range(27))


class TestLeaves:
    def test_a_leaf_that_is_a_container(self, kernel: Kernel) -> None:
        firsts = kernel.NestMap(tuple, lambda leaf: leaf[0])
        assert firsts([(1, 2), Point(3, 4), [5]]) == [1, 3, [5]]
        keys = kernel.NestMap(dict, sorted)
        assert keys(({"b": 1, "a": 2}, collections.OrderedDict(c=1))) == (["a", "b"], ["c"])
        fields = kernel.NestMap(Ice, lambda leaf: leaf.x)
        assert fields([Ice(1), Plain(2)]) == [1, Plain(2)]

    def test_a_method_is_looked_up_on_the_leaf(self, kernel: Kernel) -> None:
        class Loud(bytearray):
            def upper(self) -> bytearray:
                return bytearray(b"loud")

        upper = kernel.NestMap(bytearray, bytearray.upper)
        assert upper([bytearray(b"a"), Loud(b"b")]) == [bytearray(b"A"), bytearray(b"loud")]

    def test_unless(self, kernel: Kernel) -> None:
        data = [Leaf(1), Leaf(5, live="no"), (Leaf(6, live="no"), 7), Leaf(9, live=None)]
        result = kernel.NestMap(Leaf, kernel.unless(Leaf, "live", "no", bump))(data)
        assert result == [Leaf(2), Leaf(5, live="no"), (Leaf(6, live="no"), 7), Leaf(10)]
        assert result is not data
        assert result[1] is data[1]
        assert result[2] is data[2]

    def test_temporary_classes_are_released(self, kernel: Kernel) -> None:
        bumped = kernel.NestMap(Leaf, bump)
        classes: weakref.WeakSet[type] = weakref.WeakSet()
        for number in range(6000):
            derived = type(f"Leaf{number}", (Leaf,), {})
            classes.add(derived)
            assert bumped([derived(1)])[0].value == 2
        del derived
        gc.collect()
        # The cache of classes is bounded.
        assert len(classes) < 5000


class TestEveryLeaf:
    """`map_leaves` and `leaves_of`."""

    def test_hidden_values_of_a_chain_of_mappings_are_not_copied(self, kernel: Kernel) -> None:
        class Whole(Leaf):
            def __deepcopy__(self, memo: Any) -> Whole:
                raise AssertionError("copied")

        hidden, seen = Whole(1), Whole(2)
        data = collections.ChainMap({"a": seen}, {"a": hidden})
        for walk in (kernel.NestMap(Leaf, bump), lambda nest: kernel.map_leaves(nest, twice)):
            result = walk(data)
            assert result == {"a": Leaf(3)}
            assert result.maps[1]["a"] is hidden
            assert data.maps == [{"a": seen}, {"a": hidden}]

    def test_too_deep(self, kernel: Kernel) -> None:
        nest: list[Any] = []
        nest.append(nest)
        with pytest.raises(RecursionError):
            kernel.map_leaves(nest, twice)
        with pytest.raises(RecursionError):
            kernel.leaves_of(nest)


class TestErrors:
    def test_a_copy_of_another_class(self, kernel: Kernel) -> None:
        class Same(dict[str, Any]):
            def __copy__(self) -> Same:
                return self

        class Other(list[Any]):
            def __copy__(self) -> list[Any]:
                return list(self)

        for data in (Same(x=Leaf(1)), Other([Leaf(1)])):
            for walk in (kernel.NestMap(Leaf, bump), lambda nest: kernel.map_leaves(nest, twice)):
                with pytest.raises(TypeError, match=f"copy of a {type(data).__name__}"):
                    walk(data)
                assert kernel.leaves_of(data) == [Leaf(1)]

    @pytest.mark.parametrize("kind", ["list", "dict", "tuple", "dataclass", "subclass"])
    def test_a_container_that_contains_itself(self, kernel: Kernel, kind: str) -> None:
        nests: dict[str, Any] = {
            "list": [Leaf()],
            "dict": {"leaf": Leaf()},
            "tuple": ([],),
            "dataclass": Plain(0),
            "subclass": Labels(),
        }
        nests["list"].append(nests["list"])
        nests["dict"]["self"] = nests["dict"]
        nests["tuple"][0].append(nests["tuple"])
        nests["dataclass"].x = nests["dataclass"]
        nests["subclass"].append(nests["subclass"])
        for _ in range(3):  # the depth is counted back down each time
            with pytest.raises(RecursionError):
                kernel.NestMap(Leaf, bump)(nests[kind])
        assert kernel.NestMap(Leaf, bump)([[Leaf(1)]]) == [[Leaf(2)]]

    def test_a_nest_deeper_than_the_interpreter_recurses(self, kernel: Kernel) -> None:
        data: Any = Leaf(1)
        for _ in range(100_000):
            data = [data]
        with pytest.raises(RecursionError):
            kernel.NestMap(Leaf, bump)(data)
        while isinstance(data, list):  # or else letting go of it recurses as deep
            data = data.pop()

    @pytest.mark.parametrize("make", [dict, list, set])
    def test_data_that_the_function_changes(self, kernel: Kernel, make: Callable[..., Any]) -> None:
        def change(leaf: Leaf) -> Leaf:
            data.clear()
            return Leaf(leaf.value + 10)

        leaves = [Leaf(number) for number in range(50)]
        data: Any = {leaf.value: leaf for leaf in leaves} if make is dict else make(leaves)
        try:
            result = kernel.NestMap(Leaf, change)(data)
        except RuntimeError:
            assert make is set  # Python itself refuses to walk over a set that changes
        else:
            parts = result.values() if make is dict else result
            assert sorted(part.value for part in parts) == list(range(10, 60))
        assert data == make()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts references")
def test_no_reference_is_leaked() -> None:
    kernel = load("compiled")
    leaf, dead, other = Leaf(1), Leaf(1, live=False), ("a tuple of its own", 2)
    key = "a key of its own"
    data = [make(leaf) for make in CONTAINERS] + [make(1) for make in CONTAINERS]
    data += [{key: other, "dead": dead}]

    def fail(leaf: Leaf) -> Leaf:
        raise OSError("device full")

    maps = [kernel.NestMap(Leaf, bump), kernel.NestMap(Leaf, lambda leaf: leaf, "live")]
    failing = kernel.NestMap(Leaf, fail)

    def work(times: int) -> None:
        for _ in range(times):
            for mapped in maps:
                mapped(data)
            for nest in data[: len(CONTAINERS)]:
                try:
                    failing([other, nest])
                except OSError:
                    continue
                raise AssertionError("this one must fail")

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(held) for held in (leaf, dead, other, key, Leaf, bump, Point, Ice)]

    work(3)
    before = counts()
    objects, blocks = left_behind(lambda: work(200))
    assert counts() == before
    assert objects < 20
    assert abs(blocks) < 200
