"""The state of a run besides its models: ops and schedulers, random numbers, other ranks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet.backend.dispatch import get_framework
from fastnet.backend.model_metadata import get_metadata, set_metadata
from fastnet.errors import add_note
from fastnet.network.held_state import find_held, is_stateful, named_items, restore_held
from fastnet.types import is_scheduler
from fastnet.util.warnings import warn

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork


def find_stateful(network: BaseNetwork, stateful: Mapping[str, Any]) -> dict[str, Any]:
    """Find the stateful objects of a network and of the program, each once, by their paths."""
    found: dict[str, Any] = {}
    for path, item in named_items(network, stateful).items():
        if is_stateful(item):
            found[path] = item
        elif callable(getattr(item, "state_dict", None)):
            warn(
                f"{path} ({type(item).__name__}) has a state_dict but no load_state_dict, so that "
                "its state is not saved and restored. Add a load_state_dict.",
            )
    for index, model in enumerate(network.models):
        scheduler = get_metadata(model, "optimizer")
        if is_scheduler(scheduler) and is_stateful(scheduler):
            found[f"optimizers/{index}"] = scheduler
    return found


def states_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class and the state of each object that `find_stateful` found."""
    states = {}
    for path, one in objects.items():
        kind = type(one).__name__
        try:
            states[path] = {"class": kind, "state": one.state_dict()}
        except Exception as error:
            add_note(error, f"Raised by the state_dict of {path} ({kind}).")
            raise
    return states


def load_states(objects: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Load the result of `states_of`; raise a ValueError if it is of other objects."""
    own = {path: type(one).__name__ for path, one in objects.items()}
    saved = {path: state["class"] for path, state in states.items()}
    if own != saved:
        only, lacks = (
            [f"{path} ({kind})" for path, kind in one.items() if other.get(path) != kind] or "none"
            for one, other in ((saved, own), (own, saved))
        )
        raise ValueError(
            f"states that only the file has: {only}; states that only the program has: {lacks}. "
            "Use the ops, slicers, schedulers and `stateful=` that it was saved with"
        )
    for path, one in objects.items():
        try:
            one.load_state_dict(states[path]["state"])
        except Exception as error:  # Objects of the program may raise anything.
            raise ValueError(f"{path} ({own[path]}): {type(error).__name__}: {error}") from error


def random_state() -> dict[str, Any]:
    """Return the states of the global generators of Python and numpy."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def load_random_state(state: Mapping[str, Any]) -> None:
    """Restore the result of `random_state`."""
    # numpy does not check this position, and would read outside of its state.
    if not 0 <= state["numpy"]["state"].get("pos", 0) <= 624:
        raise ValueError("the state of numpy's random numbers is invalid")
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


@contextmanager
def preserved(
    network: BaseNetwork, objects: Mapping[str, Any], always: bool = False
) -> Iterator[None]:
    """Restore models, optimizers, `objects` and random numbers if the block raises, or `always`."""
    models = get_framework(network.target_type).PreservedState(network.models)
    states = copy.deepcopy(states_of(objects))
    numbers = random_state()
    current = [(model, get_metadata(model, "current_optimizer")) for model in network.models]
    restore = restore_held(find_held(network))
    # Callbacks run in reverse order, and one that raises does not stop the others.
    undo = ExitStack()
    undo.callback(load_random_state, numbers)
    undo.callback(restore)
    for model, optimizer in current:
        undo.callback(set_metadata, model, "current_optimizer", optimizer)
    for path, one in objects.items():
        undo.callback(one.load_state_dict, states[path]["state"])
    # The states of UpdateOps depend on the models.
    undo.callback(models.restore)
    try:
        yield
    except BaseException as error:
        try:
            undo.close()
        except Exception as second:
            add_note(error, f"The state from before could not be restored: {second!r}")
        raise
    if always:
        undo.close()


def average_ranks(
    parts: dict[str, Any],
    others: Sequence[Any],
    rank: int,
    size: int,
    decode: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """Return the state of a run for one of `size` ranks, whatever number of ranks saved it.

    `parts` has the states and random numbers of rank 0, and `others` those of the other ranks.
    """
    if len(others) + 1 == size:
        return {**parts, **decode(others[rank - 1])} if rank else parts
    everyone = [parts, *map(decode, others)]
    mine = everyone[rank] if rank < len(everyone) else {**parts, "random": {}}
    states = {
        path: _average_merged(
            state, [one["states"][path] for one in everyone if path in one["states"]], size
        )
        for path, state in mine["states"].items()
    }
    return {**parts, **{part: mine[part] for part in ("random", "variables")}, "states": states}


def _average_merged(state: Any, everyone: Sequence[Any], size: int) -> Any:
    """Return a state with the averages over `size` ranks of what everyone had merged."""
    inner = [one["state"] for one in everyone]
    if not all(isinstance(one, dict) and {"merged", "gradients"} <= one.keys() for one in inner):
        return state
    gradients = [_mean(column) for column in zip(*(one["gradients"] for one in inner), strict=True)]
    merged = {**inner[0], "gradients": gradients}
    if inner[0].get("weight") is not None:
        # Each rank has as much of the weight of these steps as of the steps that follow.
        part = len(inner) / size
        merged["gradients"] = [None if one is None else one * part for one in gradients]
        merged["weight"] = sum(one["weight"] for one in inner) / size
    return {**state, "state": merged}


def _mean(gradients: Sequence[Any]) -> Any:
    """Average gradients, where None means zeros."""
    given = [one for one in gradients if one is not None]
    return sum(given[1:], given[0]) / len(gradients) if given else None
