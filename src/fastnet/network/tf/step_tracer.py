"""Traces the ops of a plan into TensorFlow graphs of flat tensors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from functools import partial
from operator import methodcaller
from typing import Any

import tensorflow as tf

from fastnet._nest import leaves_of
from fastnet._trace import CompositeSpec, TensorAdapter, TensorSpec, map_form
from fastnet.backend.tf._internals import xla_context
from fastnet.backend.tf.autograph import with_autograph, with_source_errors
from fastnet.backend.tf.graph import forget_gradients
from fastnet.backend.tf.setup import prepare_optimizers
from fastnet.backend.tf.tensor_adapter import TENSOR_ADAPTER, UNKNOWN
from fastnet.errors import describe_op
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.tf.forms import specs_of
from fastnet.network.tf.node_names import NodeNames, scope_of
from fastnet.network.tf.replicas import Replicas
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.types import Forward, State
from fastnet.util.warnings import warn

# A graph returns these as they are. The items of containers are looked at one by one.
_CONSTANTS = (str, bytes, bool, int, float, complex, type(None), list, tuple, MutableMapping)


class _NeverMatches:
    """A class without instances, so that every tensor of an output is converted."""


@dataclasses.dataclass(frozen=True)
class TracedGraph:
    """The ops of a plan as a graph.

    Attributes:
        concrete: The concrete function, from the epoch and the tensors of a batch to the tensors
            of the outputs.
        results: The tensors of the outputs in the graph. Under a tape, TensorFlow adds others to
            the function's own list.
        inputs: The form of the value of each key that ops read.
        outputs: The form of each output.
    """

    concrete: Any
    results: tuple[tf.Tensor, ...]
    inputs: list[Any]
    outputs: dict[str, Any]


class StepTracer:
    """Traces the ops of a plan into graphs, for batches of any signature.

    Args:
        plan: The plan.
        state: The state of a session; its constant entries are part of every graph.
        replicas: The replicas of a strategy, which all run in the graph; None for one device.
        names: Names the ops of nodes in errors.

    Attributes:
        keys: The keys that ops read from the batch, in the order of a signature's forms.
    """

    def __init__(
        self, plan: ExecutionPlan, state: State, replicas: Replicas | None, names: NodeNames
    ) -> None:
        self.keys = sorted(plan.kernel.resolution.device_inputs.names())
        self._replicas = replicas
        self._names = names
        self._ops = plan.ops
        self._user_ops = [
            op
            for op in with_inner_ops(plan.ops)
            if hasattr(op, "__dict__") and not type(op).__module__.startswith("fastnet.")
        ]
        self._takes_gradients = plan.takes_gradients
        self._kernel = plan.kernel_with(_in_graph)
        self._constant_state: dict[str, Any] = {
            key: state[key] for key in ("warmup", "mode", "req_grad")
        }
        self._constant_state["eager"] = False
        # Not the plan itself, which holds the program set that holds this.
        self._trained_models = plan.models if plan.uses_optimizers(state["mode"]) else []

    def trace(self, forms: list[Any], for_xla: bool = False) -> TracedGraph:
        """Trace the ops for batches of certain forms.

        Args:
            forms: The form of the value of each key that ops read.
            for_xla: Whether XLA is to compile the graph. It also runs as it is.
        """
        prepare_optimizers(self._trained_models)
        output_forms: dict[str, Any] = {}

        def run(epoch: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            batch = self._make_batch(forms, tensors)
            batch_value_ids = set(map(id, leaves_of(batch)))
            run_ops = partial(self._run_ops, epoch=epoch)
            replicas = self._replicas
            with xla_context() if for_xla else nullcontext():
                results = run_ops(batch) if replicas is None else replicas.run(run_ops, batch)
                return self._flatten_outputs(results, batch_value_ids, output_forms)

        epoch = tf.TensorSpec((), tf.int32, name="epoch")
        input_specs = epoch, *_input_specs(self.keys, forms)
        attributes_before = [dict(vars(op)) for op in self._user_ops]
        concrete = tf.function(run, autograph=False).get_concrete_function(*input_specs)
        for op, before in zip(self._user_ops, attributes_before, strict=True):
            _warn_of_assigned_tensors(op, before)
        forget_gradients(concrete)
        self._check_captures(concrete.graph)
        return TracedGraph(concrete, tuple(concrete.outputs), forms, output_forms)

    def _make_batch(self, forms: list[Any], tensors: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Return a batch of some forms with the inputs of a graph as its tensors."""
        remaining = iter(tensors)

        def fill(part: TensorSpec | CompositeSpec) -> Any:
            if isinstance(part, TensorSpec):
                return next(remaining)
            return TENSOR_ADAPTER.pack(part.kind, [next(remaining) for _ in part.specs])

        return dict(zip(self.keys, map_form(forms, fill), strict=True))

    def _run_ops(self, batch: dict[str, Any], epoch: tf.Tensor) -> dict[str, Any]:
        state: State = {**self._constant_state, "epoch": epoch, "deferred": {}, "tape": None}
        # Turns AutoGraph on, which tf.function has turned off for everything inside. AutoGraph
        # warns of a compiled method that is called by itself, because it has no source.
        run: Callable[..., dict[str, Any]] = with_autograph(methodcaller("run", batch, state))
        if not self._takes_gradients:
            return run(self._kernel)
        with tf.GradientTape(persistent=True) as tape:
            state["tape"] = tape
            return run(self._kernel)

    def _flatten_outputs(
        self, results: dict[str, Any], batch_value_ids: set[int], forms: dict[str, Any]
    ) -> list[tf.Tensor]:
        """Return the tensors of results, and write the form of each output into `forms`.

        Raises:
            TypeError: For values that a graph cannot return.
        """
        tensors: list[tf.Tensor] = []
        unsupported: list[Any] = []

        def convert(value: Any) -> Any:
            tensor = TENSOR_ADAPTER.convert(value)
            if tensor is not None:
                tensors.append(tensor)
            return tensor

        def flatten(value: Any) -> Any:
            kind_and_tensors = TENSOR_ADAPTER.flatten(value)
            if kind_and_tensors is not None:
                tensors.extend(kind_and_tensors[1])
            else:
                unsupported.extend(_unsupported_in(value, batch_value_ids))
            return kind_and_tensors

        adapter = TensorAdapter(
            _NeverMatches,
            TENSOR_ADAPTER.type_of_others,
            TENSOR_ADAPTER.shape_of_others,
            convert,
            flatten,
            TENSOR_ADAPTER.pack,
        )
        graph = tf.compat.v1.get_default_graph()
        for key, value in results.items():
            writer = self._writer(key)
            if writer is None:
                continue  # A value of the batch, which postprocessing will replace.
            op, index = writer
            first = len(tensors)
            forms[key] = adapter.form_of(value)
            if unsupported:
                raise TypeError(
                    f"{describe_op(op, index)} writes '{key}', which is, or holds, a value of type "
                    f"{type(unsupported[0]).__name__}. A graph cannot make such a value in "
                    "each step. Return tensors, or open the network with eager=True."
                )
            with tf.name_scope(scope_of(op, index)):
                # A tensor that an op holds may belong to another graph.
                tensors[first:] = [
                    tensor if getattr(tensor, "graph", None) is graph else tf.identity(tensor)
                    for tensor in tensors[first:]
                ]
        return tensors

    def _writer(self, key: str) -> tuple[Any, int] | None:
        """Return the last op that writes a key, and its index."""
        for index, op in reversed(list(enumerate(self._ops))):
            if key in op.outputs:
                return op, index
        return None

    def _check_captures(self, graph: Any) -> None:
        """Refuse tensors that are left over from other graphs."""
        for outside, inside in graph.captures:
            if tf.is_symbolic_tensor(outside):
                users = [self._names.describe(user.name) for user in inside.consumers()]
                user = next(filter(None, users), "An op")
                raise TypeError(
                    f"{user} uses the tensor '{outside.name}' of another graph: an op has kept it "
                    "from an earlier trace, or it is of a tf.function around the step. Let the "
                    "tensors of a step come from its batch, and keep what outlives it in a "
                    "tf.Variable."
                )


