"""Networks of Keras models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fastnet._execute import InputConversion
from fastnet.backend.model_metadata import name_of
from fastnet.backend.tf._internals import EAGER
from fastnet.backend.tf.copying import copy_model
from fastnet.backend.tf.gradients import named_trainable_parameters
from fastnet.backend.tf.held_state import warn_of_unsaved
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.tensor_adapter import ARRAYS, FOREIGN
from fastnet.errors import shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.compile_options import CompileOptions, read_compile
from fastnet.network.dynamic_axes import Dynamic, DynamicAxes, read_keys, refuse_open_axes
from fastnet.network.held_state import values_in
from fastnet.network.plan_cache import ExecutionPlan, StepOptions
from fastnet.network.program_set import ProgramSets
from fastnet.network.tf.program_set import GraphProgramSet
from fastnet.network.tf.replicas import Replicas
from fastnet.network.tf.session import TFSession
from fastnet.network.tf.trace_guard import TraceHistory
from fastnet.network.trace_records import Records, TraceRecord
from fastnet.types import NumpyOps, Ops, Slicers


class TFNetwork(BaseNetwork):
    """A network whose ops run in TensorFlow.

    The first step traces the ops into a graph, and each later step calls the graph. Python side
    effects in an op's `forward` (a print, a counter, a numpy random number) happen during tracing
    only. Open the network with ``eager=True`` to run eagerly instead.

    The first trace accepts only the shapes of its batch. A batch of another size triggers a second
    trace for any size, in which ``x.shape[0]`` is None and ``x.shape[0] == 8`` is false;
    ``tf.shape(x)[0]`` is the size. Each length of another axis gets its own trace, unless the axis
    is in `dynamic`; the most recently used traces are kept. Values in a batch that are neither
    tensors nor arrays (strings, ints, None, objects with their attributes, the order of a dict) are
    constants of the graph, so a new value is traced again. In the first step after each entry, the
    ops, layers, variables and optimizers that a graph was traced from are compared, with all data
    reachable from them, and changes take effect. A counter in an op causes no retrace if tracing
    increments it; it does if the op runs eagerly, or in a `tf.py_function`. Contents of arrays and
    library settings are not compared: see `retrace`.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        postprocessing: Postprocessing ops, which run on batches of numpy arrays after the other
            ops.
        slicers: Slicers, which split a batch into minibatches and merge their results.
        dynamic: Which lengths may vary within one trace: see `Network`. XLA compiles a program for
            each length. Sparse and ragged tensors and IndexedSlices do not follow it: one trace
            takes any number of their rows and values; lengths of other axes of sparse and ragged
            tensors are exact.
        compile: Whether to compile each graph with XLA, or the `CompileOptions` for it. A graph
            that XLA cannot compile, or whose first step gives different results, runs uncompiled,
            and `traces` gives the reason.
        open_axes: Replaced by `dynamic`.

    Raises:
        AssertionError: If an item is not an op, postprocessing op or slicer.
        TypeError: If `dynamic` or `compile` has the wrong type.
        ValueError: If only some models have mixed precision, a postprocessing op would drop or make
            batches, or `compile` names another backend than XLA.

    >>> import tensorflow as tf
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TFNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": tf.constant([1.0, 2.0])})["y"].numpy().tolist()
    [2.0, 4.0]
    >>> [trace.reason for trace in network.traces]
    ["first step in mode 'infer'"]
    """

    _session_type = TFSession

    def __init__(
        self,
        ops: Ops,
        postprocessing: NumpyOps = None,
        slicers: Slicers = None,
        dynamic: Dynamic = None,
        compile: bool | CompileOptions = False,
        open_axes: None = None,
    ) -> None:
        refuse_open_axes(open_axes)
        self._dynamic_axes = DynamicAxes(dynamic)
        self._compile_options = read_compile(compile)
        _require_xla(self._compile_options)
        super().__init__(
            target_type="tf",
            device=None,
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )
        self._dynamic_axes.warn_of_unread_keys(read_keys(self.ops))

    def _init_state(self) -> None:
        super()._init_state()
        self._records = Records("as a graph")
        self._program_sets: ProgramSets[GraphProgramSet] = ProgramSets()
        self._history = TraceHistory()

    def _trainable_in(self, value: Any) -> Iterator[tuple[str, Any]]:
        return _trainable_or_unbuilt_in(value)

    def _check_picklable(self, op: Any) -> None:
        items: list[Any] = []
        for value in vars(op).values():
            if isinstance(value, dict):
                items += value.values()
            elif isinstance(value, (list, tuple)):
                items += value
            else:
                items.append(value)
        for model in self.models:
            parts = [*all_layers(model)[1:], *model.variables]
            for item in items:
                if any(item is part for part in parts):
                    raise ValueError(
                        f"{type(op).__name__} holds '{item.name}', a part of the model "
                        f"'{name_of(model)}', which Keras would pickle separately. Hold the "
                        "model instead, and look the part up in it."
                    )

    def _warn_of_unsaved_state(self) -> None:
        warn_of_unsaved(self.models, [value for _, value in values_in(self)])

    def _copy_models(self, memo: dict[int, Any]) -> None:
        for model in self.models:
            copy_model(model, memo)

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """Records of traces and fallbacks, with their reasons; only the latest are kept."""
        return tuple(self._records.latest)

    def retrace(self) -> None:
        """Discard all plans and graphs; see `BaseNetwork.retrace`."""
        super().retrace()
        self._program_sets.clear()
        self._history = TraceHistory()

    def _step_options(self) -> StepOptions:
        return StepOptions(conversion=InputConversion(EAGER, FOREIGN, ARRAYS))

    def _check_ops(self, plan: ExecutionPlan) -> None:
        replicas = Replicas.of(plan.models)
        if replicas is not None:
            replicas.check(plan)


def _require_xla(options: CompileOptions | None) -> None:
    """Check that the options of a TensorFlow network are valid for XLA."""
    if options is None:
        return
    if options.backend not in (None, "xla"):
        raise ValueError(
            f"CompileOptions has backend={shorten(options.backend)}, but networks in TensorFlow "
            'accept only "xla".'
        )


def _trainable_or_unbuilt_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield trainable parameters, and layers that will make trainable variables, with names."""
    yield from named_trainable_parameters(value)
    layer = tf.keras.layers.Layer
    if isinstance(value, layer) and value.trainable and not value.built:
        cls = type(value)
        if cls.build is not layer.build and ".preprocessing." not in cls.__module__:
            yield "", value
        for inner in getattr(value, "layers", ()):
            yield from _trainable_or_unbuilt_in(inner)
