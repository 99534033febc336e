"""A bar for work that takes long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["shown"]

T = TypeVar("T")


def shown(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Go through items, with a bar on the terminal, if there are both a terminal and tqdm.

    Args:
        items: The items.
        total: How many they are.
        what: The word beside the bar.

    Yields:
        The items.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield from items
        return
    # None: on a terminal only. Between steps it takes a look at the clock, and seldom more.
    yield from tqdm(items, total=total, desc=what, disable=None, leave=False, mininterval=0.2)
