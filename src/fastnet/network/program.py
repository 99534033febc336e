"""The ops of one opening as TensorFlow graphs: what is traced, when, and why."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fastnet._trace import Parts, Slot, Trace, TracedStep
from fastnet.backend.convert import map_leaves
from fastnet.backend.tf.graph import KIND, as_graph_code, caller
from fastnet.backend.tf.models import all_layers
from fastnet.errors import add_note, describe_op
from fastnet.network.layout import Layout
from fastnet.network.replicas import Replicas
from fastnet.types import Forward, Model, State

__all__ = ["ModelStates", "Program", "TraceRecord"]

# what a graph can hand out as it was when it was traced
_CONSTANTS = (str, bytes, bool, int, float, complex, type(None))
# schedules that go round, between optimizers or frozen layers, need not trace anew each time
_MOST_STATES = 8
_MANY_TRACES = 8


@dataclass(frozen=True)
class TraceRecord:
    """That ops were traced, and why.

    Attributes:
        number: How many traces of the network there were, with this one.
        mode: The mode.
        epoch: The epoch.
        reason: Why what there was did not do.
        seconds: How long it took.
    """

    number: int
    mode: str
    epoch: int
    reason: str
    seconds: float


class ModelStates:
    """What a graph depends on, of the models in it, besides their weights.

    Args:
        models: The models.
        training: Whether their optimizers belong to it.
    """

    def __init__(self, models: list[Model], training: bool) -> None:
        self._models = models
        # the optimizers themselves: a number alone could come to stand for another one
        self.optimizers = tuple(
            getattr(model, "current_optimizer", None) if training else None for model in models
        )
        self._trainable = tuple(
            tuple([bool(layer.trainable) for layer in all_layers(model)]) for model in models
        )
        self.key: Hashable = (tuple(map(id, self.optimizers)), self._trainable)

    def difference(self, before: ModelStates) -> str:
        """Say what has changed.

        Args:
            before: How it was.

        Returns:
            The difference, in words.
        """
        changes = []
        for place, model in enumerate(self._models):
            name = getattr(model, "model_name", type(model).__name__)
            if self.optimizers[place] is not before.optimizers[place]:
                changes.append(f"the model '{name}' has another optimizer")
            now, then = self._trainable[place], before._trainable[place]
            if len(now) != len(then):
                changes.append(f"the model '{name}' has other layers")
            elif now != then:
                layers = all_layers(model)
                switched = [
                    f"'{layer.name}' {'thawed' if flag else 'frozen'}"
                    for layer, flag, old in zip(layers, now, then, strict=True)
                    if flag is not old
                ]
                shown = ", ".join(switched[:4]) + (", ..." if len(switched) > 4 else "")
                changes.append(f"layers of the model '{name}' were switched: {shown}")
        return " and ".join(changes)


class Program:
    """The ops of a layout, as graphs.

    Args:
        layout: The layout.
        state: The state of an opening, for what is the same in all of them.
        replicas: The devices that a step is spread over, or None.
        record: Told of each trace: its reason, and the seconds that it took.
    """

    def __init__(
        self,
        layout: Layout,
        state: State,
        replicas: Replicas | None,
        record: Callable[[str, float], None],
    ) -> None:
        self._ops = layout.ops
        self._takes_gradients = layout.takes_gradients
        self._keys = sorted(layout.plan.resolution.device_inputs.names())
        self._plan = layout.plan_with(_in_graph)
        self._constant_state = {
            key: state[key] for key in ("warmup", "mode", "req_grad", "eager") if key in state
        }
        self._replicas = replicas
        self._record = record
        self._steps: dict[Hashable, _Static] = {}
        self._last: ModelStates | None = None

    def step_for(self, states: ModelStates) -> TracedStep:
        """Find the step for the models as they are now.

        Args:
            states: How they are.

        Returns:
            The step, which traces where it must.
        """
        static = self._steps.get(states.key)
        if static is None:
            reason = f"first step in mode '{self._constant_state['mode']}'"
            if self._constant_state["warmup"]:
                reason += ", warming up"
            if self._last is not None:
                reason = states.difference(self._last) or reason
            while len(self._steps) >= _MOST_STATES:
                del self._steps[next(iter(self._steps))]
            static = self._steps[states.key] = _Static(self, states, reason)
        self._last = states
        return static.step

    def trace(self, forms: list[Any], outputs: dict[str, Any]) -> Any:
        """Trace the ops.

        Args:
            forms: The form of the value of each key that ops read from the batch.
            outputs: Filled with the form of the value of each key that comes back.

        Returns:
            A concrete function of the epoch and of all tensors of the forms.
        """
        tensors, composites = _flat(forms)
        specs = [
            tf.TensorSpec(slot.shape, tf.dtypes.as_dtype(slot.type), name=f"{name}_{number}")
            for number, (name, slot) in enumerate(_named(self._keys, forms))
        ]
        del tensors

        def run(epoch: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            waiting = iter(tensors)
            leaves = [
                next(waiting)
                if composite is None
                else KIND.join(composite.kind, [next(waiting) for _ in composite.slots])
                for composite in composites
            ]
            if self._replicas is None:
                return self._run_ops(epoch, leaves, forms, outputs)
            return self._replicas.run(
                lambda epoch, leaves: self._run_ops(epoch, leaves, forms, outputs), epoch, leaves
            )

        function = tf.function(run, autograph=False)
        return function.get_concrete_function(tf.TensorSpec((), tf.int32, name="epoch"), *specs)

    def _run_ops(
        self, epoch: tf.Tensor, leaves: list[Any], forms: list[Any], outputs: dict[str, Any]
    ) -> list[tf.Tensor]:
        waiting = iter(leaves)
        batch = {
            key: map_leaves(
                form, lambda part: next(waiting) if isinstance(part, (Slot, Parts)) else part
            )
            for key, form in zip(self._keys, forms, strict=True)
        }
        constants: set[int] = set()
        map_leaves(list(batch.values()), lambda part: constants.add(id(part)))
        state: State = {**self._constant_state, "epoch": epoch, "deferred": {}, "tape": None}
        if self._takes_gradients:
            with tf.GradientTape(persistent=True) as tape:
                state["tape"] = tape
                results = self._plan.predict(batch, state)
        else:
            results = self._plan.predict(batch, state)
        found: list[tf.Tensor] = []
        for key, value in results.items():
            outputs[key] = self._take_out(key, value, constants, found)
        return found

    def _take_out(self, key: str, value: Any, constants: set[int], found: list[tf.Tensor]) -> Any:
        """Take the tensors out of a result, and refuse what a graph cannot give."""

        def take(part: Any) -> Any:
            tensor = KIND.convert(part)
            if tensor is not None:
                # one that an op holds on to is not of this graph before this
                found.append(tf.identity(tensor) if type(tensor) is KIND.cls else tensor)
                return Slot()
            parts = KIND.split(part)
            if parts is not None:
                kind, tensors = parts
                found.extend(tensors)
                return Parts(kind, [Slot() for _ in tensors])
            if isinstance(part, _CONSTANTS) or id(part) in constants:
                return part
            raise self._not_for_graphs(key, part)

        return map_leaves(value, take)

    def _not_for_graphs(self, key: str, value: Any) -> TypeError:
        writer = next(
            (
                describe_op(op, place)
                for place, op in reversed(list(enumerate(self._ops)))
                if key in op.outputs
            ),
            "The network",
        )
        return TypeError(
            f"{writer} writes '{key}', which is, or holds, a value of type {type(value).__name__}. "
            "A graph cannot make such a value anew in each step. Return tensors, or open the "
            "network with eager=True."
        )

    def explain(self, error: BaseException) -> None:
        """Name the op in an error that was raised while a graph ran.

        Args:
            error: The error; ops are told from the scopes in its text.
        """
        found = re.search(r"\bop(\d+)_\w*/", str(error))
        if found and int(found[1]) < len(self._ops):
            place = int(found[1])
            add_note(error, f"Raised by {describe_op(self._ops[place], place)}.")


class _Static:
    """The traces of a program for one state of its models."""

    def __init__(self, program: Program, states: ModelStates, reason: str) -> None:
        self._program = program
        self._keep_alive = states.optimizers
        self._reason = reason
        self._exact = False
        self._count = 0
        self._latest: list[Any] | None = None
        self.step = TracedStep(program._keys, KIND, self._trace, context=("epoch",))

    def _trace(self, values: list[Any]) -> Trace:
        program = self._program
        started = time.perf_counter()
        exact = [KIND.form_of(value) for value in values]
        reason = self._reason
        if self._latest is not None:
            reason = _difference(program._keys, exact, self._latest)
        forms = exact if self._exact else self._widen(exact)
        outputs: dict[str, Any] = {}
        try:
            concrete = program.trace(forms, outputs)
        except Exception as error:
            if self._exact or _same_shapes(forms, exact):
                raise _offering_eager(error)
            # some code must know how large a batch is
            outputs = {}
            try:
                concrete = program.trace(exact, outputs)
            except Exception as second:
                raise _offering_eager(second) from None
            first_line = str(error).strip().partition("\n")[0]
            reason += (
                "; one trace for each batch size, because without it an op failed: "
                f"{type(error).__name__}: {first_line}"
            )
            self._exact = True
            forms = exact
        trace = Trace(_explained(caller(concrete), program), forms, outputs)
        self.step.traces = [one for one in self.step.traces if not _covers(forms, one.inputs)]
        self._latest = forms
        self._count += 1
        program._record(reason, time.perf_counter() - started)
        if self._count == _MANY_TRACES:
            warnings.warn(
                f"The ops of mode '{program._constant_state['mode']}' were traced {self._count} "
                f"times, lastly because {reason}. Each trace takes as long as many steps. "
                "network.traces tells of all of them.",
                stacklevel=2,
            )
        return trace

    def _widen(self, forms: list[Any]) -> list[Any]:
        """Leave open the first axis of each tensor, and every axis that has had other lengths."""
        opened = [_map_slots(form, _any_batch) for form in forms]
        for other in self.step.traces:
            if _alike(opened, other.inputs):
                lengths = iter([slot.shape for slot in _slots(other.inputs)])
                opened = [
                    _map_slots(form, lambda slot: _join(slot, next(lengths))) for form in opened
                ]
        return opened


def _in_graph(op: Any, place: int, forward: Forward) -> Forward:
    """Run an op's forward as code of a graph, under a name that errors and profiles show."""
    name = f"op{place}_{re.sub('[^A-Za-z0-9_]', '', type(op).__name__)}"
    module = getattr(forward, "__module__", None) or ""
    own = module.startswith("fastnet.") and not getattr(op, "calls_user_code", False)

    def run(data: Any, state: State) -> Any:
        convert = forward if own else as_graph_code(forward)
        with tf.name_scope(name):
            return convert(data, state)

    return run


