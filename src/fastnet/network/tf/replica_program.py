"""The ops of one opening as TensorFlow graphs that run on several devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from fastnet.backend.tf._internals import CollectiveKeys
from fastnet.network.compile_options import CompileOptions
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.tf.open_axes import OpenAxes
from fastnet.network.tf.program import InForce, Program, Record
from fastnet.network.tf.replicas import Replicas, combine, join_values
from fastnet.types import State

__all__ = ["ReplicaProgram"]


class ReplicaProgram(Program):
    """The ops of a plan as graphs, in each of which all devices run their parts of a batch.

    Args:
        plan: The plan.
        state: The state of a context, for what is the same in all of them.
        replicas: The devices.
        record: Told of each trace, and of each compilation.
        latest: What was in force in the latest trace of each mode, warming up or not.
        open_axes: The axes that a graph may leave open.
        options: How steps are compiled; None where they are not.
        joins: Whether the graphs put the devices' results together, and do not leave them apart.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        state: State,
        replicas: Replicas,
        record: Record,
        latest: dict[Hashable, InForce],
        open_axes: OpenAxes,
        options: CompileOptions | None,
        joins: bool,
    ) -> None:
        self.spread = replicas.count > 1
        super().__init__(plan, state, record, latest, open_axes, options)
        self._devices = replicas
        self._combine = join_values if joins else replicas.bundle
        self._keys = CollectiveKeys(replicas.strategy)
        self._first_keys: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @contextmanager
    def tracing(self, static: Any, anew: bool) -> Iterator[None]:
        """Let a graph for other batches communicate under the numbers of the first one.

        The other workers may have no such batches, and trace nothing.

        Args:
            static: The traces that this will be one of.
            anew: Whether it is the first for the ops and the models as they are now.
        """
        before = self._keys.now()
        if anew or static not in self._first_keys:
            self._first_keys[static] = before
            yield
            return
        self._keys.go_on_from(self._first_keys[static])
        try:
            yield
        finally:
            self._keys.go_on_from(before, least=True)

    def _concrete(self, run: Callable[..., Any], specs: tuple[tf.TensorSpec, ...]) -> Any:
        # a strategy makes the variables of all devices by itself
        return tf.function(run, autograph=False).get_concrete_function(*specs)

    def _run_ops(self, batch: dict[str, Any], epoch: tf.Tensor) -> dict[str, Any]:
        run = partial(super()._run_ops, epoch=epoch)
        return combine(self._devices.run(run, batch), self._combine)
