"""What of a network remembers something from step to step, besides its models."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastnet.op.op import Op
from fastnet.types import is_scheduler

__all__ = ["GIVEN", "check_states", "find_stateful", "kept_states", "load_states", "states_of"]

GIVEN = "stateful/"
"""What the paths of things begin with that are none of the network's."""

_CLASS, _STATE = "class", "state"


def find_stateful(items: Mapping[str, Any], optimizers: Iterable[Any] = ()) -> dict[str, Any]:
    """Find what has a `state_dict` and a `load_state_dict`.

    Args:
        items: Ops, schedulers, slicers and anything else, and lists of these, by name.
        optimizers: Optimizers, of which the schedulers count alone.

    Returns:
        Each thing once, by where it is: ops that schedulers choose from, and ops inside of ops, by
        their places in these.
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
        for place, one in enumerate(inner):
            visit(one, f"{path}/{place}")

    for name, item in items.items():
        visit(item, name)
    for place, one in enumerate(optimizers):
        if is_scheduler(one) and _is_stateful(one):
            found[f"optimizers/{place}"] = one
    return found


def states_of(things: Mapping[str, Any]) -> dict[str, Any]:
    """Return what things remember.

    Args:
        things: What `find_stateful` found.
    """
    return {
        path: {_CLASS: type(thing).__name__, _STATE: thing.state_dict()}
        for path, thing in things.items()
    }


def check_states(things: Mapping[str, Any], states: Mapping[str, Any], source: str) -> None:
    """Check that states are of things that are there.

    Args:
        things: What `find_stateful` found.
        states: What is said to be their states.
        source: Where these are from, for the error's text.

    Raises:
        ValueError: If something has no state there, or there is a state of something else.
    """
    own = {path: type(thing).__name__ for path, thing in things.items()}
    saved = {path: state[_CLASS] for path, state in states.items()}
    if own != saved:
        only = [f"{path} ({kind})" for path, kind in saved.items() if own.get(path) != kind]
        lacks = [f"{path} ({kind})" for path, kind in own.items() if saved.get(path) != kind]
        parts = [f"states of {only}, which the program has not"] if only else []
        parts += [f"no states of {lacks}, which the program has"] if lacks else []
        raise ValueError(
            f"{source} has {' and '.join(parts)}. Load it with "
            f"{_advised([path for path in {**own, **saved} if own.get(path) != saved.get(path)])}."
        )


def _advised(paths: Iterable[str]) -> str:
    given = [path.startswith(GIVEN) for path in paths]
    named = "the `stateful=` that save_checkpoint was given"
    if all(given):
        return named
    own = "the ops, slicers and schedulers that it was saved with"
    return f"{own}, and {named}" if any(given) else own


def load_states(things: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Let things go on from what they remembered.

    Args:
        things: What `find_stateful` found.
        states: Their states, which `check_states` had nothing against.
    """
    for path, thing in things.items():
        thing.load_state_dict(states[path][_STATE])


@contextmanager
def kept_states(things: Mapping[str, Any]) -> Iterator[None]:
    """Let things go on from what they remember now if something fails meanwhile.

    Args:
        things: What `find_stateful` found.
    """
    before = {path: copy.deepcopy(thing.state_dict()) for path, thing in things.items()}
    try:
        yield
    except BaseException:
        for path, thing in things.items():
            thing.load_state_dict(before[path])
        raise


def _is_stateful(item: Any) -> bool:
    return all(callable(getattr(item, name, None)) for name in ("state_dict", "load_state_dict"))
