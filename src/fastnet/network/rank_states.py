"""What each of several processes remembers for itself, in one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastnet.backend.archive import Block
from fastnet.backend.tree import encode

__all__ = ["RANKS", "collect_ranks", "of_rank"]

RANKS = "ranks"
"""Under which name a checkpoint has what processes after the first one remember."""

_RANDOM, _STATES, _STATE, _MERGED, _GRADIENTS = "random", "states", "state", "merged", "gradients"


def collect_ranks(
    processes: Any, own: Mapping[str, Any], run: Any
) -> list[tuple[Any, dict[str, Block]]]:
    """Bring what processes remember to the first one.

    Args:
        processes: What the framework has for them, None for one process.
        own: What this one remembers: its states and its random numbers.
        run: What the framework has for checkpoints.

    Returns:
        On the first process, for each other one, what `encode` makes of that, and its arrays; on
        the others nothing.
    """
    if not hasattr(processes, "collect"):
        return []
    blocks: dict[str, Block] = {}
    told = None
    rank = processes.rank()
    with processes.together("Saving a checkpoint"):
        if rank:
            told = encode(dict(own), f"{RANKS}/{rank}", blocks, run.give)
    collected = processes.collect((told, blocks))
    return [] if collected is None else collected[1:]


def of_rank(
    content: Mapping[str, Any], rank: int, size: int, read: Callable[[Any], Any]
) -> dict[str, Any]:
    """Read of a checkpoint what a process goes on from.

    Args:
        content: What the checkpoint tells, encoded.
        rank: The rank of the process.
        size: How many processes there are.
        read: Decodes a part of it.

    Returns:
        The parts of the checkpoint; without random numbers for a process that is one more than have
        saved it.

    Raises:
        ValueError: If what it tells of processes cannot be read.
    """
    others = content.get(RANKS, [])
    if not isinstance(others, list):
        raise ValueError(f"its {RANKS} is of the type {type(others).__name__}")
    parts = {part: read(told) for part, told in content.items() if part != RANKS}
    if len(others) + 1 != size:
        everyone = [parts, *(_read(told, read) for told in others)]
        mine = everyone[rank] if rank < len(everyone) else {**parts, _RANDOM: {}}
        return {**parts, _RANDOM: mine[_RANDOM], _STATES: _shared(mine, everyone)}
    return {**parts, **(_read(others[rank - 1], read) if rank else {})}


def _read(told: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    parts = read(told)
    if not isinstance(parts, dict) or not all(
        isinstance(parts.get(part), dict) for part in (_RANDOM, _STATES)
    ):
        raise ValueError(f"what it tells of another process is a {type(parts).__name__}")
    return {part: parts[part] for part in (_RANDOM, _STATES)}


def _shared(mine: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return states with gradients, of which each process had merged its own, averaged."""
    shared = {}
    for path, state in mine[_STATES].items():
        all_of_them = [one[_STATES][path] for one in everyone if path in one[_STATES]]
        inner = [one[_STATE] for one in all_of_them]
        if len(inner) > 1 and all(map(_is_merged, inner)):
            columns = zip(*(one[_GRADIENTS] for one in inner), strict=True)
            means = [_mean(column) for column in columns]
            state = {**state, _STATE: {**inner[0], _GRADIENTS: means}}
        shared[path] = state
    return shared


def _is_merged(state: Any) -> bool:
    return isinstance(state, dict) and {_MERGED, _GRADIENTS} <= state.keys()


def _mean(parts: Sequence[Any]) -> Any:
    """Average gradients, of which None is one of zeros."""
    there = [part for part in parts if part is not None]
    return sum(there[1:], there[0]) / len(parts) if there else None
