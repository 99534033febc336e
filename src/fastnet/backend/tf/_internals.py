"""Every name of TensorFlow that is not part of its public API, and what is done where it is gone.

The rest of fastnet takes from here what these names stand for; those of Keras are in
`_keras_internals.py`. None of them is needed: in a version of TensorFlow that has no such name, or
another thing under it, results are the same.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = [
    "COMPOSITES",
    "EAGER",
    "CollectiveKeys",
    "DirectCall",
    "Messages",
    "autograph_status",
    "deferred_captures",
    "direct_call",
    "graph_code",
    "is_composite",
    "is_recording",
    "launch_call",
    "look_up",
    "messages",
    "profiler_is_on",
    "recording",
    "registered_gradients",
    "shape_of_eager",
    "source_error",
    "trace",
    "type_of_eager",
    "unregister_gradients",
    "variable_spec",
]


def look_up(path: str, fits: Callable[[Any], bool]) -> Any:
    """Return the object that a private name stands for, or None where it is missing or unfit."""
    try:
        found = pkgutil.resolve_name(path)
        return found if fits(found) else None
    except Exception:  # `fits` may call the object, which can raise anything in another version
        return None


class _NoTensor:
    """A class without instances, so that no value passes for an eager tensor at first sight."""


def _is_kind_of_tensor(found: Any) -> bool:
    return issubclass(found, tf.Tensor)


EAGER: Any = look_up("tensorflow.__internal__.EagerTensor", _is_kind_of_tensor) or _NoTensor
"""The class of tensors that have values.