def _explained(call: Callable[[list[Any]], Any], program: Program) -> Callable[[list[Any]], Any]:
    def run(tensors: list[Any]) -> Any:
        try:
            return call(tensors)
        except tf.errors.OpError as error:
            program.explain(error)
            raise

    return run


def _offering_eager(error: Exception) -> Exception:
    add_note(
        error,
        "This was while the ops were traced into a graph. To run them one by one, and look into "
        "each, open the network with eager=True.",
    )
    return error


# ---------------------------------------------------------------------- forms


def _flat(forms: list[Any]) -> tuple[list[Slot], list[Parts | None]]:
    """List what stands in forms, in order: None for a tensor, or a Parts."""
    found: list[Parts | None] = []

    def take(part: Any) -> Any:
        if isinstance(part, Slot):
            found.append(None)
        elif isinstance(part, Parts):
            found.append(part)
        return part

    map_leaves(forms, take)
    return _slots(forms), found


def _slots(forms: Any) -> list[Slot]:
    found: list[Slot] = []
    _map_slots(forms, lambda slot: found.append(slot) or slot)  # type: ignore[func-returns-value]
    return found


def _named(keys: list[str], forms: list[Any]) -> list[tuple[str, Slot]]:
    return [
        (re.sub("[^A-Za-z0-9_]", "_", key), slot)
        for key, form in zip(keys, forms, strict=True)
        for slot in _slots(form)
    ]


