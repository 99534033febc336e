"""Captures a step: traces the ops of a plan into one graph, from the batch to the updated weights.

The sections below:

1. inputs: fake tensors for all that the step reads;
2. trace: runs the ops once with them, and records their operations;
3. outputs, read at the end of the trace: the forms and the tensors of what the ops have written,
   which the graph returns;
4. checks of what the trace has changed and of the graph, which refuse what a graph would leave out
   or repeat wrongly;
5. bind: makes inputs of numbers and tensors that ops hold.

Checks of the graph run while it is bound: after its numbers, and after the tensors that ops hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fastnet._execute import BoundPlan, KernelPlan
from fastnet._nest import leaves_of
from fastnet._trace import map_form
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch._internals import (
    eager_recurrent_layers,
    enable_python_dispatcher,
    fake_mode,
    global_module_hook_tables,
    import_dynamo,
    length_symbol,
    number_symbol,
    returns_nothing,
    storage_key,
    writes,
)
from fastnet.backend.torch.collectives import traced_collectives
from fastnet.errors import describe_op
from fastnet.network.base import BaseNetwork
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.captured import TRACING, Capture, CaptureRequest, InputLayout
from fastnet.network.torch.compiled.guard import Guard, is_library_class
from fastnet.network.torch.compiled.input_signature import (
    BY_VALUE,
    FAKE_TENSOR_ADAPTER,
    TENSOR_ADAPTER,
    contiguous_strides,
    require_plain,
    tensors_in,
)
from fastnet.network.torch.compiled.number_inputs import OpNumber, bind_numbers
from fastnet.network.torch.compiled.open_lengths import Axis, TracedLength
from fastnet.network.torch.compiled.random_numbers import (
    RandomState,
    Sources,
    is_random,
    watched_process,
)
from fastnet.network.torch.compiled.restoration import Restoration
from fastnet.network.torch.compiled.step_state import share_memory
from fastnet.network.torch.compiled.trace_watch import (
    RealTensorWatch,
    RefusedFunctions,
    TraceWatch,
    WatchedDict,
    is_fake,
    noted_followers,
)
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.update_binding import update_ops_in
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.lr_schedule import LRSchedule
from fastnet.types import Forward, State

_HOLD_IN_TENSOR = "hold it in a tensor that is updated in place, or change it in the loop"


def capture(request: CaptureRequest) -> Capture:
    """Trace the ops of a plan, and leave all objects of the user as they were.

    Raises:
        Uncapturable: If a graph of the ops would not do the same in later steps.
    """
    _require_plain_batch(request)
    if any(global_module_hook_tables()):
        raise Uncapturable("there are hooks around the passes of all modules")
    # Otherwise a later `torch.compile` would replace functions that the guard compares, and this
    # trace would replace some of those that it watches.
    import_dynamo()
    with TRACING:
        # The guard is made before the trace, so that it shows what the trace changes.
        guard = Guard(request.plan, request.step_state.op_numbers)
        _require_no_inner_network(guard)
        compared_tensors = guard.tensors()

        inputs = _make_inputs(request)
        trace = _trace_and_restore(request, inputs, guard)
        _bind_numbers(request, inputs, trace.graph)
        is_random_step = _check_graph(trace)
        precision = _lowest_precision(trace.graph)
        held_tensors, held_examples = _bind_held_tensors(request, inputs, trace, compared_tensors)
        request.step_state.set_used_optimizers(_used_optimizers(request.plan, trace))
    return Capture(
        graph=trace.graph,
        layout=inputs.layout._replace(held=len(held_tensors)),
        mode=inputs.mode,
        examples=[*inputs.tensors, *held_examples],
        held_tensors=held_tensors,
        outputs=trace.outputs,
        aliases=trace.aliases,
        guard=guard,
        is_random=is_random_step,
        precision=precision,
        followed=trace.followers,
        lengths=inputs.traced_lengths,
    )


def _require_plain_batch(request: CaptureRequest) -> None:
    """Refuse a batch whose values a graph cannot take."""
    for key, value in zip(request.keys, request.values, strict=True):
        readers = (index for index, op in enumerate(request.plan.ops) if key in op.inputs)
        require_plain(key, value, request.step_state.device, next(readers, None))


def _require_no_inner_network(guard: Guard) -> None:
    for path, _, is_used in guard.find(lambda cls: issubclass(cls, BaseNetwork)):
        if is_used:
            raise Uncapturable(f"an op runs another network, {path}; put its ops into this one")


# --- inputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a trace, with fake tensors and symbols for all that the ops read.

    Attributes:
        mode: The mode of the fake tensors.
        step_fakes: Fake tensors for those of the `StepState`, in order.
        numbers: The fake tensor of the numbers of ops and optimizers.
        symbols: A symbol for each number of an op that is an input.
        batch: The batch, with fake tensors, and symbols for the numbers that are inputs.
        batch_tensors: The fake tensors in it, in order, and one for each of these numbers.
        batch_symbols: The symbols of these numbers.
        sums: Fake tensors for the gradients that were merged so far.
        storages: The keys of the storages of `step_fakes`, before the trace.
        traced_lengths: The lengths of the batch that are open.
    """

    mode: Any
    step_fakes: list[torch.Tensor]
    numbers: torch.Tensor
    symbols: list[Any]
    batch: dict[str, Any]
    batch_tensors: list[torch.Tensor]
    batch_symbols: list[Any]
    sums: list[torch.Tensor]
    storages: list[int]
    traced_lengths: list[TracedLength]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All fake tensors, in the order of the graph's inputs."""
        return [*self.step_fakes, self.numbers, *self.batch_tensors, *self.sums]

    @property
    def layout(self) -> InputLayout:
        """The order of the graph's inputs, before tensors that ops hold are bound."""
        numbers = len(self.batch_symbols)
        batch = len(self.batch_tensors) - numbers
        return InputLayout(len(self.step_fakes), batch, numbers, len(self.sums))


