"""Traces the ops of a plan into one graph, from the batch to the updated weights."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import fastnet
from fastnet._execute import UNDO, BoundPlan
from fastnet._nest import leaves_of
from fastnet._trace import map_form
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch._internals import (
    TorchDispatchMode,
    eager_recurrent_layers,
    enable_python_dispatcher,
    fake_mode,
    import_dynamo,
    module_hook_tables,
    no_dispatch,
    number_like,
    open_like,
    returns_nothing,
    storage_key,
    writes,
)
from fastnet.backend.torch.update import TRAINED
from fastnet.errors import describe_op
from fastnet.network.base import BaseNetwork
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.accumulation import Phase
from fastnet.network.torch.compiled.fake_tensors import RecordingDict, StepState
from fastnet.network.torch.compiled.guard import Guard, is_library_class
from fastnet.network.torch.compiled.input_signature import (
    BY_VALUE,
    KIND,
    KIND_OF_FAKES,
    require_plain,
    tensors_in,
)
from fastnet.network.torch.compiled.number_inputs import bind_numbers
from fastnet.network.torch.compiled.random_numbers import Sources, is_random, watched_process
from fastnet.network.torch.compiled.restoration import Restoration
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.lr_schedule import LRSchedule
from fastnet.types import Forward, State

_Saved = dict[int, tuple[torch.Tensor, torch.Tensor]]
TRACING = threading.RLock()
"""Held during a trace: fake tensors are in the places of parameters, where all threads see them."""

# The entries of the step's state that are the same in all steps of a plan, or used by each step.
_CONSTANT = frozenset({"mode", "warmup", "req_grad", "eager", "deferred", "tape", TRAINED, UNDO})
# These read values, or memory, of a tensor without a call of the dispatcher; two of them crash.
_READ_VALUES = {
    getattr(torch.Tensor, name)
    for name in ("__array__", "__dlpack__", "apply_", "data_ptr", "map_", "map2_", "numpy")
} | {torch.Tensor.tolist, torch.Tensor.storage_offset}
# These read the values of tensors in lists and tuples.
_READ_ITEMS = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
# The same for lists, but tuples are several indices.
_INDEX = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


class Capture:
    """The graph of a step.

    Attributes:
        graph: Takes the tensors of the `StepState`, the optimizers' numbers, the tensors in
            `others`, those of the batch, and merged gradients; returns the tensors of the outputs,
            and merged gradients.
        mode: The mode of its example inputs.
        examples: Fake tensors of the types and shapes that it takes.
        others: Tensors that ops hold themselves.
        outputs: The form of each key that ops write.
        guard: Tells whether the ops have changed.
        is_random: Whether the step draws random numbers.
        precision: The floating-point dtype of the lowest precision in the graph.
        followed: The ops whose `advance` is to be called after the updates.
        size: The size of axis 0 that is open, as a symbol; None if there is none.
    """

    graph: torch.fx.GraphModule
    mode: Any
    examples: list[torch.Tensor]
    others: list[torch.Tensor]
    outputs: dict[str, Any]
    guard: Guard
    is_random: bool
    precision: torch.dtype
    followed: list[Any]
    size: Any = None


def capture(
    plan: ExecutionPlan,
    step_state: State,
    make_autocast: Callable[[], AbstractContextManager[Any]] | None,
    keys: Sequence[str],
    values: Sequence[Any],
    state: StepState,
    phase: Phase | None = None,
    is_open: Sequence[bool] = (),
) -> Capture:
    """Trace the ops of a plan, and leave everything as it was."""
    if any(module_hook_tables()):
        raise Uncapturable("there are hooks around the passes of all modules")
    import_dynamo()  # During the trace it would replace `torch.manual_seed`, which is watched.
    tracer = _Tracer(plan, step_state, make_autocast, keys, values, state, phase, is_open)
    with TRACING:
        guard = Guard(plan, state.held)
        for path, _, is_used in guard.find(lambda cls: issubclass(cls, BaseNetwork)):
            if is_used:
                raise Uncapturable(f"an op runs another network, {path}")
        sources = Sources(guard)
        tensors = guard.tensors()
        with ExitStack() as stack:
            # In reverse: first objects, then the states of generators, then values of tensors.
            stack.callback(tracer.put_back)
            stack.callback(sources.put_back)
            restoration = Restoration(plan, step_state)
            stack.callback(restoration.restore)
            # Context variables that the ops set are those of a copy.
            found = copy_context().run(_trace_unchanged, tracer, any(is_open), guard, sources)
            restoration.require_unchanged_data()
            if state.has_other_optimizers():
                raise Uncapturable("running the ops changes the current optimizer of a model")
        found.guard = guard
        tracer.bind_others(found, tensors)
    return found


def _trace_unchanged(tracer: _Tracer, opened: bool, guard: Guard, sources: Sources) -> Capture:
    """Trace the ops; refuse them if they draw numbers outside of torch, or change other data."""
    with sources.watched():
        found = tracer.trace(opened)
    sources.check()
    change = guard.first_change()
    if change is not None:
        raise Uncapturable(f"running the ops changes {change}")
    return found


class _Tracer:
    """Traces the ops of a plan."""

    def __init__(
        self,
        plan: ExecutionPlan,
        step_state: State,
        make_autocast: Callable[[], AbstractContextManager[Any]] | None,
        keys: Sequence[str],
        values: Sequence[Any],
        state: StepState,
        phase: Phase | None,
        is_open: Sequence[bool],
    ) -> None:
        self._plan = plan
        self._make_autocast = make_autocast
        self._context = step_state
        self._state = state
        self._phase = phase
        self._is_open = list(is_open)
        self._keys = list(keys)
        self._values = list(values)
        self._saved: _Saved = {}
        self._running: int | None = None
        self._refused: Uncapturable | None = None
        self._recording = RecordingDict(step_state, self._refuse_entry)
        self._kernel = plan.kernel_with(self._wrap)
        for key, value in zip(keys, values, strict=True):
            reader = next((at for at, op in enumerate(plan.ops) if key in op.inputs), None)
            require_plain(key, value, state.device, reader)

    def _wrap(self, op: Any, index: int, forward: Forward) -> Forward:
        own = any(
            not is_library_class(type(one)) or "forward" in vars(one)
            for one in with_inner_ops([op])
        )

        def run(data: Any, state: dict[str, Any]) -> Any:
            self._running = index
            return forward(data, self._recording if own else state)

        return run

    def _refuse_entry(self, key: Any) -> None:
        """Refuse to read an entry of the step's state that may differ in another step."""
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if key in _CONSTANT or caller.partition(".")[0] in ("fastnet", "torch"):
            return
        what = "the epoch" if key in (None, "epoch") else f"'{key}' of the state of the step"
        assert self._running is not None
        op = self._plan.describe(self._running)
        error = Uncapturable(f"{op} reads {what}, which a program would not do again")
        self._keep_refusal(error)
        raise error

    def _keep_refusal(self, error: Exception) -> None:
        """Remember why the ops cannot be captured, because an op may catch the error."""
        if self._refused is None:
            if not isinstance(error, Uncapturable):
                error = Uncapturable(self._describe(error), self._running)
            self._refused = error

    def put_back(self) -> None:
        """Restore the values of the ops' own tensors that were written to."""
        with torch.no_grad():
            for tensor, values in self._saved.values():
                tensor.copy_(values)
        self._saved.clear()

    def trace(self, opened: bool) -> Capture:
        """Trace the ops, with the sizes open that are to be open."""
        mode = fake_mode(opened)
        self._running = None
        reals = self._state.tensors
        fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in reals]
        numbers = mode.from_tensor(self._state.new_numbers(), static_shapes=True)
        inputs: list[torch.Tensor] = []

        def put(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if opened and self._is_open[len(inputs)]:
                    inputs.append(open_like(mode, value))
                    found.size = _size_of(inputs[-1], found.size)
                else:
                    # one tensor in two places is two inputs, and so is a buffer of a model
                    inputs.append(mode.from_tensor(value.detach(), static_shapes=True))
                return inputs[-1]
            return value

        found = Capture()
        forms = [KIND.form_of(value) for value in self._values]
        tensors = iter([leaf for value in self._values for leaf in tensors_in(value)])
        batch = dict(zip(self._keys, map_form(forms, lambda slot: put(next(tensors))), strict=True))
        found.mode = mode
        merged: list[torch.Tensor] = []
        merging: Any = nullcontext(list)
        if self._phase is not None:
            merged = [mode.from_tensor(one, static_shapes=True) for one in self._phase.tensors()]
            merging = self._phase.with_fake_sums(self._state.by_id(fakes), merged)
        held = self._state.held
        symbols = [number_like(mode, one.read(), at) for at, one in enumerate(held)]
        taken = [*fakes, numbers, *inputs, *merged]

        # make_fx turns the cache off, but a weight is cast once a step.
        caches = torch.is_autocast_cache_enabled()

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            torch.set_autocast_cache_enabled(caches)
            refused = _RefusedFunctions(self._keep_refusal)
            with refused, _looking_on(self._saved), self._around():
                results = BoundPlan(self._kernel, self._context, self._make_autocast).run(batch)
            return [*self._take_out(results, batch, found, fakes), *left_merged()]

        memory = list(map(storage_key, fakes))
        state_before = dict(self._context)
        deferred = self._context.get("deferred")
        replaced = self._state.replaced(fakes, numbers, symbols)
        with replaced, merging as left_merged, _noted_followers(self._plan.ops) as found.followed:
            try:
                dispatcher, recurrent = enable_python_dispatcher(), eager_recurrent_layers()
                with watched_process() as random_state, mode, dispatcher, recurrent, _one_thread():
                    graph = make_fx(run, tracing_mode="real")(*taken, *symbols)
            except Uncapturable as error:
                if error.index is None:
                    error.index = self._running
                raise
            except Exception as error:
                raise Uncapturable(self._describe(error), self._running) from None
            finally:
                if isinstance(deferred, dict):
                    deferred.clear()
                left = [one for one in fakes if one.grad is not None]
                other = self._state.first_replaced(fakes)
                changed = self._state.changed_number(symbols)
                own = {**state_before, "deferred": deferred}
                written = {**self._context, "deferred": deferred} != own
                if written:
                    self._context.clear()
                    self._context.update(state_before)
        if self._refused is not None:
            raise self._refused
        if left:
            raise Uncapturable("gradients stay on parameters that no op of the step updates")
        if written or {**self._recording.base(), "deferred": deferred} != own:
            raise Uncapturable("an op writes to the state of the step")
        if changed is not None:
            raise Uncapturable(f"running the ops changes {changed.path}")
        bind_numbers(graph, held, symbols, [*graph.graph.nodes][len(fakes)], mode)
        if other is not None:
            raise Uncapturable(f"running the ops replaces the parameter or buffer '{other}'")
        if [one.requires_grad for one in fakes] != [one.requires_grad for one in reals]:
            raise Uncapturable("running the ops changes requires_grad of a parameter")
        if list(map(storage_key, fakes)) != memory:
            raise Uncapturable("running the ops gives a parameter or a buffer other memory")
        _require_results(graph)
        found.is_random = any(map(is_random, graph.graph.nodes))
        random_state.check(found.is_random)
        found.precision = _lowest_precision(graph)
        found.graph = graph
        found.examples = taken
        _require_once(found.followed, self._plan.ops, self._state.taken)
        return found

    @contextmanager
    def _around(self) -> Iterator[None]:
        if self._plan.takes_gradients:
            yield
        else:
            with torch.no_grad():
                yield

    def _take_out(
        self,
        results: Mapping[str, Any],
        batch: Mapping[str, Any],
        found: Capture,
        fakes: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Take the tensors out of what ops have written."""
        memory = {storage_key(one) for one in fakes}
        of_batch = {id(leaf) for value in batch.values() for leaf in leaves_of(value)}
        given: list[torch.Tensor] = []
        found.outputs = {}
        for key, value in results.items():
            place = next(
                (at for at, op in reversed([*enumerate(self._plan.ops)]) if key in op.outputs),
                None,
            )
            if place is None:
                continue  # postprocessing reads the batch's own
            op = self._plan.describe(place)
            for leaf in leaves_of(value, plain=True):
                if type(leaf) in BY_VALUE:
                    continue
                if not isinstance(leaf, torch.Tensor):
                    raise Uncapturable(
                        f"{op} writes '{key}', which is, or holds, a value of type "
                        f"{type(leaf).__name__}",
                        place,
                    )
                if id(leaf) in of_batch:
                    continue
                if not _is_fake(leaf):
                    raise Uncapturable(f"{op} writes '{key}', a tensor that it keeps", place)
                if storage_key(leaf) in memory:
                    raise Uncapturable(
                        f"{op} writes '{key}', which is a parameter or a buffer itself", place
                    )
            found.outputs[key] = KIND_OF_FAKES.form_of(value)
            given += [one.detach() if one.requires_grad else one for one in tensors_in(value)]
        return given

    def bind_others(self, found: Capture, known: Mapping[int, torch.Tensor]) -> None:
        """Make inputs of the tensors that ops hold themselves, if the guard compares them."""
        graph = found.graph
        found.others = []
        places: dict[int, Any] = {}
        memory = {one.untyped_storage().data_ptr() for one in self._state.tensors}
        last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
        for node in list(graph.graph.nodes):
            if node.op != "get_attr":
                continue
            tensor = getattr(graph, node.target)
            users = list(node.users)
            if all(user.target is torch.ops.aten.lift_fresh_copy.default for user in users):
                continue  # made anew of Python's numbers
            if id(tensor) not in known:
                raise Uncapturable("an op reads a tensor that cannot be compared in each step")
            kinds = torch.Tensor, torch.nn.Parameter, torch.nn.Buffer
            reached = self._state.device, torch.device("cpu")
            if type(tensor) not in kinds or tensor.device not in reached:
                raise Uncapturable(f"an op reads a {type(tensor).__name__} on {tensor.device}")
            if tensor.requires_grad:
                raise Uncapturable(
                    "an op reads a tensor that requires gradients, and is no model's"
                )
            if id(tensor) not in places:
                place = tensor.untyped_storage().data_ptr()
                if place in memory:
                    raise Uncapturable("a tensor that an op reads is in the memory of another one")
                memory.add(place)
                with graph.graph.inserting_after(last):
                    last = places[id(tensor)] = graph.graph.placeholder(f"held_{len(places)}")
                found.others.append(tensor)
                last.meta["val"] = found.mode.from_tensor(tensor, static_shapes=True)
                found.examples.append(last.meta["val"])
            node.replace_all_uses_with(places[id(tensor)])
            graph.graph.erase_node(node)
        _require_no_written_views(graph, [node.meta["val"] for node in places.values()])
        graph.recompile()

    def _describe(self, error: Exception) -> str:
        """Say where tracing has failed, and with what."""
        walked = list(traceback.walk_tb(error.__traceback__))
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if _is_own_file(frame.filename)
        ]
        where = "" if self._running is None else f"{self._plan.describe(self._running)} "
        line = (
            f"in line {frames[-1].lineno} of {frames[-1].filename.rpartition('/')[2]} "
            if frames
            else ""
        )
        first = str(error).strip().partition("\n")[0]
        name = type(error).__name__
        if _is_data_dependent(error) or "data_depend" in first:
            what = "looks at the values of tensors"
            if any(frame.f_code.co_name == "_detect_is_causal_mask" for frame, _ in walked):
                what += " of a mask; pass is_causal= to the nn.Transformer"
        else:
            what = f"could not be traced: {name}: {first}"
        return f"{where}{line}{what}" if where or line else f"the ops {what}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run backward passes in this thread, where the modes are active."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


@contextmanager
def _looking_on(saved: _Saved) -> Iterator[None]:
    """Refuse to make constants of tensors that have values, and save those that are written to."""
    base: Any = TorchDispatchMode

    class Looking(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            looks = torch.Tag.data_dependent_output in func.tags
            if looks or writes(func):
                for one in tensors_in([list(args), dict(kwargs or {})]):
                    if _is_fake(one):
                        continue
                    if looks:
                        raise Uncapturable(f"the values of a tensor are looked at, by {func}")
                    if id(one) not in saved:
                        # The operation writes to the real tensor, not only in the graph.
                        with no_dispatch():
                            saved[id(one)] = one, one.detach().clone()
            return func(*args, **(kwargs or {}))

    with Looking():
        yield


@contextmanager
def _noted_followers(ops: Sequence[Any]) -> Iterator[list[Any]]:
    """Note which ops would step schedulers or count updates in a trace, and let none do so."""
    noted: list[Any] = []
    with ExitStack() as stack:
        for op in ops:
            if isinstance(op, FollowsUpdates):
                own = vars(op)
                if "advance" in own:
                    stack.callback(own.__setitem__, "advance", own["advance"])
                else:
                    stack.callback(own.pop, "advance")
                own["advance"] = partial(noted.append, op)
        yield noted


def _require_once(noted: Sequence[Any], ops: Sequence[Any], taken: dict[int, int]) -> None:
    """Refuse ops that step a scheduler, or change a decay, between several updates of one step."""
    for op in noted:
        if op.is_scheduled and (
            taken.get(id(get_metadata(op.model, "current_optimizer")), 0) != 1
            or noted.count(op) > 1
        ):
            place = next(at for at, one in enumerate(ops) if one is op)
            what = "steps a scheduler" if isinstance(op, LRSchedule) else "changes its decay"
            raise Uncapturable(f"{describe_op(op, place)} {what} between several updates of a step")


def _size_of(tensor: torch.Tensor, before: Any) -> Any:
    """Return the open size of a tensor, the same as that of others before it."""
    size: Any
    size, *others = tensor.shape
    if not all(type(one) is int for one in (*others, *tensor.stride())):
        raise Uncapturable("the strides of the batch depend on its size")
    if before is not None and str(before) != str(size):
        raise Uncapturable("the batch has two sizes")
    return size


def _is_fake(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


class DataDependentError(RuntimeError):
    """Raised where an op reads the values of a tensor."""


class _RefusedFunctions(TorchFunctionMode):
    """Refuses functions that read values without a call of the dispatcher, or trace wrongly."""

    def __init__(self, keep_refusal: Callable[[Exception], None]) -> None:
        super().__init__()
        self._keep_refusal = keep_refusal

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            if _reads_values(func, args, kwargs):
                raise DataDependentError(func.__name__)
            if func is torch.nn.functional.multilabel_margin_loss:
                # Torch's decomposition also counts what a target has after its first -1.
                raise Uncapturable("torch decomposes multilabel_margin_loss to another function")
            return func(*args, **(kwargs or {}))
        except Exception as error:
            if isinstance(error, Uncapturable) or _is_data_dependent(error):
                self._keep_refusal(error)
            raise


def _reads_values(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Return whether a function reads values, or memory, without a call of the dispatcher."""
    if func in _READ_VALUES:
        return True
    if func is torch.Tensor.__repr__:
        return not _is_fake(args[0])
    if func in _READ_ITEMS:
        return any(map(_lists_tensors, [*args, *(kwargs or {}).values()]))
    if func in _INDEX:
        indices = args[1] if isinstance(args[1], tuple) else args[1:2]
        return any(map(_lists_tensors, [*indices, *args[2:]]))
    return False


def _lists_tensors(value: Any) -> bool:
    """Return whether a value is a list or tuple with tensors, also in lists and tuples inside."""
    return isinstance(value, (list, tuple)) and any(
        isinstance(item, torch.Tensor) or _lists_tensors(item) for item in value
    )


def _is_data_dependent(error: Exception) -> bool:
    name = type(error).__name__
    return "DataDependent" in name or "DynamicOutputShape" in name


def _require_no_written_views(graph: torch.fx.GraphModule, held: Sequence[torch.Tensor]) -> None:
    """Refuse results in the memory of tensors that ops hold and write to."""

    def memory_of(nodes: Iterable[torch.fx.Node]) -> set[Any]:
        values = [one for node in nodes for one in tensors_in([node.meta.get("val")])]
        return set(map(storage_key, values))

    writing = [node for node in graph.graph.nodes if writes(node.target)]
    written = memory_of(argument for node in writing for argument in node.all_input_nodes)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    if memory_of(output.all_input_nodes) & written & set(map(storage_key, held)):
        raise Uncapturable("an op returns a view of a tensor that it holds and writes to")


def _require_results(graph: torch.fx.GraphModule) -> None:
    """Refuse operations that neither return nor write anything, which would be removed."""
    for node in graph.graph.nodes:
        if returns_nothing(node.target) and not writes(node.target) and not node.is_impure():
            raise Uncapturable(f"an op calls {node.target}, which returns nothing")


def _lowest_precision(graph: torch.fx.GraphModule) -> torch.dtype:
    values = (node.meta.get("val") for node in graph.graph.nodes)
    dtypes = {one.dtype for one in values if isinstance(one, torch.Tensor)}
    floats = [one for one in dtypes if one.is_floating_point]
    return max(floats, key=lambda one: torch.finfo(one).eps, default=torch.float64)


def _is_own_file(path: str) -> bool:
    """Return whether a file is neither torch's nor fastnet's."""
    folders = (*map(os.path.dirname, (torch.__file__, fastnet.__file__)),)
    return not path.startswith(folders) and not path.endswith(".pyx")