def _map_slots(form: Any, fn: Callable[[Slot], Slot]) -> Any:
    def apply(part: Any) -> Any:
        if isinstance(part, Slot):
            return fn(part)
        if isinstance(part, Parts):
            return Parts(part.kind, [fn(slot) for slot in part.slots])
        return part

    return map_leaves(form, apply)


def _any_batch(slot: Slot) -> Slot:
    return Slot(slot.type, (None, *slot.shape[1:])) if slot.shape else slot


def _join(slot: Slot, other: tuple[int | None, ...] | None) -> Slot:
    if slot.shape is None or other is None:
        return Slot(slot.type, None)
    return Slot(
        slot.type,
        tuple(a if a == b else None for a, b in zip(slot.shape, other, strict=True)),
    )


def _alike(forms: list[Any], others: list[Any]) -> bool:
    """Tell whether forms differ in nothing but the lengths of axes."""
    return _erased(forms) == _erased(others) and len(_slots(forms)) == len(_slots(others))


def _erased(forms: list[Any]) -> Any:
    def erase(part: Any) -> Any:
        if isinstance(part, Slot):
            return ("tensor", part.type, None if part.shape is None else len(part.shape))
        if isinstance(part, Parts):
            return ("parts", part.kind, [erase(slot) for slot in part.slots])
        return (type(part), part)

    return map_leaves(forms, erase)