def _warn_of_assigned_tensors(op: Any, before: Mapping[str, Any]) -> None:
    """Warn of tensors that an op has assigned to itself while it was traced."""
    for name, value in vars(op).items():
        if isinstance(value, tf.Tensor) and before.get(name, value) is not value:
            warn(
                f"{describe_op(op)} assigned its attribute '{name}' while it was traced into a "
                "graph. Python code in an op runs only then: later steps do not assign it. Keep "
                "what changes from step to step in a tf.Variable, and change it by `assign`; or "
                "enter the network with eager=True."
            )


def _in_graph(op: Any, index: int, forward: Forward) -> Forward:
    """Run an op's forward as code of a graph, under a name that errors and profiles show."""
    name = scope_of(op, index)
    module = getattr(getattr(type(op), "forward", None), "__module__", None) or ""
    is_of_fastnet = module.startswith("fastnet.") and not as_tensor_op(op).calls_user_code

    def run(data: Any, state: State) -> Any:
        with tf.name_scope(name):
            return with_source_errors(forward, convert=not is_of_fastnet)(data, state)

    return run


def _input_specs(keys: list[str], forms: list[Any]) -> list[tf.TensorSpec]:
    """Return the input specs of a graph, under names that errors show."""
    named = [
        (re.sub("[^A-Za-z0-9_]", "_", key), spec)
        for key, form in zip(keys, forms, strict=True)
        for spec in specs_of(form)
    ]
    return [
        tf.TensorSpec(_static_shape(spec), tf.dtypes.as_dtype(spec.type), name=f"{name}_{number}")
        for number, (name, spec) in enumerate(named)
    ]


def _static_shape(spec: TensorSpec) -> list[int | None] | None:
    if spec.shape is None:
        return None
    return [None if length == UNKNOWN else length for length in spec.shape]


def _unsupported_in(value: Any, batch_value_ids: set[int]) -> list[Any]:
    """List the values in an output that a graph cannot return, at any depth of sets."""
    if isinstance(value, (set, frozenset)):
        return [
            unsupported
            for member in value
            for unsupported in _unsupported_in(member, batch_value_ids)
        ]
    is_container = dataclasses.is_dataclass(value) and not isinstance(value, type)
    is_supported = is_container or isinstance(value, _CONSTANTS) or id(value) in batch_value_ids
    return [] if is_supported else [value]