def _make_inputs(request: CaptureRequest) -> _Inputs:
    """Make fake tensors and symbols for all that a step reads."""
    step_state, phase = request.step_state, request.phase
    mode = fake_mode(bool(request.open_lengths))

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        fake_tensor: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
        return fake_tensor

    step_fakes = [fake(tensor) for tensor in step_state.tensors]
    numbers = fake(step_state.new_numbers())
    traced_lengths = [
        TracedLength.of(length_symbol(mode, length.example, index))
        for index, length in enumerate(request.open_lengths)
    ]
    batch, batch_tensors = _make_batch(request, mode, traced_lengths)
    batch_symbols = [
        number_symbol(mode, value, index)
        for index, value in enumerate(request.batch_numbers.values(), len(step_state.op_numbers))
    ]
    for number, symbol in zip(request.batch_numbers, batch_symbols, strict=True):
        batch[number.key] = symbol
        batch_tensors.append(fake(torch.zeros((), dtype=torch.float64, device=step_state.device)))
    return _Inputs(
        mode=mode,
        step_fakes=step_fakes,
        numbers=numbers,
        batch=batch,
        batch_tensors=batch_tensors,
        batch_symbols=batch_symbols,
        traced_lengths=traced_lengths,
        storages=list(map(storage_key, step_fakes)),
        sums=[] if phase is None else [fake(tensor) for tensor in phase.sums()],
        symbols=[
            number_symbol(mode, number.read(), index)
            for index, number in enumerate(step_state.op_numbers)
        ],
    )


