"""Checks of keys, modes and dataset ids."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from fastnet.util import check_ds_id, check_io_names, parse_modes


class TestCheckIoNames:
    @pytest.mark.parametrize("names", [[], ["x"], ["x", "y|ds"], ["x", ["y", ["z"]]], ["!x"]])
    def test_good_names_come_back(self, names: list[Any]) -> None:
        assert check_io_names(names) is names

    @pytest.mark.parametrize(
        ("names", "text"),
        [
            ([""], "An input or output key is an empty string. Give it a name."),
            (
                ["x", "a:b"],
                "The input or output key 'a:b' contains ':' or ';', which keys may not. Rename it.",
            ),
            (
                [["a;"]],
                "The input or output key 'a;' contains ':' or ';', which keys may not. Rename it.",
            ),
            (
                ["a|b|c"],
                "The input or output key 'a|b|c' contains '|' more than once. It may stand once, "
                "before a dataset id.",
            ),
        ],
    )
    def test_bad_names(self, names: list[Any], text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            check_io_names(names)
        assert str(caught.value) == text

    def test_no_string(self) -> None:
        with pytest.raises(TypeError) as caught:
            check_io_names(["x", 3])
        assert str(caught.value) == (
            "An input or output key must be a string, but got 3 of type int."
        )


class TestParseModes:
    ALL = frozenset({"train", "eval", "test", "infer"})

    def test_every_set_of_modes_and_of_exclusions(self) -> None:
        for size in range(5):
            for chosen in combinations(sorted(self.ALL), size):
                assert parse_modes(set(chosen)) == set(chosen)
                if chosen:
                    assert parse_modes({f"!{mode}" for mode in chosen}) == self.ALL - set(chosen)

    def test_the_set_given_is_not_handed_on(self) -> None:
        given = {"train"}
        parse_modes(given).add("eval")
        assert given == {"train"}

    @pytest.mark.parametrize(
        ("modes", "text"),
        [
            (
                {"train", "validate", "!est"},
                "Unknown mode: '!est', 'validate'. A mode is one of train, eval, test, infer, or "
                "one of them with a leading '!' to run in all the others.",
            ),
            (
                {"train", "!eval"},
                "Modes with and without '!' cannot be mixed, but got '!eval', 'train'. Name either "
                "the modes to run in, or those to leave out.",
            ),
            (
                {1},
                "Unknown mode: 1. A mode is one of train, eval, test, infer, or one of them with a "
                "leading '!' to run in all the others.",
            ),
        ],
    )
    def test_bad_modes(self, modes: set[Any], text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            parse_modes(modes)
        assert str(caught.value) == text


class TestCheckDsId:
    @pytest.mark.parametrize("ds_ids", [set(), {"a"}, {"a", "b"}, {"!a"}, {"!a", "!b"}, {"!"}])
    def test_good_ids_come_back(self, ds_ids: set[str]) -> None:
        assert check_ds_id(ds_ids) is ds_ids

    @pytest.mark.parametrize(
        ("ds_ids", "text"),
        [
            ({""}, "A dataset id is an empty string. Give it a name, or pass None."),
            ({3}, "A dataset id must be a string, but got 3 of type int."),
            (
                {"a|b;"},
                "The dataset id 'a|b;' contains ';', '|', which ids may not. Rename it.",
            ),
            (
                {"!a", "b"},
                "Dataset ids with and without '!' cannot be mixed, but got '!a', 'b'. Name either "
                "the ids to run for, or those to leave out.",
            ),
        ],
    )
    def test_bad_ids(self, ds_ids: set[Any], text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            check_ds_id(ds_ids)
        assert str(caught.value) == text
