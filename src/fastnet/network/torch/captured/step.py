"""The steps of an opening as compiled programs: which is called, and when one is made."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from fastnet._execute import BoundPlan
from fastnet._trace import map_form
from fastnet.backend.facts import name_of
from fastnet.backend.torch._internals import COMPILED, environment, grad_hooks, tools
from fastnet.backend.torch.companions import TRAINED
from fastnet.backend.torch.engines import engine_of
from fastnet.errors import describe_op
from fastnet.network.announcing import announced
from fastnet.network.compiling import CompileOptions
from fastnet.network.layout import Layout
from fastnet.network.opening import RunStep
from fastnet.network.records import Records
from fastnet.network.torch.captured.capture import KIND, capture
from fastnet.network.torch.captured.held import TooMuch
from fastnet.network.torch.captured.lowering import lower
from fastnet.network.torch.captured.observing import Uncapturable
from fastnet.network.torch.captured.program import NoFit, Program, SharedMemory
from fastnet.network.torch.captured.stand_ins import State

__all__ = ["CapturedStep", "never_captured"]

# what changes in each step would have all of them traced
_MOST_IN_A_ROW = 4
_MOST_PROGRAMS = 64
_OTHER_KIND = "a batch is of another kind"

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def never_captured(layout: Layout, device: torch.device, spread: bool) -> str | None:
    """Return why no step of a layout can be captured, whatever it is fed with.

    Args:
        layout: The ops.
        device: Where they run.
        spread: Whether there are processes that communicate.

    Returns:
        The reason; None if steps can perhaps be captured.
    """
    if tools() is None or grad_hooks is None:
        return "this torch has not what it takes, or only its public names may be used"
    if device.type != "cpu":
        return f"the ops run on {device}; steps are captured on the CPU only, so far"
    if spread:
        return "the gradients of several processes are communicated"
    for model in layout.models:
        engine = engine_of(model)
        if engine is not None:
            return f"the model '{name_of(model)}' is run by {engine}"
        for module in model.modules():
            if hasattr(module, COMPILED):
                return f"the model '{name_of(model)}' comes from torch.compile"
    for place, op in enumerate(layout.ops):
        if getattr(op, "merge_grad", 1) != 1:
            return f"{describe_op(op, place)} merges the gradients of several steps"
        if getattr(op, "per", None) == "update" and hasattr(op, "followed_model"):
            return f"{describe_op(op, place)} steps a scheduler of learning rates after each update"
    return None


class CapturedStep:
    """The steps of a layout, as compiled programs where that can be.

    Args:
        layout: The ops.
        options: How they are compiled.
        records: Told of each trace, and of each reason not to.
    """

    def __init__(self, layout: Layout, options: CompileOptions, records: Records) -> None:
        self._layout = layout
        self._options = options
        self._records = records
        self._keys = sorted(layout.plan.resolution.device_inputs.names())
        self._programs: list[Program] = []
        self._current: Program | None = None
        self._refused: str | None = None
        self._made = 0
        self._misses = 0
        self._bound: BoundPlan | None = None
        self._make: Callable[[], Any] | None = None

    @property
    def refused(self) -> str | None:
        """Why steps run op by op from now on; None if they need not."""
        return self._refused

    def refuse(self, reason: str, context: Mapping[str, Any]) -> None:
        """Have all steps run op by op.

        Args:
            reason: Why.
            context: The context of the opening.
        """
        if self._refused != reason:
            self._refused = reason
            self._records.add(context, "first step", fallback=reason)

    def step(
        self,
        eager: RunStep,
        bound: BoundPlan,
        make: Callable[[], Any] | None,
        called: Callable[[], None] | None = None,
    ) -> RunStep:
        """Return the function that runs the steps of an opening.

        Args:
            eager: Runs them op by op.
            bound: The plan that it does that by.
            make: Makes what is entered around the ops of each step, or None.
            called: Called after a program has run, or None.

        Returns:
            The function.
        """
        self._bound, self._make = bound, make
        # an opening has its own context: what ops find out of it in its first step they find then
        self._current = None
        if self._refused is not None and not self._programs:
            return eager
        return partial(self._run, eager, called)

    def _run(
        self,
        eager: RunStep,
        called: Callable[[], None] | None,
        batch: Mapping[str, Any],
    ) -> dict[str, Any]:
        program = self._current
        if program is None:
            return self._run_eagerly(eager, batch, None)
        result, reason = self._run_by(program, eager, called, batch)
        if result is None:
            for other in self._programs:
                if other is not program:
                    result, _ = self._run_by(other, eager, called, batch)
                    if result is not None:
                        break
        return self._run_eagerly(eager, batch, reason) if result is None else result

    def _run_by(
        self,
        program: Program,
        eager: RunStep,
        called: Callable[[], None] | None,
        batch: Mapping[str, Any],
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Run a step by a program, if it is one for it.

        Returns:
            The result, or None and why it is not.
        """
        reason = program.difference()
        if reason is not None:
            return None, reason
        assert self._bound is not None
        try:
            result: dict[str, Any] = program.traced.step(batch, self._bound.state)
        except NoFit:
            return None, _OTHER_KIND
        except (SharedMemory, KeyError):
            return eager(batch), None  # which says what is missing, where a key is
        self._current = program
        self._misses = 0
        if called is not None:
            called()
        return result, None

    def _run_eagerly(
        self, eager: RunStep, batch: Mapping[str, Any], reason: str | None
    ) -> dict[str, Any]:
        """Run a step op by op, which settles all that ops work out in it, and see to the next."""
        result = eager(batch)
        if self._refused is None or self._programs:
            self._get_ready(batch, reason)
        return result

    def _get_ready(self, batch: Mapping[str, Any], reason: str | None) -> None:
        assert self._bound is not None
        context = self._bound.state
        around = environment("cpu")
        if around is None or (self._layout.takes_gradients and not torch.is_grad_enabled()):
            return  # for as long as somebody looks on
        values = [batch[key] for key in self._keys]
        difference: str | None = None
        for program in self._programs:
            difference = program.difference()
            if difference is None and program.traced.fits(batch):
                self._current = program
                self._misses = 0
                return
        if self._refused is not None or sys.getprofile() is not None:
            return  # what is to be seen of the ops while they are traced only one can look at
        if reason is None:
            reason = "first step" if not self._programs else difference or _OTHER_KIND
        # of kinds of batches there is a number of its own
        self._misses += reason != _OTHER_KIND
        if self._misses > _MOST_IN_A_ROW:
            self._programs.clear()
            self.refuse(f"in each step something is another one: {reason}", context)
            return
        self._make_room()
        if self._made >= _MOST_PROGRAMS or len(self._programs) >= self._options.most_kinds:
            self.refuse(
                f"there are more than {self._options.most_kinds} kinds of steps, lastly because "
                f"{reason}",
                context,
            )
            return
        self._capture(values, around, context, reason)

    def _make_room(self) -> None:
        """Let the first program go that stands for no step any more, if there are many."""
        if len(self._programs) < self._options.most_kinds:
            return
        for program in self._programs:
            if program.difference() is not None:
                self._programs.remove(program)
                return

    def _capture(
        self,
        values: list[Any],
        around: tuple[Any, ...],
        context: Mapping[str, Any],
        reason: str,
    ) -> None:
        layout, found = self._layout, tools()
        assert found is not None
        assert self._bound is not None
        started = time.perf_counter()
        try:
            models = {id(one): one for one in (*layout.models, *context.get(TRAINED, ()))}
            state = State(list(models.values()), layout.takes_gradients)
            for one in state.parameters:
                assert grad_hooks is not None
                _, gradient, *hooks = grad_hooks(one)
                if any(hooks):
                    raise Uncapturable("a parameter has hooks")
                if gradient is not None:
                    raise Uncapturable("a parameter has a gradient that no op has left there")
            captured = capture(layout, self._bound, self._make, self._keys, values, state, found)
        except Exception as error:  # whatever it is, the step has been run
            known = isinstance(error, (Uncapturable, TooMuch))
            text = str(error) if known else f"capturing has failed: {error!r}"
            self._programs.clear()
            self._refused = text
            self._records.add(context, reason, time.perf_counter() - started, fallback=text)
            return
        traced = time.perf_counter()
        try:
            with announced("compiling a step"):
                lowered = lower(captured, self._options, found)
            forms = [map_form(KIND.form_of(value), _same, as_form=True) for value in values]
            takes = layout.takes_gradients
            program = Program(self._keys, forms, captured, lowered, state, around, takes)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            self._refused = (
                str(error)
                if isinstance(error, Uncapturable)
                else f"the compiler has failed with {type(error).__name__}: {first}"
            )
            seconds = traced - started, time.perf_counter() - traced
            self._programs.clear()
            self._records.add(context, reason, *seconds, fallback=self._refused)
            return
        seconds = traced - started, time.perf_counter() - traced
        self._made += 1
        self._programs.append(program)
        self._current = program
        self._records.add(context, reason, *seconds)


def _same(part: Any) -> Any:
    return part
