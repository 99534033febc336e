"""Validation of keys, modes and dataset ids."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from fastnet.util import check_ds_id, check_io_names, parse_modes

pytestmark = pytest.mark.fast

MODES = frozenset({"train", "eval", "test", "infer"})


@pytest.mark.parametrize("names", [[], ["x"], ["x", "y|ds"], ["x", ["y", ["z"]]], ["!x"]])
def test_valid_keys(names: list[Any]) -> None:
    assert check_io_names(names) is names


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ([""], AssertionError, "empty string"),
        (["x", "a:b"], AssertionError, "'a:b' contains ':' or ';'.*Rename"),
        ([["a;"]], AssertionError, "'a;' contains ':' or ';'.*Rename"),
        (["a|b|c"], AssertionError, r"'a\|b\|c' contains '\|' more than once"),
        (["x", 3], TypeError, "must be a string, but got 3 of type int"),
    ],
)
def test_invalid_keys(names: list[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_io_names(names)


def test_every_set_of_modes_and_of_excluded_modes() -> None:
    for size in range(5):
        for chosen in combinations(sorted(MODES), size):
            assert parse_modes(set(chosen)) == set(chosen)
            if chosen:
                assert parse_modes({f"!{mode}" for mode in chosen}) == MODES - set(chosen)


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        ({"train", "validate", "!est"}, "Unknown mode: '!est', 'validate'.*train, eval, test"),
        ({"train", "!eval"}, "cannot be mixed, but got '!eval', 'train'"),
        ({1}, "Unknown mode: 1"),
    ],
)
def test_invalid_modes(modes: set[Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        parse_modes(modes)


@pytest.mark.parametrize("ds_ids", [set(), {"a"}, {"a", "b"}, {"!a"}, {"!a", "!b"}, {"!"}])
def test_valid_dataset_ids(ds_ids: set[str]) -> None:
    assert check_ds_id(ds_ids) is ds_ids


@pytest.mark.parametrize(
    ("ds_ids", "text"),
    [
        ({""}, "empty string.*pass None"),
        ({3}, "must be a string, but got 3 of type int"),
        ({"a|b;"}, r"'a\|b;' contains ';', '\|'"),
        ({"!a", "b"}, "cannot be mixed, but got '!a', 'b'"),
    ],
)
def test_invalid_dataset_ids(ds_ids: set[Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_ds_id(ds_ids)
