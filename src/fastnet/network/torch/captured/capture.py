"""The ops of an opening traced into one graph, from a batch to updated weights."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fastnet._execute import BoundPlan
from fastnet._nest import leaves_of
from fastnet._trace import map_form
from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import (
    TorchDispatchMode,
    enable_python_dispatcher,
    fake_mode,
    module_hook_tables,
    no_dispatch,
    open_like,
    storage_key,
    writes,
)
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.captured.comparing import difference, drop_whole_slices
from fastnet.network.torch.captured.followers import noting, require_once
from fastnet.network.torch.captured.global_names import (
    functions_of_torch,
    is_library,
    replaced_function_of_torch,
)
from fastnet.network.torch.captured.held import Held, TooMuch
from fastnet.network.torch.captured.known import changing, known
from fastnet.network.torch.captured.merging import Phase
from fastnet.network.torch.captured.observing import (
    Observer,
    Ran,
    Uncapturable,
    is_own_file,
    put_torch_states,
    random_states,
    torch_states,
)
from fastnet.network.torch.captured.stand_ins import State
from fastnet.network.torch.captured.values import (
    BY_VALUE,
    KIND,
    KIND_OF_FAKES,
    all_in,
    require_plain,
    tensors_in,
)
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.lr_schedule import LRSchedule
from fastnet.types import Forward

__all__ = ["TRACING", "Capture", "capture"]

_Saved = dict[int, tuple[torch.Tensor, torch.Tensor]]
TRACING = threading.RLock()
"""Held while ops are traced: stand-ins are in the places of parameters, and torch's tracer in that
of what modules of all threads call."""


class Capture:
    """What was traced.

    Attributes:
        graph: Takes the tensors of `state`, the numbers of optimizers, the tensors in `others` and
            those of the batch, and sums of gradients; returns the tensors of the outputs, and sums.
        mode: The mode that its example inputs are of.
        examples: Tensors without values, of the types and shapes that it takes.
        others: Tensors that ops hold themselves.
        outputs: The form of each key that ops write.
        held: What the ops were like.
        followed: The ops that step schedulers after the updates.
        size: The size of axis 0 that is open, as a symbol; None if there is none.
        device: Where the ops run.
    """

    graph: torch.fx.GraphModule
    mode: Any
    examples: list[torch.Tensor]
    others: list[torch.Tensor]
    outputs: dict[str, Any]
    held: Held
    followed: list[LRSchedule]
    size: Any = None
    device: torch.device


def capture(
    plan: ExecutionPlan,
    bound: BoundPlan,
    make: Callable[[], Any] | None,
    keys: Sequence[str],
    values: Sequence[Any],
    state: State,
    ran: Ran,
    phase: Phase | None = None,
    is_open: Sequence[bool] = (),
) -> Capture:
    """Trace the ops of a plan, and leave everything as it was.

    Args:
        plan: The ops.
        bound: What runs them one by one.
        make: Makes what is entered around the ops of each step, or None.
        keys: The keys that ops read from the batch.
        values: Their values in a batch, of which only types and shapes count where they are
            tensors.
        state: The tensors that they read and write besides.
        ran: What code has run in such a step.
        phase: What is taken and left of gradients that are added up, or None where none are.
        is_open: For each tensor of the batch, in order, whether the size of its axis 0 is open:
            one size of two or more for all of them. Empty if none is.

    Returns:
        What was traced.

    Raises:
        Uncapturable: If steps that call a graph would not be what the ops do one by one.
    """
    roots = [
        *((_model(model), model) for model in plan.models),
        *((plan.describe(place), op) for place, op in enumerate(plan.ops)),
        *(
            (plan.describe(place), op.kept())
            for place, op in enumerate(plan.ops)
            if isinstance(op, FollowsUpdates)
        ),
    ]
    replaced = replaced_function_of_torch()
    if replaced is not None:
        raise Uncapturable(f"{replaced} was replaced")
    if any(module_hook_tables()):
        raise Uncapturable("there are hooks around the passes of all modules")
    tracer = _Tracer(plan, bound, make, keys, values, state, phase, is_open)
    with TRACING:
        before = _hold(plan, roots, ran.__contains__, everything=True)
        generators = random_states()
        python, arrays = random.getstate(), np.random.get_state()
        own = torch_states(state.device)
        leaves = [one for one in before.tensors.values() if one.is_leaf and one.requires_grad]
        gradients = [one.grad for one in leaves]
        observer = Observer(torch.SymInt.__repr__.__code__, before.cached)
        try:
            found = tracer.trace(observer, any(is_open))
            _refuse_changes(tracer, before)
            if random_states() != generators:
                raise Uncapturable("the ops draw random numbers of Python's or numpy's")
            if not all(map(torch.equal, torch_states(state.device), own)):
                # nothing is drawn while they are traced
                raise Uncapturable("the ops seed torch's generator")
            if observer.reason is not None:
                raise Uncapturable(observer.reason, tracer.caught)  # which somebody has caught
            again = tracer.trace(None)
            # with an open size the ops do for the size that there is what they do for it alone
            first = found.graph if found.size is None else tracer.close(found, again)
            differs = difference(first, again.graph)
            if differs is not None or found.outputs_told() != again.outputs_told():
                raise Uncapturable(
                    "a number that the ops work out in Python is another one each time"
                    + ("" if differs is None else f": {differs}")
                )
            _refuse_changes(tracer, before)
            variable = observer.first_changed()
            if variable is not None:
                raise Uncapturable(f"running the ops changes the context variable '{variable}'")
        finally:
            tracer.put_back()
            observer.put_back()
            before.put_back()
            for leaf, gradient in zip(leaves, gradients, strict=True):
                if leaf.grad is not gradient:
                    leaf.grad = gradient
            random.setstate(python)
            np.random.set_state(arrays)
            put_torch_states(own, state.device)
        roots += ((f"the context variable '{one.name}'", one) for one in observer.variables)
        roots += functions_of_torch(observer.functions, observer.seen())
        found.held = _hold(plan, roots, observer.has_run, codes=observer.codes())
        tracer.bind_others(found)
    return found


def _hold(plan: ExecutionPlan, roots: Sequence[tuple[str, Any]], *what: Any, **more: Any) -> Held:
    try:
        return Held(roots, *what, **more)
    except TooMuch as error:
        place = next(
            (
                place
                for place, spec in enumerate(plan.specs)
                if error.root in (plan.describe(place), *map(_model, spec.models))
            ),
            None,
        )
        raise Uncapturable(str(error), place) from None


def _refuse_changes(tracer: _Tracer, before: Held) -> None:
    changed = next(before.changes(), None)
    if changed is not None:
        # what can be put back changes again by the same op
        before.put_back()
        place = None
        if changed not in before.changes():
            place = tracer.place_of(lambda: changed in before.changes())
        raise Uncapturable(f"running the ops changes {changed}", place)


class _Found(Capture):
    def outputs_told(self) -> str:
        return repr(self.outputs)


class _Tracer:
    """Traces the ops, as often as it is asked to.

    Attributes:
        caught: The place of the op in which what the observer has raised was caught, or None.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        bound: BoundPlan,
        make: Callable[[], Any] | None,
        keys: Sequence[str],
        values: Sequence[Any],
        state: State,
        phase: Phase | None,
        is_open: Sequence[bool],
    ) -> None:
        self._phase = phase
        self._is_open = list(is_open)
        self._layout = plan
        self._make = make
        self._context = bound.state
        self._state = state
        self._keys = list(keys)
        self._values = list(values)
        self._read: set[tuple[str, int]] = set()
        self._saved: _Saved = {}
        self._at: int | None = None
        self._plan = plan.kernel_with(self._wrap)
        self._observer: Observer | None = None
        self.caught: int | None = None
        # tells whether it has happened, and the place of the op after which it first had
        self._has_happened: Callable[[], bool] | None = None
        self._happened: int | None = None
        for key, value in zip(keys, values, strict=True):
            reader = next((at for at, op in enumerate(plan.ops) if key in op.inputs), None)
            require_plain(key, value, state.device, reader)

    def _wrap(self, op: Any, place: int, forward: Forward) -> Forward:
        own = any(map(_is_own, (op, *_inside(op))))

        def run(data: Any, state: dict[str, Any]) -> Any:
            self._at = place
            if own:
                read: set[str] = set()
                result = forward(data, known(state, read))
                self._read.update((one, place) for one in changing(read))
            else:
                result = forward(data, state)
            if self._observer is not None and self._observer.reason and self.caught is None:
                self.caught = place
            if self._has_happened is not None and self._has_happened():
                self._has_happened, self._happened = None, place
            return result

        return run

    def place_of(self, has_happened: Callable[[], bool]) -> int | None:
        """Trace the ops again, and find the one by which something happens.

        Args:
            has_happened: Tells whether it has.

        Returns:
            The place of the op; None if it does not happen.
        """
        self._has_happened, self._happened = has_happened, None
        try:
            self.trace(None)
        except Uncapturable:
            pass  # it is known by now, or not found
        finally:
            self._has_happened = None
        return self._happened

    def put_back(self) -> None:
        """Put back what was in the tensors of the ops' own that were written to."""
        with torch.no_grad():
            for tensor, values in self._saved.values():
                tensor.copy_(values)
        self._saved.clear()

    def close(self, found: Capture, other: Capture) -> torch.fx.GraphModule:
        """Trace what was traced with an open size again, for the one size of another trace.

        That one is made comparable with it.
        """
        with other.mode, enable_python_dispatcher(), torch.no_grad():
            graph: torch.fx.GraphModule = make_fx(found.graph, tracing_mode="real")(*other.examples)
        for one in (graph, other.graph):
            drop_whole_slices(one)
        return graph

    def trace(self, observer: Observer | None, opened: bool = False) -> _Found:
        """Trace the ops once.

        Args:
            observer: What is to look on, or None.
            opened: Whether the sizes that are to be open are open.

        Raises:
            Uncapturable: If they cannot be.
        """
        mode = fake_mode(opened)
        self._observer, self.caught, self._at = observer, None, None
        reals = self._state.tensors
        fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in reals]
        numbers = mode.from_tensor(
            torch.zeros(max(len(self._state.numbers()), 1), dtype=torch.float64),
            static_shapes=True,
        )
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

        found = _Found()
        forms = [KIND.form_of(value) for value in self._values]
        tensors = iter([leaf for value in self._values for leaf in tensors_in(value)])
        batch = dict(zip(self._keys, map_form(forms, lambda slot: put(next(tensors))), strict=True))
        found.mode = mode
        merged: list[torch.Tensor] = []
        merging: Any = nullcontext(list)
        if self._phase is not None:
            merged = [mode.from_tensor(one, static_shapes=True) for one in self._phase.tensors()]
            merging = self._phase.traced(self._state.stand_ins(fakes), merged)
        taken = [*fakes, numbers, *inputs, *merged]

        # which make_fx turns off: a weight is cast once a step, although it is updated meanwhile
        caches = torch.is_autocast_cache_enabled()

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            torch.set_autocast_cache_enabled(caches)
            with _looking_on(self._saved), self._around():
                results = BoundPlan(self._plan, self._context, self._make).run(batch)
            return [*self._take_out(results, batch, found, fakes), *left_merged()]

        memory = list(map(storage_key, fakes))
        watch = nullcontext() if observer is None else observer.watching()
        state_before = dict(self._context)
        deferred = self._context.get("deferred")
        swapped = self._state.swapped(fakes, numbers)
        with swapped, merging as left_merged, noting(self._layout.ops) as found.followed:
            try:
                # what a backward pass calls is called in this thread, where it is looked at
                here = torch.autograd.set_multithreading_enabled(False)
                with mode, enable_python_dispatcher(), watch, here:
                    graph = make_fx(run, tracing_mode="real")(*taken)
            except Uncapturable as error:
                if error.index is None:
                    error.index = self._at
                raise
            except Exception as error:
                raise Uncapturable(self._told(error), self._at) from None
            finally:
                if isinstance(deferred, dict):
                    deferred.clear()
                left = [one for one in fakes if one.grad is not None]
                replaced = self._state.first_replaced(fakes)
                own = {**state_before, "deferred": deferred}
                written = {**self._context, "deferred": deferred} != own
                if written:
                    self._context.clear()
                    self._context.update(state_before)
        if left:
            raise Uncapturable("gradients stay on parameters that no op of the step updates")
        if written:
            raise Uncapturable("an op writes to the state of the step")
        if replaced is not None:
            raise Uncapturable(f"running the ops replaces the parameter or buffer '{replaced}'")
        if list(map(storage_key, fakes)) != memory:
            raise Uncapturable("running the ops gives a parameter or a buffer other memory")
        found.graph = graph
        found.examples = taken
        found.device = self._state.device
        if self._state.settings_read:
            raise Uncapturable("an op reads, or sets, the settings of an optimizer")
        self._state.require_settled()
        require_once(found.followed, self._layout.ops, self._state.taken)
        for key, place in sorted(self._read):
            what = "the epoch" if key == "epoch" else f"'{key}' of the state of the step"
            told = self._layout.describe(place)
            raise Uncapturable(f"{told} reads {what}, which a program would not do again", place)
        return found

    @contextmanager
    def _around(self) -> Iterator[None]:
        if self._layout.takes_gradients:
            yield
        else:
            with torch.no_grad():
                yield

    def _take_out(
        self,
        results: Mapping[str, Any],
        batch: Mapping[str, Any],
        found: _Found,
        fakes: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Take the tensors out of what ops have written."""
        memory = {storage_key(one) for one in fakes}
        of_batch = {id(leaf) for value in batch.values() for leaf in leaves_of(value)}
        given: list[torch.Tensor] = []
        found.outputs = {}
        for key, value in results.items():
            place = next(
                (at for at, op in reversed([*enumerate(self._layout.ops)]) if key in op.outputs),
                None,
            )
            if place is None:
                continue  # postprocessing reads the batch's own
            op = self._layout.describe(place)
            for leaf in all_in(value):
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

    def bind_others(self, found: Capture) -> None:
        """Make inputs of the tensors that ops hold themselves."""
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
            if id(tensor) not in found.held.tensors:
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
                found.examples.append(found.mode.from_tensor(tensor, static_shapes=True))
            node.replace_all_uses_with(places[id(tensor)])
            graph.graph.erase_node(node)
        graph.recompile()

    def _told(self, error: Exception) -> str:
        """Say where tracing has failed, and with what."""
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if is_own_file(frame.filename)
        ]
        where = "" if self._at is None else f"{self._layout.describe(self._at)} "
        line = (
            f"in line {frames[-1].lineno} of {frames[-1].filename.rpartition('/')[2]} "
            if frames
            else ""
        )
        first = str(error).strip().partition("\n")[0]
        name = type(error).__name__
        if "DataDependent" in name or "DynamicOutputShape" in name or "data_depend" in first:
            what = "looks at the values of tensors"
        else:
            what = f"could not be traced: {name}: {first}"
        return f"{where}{line}{what}" if where or line else f"the ops {what}"


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
                        # what is under way writes to it, and not only in the graph
                        with no_dispatch():
                            saved[id(one)] = one, one.detach().clone()
            return func(*args, **(kwargs or {}))

    with Looking():
        yield


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


def _is_own(op: Any) -> bool:
    """Return whether an op runs code of the program's own with the state of the step."""
    return not is_library(type(op).__module__) or "forward" in vars(op)


def _inside(op: Any) -> list[Any]:
    inner = op.inner_ops() if hasattr(op, "inner_ops") else ()
    return [deep for one in inner for deep in (one, *_inside(one))]


def _model(model: Any) -> str:
    return f"the model '{name_of(model)}'"
