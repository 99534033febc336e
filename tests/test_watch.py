"""Tests that dicts which no longer hold the same objects are detected."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from fastnet._watch import Contents


class Thing:
    def forward(self) -> int:
        return 1


class Other(Thing):
    pass


class Plain:
    def __init__(self) -> None:
        self.size = 0


class DictOfItsOwn(dict[str, Any]):
    pass


VALUE = object()


class TestContents:
    @pytest.mark.parametrize(
        ("change", "is_still"),
        [
            (lambda flags, table: None, True),
            (lambda flags, table: flags.update(other=2), True),
            (lambda flags, table: flags.update(on=1), False),  # equal, but another object
            (lambda flags, table: flags.pop("on"), False),
            (lambda flags, table: table.update(a=[]), False),
            (lambda flags, table: table.update(c=None), False),
            (lambda flags, table: table.pop("b"), False),
            (lambda flags, table: table.update(a=table.pop("a")), False),  # another order
            (lambda flags, table: table.clear(), False),
        ],
    )
    def test_what_is_a_change(
        self, change: Callable[[dict[str, Any], dict[str, Any]], Any], is_still: bool
    ) -> None:
        flags, table, empty = {"on": True, "other": 1}, {"a": [], "b": None}, {}
        contents = Contents([(flags, "on")], [table, empty])
        assert contents.are_still()
        change(flags, table)
        assert contents.are_still() is is_still

    def test_a_table_of_another_order(self) -> None:
        table = OrderedDict(a=[], b=None)
        table.move_to_end("a")
        contents = Contents([(table, "a")], [table])
        assert contents.are_still()
        table["b"] = 1
        assert not contents.are_still()

    @pytest.mark.parametrize("kind", [dict, OrderedDict, DictOfItsOwn])
    @pytest.mark.parametrize(
        ("change", "is_still"),
        [
            (lambda t: t.__setitem__("a", 2), False),
            (lambda t: t.__setitem__("c", 2), False),
            (lambda t: t.__delitem__("a"), False),
            (lambda t: t.pop("b"), False),
            (lambda t: t.popitem(), False),
            (lambda t: t.update({"b": 2}), False),
            (lambda t: t.setdefault("c", 2), False),
            (lambda t: t.__ior__({"c": 2}), False),
            (lambda t: t.__init__(c=2), False),
            (lambda t: dict.__setitem__(t, "a", 2), False),
            (lambda t: (t.clear(), t.update({"b": None, "a": VALUE})), False),  # another order
            (lambda t: (t.clear(), t.update({"a": VALUE, "x": None})), False),  # another name
            (lambda t: (t.clear(), t.update({"a": VALUE, "b": None})), True),
            (lambda t: (t.__setitem__("c", 2), t.pop("c")), True),
            (lambda t: t.__setitem__("b", None), True),
            (lambda t: (t.setdefault("a", 2), t.get("c"), t.copy().clear()), True),
        ],
    )
    def test_each_way_to_write_to_a_table(
        self, kind: Callable[..., Any], change: Callable[[Any], Any], is_still: bool
    ) -> None:
        table, empty = kind(a=VALUE, b=None), kind()
        first, second = Contents([], [table, empty]), Contents([], [table])
        for _ in range(2):
            assert first.are_still()
            change(table)
            assert first.are_still() is second.are_still() is is_still
            table.clear()
            table.update(a=VALUE, b=None)
            assert first.are_still()
            assert second.are_still()
        empty[1] = VALUE
        assert not first.are_still()
        assert second.are_still()

    def test_values_under_other_numbers(self) -> None:
        # as the hooks of a module, of which each has a number of its own
        table: dict[Any, Any] = {7: VALUE}
        contents = Contents([], [table])
        table.clear()
        table[8] = VALUE
        assert contents.are_still()

    def test_attributes_of_objects(self) -> None:
        owner, other = Plain(), Plain()
        contents = Contents([], [vars(owner), vars(other)], owners=[owner, other])
        assert contents.are_still()
        owner.size = owner.size
        assert contents.are_still()
        for change, undo in (
            (lambda: setattr(owner, "size", 3), lambda: setattr(owner, "size", 0)),
            (lambda: setattr(other, "more", 3), lambda: delattr(other, "more")),
            (lambda: delattr(other, "size"), lambda: setattr(other, "size", 0)),
        ):
            for _ in range(40):  # past the point where CPython has another code for it
                change()
                assert not contents.are_still()
                undo()
                assert contents.are_still()

    def test_an_object_with_another_dict_of_attributes(self) -> None:
        owner = Plain()
        then = vars(owner)
        contents = Contents([], [then], owners=[owner])
        owner.__dict__ = dict(then)
        assert not contents.are_still()
        owner.__dict__ = then
        assert contents.are_still()
        with pytest.raises(AttributeError, match="__dict__"):
            Contents([], [], owners=[1])

    def test_an_object_of_another_class(self) -> None:
        owner = Plain()
        contents = Contents([], [vars(owner)], owners=[owner])
        owner.__class__ = type("Other", (Plain,), {})
        assert not contents.are_still()
        owner.__class__ = Plain
        assert contents.are_still()

    def test_a_table_that_was_empty(self) -> None:
        table: dict[str, Any] = {}
        contents = Contents([], [table])
        table["a"] = None
        assert not contents.are_still()

    def test_what_is_not_there_or_no_dict(self) -> None:
        with pytest.raises(KeyError, match="off"):
            Contents([({}, "off")], [])
        wrong: Any = []
        with pytest.raises(TypeError, match="list found where a dict"):
            Contents([], [wrong])
        with pytest.raises(TypeError, match="list found where a dict"):
            Contents([(wrong, "off")], [])

    def test_it_holds_on_to_what_it_compares_with(self) -> None:
        flags: dict[str, Any] = {"on": Thing()}
        watched = weakref.ref(flags["on"])
        contents = Contents([(flags, "on")], [{"a": flags["on"]}])
        del flags["on"]
        assert watched() is not None
        assert not contents.are_still()
        del contents
        assert watched() is None
