"""Networks of Keras models."""

from __future__ import annotations

from typing import Any

from fastnet.backend.model_metadata import name_of
from fastnet.backend.tf._internals import EAGER
from fastnet.backend.tf.copying import copy_model
from fastnet.backend.tf.foreign import ARRAYS, FOREIGN
from fastnet.backend.tf.gradients import trainable_in
from fastnet.backend.tf.models import all_layers
from fastnet.errors import shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.compile_options import CompileOptions, read_compile
from fastnet.network.context import NetworkContext
from fastnet.network.plan_cache import ExecutionPlan, Handling
from fastnet.network.tf.open_axes import Axes, OpenAxes
from fastnet.network.tf.program import Programs
from fastnet.network.tf.replicas import Replicas
from fastnet.network.tf.runner import TFRunner, check_ops
from fastnet.network.trace_records import TraceRecord
from fastnet.op.tensorop.model.untrained import warn_of_untrained
from fastnet.types import NumpyOps, Ops, Slicers

__all__ = ["TFNetwork"]


class TFNetwork(BaseNetwork):
    """A network whose ops run in TensorFlow.

    The ops are traced into a graph in the first step, and each later step calls the graph: Python
    in an op's `forward` (a print, a counter, a random number of numpy) runs while it is traced, and
    not in each step. Open the network with ``eager=True`` to run eagerly instead.

    The first trace is for batches of just the shapes that it was made with. When a batch of another
    size comes, a second one is made for batches of any size: while it is, ``x.shape[0]`` is None,
    and ``x.shape[0] == 8`` false; ``tf.shape(x)[0]`` is the size. Another length of any other axis
    is a trace of its own, unless `open_axes` says that one does for all; of many the 16 last used
    are kept. Values in a batch that are no tensors and no arrays (strings, ints, None, objects with
    their attributes, the order of a dict) are constants of the graph, so that another value is
    another trace. On each entry the ops, layers, variables and optimizers that a graph was traced
    from are compared, with all data that is reached from them. What was changed or replaced takes
    effect from then on. A counter in an op is no change where tracing increments it; it is one
    where the op runs eagerly, or in a `tf.py_function`. Contents of arrays and settings of
    libraries are not compared: see `retrace`.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        postprocessing: Ops on numpy arrays, for whole batches, which run on the CPU after the rest.
        slicers: What cuts a batch into minibatches and joins their results.
        open_axes: The axes of which one trace may serve any length, once there was a second one: an
            axis or several for the tensors of all keys, or a dict of keys to such, where the others
            keep axis 0. An axis below 0 counts from the last. None for axis 0, () for no axis.
            Values of several tensors (ragged and sparse ones) always leave open how much they hold.
        compile: Whether XLA compiles each graph, or the `CompileOptions` to do that with. What it
            cannot compile, or computes otherwise in the first step, runs as a graph, and `traces`
            says why.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer.
        TypeError: If `open_axes`, or `compile`, holds something else.
        ValueError: If only some models have mixed precision, a postprocessing op would drop or make
            batches, or another backend than XLA is to compile.

    >>> import tensorflow as tf
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TFNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": tf.constant([1.0, 2.0])})["y"].numpy().tolist()
    [2.0, 4.0]
    >>> [trace.reason for trace in network.traces]
    ["first step in mode 'infer'"]
    """

    # of a network that was saved by an earlier version
    _options: CompileOptions | None = None

    def __init__(
        self,
        ops: Ops,
        postprocessing: NumpyOps = None,
        slicers: Slicers = None,
        open_axes: Axes | None = None,
        compile: bool | CompileOptions = False,
    ) -> None:
        self._options = read_compile(compile)
        _require_xla(self._options)
        self._open_axes = OpenAxes(open_axes)
        super().__init__(
            target_type="tf",
            device=None,
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )
        warn_of_untrained(self.ops, trainable_in)

    def _begin(self) -> None:
        super()._begin()
        self._programs = Programs(self._options)

    def _require_apart(self, op: Any) -> None:
        for value in vars(op).values():
            held = value.values() if isinstance(value, dict) else value
            for one in held if isinstance(value, (dict, list, tuple)) else [value]:
                for model in self.models:
                    parts = [*all_layers(model)[1:], *model.variables]
                    if any(one is part for part in parts):
                        raise ValueError(
                            f"{type(op).__name__} holds '{one.name}', a part of the model "
                            f"'{name_of(model)}', which Keras would save by itself, so that the "
                            "two would no longer be one; hold the model and look it up there"
                        )

    def _copy_models(self, memo: dict[int, Any]) -> None:
        for model in self.models:
            copy_model(model, memo)

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """When ops were traced and compiled and why, or why not; the last of many."""
        return tuple(self._programs.records.kept)

    def _handling(self) -> Handling:
        return Handling(adopt=(EAGER, FOREIGN, ARRAYS))

    def _check_ops(self, plan: ExecutionPlan) -> None:
        check_ops(plan, Replicas.of(plan.models))

    def _make_runner(self, context: NetworkContext) -> TFRunner:
        return TFRunner(context, self._programs, self._open_axes)


def _require_xla(options: CompileOptions | None) -> None:
    """Check that a TensorFlow network's options fit XLA."""
    if options is None:
        return
    accepted = {"backend": (None, "xla"), "dynamic": (None, False)}
    for name, values in accepted.items():
        value = getattr(options, name)
        if value not in values:
            raise ValueError(
                f"CompileOptions has {name}={shorten(value)}, but XLA accepts only {values[-1]!r}."
            )
