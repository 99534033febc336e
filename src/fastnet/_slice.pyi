"""Cuts a batch into minibatches, and joins minibatches into a batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

def check_slicers(slicers: Iterable[Any]) -> None: ...
def forward_slicers(slicers: Iterable[Any], data: Mapping[str, Any]) -> list[dict[str, Any]]: ...
def reverse_slicers(
    slicers: Iterable[Any], data: Sequence[Mapping[str, Any]], original_data: Mapping[str, Any]
) -> dict[str, Any]: ...
