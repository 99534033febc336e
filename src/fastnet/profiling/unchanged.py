"""Steps that leave a network as it was: what they change is put back after them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastnet.backend.dispatch import backend_module
from fastnet.network import BaseNetwork
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.types import is_given, is_scheduler

__all__ = ["unchanged"]


@contextmanager
def unchanged(network: BaseNetwork) -> Iterator[None]:
    """Return a block after which models, optimizers and random numbers are as they were before it.

    Of the models it is weights, gradients and buffers; of the optimizers (those that a scheduler
    gives in other epochs as well) their state and settings; of `UpdateOp` what it has merged; what
    ops that follow updates remember; and the generators of Python, numpy and the framework (not
    what TensorFlow's ops without a generator draw, which nothing can put back). What else ops and
    models of the user's own keep is up to them. Nothing is done at the end of the opening.

    Args:
        network: The network. It has been entered, so that its optimizers are ready.

    Raises:
        ValueError: If a model has no weights yet.
    """
    optimizers = {
        id(one): one
        for model in network.models
        for held in (getattr(model, "optimizer", None), getattr(model, "current_optimizer", None))
        for one in _values(held)
    }
    preserve_state = backend_module(network.target_type, "preserve_state")
    preserve_state.require_variables(network.models)
    preserved = preserve_state.PreservedState(network.models, list(optimizers.values()))
    updates = [(op._update, op._update.merged()) for op in _each(network.ops) if _merges(op)]
    followers: list[tuple[Any, Any]] = [
        (op, copy.deepcopy(op.state_dict()))
        for op in _each(network.ops)
        if isinstance(op, FollowsUpdates) and hasattr(op, "state_dict")
    ]
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        network._skip_exit_calls()
        preserved.restore()
        for follower, state in followers:
            follower.load_state_dict(state)
        for update, merged in updates:
            update.set_merged(*merged)
        random.setstate(python)
        np.random.set_state(arrays)


def _values(item: Any) -> list[Any]:
    found = item.get_all_values() if is_scheduler(item) else [item]
    return [one for one in found if is_given(one)]


def _each(items: Iterable[Any]) -> Iterator[Any]:
    """Go through ops, those that schedulers give and those inside of others."""
    for item in items:
        for op in _values(item):
            yield op
            inner = getattr(op, "inner_ops", None)
            if inner is not None:
                yield from _each(inner())


def _merges(op: Any) -> bool:
    return hasattr(op, "_update") and getattr(op, "merge_grad", 1) > 1