def _make_batch(
    request: CaptureRequest, mode: Any, traced_lengths: Sequence[TracedLength]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the batch with fake tensors, and these tensors in order."""
    open_axes = {
        axis: traced.size
        for length, traced in zip(request.open_lengths, traced_lengths, strict=True)
        for axis in length.axes
    }
    fakes: list[torch.Tensor] = []
    tensors = [tensor for value in request.values for tensor in tensors_in(value)]
    for index, tensor in enumerate(tensors):
        shape = [
            open_axes.get(Axis(index, number), size) for number, size in enumerate(tensor.shape)
        ]
        if any(isinstance(size, torch.SymInt) for size in shape):
            with mode:
                fakes.append(_empty_like(tensor, shape))
        else:
            # A tensor that is in two places, or is also a buffer of a model, is detached to become
            # an input for each place.
            fakes.append(mode.from_tensor(tensor.detach(), static_shapes=True))

    remaining = iter(fakes)
    forms = [TENSOR_ADAPTER.form_of(value) for value in request.values]
    values = map_form(forms, lambda slot: next(remaining))
    return dict(zip(request.keys, values, strict=True)), fakes


def _empty_like(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Return a tensor of another shape, contiguous if the given one is, or else of its strides."""
    if tensor.stride() == contiguous_strides(tensor.shape):
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    return torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


# --- trace ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trace:
    """The operations of the ops, and what running them has changed.

    Attributes:
        graph: The graph, which takes `_Inputs.tensors` and symbols.
        outputs: The form of each key that ops have written.
        aliases: See `Capture`.
        followers: The ops that follow updates, once for each update.
        step_counts: How many steps each optimizer takes, by its id.
        random_state: What the ops have done with torch's generator.
        leaves_gradients: Whether a parameter has a gradient afterwards.
        replaced_tensor: The name of a parameter or buffer that was replaced; None for none.
        replaced_number: A number that was to be an input and was replaced; None for none.
        writes_state: Whether an op has written to the state of the step.
    """

    graph: torch.fx.GraphModule
    outputs: dict[str, Any]
    aliases: list[tuple[int, int]]
    followers: list[FollowsUpdates]
    step_counts: dict[int, int]
    random_state: RandomState
    leaves_gradients: bool
    replaced_tensor: str | None
    replaced_number: OpNumber | None
    writes_state: bool


def _trace_and_restore(request: CaptureRequest, inputs: _Inputs, guard: Guard) -> _Trace:
    """Trace and check the ops, and leave all objects of the user as they were, whatever happens.

    The ops run with fake tensors. An op that keeps what it computes, such as an average that it
    writes, would keep a fake tensor, with which the next eager step would fail.
    """
    watch, sources = TraceWatch(request.plan), Sources(guard)
    real_tensors = RealTensorWatch(watch)
    with ExitStack() as stack:
        # Callbacks run in reverse: first objects are restored, then the states of generators, then
        # values of tensors.
        stack.callback(real_tensors.restore)
        stack.callback(sources.restore)
        restoration = Restoration(request.plan, request.state)
        stack.callback(restoration.restore)

        def trace_unchanged() -> _Trace:
            with sources.watched():
                trace = _trace(request, inputs, watch, real_tensors)
                _check_effects(request, inputs, trace, watch)
            sources.check()
            change = guard.first_change()
            if change is not None:
                raise Uncapturable(f"running the ops changes {change}; {_HOLD_IN_TENSOR}")
            return trace

        # In a copy of the context, so that context variables that the ops set need not be restored.
        trace = copy_context().run(trace_unchanged)
        restoration.require_unchanged_data()
        if request.step_state.has_other_optimizers():
            raise Uncapturable("running the ops changes the current optimizer of a model")
    return trace


def _trace(
    request: CaptureRequest, inputs: _Inputs, watch: TraceWatch, real_tensors: RealTensorWatch
) -> _Trace:
    """Run the ops once, and record their operations."""
    step_state = request.step_state
    outputs: dict[str, Any] = {}
    aliases: list[tuple[int, int]] = []
    watched_state = WatchedDict(request.state, on_use=watch.refuse_entry)
    kernel = _watched_kernel(request.plan, watch, watched_state)
    # make_fx turns autocast's cache off; it is set again, so that a weight is cast once a step, as
    # in eager steps.
    caches_casts = torch.is_autocast_cache_enabled()

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        torch.set_autocast_cache_enabled(caches_casts)
        grad_mode = nullcontext() if request.plan.takes_gradients else torch.no_grad()
        with RefusedFunctions(watch), real_tensors, grad_mode:
            written = BoundPlan(kernel, request.state, request.make_autocast).run(inputs.batch)
        forms, results = _read_outputs(request.plan, inputs, written)
        outputs.update(forms)
        returned: list[torch.Tensor] = []
        for place, tensor in enumerate(results):
            index = _index_of_alias(tensor, inputs.step_fakes)
            if index is None:
                returned.append(tensor)
            else:
                aliases.append((place, index))
        return [*returned, *new_sums()]

    with (
        step_state.replaced(inputs.step_fakes, inputs.numbers, inputs.symbols) as step_counts,
        _replaced_sums(request, inputs) as new_sums,
        noted_followers(request.plan) as followers,
        _preserved_state(request.state, watched_state) as is_state_written,
    ):
        with (
            watch.errors_named(),
            watched_process() as random_state,
            inputs.mode,
            enable_python_dispatcher(),
            eager_recurrent_layers(),
            traced_collectives(),
            # Backward passes run in this thread, where the modes are active.
            torch.autograd.set_multithreading_enabled(False),
        ):
            graph = make_fx(run, tracing_mode="real")(
                *inputs.tensors, *inputs.symbols, *inputs.batch_symbols
            )
        step_state.broadcasts.note_end()
        return _Trace(
            graph=graph,
            outputs=outputs,
            aliases=aliases,
            followers=followers,
            step_counts=step_counts,
            random_state=random_state,
            leaves_gradients=any(tensor.grad is not None for tensor in inputs.step_fakes),
            replaced_tensor=step_state.replaced_tensor(inputs.step_fakes),
            replaced_number=step_state.replaced_number(inputs.symbols),
            writes_state=is_state_written(),
        )


def _watched_kernel(
    plan: ExecutionPlan, watch: TraceWatch, watched_state: WatchedDict
) -> KernelPlan:
    """Return a kernel plan that notes which op runs, and what users' code reads of the state."""

    def wrap(op: Any, index: int, forward: Forward) -> Forward:
        reads_entries = _has_users_code(op)

        def run(data: Any, state: State) -> Any:
            watch.running = index
            return forward(data, watched_state if reads_entries else state)

        return run

    return plan.kernel_with(wrap)


def _has_users_code(op: Any) -> bool:
    """Return whether an op, or an op inside of it, has a `forward` that is not fastnet's.

    The ops of fastnet read no entry of the state that would be a constant of the graph.
    """
    return any(
        not is_library_class(type(inner)) or "forward" in vars(inner)
        for inner in with_inner_ops([op])
    )


@contextmanager
def _preserved_state(state: State, watched_state: WatchedDict) -> Iterator[Callable[[], bool]]:
    """Restore the state of the step; yield a function that tells whether ops have written to it."""
    before, deferred = dict(state), state.get("deferred")
    expected = {**before, "deferred": deferred}

    def differs(entries: Mapping[str, Any]) -> bool:
        # `deferred` is one dict on both sides, so its contents are not compared: every step adds
        # functions to it, which are dropped below.
        return {**entries, "deferred": deferred} != expected

    try:
        yield lambda: differs(state) or differs(watched_state.as_dict())
    finally:
        if isinstance(deferred, dict):
            deferred.clear()
        if differs(state):
            state.clear()
            state.update(before)


def _replaced_sums(
    request: CaptureRequest, inputs: _Inputs
) -> AbstractContextManager[Callable[[], list[torch.Tensor]]]:
    """Replace merged gradients by fake tensors; yield a function that returns the new ones."""
    if request.phase is None:
        return nullcontext(list)
    return request.phase.with_fake_sums(
        request.step_state.fakes_by_id(inputs.step_fakes), inputs.sums
    )


# --- outputs --------------------------------------------------------------------------------------


def _read_outputs(
    plan: ExecutionPlan, inputs: _Inputs, results: Mapping[str, Any]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the forms of what ops have written, and the tensors in it."""
    batch_leaves = {id(leaf) for value in inputs.batch.values() for leaf in leaves_of(value)}
    forms: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    for key, value in results.items():
        writers = [index for index, op in enumerate(plan.ops) if key in op.outputs]
        if not writers:
            continue  # Postprocessing reads the batch's own value.
        for leaf in leaves_of(value, builtin_only=True):
            problem = _problem_of_output(leaf, batch_leaves, inputs.step_fakes)
            if problem is not None:
                index = writers[-1]
                raise Uncapturable(f"{plan.describe(index)} writes '{key}', {problem}", index)
        forms[key] = FAKE_TENSOR_ADAPTER.form_of(value)
        tensors += [
            tensor.detach() if tensor.requires_grad else tensor for tensor in tensors_in(value)
        ]
    return forms, tensors


def _problem_of_output(
    leaf: Any, batch_leaves: set[int], step_fakes: Sequence[torch.Tensor]
) -> str | None:
    """Return why a graph cannot return a value that an op has written, or None."""
    if type(leaf) in BY_VALUE:
        return None
    if not isinstance(leaf, torch.Tensor):
        return f"which is, or holds, a value of type {type(leaf).__name__}"
    if id(leaf) in batch_leaves:
        return None
    if not is_fake(leaf):
        return "a tensor that it keeps; return a clone"
    shares_memory = storage_key(leaf) in set(map(storage_key, step_fakes))
    if shares_memory and _index_of_alias(leaf, step_fakes) is None:
        return "which is a part of a parameter or a buffer, in its memory; clone it"
    return None


def _index_of_alias(tensor: torch.Tensor, step_fakes: Sequence[torch.Tensor]) -> int | None:
    """Return the index of the parameter or buffer that a tensor is, maybe detached, or None."""

    def layout_of(view: torch.Tensor) -> tuple[Any, ...]:
        return view.dtype, view.shape, view.stride(), view.storage_offset()

    storage = storage_key(tensor)
    for index, candidate in enumerate(step_fakes):
        if storage_key(candidate) == storage and layout_of(candidate) == layout_of(tensor):
            return index
    return None


# --- checks ---------------------------------------------------------------------------------------


def _check_effects(
    request: CaptureRequest, inputs: _Inputs, trace: _Trace, watch: TraceWatch
) -> None:
    """Refuse ops that do more than a graph would repeat."""
    step_state = request.step_state
    if watch.refusal is not None:
        raise watch.refusal
    if trace.leaves_gradients:
        raise Uncapturable(
            "gradients stay on parameters that no op of the step updates; freeze them by "
            "requires_grad_(False)"
        )
    if trace.writes_state:
        raise Uncapturable("an op writes to the state of the step")
    if trace.replaced_number is not None:
        raise Uncapturable(
            f"running the ops changes {trace.replaced_number.path}; {_HOLD_IN_TENSOR}"
        )
    if trace.replaced_tensor is not None:
        raise Uncapturable(
            f"running the ops replaces the parameter or buffer '{trace.replaced_tensor}'; write "
            "into it, as by .copy_()"
        )
    for fake, tensor in zip(inputs.step_fakes, step_state.tensors, strict=True):
        if fake.requires_grad != tensor.requires_grad:
            raise Uncapturable("running the ops changes requires_grad of a parameter")
    if [storage_key(fake) for fake in inputs.step_fakes] != inputs.storages:
        raise Uncapturable(
            "running the ops gives a parameter or a buffer other memory; write into it, as by "
            ".copy_()"
        )
    _check_followers(request.plan, trace)


def _used_optimizers(plan: ExecutionPlan, trace: _Trace) -> set[int]:
    """Return the ids of the optimizers that a step uses, or may use in another phase."""
    updated = {
        id(get_metadata(update.model, "current_optimizer")) for update in update_ops_in(plan.ops)
    }
    return updated | trace.step_counts.keys()


def _check_followers(plan: ExecutionPlan, trace: _Trace) -> None:
    """Refuse ops that step a scheduler, or change a decay, between several updates of one step."""
    for op in trace.followers:
        updates = trace.step_counts.get(id(get_metadata(op.model, "current_optimizer")), 0)
        if op.affects_next_update and (updates != 1 or trace.followers.count(op) > 1):
            index = next(index for index, active in enumerate(plan.ops) if active is op)
            action = "steps a scheduler" if isinstance(op, LRSchedule) else "changes its decay"
            raise Uncapturable(
                f"{describe_op(op, index)} {action} between several updates of a step"
            )


def _check_graph(trace: _Trace) -> bool:
    """Refuse operations that a program would leave out, and random numbers that it would repeat.

    Returns:
        Whether the graph draws random numbers.
    """
    nodes = trace.graph.graph.nodes
    for node in nodes:
        # Operations that neither return nor write anything would be removed.
        if returns_nothing(node.target) and not writes(node.target) and not node.is_impure():
            raise Uncapturable(f"an op calls {node.target}, which returns nothing")
        if writes(node.target) and node.target.namespace != "aten":
            raise Uncapturable(
                f"an op calls {node.target}, which changes its arguments; let it return new tensors"
            )
    draws_numbers = any(map(is_random, nodes))
    trace.random_state.check(draws_numbers)
    return draws_numbers


def _check_views(graph: torch.fx.GraphModule, held: Iterable[torch.Tensor]) -> None:
    """Refuse results in the memory of tensors that ops hold and write to."""

    def memory_of(nodes: Iterable[torch.fx.Node]) -> set[int]:
        values = [tensor for node in nodes for tensor in tensors_in([node.meta.get("val")])]
        return set(map(storage_key, values))

    writing = [node for node in graph.graph.nodes if writes(node.target)]
    written = memory_of(argument for node in writing for argument in node.all_input_nodes)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    if memory_of(output.all_input_nodes) & written & set(map(storage_key, held)):
        raise Uncapturable(
            "an op returns a view of a tensor that it holds and writes to; return a clone"
        )


# --- bind -----------------------------------------------------------------------------------------


def _bind_numbers(request: CaptureRequest, inputs: _Inputs, graph: torch.fx.GraphModule) -> None:
    """Read the numbers of ops from the tensor of numbers, and those of the batch from their own."""
    nodes, layout = list(graph.graph.nodes), inputs.layout
    numbers, op_numbers = nodes[layout.numbers_index], request.step_state.op_numbers

    def read_op_number(index: int, graph: torch.fx.Graph) -> torch.fx.Node:
        return graph.call_function(torch.select, (numbers, 0, index))

    def read_batch_number(index: int, graph: torch.fx.Graph) -> torch.fx.Node:
        node: torch.fx.Node = nodes[layout.first_batch_number + index]
        return node

    bind_numbers(
        graph,
        paths=[
            *(number.path for number in op_numbers),
            *(number.path for number in request.batch_numbers),
        ],
        symbols=[*inputs.symbols, *inputs.batch_symbols],
        entries=[
            *(partial(read_op_number, index) for index in range(len(op_numbers))),
            *(partial(read_batch_number, index) for index in range(len(request.batch_numbers))),
        ],
        mode=inputs.mode,
    )


def _bind_held_tensors(
    request: CaptureRequest,
    inputs: _Inputs,
    trace: _Trace,
    compared_tensors: Mapping[int, torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Make inputs of the tensors that ops hold themselves, if the guard compares them.

    Returns:
        The tensors, and a fake tensor for each.
    """
    graph, step_state = trace.graph, request.step_state
    held: dict[int, torch.Tensor] = {}
    placeholders: dict[int, torch.fx.Node] = {}
    last_placeholder = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "get_attr" or _is_made_of_numbers(node):
            continue
        tensor = getattr(graph, node.target)
        if id(tensor) not in held:
            if id(tensor) not in compared_tensors:
                raise Uncapturable(
                    f"an op reads a tensor of the shape {tuple(tensor.shape)} that cannot be "
                    "compared in each step, such as one of a functools.cache; hold it as an "
                    "attribute of the op, or as a buffer of its model"
                )
            _require_bindable(tensor, step_state.device)
            with graph.graph.inserting_after(last_placeholder):
                last_placeholder = graph.graph.placeholder(f"held_{len(held)}")
            last_placeholder.meta["val"] = inputs.mode.from_tensor(tensor, static_shapes=True)
            held[id(tensor)], placeholders[id(tensor)] = tensor, last_placeholder
        node.replace_all_uses_with(placeholders[id(tensor)])
        graph.graph.erase_node(node)
    if share_memory([*step_state.tensors, *held.values()]):
        raise Uncapturable("a tensor that an op reads shares memory with another tensor")

    examples = [node.meta["val"] for node in placeholders.values()]
    _check_views(graph, examples)
    graph.recompile()
    return list(held.values()), examples


def _is_made_of_numbers(node: torch.fx.Node) -> bool:
    """Return whether a constant of a graph was made of Python's numbers during the trace."""
    return all(user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users)


def _require_bindable(tensor: torch.Tensor, device: torch.device) -> None:
    """Refuse a tensor that a graph cannot take."""
    kinds = torch.Tensor, torch.nn.Parameter, torch.nn.Buffer
    if type(tensor) not in kinds or tensor.device not in (device, torch.device("cpu")):
        raise Uncapturable(f"an op reads a {type(tensor).__name__} on {tensor.device}")
    if tensor.requires_grad:
        raise Uncapturable(
            "an op reads a tensor that requires gradients, but belongs to no model; make its "
            "module a model (fastnet.build), or freeze it by requires_grad_(False)"
        )


def _lowest_precision(graph: torch.fx.GraphModule) -> torch.dtype:
    """Return the floating-point dtype of the lowest precision in a graph."""
    values = (node.meta.get("val") for node in graph.graph.nodes)
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    floats = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)
