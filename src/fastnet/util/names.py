"""Checks of the names that users give: keys, modes and dataset ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Any, TypeVar

from fastnet.errors import shown

__all__ = ["check_ds_id", "check_io_names", "parse_modes", "told_ds_ids", "told_modes"]

T = TypeVar("T", bound=Iterable[Any])

MODES = ("train", "eval", "test", "infer")
NOT_MODES = tuple(f"!{mode}" for mode in MODES)


def check_io_names(names: T) -> T:
    """Refuse keys that cannot name an entry of a batch.

    Args:
        names: The keys. Lists among them are checked too, to any depth.

    Returns:
        `names`, as they came.

    Raises:
        AssertionError: If a key is empty, holds ':' or ';', or holds '|' more than once.
        TypeError: If a key is not a string.

    >>> check_io_names(["x", "y|ds1"])
    ['x', 'y|ds1']
    """
    for name in names:
        if isinstance(name, list):
            check_io_names(name)
            continue
        if not isinstance(name, str):
            raise TypeError(f"An input or output key must be a string, but got {_told(name)}.")
        if not name:
            raise AssertionError("An input or output key is an empty string. Give it a name.")
        if ":" in name or ";" in name:
            raise AssertionError(
                f"The input or output key {name!r} contains ':' or ';', which keys may not. "
                "Rename it."
            )
        if name.count("|") > 1:
            raise AssertionError(
                f"The input or output key {name!r} contains '|' more than once. It may stand once, "
                "before a dataset id."
            )
    return names


def parse_modes(modes: Set[str]) -> set[str]:
    """Turn modes to run in, or modes to leave out, into the modes to run in.

    Args:
        modes: Any of "train", "eval", "test" and "infer", or the same with a leading "!" for all
            modes but these. An empty set sets no limit.

    Returns:
        The modes to run in, without "!".

    Raises:
        AssertionError: If a mode is unknown, or if modes with and without "!" are mixed.

    >>> sorted(parse_modes({"!train", "!infer"}))
    ['eval', 'test']
    """
    unknown = [mode for mode in modes if mode not in MODES and mode not in NOT_MODES]
    if unknown:
        raise AssertionError(
            f"Unknown mode: {_listed(unknown)}. A mode is one of {', '.join(MODES)}, or one of "
            "them with a leading '!' to run in all the others."
        )
    excluded = {mode[1:] for mode in modes if mode in NOT_MODES}
    included = {mode for mode in modes if mode in MODES}
    if excluded and included:
        raise AssertionError(
            f"Modes with and without '!' cannot be mixed, but got {_listed(modes)}. Name either "
            "the modes to run in, or those to leave out."
        )
    return set(MODES) - excluded if excluded else included


def check_ds_id(ds_ids: Set[str]) -> Set[str]:
    """Refuse dataset ids that cannot be told apart from other things.

    Args:
        ds_ids: Ids to run for, or ids with a leading "!" to run for all but these. An empty set
            sets no limit.

    Returns:
        `ds_ids`, as they came.

    Raises:
        AssertionError: If an id is not a string, is empty or holds ':', ';' or '|', or if ids
            with and without "!" are mixed.

    >>> sorted(check_ds_id({"!ds1", "!ds2"}))
    ['!ds1', '!ds2']
    """
    for ds_id in ds_ids:
        if not isinstance(ds_id, str):
            raise AssertionError(f"A dataset id must be a string, but got {_told(ds_id)}.")
        if not ds_id:
            raise AssertionError("A dataset id is an empty string. Give it a name, or pass None.")
        forbidden = sorted({":", ";", "|"}.intersection(ds_id))
        if forbidden:
            raise AssertionError(
                f"The dataset id {ds_id!r} contains {_listed(forbidden)}, which ids may not. "
                "Rename it."
            )
    if len({ds_id.startswith("!") for ds_id in ds_ids}) > 1:
        raise AssertionError(
            f"Dataset ids with and without '!' cannot be mixed, but got {_listed(ds_ids)}. Name "
            "either the ids to run for, or those to leave out."
        )
    return ds_ids


def told_modes(modes: Collection[str] | str) -> str:
    """Say in which modes an op runs.

    Args:
        modes: The modes.

    Returns:
        What follows the op's name in a sentence.

    >>> told_modes({"test", "eval"})
    "runs in mode 'eval' or 'test' only"
    """
    names = [modes] if isinstance(modes, str) else sorted(modes, key=_mode_order)
    return f"runs in mode {_either(names)} only"


def told_ds_ids(ds_ids: Collection[str] | str) -> str:
    """Say for which datasets an op runs.

    Args:
        ds_ids: The ids, with a leading "!" for all but these.

    Returns:
        What follows the op's name in a sentence.

    >>> told_ds_ids({"a", "b"}), told_ds_ids("!a")
    ("runs for ds_id 'a' or 'b' only", "does not run for ds_id 'a'")
    """
    names = [ds_ids] if isinstance(ds_ids, str) else sorted(ds_ids)
    excluded = [name[1:] for name in names if name.startswith("!")]
    if len(excluded) == len(names):
        return f"does not run for ds_id {_either(excluded)}"
    return f"runs for ds_id {_either(names)} only"


def _mode_order(mode: str) -> tuple[int, str]:
    return MODES.index(mode) if mode in MODES else len(MODES), mode


def _either(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))


def _told(value: object) -> str:
    return f"{shown(value)} of type {type(value).__name__}"


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(repr, names)))
