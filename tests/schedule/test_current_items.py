"""Active items, compared with a naive model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastnet.schedule import (
    EpochScheduler,
    RepeatScheduler,
    get_current_items,
    get_signature_epochs,
)

pytestmark = pytest.mark.fast

MODES = ("train", "eval", "test", "infer")


class Item:
    """Something with a mode and a ds_id."""

    def __init__(self, mode: Iterable[str] = (), ds_id: Iterable[str] = ()) -> None:
        self.mode = set(mode)
        self.ds_id = set(ds_id)

    def __repr__(self) -> str:
        return f"Item({self.mode}, {self.ds_id})"


def runs(item: Item, mode: str | None, ds_id: str | None) -> bool:
    """Apply the documented rules for one mode and one ds_id."""
    if mode and item.mode and mode not in item.mode:
        return False
    if ds_id is None or not item.ds_id:
        return True
    wanted = {name for name in item.ds_id if not name.startswith("!")}
    unwanted = {name[1:] for name in item.ds_id if name.startswith("!")}
    return ds_id in wanted or bool(unwanted and ds_id not in unwanted)


items = st.builds(
    Item,
    mode=st.sets(st.sampled_from(MODES)),
    ds_id=st.sets(st.sampled_from(["a", "b"])) | st.sets(st.sampled_from(["!a", "!b"])),
)
values = st.none() | items
scheduled = (
    values
    | st.dictionaries(st.integers(1, 6), values, max_size=3).map(EpochScheduler)
    | st.lists(values, min_size=2, max_size=3).map(RepeatScheduler)
)
modes = st.none() | st.sampled_from(MODES)
ds_ids = st.none() | st.sampled_from(["", "a", "b", "c"])


def resolved(item: Any, epoch: int | None) -> list[Any]:
    if not hasattr(item, "get_all_values"):
        return [item]
    return item.get_all_values() if epoch is None else [item.get_current_value(epoch)]


class TestGetCurrentItems:
    @given(st.lists(scheduled, max_size=5), modes, st.none() | st.integers(1, 8), ds_ids)
    def test_model(
        self, given_items: list[Any], mode: str | None, epoch: int | None, ds_id: str | None
    ) -> None:
        expected = [
            value
            for item in given_items
            for value in resolved(item, epoch)
            if value is not None and runs(value, mode, ds_id)
        ]
        found = get_current_items(given_items, run_modes=mode, epoch=epoch, ds_id=ds_id)
        assert [id(item) for item in found] == [id(item) for item in expected]

    @given(st.lists(items, max_size=4), st.sets(st.sampled_from(MODES)), st.sets(ds_ids))
    def test_several_modes_and_ids(
        self, given_items: list[Any], run_modes: set[str], names: set[Any]
    ) -> None:
        names.discard(None)
        for kind in (set, list, tuple, frozenset):
            found = get_current_items(given_items, run_modes=kind(run_modes), ds_id=kind(names))
            for item in given_items:
                mode_fits = not run_modes or any(runs(item, mode, None) for mode in run_modes)
                excluded = {name[1:] for name in item.ds_id if name.startswith("!")}
                if excluded:  # One excluded id is enough.
                    id_fits = not excluded & names
                else:
                    id_fits = not names or not item.ds_id or bool(item.ds_id & names)
                assert (item in found) == (mode_fits and id_fits)


class TestGetSignatureEpochs:
    @given(st.lists(scheduled, max_size=4), st.integers(0, 9), modes, ds_ids)
    def test_model(
        self, given_items: list[Any], total: int, mode: str | None, ds_id: str | None
    ) -> None:
        def active(epoch: int) -> list[int]:
            values = [value for item in given_items for value in resolved(item, epoch)]
            return [id(value) for value in values if value is not None and runs(value, mode, ds_id)]

        expected = [
            epoch
            for epoch in range(1, total + 1)
            if all(active(earlier) != active(epoch) for earlier in range(1, epoch))
        ]
        assert get_signature_epochs(given_items, total, mode=mode, ds_id=ds_id) == expected
