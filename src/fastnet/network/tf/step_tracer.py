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
from fastnet._trace import Parts, Slot, TensorKind, map_form
from fastnet.backend.tf._internals import xla_context
from fastnet.backend.tf.graph import (
    KIND,
    UNKNOWN,
    as_graph_code,
    forget_gradients,
    graph_code,
    source_of,
)
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.processes import is_of_several_workers
from fastnet.backend.tf.setup import prepare_optimizers
from fastnet.errors import add_note, describe_op
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.tf.input_signature import slots_of
from fastnet.network.tf.replicas import Replicas
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.types import Forward, State
from fastnet.util.warnings import warn

# A graph returns these as they are. The items of containers are looked at one by one.
_CONSTANTS = (str, bytes, bool, int, float, complex, type(None), list, tuple, MutableMapping)


def uses_optimizers(plan: ExecutionPlan, state: State) -> bool:
    """Return whether the steps of a session use the optimizers of its models."""
    return state["mode"] == "train" or plan.takes_gradients


class _NoTensor:
    """A class without instances, so that no value of a batch is mistaken for a tensor."""


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
    """Traces the ops of a plan into graphs, for batches of whatever signature.

    Args:
        plan: The plan.
        state: The state of a session; its constant entries are part of every graph.
        replicas: The replicas of a strategy, which all run in the graph; None for one device.

    Attributes:
        keys: The keys that ops read from the batch, in the order of a signature's forms.
        is_replicated: Whether a strategy runs the steps on several devices.
        has_workers: Whether it does so in several processes.
    """

    def __init__(self, plan: ExecutionPlan, state: State, replicas: Replicas | None) -> None:
        self.keys = sorted(plan.kernel.resolution.device_inputs.names())
        self.is_replicated = replicas is not None and replicas.count > 1
        self.has_workers = replicas is not None and is_of_several_workers(replicas.strategy)
        self._replicas = replicas
        self._ops = plan.ops
        self._user_ops = [
            op
            for op in with_inner_ops(plan.ops)
            if hasattr(op, "__dict__") and not type(op).__module__.startswith("fastnet.")
        ]
        self._models = plan.models
        self._takes_gradients = plan.takes_gradients
        self._kernel = plan.kernel_with(_in_graph)
        self._constant_state: dict[str, Any] = {
            key: state[key] for key in ("warmup", "mode", "req_grad")
        }
        self._constant_state["eager"] = False
        # Not the plan itself, which holds the program set that holds this.
        self._trained_models = plan.models if uses_optimizers(plan, state) else []

    def trace(self, forms: list[Any], for_xla: bool = False) -> TracedGraph:
        """Trace the ops for batches of certain forms.

        Args:
            forms: The form of the value of each key that ops read.
            for_xla: Whether XLA is to compile the graph. It also runs as it is.
        """
        prepare_optimizers(self._trained_models)
        outputs: dict[str, Any] = {}

        def run(epoch: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            waiting = iter(tensors)

            def put(part: Slot | Parts) -> Any:
                if isinstance(part, Slot):
                    return next(waiting)
                return KIND.join(part.kind, [next(waiting) for _ in part.slots])

            batch = dict(zip(self.keys, map_form(forms, put), strict=True))
            known = set(map(id, leaves_of(batch)))
            run_ops = partial(self._run_ops, epoch=epoch)
            replicas = self._replicas
            with xla_context() if for_xla else nullcontext():
                results = run_ops(batch) if replicas is None else replicas.run(run_ops, batch)
                return self._take_out(results, known, outputs)

        epoch = tf.TensorSpec((), tf.int32, name="epoch")
        specs = epoch, *_specs(self.keys, forms)
        before = [dict(vars(op)) for op in self._user_ops]
        concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        for op, attributes in zip(self._user_ops, before, strict=True):
            _warn_of_assigned_tensors(op, attributes)
        self._check_captures(concrete.graph)
        forget_gradients(concrete)
        return TracedGraph(concrete, tuple(concrete.outputs), forms, outputs)

    def _run_ops(self, batch: dict[str, Any], epoch: tf.Tensor) -> dict[str, Any]:
        state: State = {**self._constant_state, "epoch": epoch, "deferred": {}, "tape": None}
        # Turns AutoGraph on, which tf.function has turned off for everything inside. AutoGraph
        # warns of a compiled method that is called by itself, because it has no source.
        run: Callable[..., dict[str, Any]] = graph_code(methodcaller("run", batch, state))
        if not self._takes_gradients:
            return run(self._kernel)
        with tf.GradientTape(persistent=True) as tape:
            state["tape"] = tape
            return run(self._kernel)

    def _take_out(
        self, results: dict[str, Any], known: set[int], outputs: dict[str, Any]
    ) -> list[tf.Tensor]:
        """Return the tensors of results; raise for values that a graph cannot return."""
        found: list[tf.Tensor] = []
        strange: list[Any] = []

        def convert(value: Any) -> Any:
            tensor = KIND.convert(value)
            if tensor is not None:
                found.append(tensor)
            return tensor

        def split(value: Any) -> Any:
            parts = KIND.split(value)
            if parts is not None:
                found.extend(parts[1])
            else:
                strange.extend(_strangers(value, known))
            return parts

        readers = KIND.type_of_others, KIND.shape_of_others
        kind = TensorKind(_NoTensor, *readers, convert, split, KIND.join)
        graph = tf.compat.v1.get_default_graph()
        for key, value in results.items():
            writer = self._writer(key)
            if writer is None:
                continue  # Postprocessing will replace it.
            op, index = writer
            first = len(found)
            outputs[key] = kind.form_of(value)
            if strange:
                raise TypeError(
                    f"{describe_op(op, index)} writes '{key}', which is, or holds, a value of type "
                    f"{type(strange[0]).__name__}. A graph cannot make such a value anew in each "
                    "step. Return tensors, or open the network with eager=True."
                )
            with tf.name_scope(_scope(op, index)):
                # A tensor that an op holds may belong to another graph.
                found[first:] = [
                    one if getattr(one, "graph", None) is graph else tf.identity(one)
                    for one in found[first:]
                ]
        return found

    def _writer(self, key: str) -> tuple[Any, int] | None:
        for index, op in reversed(list(enumerate(self._ops))):
            if key in op.outputs:
                return op, index
        return None

    def _check_captures(self, graph: Any) -> None:
        """Refuse tensors that are left over from other graphs."""
        for outside, inside in graph.captures:
            if tf.is_symbolic_tensor(outside):
                users = [self.describe(user.name) for user in inside.consumers()]
                user = next((one for one in users if one), "An op")
                raise TypeError(
                    f"{user} uses the tensor '{outside.name}' of another graph: an op has kept it "
                    "from an earlier trace, or it is of a tf.function around the step. Let the "
                    "tensors of a step come from its batch, and keep what outlives it in a "
                    "tf.Variable."
                )

    def explain(self, error: BaseException, graph: Any) -> None:
        """Name the op in an error that was raised while a graph ran."""
        for node in re.findall(r"\{\{node ([^}]*)\}\}", str(error)):
            op = self.describe(node)
            if op:
                add_note(error, f"Raised by {op}.")
                line = source_of(graph, node)
                if line:
                    add_note(error, line)
                return

    def describe(self, node: str) -> str | None:
        """Describe the op, and the layer, that a node of a graph belongs to by its name scopes."""
        found = re.search(r"(?:^|[/_^])op(\d+)_\w*?/", node)
        if not found or int(found[1]) >= len(self._ops):
            return None
        text = describe_op(self._ops[int(found[1])], int(found[1]))
        layer = self._layer_in(node[found.end() :])
        if layer is not None:
            text = f"layer '{layer}' of {text}"
        return f"the gradient of {text}" if "gradient_tape/" in node[: found.start(1)] else text

    def _layer_in(self, scopes: str) -> str | None:
        """Return the name of the innermost layer among the scopes of a node, if there is one."""
        names = {layer.name for model in self._models for layer in all_layers(model)[1:]}
        for scope in reversed(scopes.split("/")):
            # The scopes of further calls of a layer are numbered.
            for name in (scope, re.sub(r"_\d+$", "", scope)):
                if name in names:
                    return name
        return None


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
    name = _scope(op, index)
    module = getattr(getattr(type(op), "forward", None), "__module__", None) or ""
    own = module.startswith("fastnet.") and not as_tensor_op(op).calls_user_code

    def run(data: Any, state: State) -> Any:
        with tf.name_scope(name):
            return as_graph_code(forward, convert=not own)(data, state)

    return run


def _scope(op: Any, index: int) -> str:
    return f"op{index}_{re.sub('[^A-Za-z0-9_]', '', type(op).__name__)}"


def _specs(keys: list[str], forms: list[Any]) -> list[tf.TensorSpec]:
    """Return the input specs of a graph, under names that errors show."""
    named = [
        (re.sub("[^A-Za-z0-9_]", "_", key), slot)
        for key, form in zip(keys, forms, strict=True)
        for slot in slots_of(form)
    ]
    return [
        tf.TensorSpec(_static(slot), tf.dtypes.as_dtype(slot.type), name=f"{name}_{number}")
        for number, (name, slot) in enumerate(named)
    ]


def _static(slot: Slot) -> list[int | None] | None:
    """Return the static shape of a slot."""
    if slot.shape is None:
        return None
    return [None if length == UNKNOWN else length for length in slot.shape]


def _strangers(value: Any, known: set[int]) -> list[Any]:
    """List the values that a graph cannot return, at any depth."""
    if isinstance(value, (set, frozenset)):
        return [one for member in value for one in _strangers(member, known)]
    container = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return [] if container or isinstance(value, _CONSTANTS) or id(value) in known else [value]