By one comparison the kernel knows a tensor of a batch, 0.015 microseconds sooner than others, and
`shape_of_eager` and `type_of_eager` are told where they may be called, which saves more. Without it
every tensor is asked. (The class of a tensor that is made here would do, but to make one starts
TensorFlow's runtime, after which a program cannot set up its devices any more.)
"""


def _type_of(tensor: tf.Tensor) -> int:
    number: int = tensor.dtype.as_datatype_enum
    return number


def _shape_of(tensor: tf.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


shape_of_eager: Callable[[tf.Tensor], tuple[int, ...]] = (
    look_up("tensorflow.__internal__.EagerTensor._shape_tuple", callable) or _shape_of
)
"""Reads the shape of an eager tensor: in a tenth of the time that a `TensorShape` takes."""

type_of_eager: Callable[[tf.Tensor], int] = (
    look_up("tensorflow.__internal__.EagerTensor._datatype_enum", callable) or _type_of
)
"""Reads the number of an eager tensor's type, for each input of a graph, without calling Python."""


_composite: Any = look_up("tensorflow.__internal__.CompositeTensor", inspect.isclass)

_known = tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, tf.experimental.ExtensionType

COMPOSITES: tuple[type, ...] = (_composite,) if _composite else (*_known, tf.data.Dataset)
"""The classes of values that TensorFlow makes of several tensors."""


def is_composite(value: Any) -> bool:
    """Return whether a value is one that TensorFlow makes of several tensors.

    Args:
        value: No container.
    """
    if _composite:
        return isinstance(value, _composite)
    if isinstance(value, COMPOSITES):
        return True
    # such as those of other packages, which derive from the class that cannot be had
    if tf.nest.is_nested(value):
        return False
    parts = tf.nest.flatten(value, expand_composites=True)
    return len(parts) != 1 or parts[0] is not value


def _takes_a_context(convert: Any) -> bool:
    inspect.signature(convert).bind(len, None)
    return True


def _gives_a_context(find: Any) -> bool:
    return hasattr(find(), "__enter__")


_convert: Any = look_up("tensorflow.__internal__.autograph.tf_convert", _takes_a_context)
_status: Any = look_up("tensorflow.__internal__.autograph.control_status_ctx", _gives_a_context)
_knows_autograph = _convert is not None and _status is not None


def autograph_status() -> AbstractContextManager[Any]:
    """Return whether AutoGraph is on.

    Returns:
        A context in which it is as it is now. Where that cannot be told it changes nothing, and
        `trace` does not turn it off.
    """
    status: AbstractContextManager[Any] = _status() if _knows_autograph else nullcontext()
    return status


def graph_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph turn a function's conditions and loops over tensors into those of a graph.

    Args:
        function: The function. What AutoGraph cannot read runs as it is.
    """
    if _knows_autograph:
        converted: Callable[..., Any] = _convert(function, _status())
        return converted
    if isinstance(function, partial):
        return partial(graph_code(function.func), *function.args, **function.keywords)
    if isinstance(function, types.MethodType):
        return partial(_converted(function), function.__self__)
    return _converted(function) if isinstance(function, types.FunctionType) else function


def _converted(function: Any) -> Callable[..., Any]:
    try:
        converted: Callable[..., Any] = tf.autograph.to_graph(function)
    except Exception:  # a function of another kind, or without a source
        return getattr(function, "__func__", function)  # type: ignore[no-any-return]
    return converted


def trace(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Make a graph of a function.

    AutoGraph does not convert it, but what `graph_code` has been given.

    Args:
        function: Takes and returns tensors.
        specs: What it will be given.

    Returns:
        The concrete function.

    Raises:
        Exception: Whatever `function` raises.
    """
    if _knows_autograph:
        return tf.function(function, autograph=False).get_concrete_function(*specs)
    raised: list[BaseException] = []

    def run(*args: tf.Tensor) -> Any:
        try:
            return function(*args)
        except BaseException as error:
            raised.append(error)
            raise

    # a function that AutoGraph is told to leave alone turns it off for all that it calls, and one
    # that it converts does not: so it converts this, and does not get through what C calls
    call: Any = methodcaller

    def enter(*args):  # type: ignore[no-untyped-def]
        return call("__call__", *args)(run)

    try:
        return tf.function(enter).get_concrete_function(*specs)
    except Exception:
        if raised:
            raise raised[0] from raised[0].__cause__
        raise


def source_error(
    error: Exception,
) -> tuple[Exception, list[tuple[str, int, str]], list[str]] | None:
    """Find the error that AutoGraph has wrapped in another one.

    Args:
        error: The error.

    Returns:
        The one inside, the lines that it came by as file, number and function, from the innermost
        on, and what layers of Keras 2 around it have said. None if AutoGraph has wrapped none, or
        in a way that is not known here, so that the error is raised as it is.
    """
    layers = []
    wrapper: Any = error
    while str(wrapper).startswith("Exception encountered when calling"):
        # the layers of Keras 2 call AutoGraph too, and wrap what it has wrapped
        layers.append(str(wrapper).partition("\n")[0])
        wrapper = wrapper.__context__
    source: Any = getattr(wrapper, "__context__", None)
    origin = getattr(source, "ag_error_metadata", None)
    stack = getattr(origin, "translated_stack", None)
    if not str(wrapper).startswith("in user code:") or stack is None:
        return None
    return source, [(one.filename, one.lineno, one.function_name) for one in stack], layers


_registry: Any = look_up(
    "tensorflow.python.framework.ops.gradient_registry._registry",
    lambda found: callable(found.pop),
)
_TYPE = "_gradient_op_type"


def registered_gradients(graph: Any) -> list[str]:
    """Name the gradients that were registered while a graph was traced.

    TensorFlow keeps for good what `tf.custom_gradient` registers, and with it the graph. Every
    optimizer of Keras does so, for the sum of the gradients of all devices. Where they cannot be
    told, a program that traces on and on grows.

    Args:
        graph: The graph.
    """
    if _registry is None:
        return []
    return [
        operation.get_attr(_TYPE).decode()
        for operation in graph.get_operations()
        if operation.type == "IdentityN" and _TYPE in operation.node_def.attr
    ]


def unregister_gradients(names: Sequence[str]) -> None:
    """Let TensorFlow forget gradients.

    Args:
        names: What `registered_gradients` has returned, of a graph that runs no more.
    """
    for name in names:
        _registry.pop(name, None)


def _calls_functions(find: Any) -> bool:
    inspect.signature(find().call_function).bind(b"name", [], 1)
    return isinstance(find().executing_eagerly(), bool)


def _tells(function: Any) -> bool:
    return isinstance(function(), bool)


_find_context: Any = look_up("tensorflow.python.eager.context.context", _calls_functions)
_could_record: Any = look_up("tensorflow.python.eager.record.could_possibly_record", _tells)


class DirectCall(NamedTuple):
    """What calling a concrete function amounts to, once its arguments are bound to names.

    Attributes:
        function: Takes the function's name, the tensors as a list, and how many there are of
            results; returns a sequence of tensors, or nothing.
        name: The name.
        captured: The tensors to give after those of the step.
        results: How many results there are.
        could_record: Tells whether a tape of the program's own is to know of the step.
        executing_eagerly: Tells whether it is part of no graph of the program's own.
    """

    function: Callable[[bytes, list[tf.Tensor], int], Any]
    name: bytes
    captured: list[tf.Tensor]
    results: int
    could_record: Callable[[], bool]
    executing_eagerly: Callable[[], bool]


def recording() -> tuple[Callable[[], bool], Callable[[], bool]] | None:
    """Return what tells whether something of the program's own is to know of a step.

    Returns:
        What tells whether a tape may be, and what tells that no graph is; None where only the
        latter can be told.
    """
    if _find_context is None or _could_record is None:
        return None
    return _could_record, _find_context().executing_eagerly


def direct_call(concrete: Any) -> DirectCall | None:
    """Find the shortest way to call a concrete function.

    Saves the binding of arguments in each step of a graph. Without it the function is called.

    Args:
        concrete: A concrete function of flat tensors, which returns a list of tensors.

    Returns:
        The way, or None. A tape or a graph around the step learns of it by a public call only.
    """
    asked = recording()
    if asked is None:
        return None
    try:
        deferred = concrete.graph.deferred_external_captures
        name, captured, outputs = concrete.name, list(concrete.captured_inputs), concrete.outputs
    except AttributeError:
        return None
    steady = not deferred and all(type(one) is EAGER for one in captured)
    handles = any(output.dtype in (tf.resource, tf.variant) for output in outputs)
    if not steady or handles or not isinstance(name, bytes):
        return None
    call = _find_context().call_function
    return DirectCall(call, name, captured, len(outputs), *asked)


def deferred_captures(graph: Any) -> list[tuple[Callable[[], tf.Tensor], tf.Tensor]]:
    """Return what a graph takes that is only found when it is called.

    The devices of a strategy number by it what they say to each other.

    Args:
        graph: The graph of a concrete function.

    Returns:
        What is called for each value, and what stands for that in the graph. Where it cannot be
        told there is nothing, and steps that have it are not compiled.
    """
    calls = getattr(graph, "deferred_external_captures", None) or ()
    inside = getattr(graph, "deferred_internal_captures", None) or ()
    if len(calls) != len(inside) or not all(map(tf.is_tensor, inside)):
        return []
    return [(partial(_only_tensor, call), one) for call, one in zip(calls, inside, strict=True)]


def _only_tensor(call: Callable[[], Any]) -> tf.Tensor:
    (found,) = tf.nest.flatten(call())
    return tf.convert_to_tensor(found)


def _executes(function: Any) -> bool:
    inspect.signature(function).bind("XlaLaunch", 1, [], (), None)
    return True


_execute: Any = look_up("tensorflow.python.eager.execute.quick_execute", _executes)


def _is_on(find: Any) -> bool:
    return find() is True


_wraps_ops: Any = look_up(
    "tensorflow.python.eager.context.run_eager_op_as_function_enabled", _is_on
)
_set_wrapping: Any = look_up(
    "tensorflow.python.pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction", callable
)


def _has_a_size(registry: Any) -> bool:
    return isinstance(registry.size(), int)


# what graphs call of Python, in threads of TensorFlow
_python_functions: Any = look_up("tensorflow.python.ops.script_ops._py_funcs", _has_a_size)


def _is_alone() -> bool:
    """Return whether no other thread may run an operation of TensorFlow, now or soon."""
    return len(sys._current_frames()) == 1 and not _python_functions.size()


def launch_call(
    concrete: Any, skipped: int = 0
) -> Callable[[list[tf.Tensor]], list[tf.Tensor]] | None:
    """Find the shortest way to call a function that XLA compiles.

    Saves what TensorFlow does to find out, in each call, that a function is to be compiled, and to
    run an operation as a function of its own: near half of the time of a small step. Without it the
    function is called.

    Args:
        concrete: A concrete function of flat tensors, which returns a list of tensors, made with
            `jit_compile`.
        skipped: How many tensors are given before those that it takes.

    Returns:
        The way, which raises what the compiler raises; None if there is none.
    """
    direct = direct_call(concrete)
    if direct is None or _execute is None:
        return None
    # the values come first, then the variables
    handles = [one.dtype == tf.resource for one in concrete.inputs]
    first = handles.index(True) if True in handles else len(handles)
    if not all(handles[first:]) or len(handles) == first == 0:
        return None
    attributes: tuple[Any, ...] = (
        *("Tconstants", []),
        *("Targs", [one.dtype.as_datatype_enum for one in concrete.inputs[:first]]),
        *("Nresources", len(handles) - first),
        *("Tresults", [one.dtype.as_datatype_enum for one in concrete.outputs]),
        *("function", direct.name),
    )
    execute, context = _execute, _find_context()
    captured, count = direct.captured, direct.results
    handle = getattr(context, "_handle", None)
    names = (_wraps_ops, _set_wrapping, _python_functions, handle)
    can_set, set_wrapping = None not in names, _set_wrapping

    def run(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        results: list[tf.Tensor] = execute(
            "XlaLaunch", count, tensors[skipped:] + captured, attributes, context
        )
        return results

    def launch(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        # those of other threads would fail
        if not _is_alone():
            return run(tensors)
        # to run an operation TensorFlow makes a function of it and runs that, which takes a fifth
        # of the time of a small step
        set_wrapping(handle, False)
        try:
            return run(tensors)
        finally:
            set_wrapping(handle, True)

    return launch if can_set else run


def variable_spec(handle: tf.Tensor) -> tf.TensorSpec | None:
    """Tell what a variable holds, of which there is the handle alone.

    The optimizers of older Keras hand such handles to TensorFlow. Where it cannot be told, steps
    that have them are not compiled.

    Args:
        handle: The handle of a resource.

    Returns:
        The type and the shape; None of what is no variable.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not getattr(data, "is_set", False) or len(data.shape_and_type) != 1:
        return None
    (found,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(found.shape), tf.dtypes.as_dtype(found.dtype))


def is_recording(tape: tf.GradientTape | None) -> bool | None:
    """Return whether a tape records now.

    Saves the context manager that finds out by trying, in each step that takes gradients.

    Args:
        tape: The tape, or None.

    Returns:
        Whether it does; None where that cannot be told.
    """
    if tape is None:
        return False
    found = getattr(tape, "_recording", None)
    return found if isinstance(found, bool) else None


def _has_a_switch(module: Any) -> bool:
    return isinstance(module.enabled() if callable(module.enabled) else module.enabled, bool)


_trace_events: Any = look_up("tensorflow.python.profiler.trace", _has_a_switch)


def profiler_is_on() -> bool:
    """Return whether TensorFlow's profiler is on.

    Saves the ranges around ops in steps that are measured while it is not. Where it cannot be told
    they are always there, which only costs time.
    """
    if _trace_events is None:
        return True
    # a variable in older releases, a function in newer ones
    enabled = _trace_events.enabled
    return bool(enabled() if callable(enabled) else enabled)


# --- several workers ------------------------------------------------------------------------------


def _carries_words(find: Any) -> bool:
    context = find()
    inspect.signature(context.set_config_key_value).bind("key", "text")
    inspect.signature(context.get_config_key_value).bind("key", 1)
    inspect.signature(context.abort_collective_ops).bind(1, "text")
    inspect.signature(context.check_collective_ops_peer_health).bind("task", 1)
    return hasattr(context, "coordination_service")


_find_messenger: Any = look_up("tensorflow.python.eager.context.context", _carries_words)


class Messages:
    """Short texts between workers, by the service that TensorFlow coordinates them by.

    They take no part in collectives: one that hangs does not hold them up, and can be broken off.

    Args:
        context: TensorFlow's context.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def put(self, key: str, text: str) -> None:
        """Leave a text for all workers.

        Args:
            key: What it is found under; used once.
            text: The text.
        """
        self._context.set_config_key_value(key, text)

    def get(self, key: str, seconds: float) -> str | None:
        """Wait for a text.

        Args:
            key: What it is found under.
            seconds: How long.

        Returns:
            The text; None if there was none by then.

        Raises:
            OpError: If the service is gone: it is the first worker's.
        """
        try:
            return str(self._context.get_config_key_value(key, max(1, int(1000 * seconds))))
        except tf.errors.DeadlineExceededError:
            return None

    def abort(self, text: str) -> None:
        """Break off the collectives of this process; there will be none any more.

        Args:
            text: Why.
        """
        self._context.abort_collective_ops(tf.errors.ABORTED, text)

    def answers(self, task: str, seconds: float) -> bool:
        """Return whether a worker is there.

        Args:
            task: Its name, such as "/job:worker/replica:0/task:1".
            seconds: How long to wait for the answer.
        """
        try:
            self._context.check_collective_ops_peer_health(task, max(1, int(1000 * seconds)))
        except tf.errors.OpError:
            return False
        return True


def messages() -> Messages | None:
    """Return what brings texts to other workers, None without it.

    Without it workers are brought together by collectives, and one that fails is heard of when its
    process ends, or a collective has waited for as long as its strategy was told to.
    """
    if _find_messenger is None:
        return None
    context = _find_messenger()
    return None if context.coordination_service is None else Messages(context)


class CollectiveKeys:
    """The numbers by which workers know which of their collectives belong together.

    TensorFlow counts them up as graphs are traced, so that a worker which traces once more than the
    others (its batch has another size) would wait for them under numbers that they have not. Where
    they cannot be had, all workers have to trace alike.

    Args:
        strategy: The strategy of several workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        keys = getattr(strategy.extended, "_collective_keys", None)
        table: Any = getattr(keys, "_instance_key_table", None)
        known = isinstance(table, dict) and all(isinstance(one, dict) for one in table.values())
        self._table: dict[Any, dict[Any, int]] = table if known else {}

    def now(self) -> dict[Any, dict[Any, int]]:
        """Return the numbers that come next."""
        return {group: dict(numbers) for group, numbers in self._table.items()}

    def go_on_from(self, numbers: dict[Any, dict[Any, int]], least: bool = False) -> None:
        """Let other numbers come next.

        Args:
            numbers: What `now` has returned.
            least: Whether those that are beyond them already stay as they are.
        """
        for group, wanted in numbers.items():
            own = self._table[group]
            own.update(
                {key: max(own[key], number) if least else number for key, number in wanted.items()}
            )
