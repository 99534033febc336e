"""Lists, sets and collections without Nones."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from fastnet.util import filter_nones, to_list, to_set


class Empty:
    """Something that is false without being None."""

    def __len__(self) -> int:
        return 0


class TestToList:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (None, []),
            ([None], [None]),
            (7, [7]),
            ("xy", ["xy"]),
            ((7, 8), [7, 8]),
            ({7}, [7]),
            (frozenset({7}), [7]),
            ({"a": 1}.keys(), ["a"]),
            ({"a": 1}, [{"a": 1}]),
            ((), []),
        ],
    )
    def test_value(self, data: Any, expected: list[Any]) -> None:
        assert to_list(data) == expected

    def test_a_list_is_returned_as_it_is(self) -> None:
        data = [1]
        assert to_list(data) is data


class TestToSet:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (None, set()),
            ([None], {None}),
            (7, {7}),
            ("xy", {"xy"}),
            ([7, 8, 7], {7, 8}),
            ((7,), {7}),
            (frozenset({7, 8}), {7, 8}),
            ({"a": 1}.keys(), {"a"}),
        ],
    )
    def test_value(self, data: Any, expected: set[Any]) -> None:
        assert to_set(data) == expected
        assert type(to_set(data)) is set

    def test_a_set_is_returned_as_it_is(self) -> None:
        data = {1}
        assert to_set(data) is data


class TestFilterNones:
    def test_kinds(self) -> None:
        assert filter_nones([1, None, 2]) == [1, 2]
        assert filter_nones((1, None)) == (1,)
        assert filter_nones({1, None}) == {1}
        assert filter_nones({"a": None, "b": 2}) == {"b": 2}
        assert filter_nones(OrderedDict(a=None, b=2)) == {"b": 2}

    def test_only_none_goes(self) -> None:
        empty = Empty()
        assert filter_nones([empty, 0, "", False, None]) == [empty, 0, "", False]

    def test_the_collection_is_not_changed(self) -> None:
        data = [1, None]
        filter_nones(data)
        assert data == [1, None]
