"""The state of a run besides its models: ops and schedulers, random numbers, other ranks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from fastnet.backend.model_metadata import get_metadata, set_metadata
from fastnet.op.op import Op
from fastnet.types import is_scheduler

__all__ = [
    "average_ranks",
    "find_stateful",
    "load_random_state",
    "load_states",
    "random_state",
    "restore_on_error",
    "states_of",
]


def find_stateful(items: Mapping[str, Any], optimizers: Iterable[Any] = ()) -> dict[str, Any]:
    """Find each object with a `state_dict` and a `load_state_dict` once, by its path.

    Ops that schedulers choose from and ops inside ops are included. Of `optimizers` only schedulers
    count.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(item: Any, path: str) -> None:
        if item is None or isinstance(item, type) or id(item) in seen:
            return
        seen.add(id(item))
        if isinstance(item, (list, tuple)):
            inner = list(item)
        elif is_scheduler(item):
            inner = item.get_all_values()
        else:
            inner = item.inner_ops() if isinstance(item, Op) else []
        if _is_stateful(item):
            found[path] = item
        for index, one in enumerate(inner):
            visit(one, f"{path}/{index}")

    for name, item in items.items():
        visit(item, name)
    for index, one in enumerate(optimizers):
        if is_scheduler(one) and _is_stateful(one):
            found[f"optimizers/{index}"] = one
    return found


def _is_stateful(item: Any) -> bool:
    return all(callable(getattr(item, name, None)) for name in ("state_dict", "load_state_dict"))


def states_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class and the state of each object that `find_stateful` found."""
    return {
        path: {"class": type(one).__name__, "state": one.state_dict()}
        for path, one in objects.items()
    }


def load_states(objects: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Load the result of `states_of`; raise a ValueError if it is of other objects."""
    own = {path: type(one).__name__ for path, one in objects.items()}
    saved = {path: state["class"] for path, state in states.items()}
    if own != saved:
        only = [f"{path} ({kind})" for path, kind in saved.items() if own.get(path) != kind]
        lacks = [f"{path} ({kind})" for path, kind in own.items() if saved.get(path) != kind]
        parts = [f"states of {only}, which the program does not have"] if only else []
        parts += [f"no states of {lacks}, which the program has"] if lacks else []
        raise ValueError(
            f"it has {' and '.join(parts)}. Use the ops, slicers, schedulers and `stateful=` that "
            "it was saved with"
        )
    for path, one in objects.items():
        one.load_state_dict(states[path]["state"])


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
def restore_on_error(objects: Mapping[str, Any], models: Iterable[Any]) -> Iterator[None]:
    """Restore objects, random numbers and models' current optimizers if the block raises."""
    states = {path: copy.deepcopy(one.state_dict()) for path, one in objects.items()}
    numbers = random_state()
    current = [(model, get_metadata(model, "current_optimizer")) for model in models]
    try:
        yield
    except BaseException:
        with ExitStack() as undo:  # An object that fails again must not stop the others.
            undo.callback(load_random_state, numbers)
            for model, optimizer in current:
                undo.callback(set_metadata, model, "current_optimizer", optimizer)
            for path, one in objects.items():
                undo.callback(one.load_state_dict, states[path])
        raise


def average_ranks(
    parts: dict[str, Any],
    others: Sequence[Any],
    rank: int,
    size: int,
    decode: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """Return the state of a run for one of `size` ranks, whatever number of ranks saved it.

    `parts` has the states and random numbers of rank 0, and `others` those of the other ranks. If
    the number of ranks changed, each rank gets the mean of merged gradients, and a rank that did
    not exist has no random numbers.
    """
    if len(others) + 1 == size:
        return {**parts, **decode(others[rank - 1])} if rank else parts
    everyone = [parts, *map(decode, others)]
    mine = everyone[rank] if rank < len(everyone) else {**parts, "random": {}}
    states = {
        path: _average_merged(
            state, [one["states"][path] for one in everyone if path in one["states"]]
        )
        for path, state in mine["states"].items()
    }
    return {**parts, "random": mine["random"], "states": states}


def _average_merged(state: Any, everyone: Sequence[Any]) -> Any:
    """Return a state with the gradients that each rank had merged averaged."""
    inner = [one["state"] for one in everyone]
    if not all(isinstance(one, dict) and {"merged", "gradients"} <= one.keys() for one in inner):
        return state
    gradients = [_mean(column) for column in zip(*(one["gradients"] for one in inner), strict=True)]
    return {**state, "state": {**inner[0], "gradients": gradients}}


def _mean(gradients: Sequence[Any]) -> Any:
    """Average gradients, where None means zeros."""
    given = [one for one in gradients if one is not None]
    return sum(given[1:], given[0]) / len(gradients) if given else None
