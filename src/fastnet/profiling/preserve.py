"""Runs steps that leave a network as it was."""

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

__all__ = ["preserved"]


@contextmanager
def preserved(network: BaseNetwork) -> Iterator[None]:
    """Restore the models, optimizers and random number generators of an entered network at exit.

    Restored are weights, gradients and buffers of models; state and settings of optimizers, also of
    other epochs; gradients merged by `UpdateOp`; the state of ops that follow updates; and the
    generators of Python, numpy and the framework.

    Raises:
        ValueError: If the first call of a model would create variables, which cannot be undone.
    """
    optimizers = {
        id(one): one
        for model in network.models
        for held in (getattr(model, "optimizer", None), getattr(model, "current_optimizer", None))
        for one in _values(held)
    }
    module = backend_module(network.target_type, "preserve_state")
    module.require_variables(network.models)
    state_before = module.PreservedState(network.models, list(optimizers.values()))
    ops = list(_each_op(network.ops))
    updates = [(op._update, op._update.merged()) for op in ops if _merges(op)]
    followers: list[tuple[Any, Any]] = [
        (op, copy.deepcopy(op.state_dict()))
        for op in ops
        if isinstance(op, FollowsUpdates) and hasattr(op, "state_dict")
    ]
    generators = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        network._skip_exit_calls()
        state_before.restore()
        for follower, state in followers:
            follower.load_state_dict(state)
        for update, merged in updates:
            update.set_merged(*merged)
        random.setstate(generators[0])
        np.random.set_state(generators[1])


def _values(item: Any) -> list[Any]:
    found = item.get_all_values() if is_scheduler(item) else [item]
    return [one for one in found if is_given(one)]


def _each_op(items: Iterable[Any]) -> Iterator[Any]:
    """Iterate over ops, those of schedulers and those inside of others."""
    for item in items:
        for op in _values(item):
            yield op
            inner = getattr(op, "inner_ops", None)
            if inner is not None:
                yield from _each_op(inner())


def _merges(op: Any) -> bool:
    return hasattr(op, "_update") and getattr(op, "merge_grad", 1) > 1
