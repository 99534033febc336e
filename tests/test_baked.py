"""The part of the kernel that tells whether objects hold what they held before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastnet._baked import Seen, first_other


class Listed(list[Any]):
    pass


class TestSeen:
    def test_attributes(self) -> None:
        owner = SimpleNamespace(a=1, b=[2])
        seen = Seen(owner, "attributes")
        assert seen.owner is owner
        assert seen.values == ("a", "b", 1, [2])
        assert seen.same()
        owner.b.append(3)
        assert seen.same()
        owner.b = [2, 3]
        assert not seen.same()
        seen.values = tuple(seen.read(owner))
        assert seen.same()

    @pytest.mark.parametrize("change", ["add", "delete", "rename"])
    def test_names(self, change: str) -> None:
        owner = SimpleNamespace(a=None, b=None)
        seen = Seen(owner, "attributes")
        if change != "delete":
            owner.c = None
        if change != "add":
            del owner.a
        assert not seen.same()

    def test_another_dict_of_attributes(self) -> None:
        owner = SimpleNamespace(a=1000.5)
        seen = Seen(owner, "attributes")
        vars(owner).update(a=float("1000.5"))
        assert not seen.same()

    @pytest.mark.parametrize("kind", [list, Listed])
    def test_sequences(self, kind: Any) -> None:
        items = [object(), object()]
        owner = kind(items)
        seen = Seen(owner, "sequence")
        assert seen.same()
        owner.reverse()
        assert not seen.same()
        owner.reverse()
        assert seen.same()
        owner.append(1)
        assert not seen.same()

    def test_tuples_and_sets(self) -> None:
        assert Seen((1, 2), "sequence").same()
        owner = {"a"}
        seen = Seen(owner, "sequence")
        assert seen.same()
        owner.add("b")
        assert not seen.same()

    def test_mappings(self) -> None:
        owner = {"a": 1}
        seen = Seen(owner, "mapping")
        assert seen.same()
        owner["a"] = 2
        assert not seen.same()
        owner["a"] = 1
        assert seen.same()
        owner.clear()
        assert not seen.same()

    def test_functions(self) -> None:
        cell: Any = object()
        first, second = object(), object()

        def fn(x: Any = first, *, y: Any = first) -> Any:
            return x, y, cell, later

        seen = Seen(fn, "function")
        assert seen.same()
        later = 1
        assert not seen.same()
        seen = Seen(fn, "function")
        assert seen.same()
        cell = second
        assert not seen.same()
        cell = seen.values[3]
        assert seen.same() == (seen.values[3] is cell)
        for name, value in (
            ("__defaults__", (second,)),
            ("__kwdefaults__", {"y": second}),
            ("__code__", fn.__code__.replace()),
        ):
            seen = Seen(fn, "function")
            assert seen.same()
            setattr(fn, name, value)
            assert not seen.same() or value is seen.values[0]

    def test_functions_without_a_closure(self) -> None:
        assert Seen(Seen.__init__ and (lambda: 1), "function").same()

    def test_a_way_of_its_own(self) -> None:
        owner = SimpleNamespace(parts=[1])
        seen = Seen(owner, lambda one: one.parts)
        assert seen.same()
        owner.parts[0] = 1000
        assert not seen.same()

    def test_errors_come_out(self) -> None:
        owner = SimpleNamespace(parts=[1])
        seen = Seen(owner, lambda one: one.parts)
        del owner.parts
        with pytest.raises(AttributeError):
            seen.same()
        with pytest.raises(AttributeError):
            first_other([seen])

    def test_no_such_kind(self) -> None:
        with pytest.raises(ValueError, match="there is no kind 'rows'"):
            Seen([], "rows")  # type: ignore[arg-type]


class TestFirstOther:
    def test_of_several(self) -> None:
        owners: list[Any] = [[0], [1], [2]]
        seen = [Seen(owner, "sequence") for owner in owners]
        assert first_other(seen) == -1
        owners[1].clear()
        owners[2].clear()
        assert first_other(seen) == 1
        assert first_other(seen, 2) == 2
        assert first_other(seen, 3) == -1
        assert first_other([]) == -1

    def test_of_something_else(self) -> None:
        with pytest.raises(TypeError):
            first_other([object()])  # type: ignore[list-item]
