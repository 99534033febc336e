"""Places of a program that all processes come to: whoever is at another one is found out there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["AT_THE_END", "Meetings", "apart"]

AT_THE_END = "at the end of run()"
"""Where a process is that has no more to do."""

# meetings whose words are kept: who listens to one must not find it gone between two questions
_KEPT = 100


class Meetings:
    """The meetings of the processes of one run, counted alike in each of them.

    Whoever comes to one first says in a store where it is, and the others compare. Nothing of it
    needs the process group, whose collectives end a process, or never end, when others are in
    other ones.

    Args:
        store: The store, for the thread that makes this.
        rank: The place of this process.
        world_size: How many processes there are.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._number = 0
        self._openings = 0
        # of openings that have ended
        self._steps = 0
        self._open: list[Callable[[], int]] = []

    def count_also(self, steps: Callable[[], int]) -> Callable[[], None]:
        """Take the steps of an opening for how far this process has come.

        Args:
            steps: Returns how many it has begun.

        Returns:
            The function that ends it.
        """
        self._openings += 1
        self._open.append(steps)

        def end() -> None:
            # in this order, another thread may find too few meanwhile, but never too many
            self._open.remove(steps)
            self._steps += steps()

        return end

    def come(self, place: str) -> str | None:
        """Come to the next meeting.

        Args:
            place: Where this process is, such as "in gather".

        Returns:
            What is wrong if another process is at another place, else None.
        """
        self._number += 1
        key = _key(self._number)
        told = json.dumps({"rank": self._rank, "place": place, "progress": self._progress()})
        first = json.loads(self._store.compare_set(key, "", told))
        if first["place"] != place:
            return apart(first["rank"], first["place"], self._rank, place)
        self._store.add(_count(key), 1)
        return None

    def is_complete(self) -> bool:
        """Return whether all processes have come to the meeting that this one has come to."""
        if self._store.add(_count(_key(self._number)), 0) < self._world_size:
            return False
        if self._rank == 0 and self._number > _KEPT:
            key = _key(self._number - _KEPT)
            with suppress(RuntimeError):  # a store that cannot forget
                self._store.delete_key(key)
                self._store.delete_key(_count(key))
        return True

    def passed_by(self, store: Any, place: str) -> str | None:
        """Say, from any thread, if this process goes on where another one waits for it.

        Args:
            store: The thread's own connection to the store.
            place: Where this process is if it goes on.
        """
        # the progress first: what is done after the meeting is not to be taken for done before
        progress = self._progress()
        key = _key(self._number + 1)
        if not store.check([key]):
            return None
        first = json.loads(store.get(key))
        if progress <= first["progress"]:
            return None
        return apart(first["rank"], first["place"], self._rank, place)

    def _progress(self) -> list[int]:
        ended = self._steps
        return [self._openings, ended + sum(steps() for steps in tuple(self._open))]


def apart(one: int, its_place: str, other: int, other_place: str) -> str:
    """Return the text of the error for processes at different places.

    Args:
        one: A process.
        its_place: Where it is.
        other: Another one.
        other_place: Where that is.
    """
    (first, here), (second, there) = sorted([(one, its_place), (other, other_place)])
    return (
        f"The ranks are at different places of the program: rank {first} is {here}, rank {second} "
        f"{there}. All ranks call save_checkpoint, load_checkpoint, gather and barrier, with the "
        "same path and as often. Put no `if distributed.is_main():` around them, and nothing else "
        "that comes out differently on ranks, such as whether there is a file."
    )


def _key(number: int) -> str:
    return f"meeting {number}"


def _count(key: str) -> str:
    return f"came to {key}"
