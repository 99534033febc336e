"""The state of a run: ops, schedulers, random numbers, other ranks; and restoring all of it."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Find the stateful objects of a network and of the user, each once, by their paths."""
    objects: dict[str, Any] = {}
    for path, item in named_items(network, stateful).items():
        if is_stateful(item):
            objects[path] = item
        elif callable(getattr(item, "state_dict", None)):
            warn(
                f"{path} ({type(item).__name__}) has a state_dict but no load_state_dict, so that "
                "its state is not saved and restored. Add a load_state_dict.",
            )
    for index, model in enumerate(network.models):
        scheduler = get_metadata(model, "optimizer")
        if is_scheduler(scheduler) and is_stateful(scheduler):
            objects[f"optimizers/{index}"] = scheduler
    return objects


def states_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class and the state of each object that `find_stateful` found."""
    states = {}
    for path, item in objects.items():
        kind = type(item).__name__
        try:
            states[path] = {"class": kind, "state": item.state_dict()}
        except Exception as error:
            add_note(error, f"Raised by the state_dict of {path} ({kind}).")
            raise
    return states


def load_states(objects: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Load the result of `states_of`; raise a ValueError if it is of other objects."""
    current = {path: type(item).__name__ for path, item in objects.items()}
    saved = {path: state["class"] for path, state in states.items()}
    if current != saved:
        raise ValueError(
            f"states that only the file has: {_describe_difference(saved, current)}; states that "
            f"only the program has: {_describe_difference(current, saved)}. "
            "Use the ops, slicers, schedulers and `stateful=` that it was saved with"
        )
    for path, item in objects.items():
        try:
            item.load_state_dict(states[path]["state"])
        except Exception as error:  # Objects of the user may raise anything.
            message = f"{path} ({current[path]}): {type(error).__name__}: {error}"
            raise ValueError(message) from error


def _describe_difference(kinds: Mapping[str, str], other_kinds: Mapping[str, str]) -> Any:
    """List the objects of `kinds` that `other_kinds` lacks or has another class for."""
    lacking = [path for path, kind in kinds.items() if other_kinds.get(path) != kind]
    return [f"{path} ({kinds[path]})" for path in lacking] or "none"


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
def restored_afterwards(
    network: BaseNetwork, objects: Mapping[str, Any], only_on_error: bool = False
) -> Iterator[None]:
    """Restore models, optimizers, `objects` and random numbers after the block, or on an error."""
    preserved_models = get_framework(network.target_type).PreservedState(network.models)
    states = copy.deepcopy(states_of(objects))
    random_states = random_state()
    optimizers = [(model, get_metadata(model, "current_optimizer")) for model in network.models]
    restore_held_state = restore_held(find_held(network))
    # Callbacks run in reverse order, and one that raises does not stop the others.
    undo = ExitStack()
    undo.callback(load_random_state, random_states)
    undo.callback(restore_held_state)
    for model, optimizer in optimizers:
        undo.callback(set_metadata, model, "current_optimizer", optimizer)
    for path, item in objects.items():
        undo.callback(item.load_state_dict, states[path]["state"])
    # The states of UpdateOps depend on the models.
    undo.callback(preserved_models.restore)
    try:
        yield
    except BaseException as error:
        try:
            undo.close()
        except Exception as undo_error:
            add_note(error, f"The state from before could not be restored: {undo_error!r}")
        raise
    if not only_on_error:
        undo.close()


def state_for_rank(
    parts: dict[str, Any],
    other_parts: Sequence[Any],
    rank: int,
    world_size: int,
    decode: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """Return the saved state for one rank.

    If the number of ranks changed, merged gradients are averaged. `parts` has the states and random
    numbers of rank 0, and `other_parts` those of the other ranks, which `decode` decodes.
    """
    if len(other_parts) + 1 == world_size:
        return {**parts, **decode(other_parts[rank - 1])} if rank else parts
    all_parts = [parts, *map(decode, other_parts)]
    rank_parts = all_parts[rank] if rank < len(all_parts) else {**parts, "random": {}}
    states = {}
    for path, state in rank_parts["states"].items():
        rank_states = [saved["states"][path] for saved in all_parts if path in saved["states"]]
        states[path] = _with_average_gradients(state, rank_states, world_size)
    return {
        **parts,
        "random": rank_parts["random"],
        "variables": rank_parts["variables"],
        "states": states,
    }


def _with_average_gradients(state: Any, rank_states: Sequence[Any], world_size: int) -> Any:
    """Return a state of an UpdateOp with the average of the gradients that the ranks had merged."""
    saved = [rank_state["state"] for rank_state in rank_states]
    keys = {"merged", "gradients", "names"}
    if not all(isinstance(values, dict) and keys <= values.keys() for values in saved):
        return state
    # The last parameters are those that a rank has frozen meanwhile, so ranks may differ in them.
    by_name = [
        dict(zip(_numbered(values["names"]), values["gradients"], strict=True)) for values in saved
    ]
    keys_of_all = list(dict.fromkeys(key for gradients in by_name for key in gradients))
    gradients = [_mean([gradients.get(key) for gradients in by_name]) for key in keys_of_all]
    merged = {**saved[0], "gradients": gradients, "names": [name for name, _ in keys_of_all]}
    if saved[0].get("weight") is not None:
        # The sums of gradients and of weights over all ranks stay the same.
        share = len(saved) / world_size
        merged["gradients"] = [None if mean is None else mean * share for mean in gradients]
        merged["weight"] = sum(values["weight"] for values in saved) / world_size
    return {**state, "state": merged}


def _numbered(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Number equal names from 0: all parameters that are in no model have the empty name."""
    counts: Counter[str] = Counter()
    for name in names:
        yield name, counts[name]
        counts[name] += 1


def _mean(gradients: Sequence[Any]) -> Any:
    """Average gradients, where None means zeros."""
    present = [gradient for gradient in gradients if gradient is not None]
    return sum(present[1:], present[0]) / len(gradients) if present else None
