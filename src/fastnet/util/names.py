"""Validation of keys, modes and dataset ids."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, TypeVar

from fastnet.errors import shorten

T = TypeVar("T", bound=Iterable[Any])

MODES = ("train", "eval", "test", "infer")
_NEGATED = {f"!{mode}": mode for mode in MODES}


def check_io_names(names: T) -> T:
    """Check that keys can name entries of a batch.

    Args:
        names: The keys. Nested lists are checked too, to any depth.

    Returns:
        `names`, unchanged.

    Raises:
        AssertionError: If a key is empty, contains ':' or ';', or contains '|' more than once.
        TypeError: If a key is not a string.

    >>> check_io_names(["x", "y|ds1"])
    ['x', 'y|ds1']
    """
    for name in names:
        if isinstance(name, list):
            check_io_names(name)
            continue
        if not isinstance(name, str):
            raise TypeError(f"An input or output key must be a string, but got {_with_type(name)}.")
        if not name:
            raise AssertionError("An input or output key is an empty string. Give it a name.")
        if ":" in name or ";" in name:
            raise AssertionError(
                f"The input or output key {name!r} contains ':' or ';', which are not allowed "
                "in keys. Rename it."
            )
        if name.count("|") > 1:
            raise AssertionError(
                f"The input or output key {name!r} contains '|' more than once. Use it once, "
                "before a dataset id."
            )
    return names


def parse_modes(modes: Set[str]) -> set[str]:
    """Convert modes to include, or modes to exclude, into the set of modes to run in.

    Args:
        modes: Any of "train", "eval", "test" and "infer", or the same with a leading "!" to run in
            all other modes. An empty set means no limit.

    Returns:
        The modes to run in, without "!".

    Raises:
        AssertionError: If a mode is unknown, or if modes with and without "!" are mixed.

    >>> sorted(parse_modes({"!train", "!infer"}))
    ['eval', 'test']
    """
    unknown = [mode for mode in modes if mode not in MODES and mode not in _NEGATED]
    if unknown:
        raise AssertionError(
            f"Unknown mode: {_join(unknown)}. Modes are {', '.join(MODES)}, or the "
            "same with a leading '!' to run in all other modes."
        )
    excluded = {_NEGATED[mode] for mode in modes if mode in _NEGATED}
    included = {mode for mode in modes if mode in MODES}
    if excluded and included:
        raise AssertionError(
            f"Modes with and without '!' cannot be mixed, but got {_join(modes)}. Name either "
            "the modes to run in, or those to exclude."
        )
    return set(MODES) - excluded if excluded else included


def check_ds_id(ds_ids: Set[str]) -> Set[str]:
    """Check dataset ids.

    Args:
        ds_ids: Ids to run for, or ids with a leading "!" to run for all other datasets. An empty
            set means no limit.

    Returns:
        `ds_ids`, unchanged.

    Raises:
        AssertionError: If an id is not a string, is empty or contains ':', ';' or '|', or if ids
            with and without "!" are mixed.

    >>> sorted(check_ds_id({"!ds1", "!ds2"}))
    ['!ds1', '!ds2']
    """
    for ds_id in ds_ids:
        if not isinstance(ds_id, str):
            raise AssertionError(f"A dataset id must be a string, but got {_with_type(ds_id)}.")
        if not ds_id:
            raise AssertionError("A dataset id is an empty string. Give it a name, or pass None.")
        forbidden = sorted({":", ";", "|"}.intersection(ds_id))
        if forbidden:
            raise AssertionError(
                f"The dataset id {ds_id!r} contains {_join(forbidden)}, which is not allowed in "
                "ids. Rename it."
            )
    if len({ds_id.startswith("!") for ds_id in ds_ids}) > 1:
        raise AssertionError(
            f"Dataset ids with and without '!' cannot be mixed, but got {_join(ds_ids)}. Name "
            "either the ids to run for, or those to exclude."
        )
    return ds_ids


def _with_type(value: object) -> str:
    return f"{shorten(value)} of type {type(value).__name__}"


def _join(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(repr, names)))
