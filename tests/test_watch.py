"""What leaves a mark when it is written to, and what goes on working as without it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from fastnet._watch import Contents, Lookout, Noticing, touch, writes
from fastnet.util.noticed import NoticedList, NoticedSet


class Thing(Noticing):
    def __init__(self, size: int = 0) -> None:
        self.size = size

    def forward(self) -> int:
        return 1


class Other(Noticing):
    pass


class Plain:
    def __init__(self) -> None:
        self.size = 0


class DictOfItsOwn(dict[str, Any]):
    pass


VALUE = object()


def marks(change: Callable[[], Any]) -> bool:
    """Return whether something leaves a mark."""
    before = writes()
    change()
    return writes() > before


def test_attributes_take_no_more_room_than_those_of_any_class_with_a_field() -> None:
    # The mark is a field. CPython 3.13 and newer keep attributes in the very object only where its
    # class has none: what is left is a dict that shares its keys, with room for 30 values, 304
    # bytes in place of 80. Without a field the mark would have to be looked up.
    class Field:
        __slots__ = ("stamp",)

    class Plain(Field):
        def __init__(self) -> None:
            self.size = 0

    def room(cls: Any) -> int:
        return min(sys.getsizeof(vars(cls())) for _ in range(40))

    assert room(Thing) == room(Plain)


class TestMarks:
    def test_of_attributes(self) -> None:
        thing = Thing()
        assert marks(lambda: setattr(thing, "size", 1))
        assert thing.size == 1
        assert marks(lambda: delattr(thing, "size"))
        assert not hasattr(thing, "size")
        with pytest.raises(AttributeError, match="size"):
            del thing.size
        assert not marks(thing.forward)
        assert not marks(lambda: object.__setattr__(thing, "size", 2))
        assert thing.size == 2

    @pytest.mark.parametrize(
        "change",
        [
            lambda a: a.append("z"),
            lambda a: a.extend("z"),
            lambda a: a.insert(0, "z"),
            lambda a: a.remove("x"),
            lambda a: a.pop(),
            lambda a: a.clear(),
            lambda a: a.sort(reverse=True),
            lambda a: a.reverse(),
            lambda a: a.__setitem__(0, "z"),
            lambda a: a.__delitem__(0),
            lambda a: a.__iadd__(["z"]),
            lambda a: a.__imul__(2),
        ],
    )
    def test_of_lists(self, change: Callable[[Any], Any]) -> None:
        noticed, plain = NoticedList(["x", "y"]), ["x", "y"]
        assert marks(lambda: change(noticed))
        change(plain)
        assert noticed == plain
        assert isinstance(noticed, list)
        assert repr(noticed) == repr(plain)

    @pytest.mark.parametrize(
        "change",
        [
            lambda a: a.add("z"),
            lambda a: a.remove("x"),
            lambda a: a.discard("x"),
            lambda a: a.pop(),
            lambda a: a.clear(),
            lambda a: a.update("z"),
            lambda a: a.difference_update("x"),
            lambda a: a.intersection_update("x"),
            lambda a: a.symmetric_difference_update("xz"),
            lambda a: a.__ior__({"z"}),
            lambda a: a.__iand__({"z"}),
            lambda a: a.__isub__({"x"}),
            lambda a: a.__ixor__({"x"}),
        ],
    )
    def test_of_sets(self, change: Callable[[Any], Any]) -> None:
        noticed, plain = NoticedSet({"x"}), {"x"}
        assert marks(lambda: change(noticed))
        change(plain)
        assert noticed == plain
        assert isinstance(noticed, set)
        assert repr(noticed) == repr(plain)

    def test_every_method_that_changes_them_is_covered(self) -> None:
        """What a frozen counterpart lacks is what changes one."""
        for noticed, fixed in ((NoticedList, tuple), (NoticedSet, frozenset)):
            changing = (
                set(vars(noticed.__base__))
                - set(vars(fixed))
                - {"copy", "__reversed__", "__sizeof__"}
            )
            unchanging = {"__init__", "__hash__", "__getattribute__"}
            assert changing - unchanging <= set(vars(noticed)), noticed

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
    @pytest.mark.parametrize("held", [NoticedList("xy"), NoticedSet("xy")])
    def test_copies_of_them(self, copied: Callable[[Any], Any], held: Any) -> None:
        for one in (copied(held), pickle.loads(pickle.dumps(held))):
            assert one == held
            assert type(one) is type(held)


class TestLookout:
    def of(self, *things: Any) -> Lookout:
        return Lookout(list(things), [Thing, Other], ("forward", "absent"), writes())

    def test_of_objects(self) -> None:
        things = [Thing(), Other(), Thing()]
        lookout = self.of(*things)
        assert lookout.is_still()
        Thing().size = 4  # another one
        assert lookout.is_still()
        assert lookout.written() == []
        things[2].size = 3
        things[0].size = 0  # the same value, which is for others to say
        assert not lookout.is_still()
        assert lookout.written() == [0, 2]
        now = writes()
        things[1].name = "x"
        lookout.renew(now)
        assert lookout.written() == [1]
        lookout.renew(writes())
        assert lookout.is_still()

    def test_of_classes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lookout = self.of()
        for name in ("forward", "absent"):
            with monkeypatch.context() as patch:
                patch.setattr(Thing, name, lambda self: 2, raising=False)
                assert not lookout.is_still()
                assert lookout.written() is None
            assert lookout.is_still()
        with monkeypatch.context() as patch:
            patch.setattr(Noticing, "absent", 1, raising=False)
            assert not lookout.is_still()

    def test_of_what_is_inside(self) -> None:
        lookout = self.of(Thing())
        touch()
        assert not lookout.is_still()
        assert lookout.written() is None

    def test_of_none(self) -> None:
        with pytest.raises(TypeError):
            self.of(None)


class TestObjects:
    """They are what objects of Python classes are."""

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickles(self, protocol: int) -> None:
        one = pickle.loads(pickle.dumps(Thing(5), protocol))
        assert type(one) is Thing
        assert vars(one) == {"size": 5}

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
    def test_copies(self, copied: Callable[[Any], Any]) -> None:
        thing = Thing()
        thing.parts = [1]  # type: ignore[attr-defined]
        made = copied(thing)
        assert vars(made) == {"size": 0, "parts": [1]}
        assert (made.parts is thing.parts) == (copied is copy.copy)  # type: ignore[attr-defined]

    def test_their_own_state(self) -> None:
        class Saved(Thing):
            def __getstate__(self) -> dict[str, Any]:
                return {"size": 9}

        assert copy.deepcopy(Saved(1)).size == 9

    def test_weak_references_and_cycles(self) -> None:
        thing = Thing()
        reference = weakref.ref(thing)
        assert reference() is thing
        del thing
        assert reference() is None

    def test_slots_and_dataclasses(self) -> None:
        class Slotted(Thing):
            __slots__ = ("place",)

        slotted = Slotted(1)
        assert marks(lambda: setattr(slotted, "place", 3))
        assert (slotted.place, vars(slotted)) == (3, {"size": 1})

        @dataclasses.dataclass
        class Data(Thing):
            size: int = 3

        assert Data(4) == Data(4)
        assert dataclasses.replace(Data(4), size=5).size == 5

        @dataclasses.dataclass(frozen=True)
        class Frozen(Thing):
            size: int = 3

        with pytest.raises(dataclasses.FrozenInstanceError):
            Frozen(4).size = 5  # type: ignore[misc]

    @pytest.mark.parametrize("first", [True, False])
    def test_another_class_that_sets_attributes_its_own_way(self, first: bool) -> None:
        class Upper:
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name.upper(), value)

            def __delattr__(self, name: str) -> None:
                super().__delattr__(name.upper())

        bases = (Upper, Noticing) if first else (Noticing, Upper)
        one: Any = type("Both", bases, {})()
        assert marks(lambda: setattr(one, "size", 2))
        assert vars(one) == {"SIZE": 2}
        assert marks(lambda: delattr(one, "size"))
        assert vars(one) == {}

    def test_a_module_of_torch(self) -> None:
        torch = pytest.importorskip("torch")

        for bases in ((Noticing, torch.nn.Module), (torch.nn.Module, Noticing)):
            module: Any = type("Both", bases, {})()
            module.line = torch.nn.Linear(1, 1)
            assert len(list(module.parameters())) == 2


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

    @pytest.mark.parametrize(
        ("change", "is_still"),
        [
            (lambda items: None, True),
            (lambda items: items.append(items.pop()), True),
            (lambda items: items.append(None), False),
            (lambda items: items.pop(), False),
            (lambda items: items.reverse(), False),
            (lambda items: items.__setitem__(0, []), False),  # equal, but another object
            (lambda items: items.clear(), False),
        ],
    )
    def test_lists(self, change: Callable[[list[Any]], Any], is_still: bool) -> None:
        items, empty = [[], None], []
        contents = Contents([], [], [items, empty])
        assert contents.are_still()
        change(items)
        assert contents.are_still() is is_still

    def test_names_that_are_not_there(self) -> None:
        table: dict[str, Any] = {"there": 1}
        contents = Contents([], [], [], [(table, {"one", "another"})])
        assert contents.are_still()
        table["third"] = None
        del table["there"]
        assert contents.are_still()
        table["another"] = None
        assert not contents.are_still()
        with pytest.raises(ValueError, match="'another' is in a dict that should not have it"):
            Contents([], [], [], [(table, {"another"})])

    def test_what_is_no_list(self) -> None:
        wrong: Any = ()
        with pytest.raises(TypeError, match="tuple stands where a list is expected"):
            Contents([], [], [wrong])
        with pytest.raises(TypeError, match="tuple stands where a dict is expected"):
            Contents([], [], [], [(wrong, {"name"})])

    def test_what_is_not_there_or_no_dict(self) -> None:
        with pytest.raises(KeyError, match="off"):
            Contents([({}, "off")], [])
        wrong: Any = []
        with pytest.raises(TypeError, match="list stands where a dict"):
            Contents([], [wrong])
        with pytest.raises(TypeError, match="list stands where a dict"):
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
