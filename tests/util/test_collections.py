"""Conversion to lists and sets, and collections without None."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from fastnet.util import filter_nones, to_list, to_set

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (None, []),
        ([None], [None]),
        (7, [7]),
        ("xy", ["xy"]),
        ((7, 8), [7, 8]),
        ({7}, [7]),
        (frozenset({7}), [7]),
        ({"a": 1}.keys(), ["a"]),
        ((), []),
    ],
)
def test_lists_and_sets(data: Any, values: list[Any]) -> None:
    assert to_list(data) == values
    assert to_set(data) == set(values)
    assert (type(to_list(data)), type(to_set(data))) == (list, set)


def test_lists_and_sets_are_not_copied() -> None:
    a_list, a_set = [1], {1}
    assert to_list(a_list) is a_list
    assert to_set(a_set) is a_set


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1, None, 0, "", False], [1, 0, "", False]),
        ((1, None), (1,)),
        ({1, None}, {1}),
        ({"a": None, "b": 2}, {"b": 2}),
        (OrderedDict(a=None, b=2), {"b": 2}),
    ],
)
def test_only_none_is_removed(data: Any, expected: Any) -> None:
    before = data.copy() if hasattr(data, "copy") else data
    assert filter_nones(data) == expected
    assert data == before