def _same_shapes(forms: list[Any], others: list[Any]) -> bool:
    return [slot.shape for slot in _slots(forms)] == [slot.shape for slot in _slots(others)]


def _covers(forms: list[Any], others: list[Any]) -> bool:
    """Tell whether all that the other forms accept is accepted by the first ones too."""
    if not _alike(forms, others):
        return False
    return all(
        wide is None
        or (
            narrow is not None
            and all(a is None or a == b for a, b in zip(wide, narrow, strict=True))
        )
        for wide, narrow in zip(
            [slot.shape for slot in _slots(forms)],
            [slot.shape for slot in _slots(others)],
            strict=True,
        )
    )


def _difference(keys: list[str], forms: list[Any], before: list[Any]) -> str:
    """Say why a batch does not fit what was traced last."""
    for key, form, old in zip(keys, forms, before, strict=True):
        if isinstance(form, Slot) and isinstance(old, Slot):
            if form.type != old.type:
                return f"'{key}' is of type {_type(form)}, not {_type(old)} as before"
            if not _covers([old], [form]):
                return f"'{key}' has the shape {_shape(form)}, where {_shape(old)} was traced"
        elif not _alike([form], [old]):
            if type(form) is type(old) and isinstance(form, _CONSTANTS):
                return (
                    f"'{key}' is {form!r}, not {old!r} as before; a value that is no tensor is "
                    "part of the graph"
                )
            if type(form) is not type(old):
                return f"'{key}' is {_kind(form)}, not {_kind(old)} as before"
            return f"'{key}' holds something else than before"
        elif not _covers([old], [form]):
            return f"'{key}' holds tensors of other shapes than before"
    return "something in the batch is not as before"


def _type(slot: Slot) -> str:
    return str(tf.dtypes.as_dtype(slot.type).name)


def _shape(slot: Slot) -> str:
    if slot.shape is None:
        return "(?)"
    return f"({', '.join('any' if size is None else str(size) for size in slot.shape)})"


def _kind(form: Any) -> str:
    if isinstance(form, (Slot, Parts)):
        return "a tensor"
    return f"a value of type {type(form).__name__}"
