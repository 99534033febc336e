"""Compiled steps of a context: selects the program of each step, and compiles new ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from fastnet._execute import BoundPlan, Plan
from fastnet._trace import Length
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch._internals import COMPILED, grad_hooks
from fastnet.backend.torch.update import TRAINED
from fastnet.backend.torch.wrappers import engine_of
from fastnet.errors import add_note, describe_op
from fastnet.network.compile_options import CompileOptions
from fastnet.network.plan_cache import ExecutionPlan, Handling
from fastnet.network.step import op_title
from fastnet.network.torch.compiled.accumulation import Accumulation, Phase
from fastnet.network.torch.compiled.capture import TRACING, capture
from fastnet.network.torch.compiled.dynamic_batch import (
    Rows,
    changed_axes,
    common_batch_size,
    open_forms,
)
from fastnet.network.torch.compiled.environment import environment
from fastnet.network.torch.compiled.fake_tensors import StepState
from fastnet.network.torch.compiled.input_signature import KIND
from fastnet.network.torch.compiled.lowering import lower
from fastnet.network.torch.compiled.optimizers import waits_for_state
from fastnet.network.torch.compiled.program import NoFit, Program, SharedMemory
from fastnet.network.torch.compiled.tail import CompiledOps, can_split, split_kernel
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.torch.compiled.verification import Verification, reason_to_skip
from fastnet.network.trace_records import Records, report_if_slow
from fastnet.network.updates import updates_in
from fastnet.op.meta.one_of import OneOfOps
from fastnet.op.op import with_inner_ops
from fastnet.types import RunStep

__all__ = ["CompiledStep", "never_captured"]

# what changes in each step would have all of them traced
_MOST_IN_A_ROW = 4
_MOST_OF_A_NUMBER = 2
_MOST_PROGRAMS = 64
_IN_PROGRAM = (
    "This was in a compiled step, whose ops are one program. Open the network with eager=True to "
    "see in which op."
)
_LOOKED_AT = (
    "something is around the steps: a mode of torch, such as inference_mode or what "
    "set_default_device makes, a transform, hooks of saved tensors or the detection of anomalies"
)
_OTHER_KIND = "a batch is of another kind"
_OTHER_SIZE = "a batch is of another size"
_OTHER_PHASE = "gradients of another number of steps are merged"
# of which there is a number of their own
_KINDS = frozenset({_OTHER_KIND, _OTHER_PHASE})

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
# Report in a step why it was traced, and the seconds that tracing and compiling took.
Report = Callable[[str, float, float], None]


def never_captured(plan: ExecutionPlan, device: torch.device, spread: bool) -> str | None:
    """Return why no step of a plan can be captured, whatever it is fed with."""
    if device.type not in ("cpu", "cuda"):
        return f"the ops run on {device}; steps are captured on the CPU and on CUDA only, so far"
    if spread:
        return "the gradients of several processes are communicated"
    for model in plan.models:
        engine = engine_of(model)
        if engine is not None:
            return f"the model '{name_of(model)}' is run by {engine}"
        for module in model.modules():
            if hasattr(module, COMPILED):
                return f"the model '{name_of(model)}' comes from torch.compile"
    for place, op in enumerate(plan.ops):
        if any(isinstance(one, OneOfOps) for one in with_inner_ops([op])):
            return f"{describe_op(op, place)} draws one of its ops outside of torch"
        if getattr(op, "merge_grad", 1) != 1 and not hasattr(op, "updater"):
            return f"{describe_op(op, place)} merges the gradients of several steps"
        if hasattr(op, "followed_model"):
            optimizer = get_metadata(op.followed_model, "current_optimizer")
            if getattr(optimizer, "scaler", None) is not None:
                return (
                    f"{describe_op(op, place)} follows updates that a scaler of the loss may pass "
                    "over"
                )
    return None


class CompiledStep:
    """The steps of a plan, as compiled programs where that can be.

    Args:
        plan: The ops.
        options: How they are compiled.
        records: Report of each trace, and of each reason not to.
        handling: What brings values to where the ops run, and back.
        device: Where that is.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        options: CompileOptions,
        records: Records,
        handling: Handling,
        device: torch.device,
    ) -> None:
        self._layout = plan
        self._device = device
        self._move, self._release = handling.move, handling.release
        self._options = options
        self.records = records
        self._keys = sorted(plan.kernel.resolution.device_inputs.names())
        self._programs: list[Program] = []
        self._current: Program | None = None
        self._refused: str | None = None
        self._merging: Accumulation | None = None
        # why no program can be for batches of several sizes, if that is known
        self._depends: str | None = None
        self._made = 0
        self._misses = 0
        self._steps = 0
        # How often the ops were traced again because of a number, by its path.
        self._numbers: Counter[str] = Counter()
        self._bound: BoundPlan | None = None
        self._make: Callable[[], Any] | None = None
        self._step_of: Callable[[BoundPlan], RunStep] | None = None
        # Set if the last ops run eagerly after a program of the first ones.
        self._first: CompiledOps | None = None
        self._split: Plan | None = None
        self._run_split: RunStep | None = None
        self._is_looked_at = False

    @property
    def refused(self) -> str | None:
        """Why steps run eagerly from now on, or None."""
        return self._refused

    def title_of_first(self) -> str | None:
        """Return the title in profiles of the ops that are compiled apart from the last ones."""
        return None if self._first is None else op_title(self._first)

    def refuse(self, reason: str, context: Mapping[str, Any]) -> None:
        """Run all further steps eagerly."""
        if self._refused != reason:
            self._refused = reason
            self.records.add(context, "first step", fallback=reason)

    def step(
        self,
        step_of: Callable[[BoundPlan], RunStep],
        bound: BoundPlan,
        make: Callable[[], Any] | None,
        called: Callable[[], None] | None = None,
        report: Report | None = None,
    ) -> RunStep:
        """Return the function that runs the steps of a context."""
        self._bound, self._make, self._step_of = bound, make, step_of
        if self._layout.takes_gradients and self._merging is None:
            merging = Accumulation(self._layout.ops)
            self._merging = merging if merging.updates else None
        # Ops resolve values of a new context in its first step, which therefore runs eagerly.
        self._current = None
        eager = step_of(bound)
        self._run_split = None
        if self._first is not None:
            self._open_split()
        elif self._refused is not None and not self._programs:
            return eager
        return partial(self._run, eager, called, report)

    def _run(
        self,
        eager: RunStep,
        called: Callable[[], None] | None,
        report: Report | None,
        batch: Mapping[str, Any],
    ) -> dict[str, Any]:
        if self._run_split is not None:
            return self._run_in_two(self._run_split, eager, batch)
        program = self._current
        if program is None:
            return self._run_eagerly(eager, report, batch, None)
        moved = batch if self._move is None else self._moved(batch)
        result, reason = self._run_by(program, eager, called, batch, moved)
        if result is None:
            for other in self._programs:
                if other is not program:
                    result, _ = self._run_by(other, eager, called, batch, moved)
                    if result is not None:
                        break
        return self._run_eagerly(eager, report, batch, reason) if result is None else result

    def _run_by(
        self,
        program: Program,
        eager: RunStep,
        called: Callable[[], None] | None,
        batch: Mapping[str, Any],
        moved: Mapping[str, Any],
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Run a step by a program if it fits."""
        if not program.is_of_phase():
            return None, _OTHER_PHASE
        reason = program.difference()
        if reason is not None:
            return None, reason
        assert self._bound is not None
        if self._is_due(program) and program.traced.fits(moved):
            return self._verified(program, eager, batch, moved), None
        try:
            result: dict[str, Any] = program.traced.step(moved, self._bound.state)
        except NoFit:
            return None, _OTHER_KIND
        except (SharedMemory, KeyError):
            return eager(batch), None  # Raises the error for a missing key.
        except Exception as error:
            add_note(error, _IN_PROGRAM)
            raise
        self._current = program
        self._misses = 0
        for op in program.followed:
            op.advance()
        if moved is not batch:
            result = self._released(program, result, batch)
        if called is not None:
            called()
        return result, None

    def _is_due(self, program: Program) -> bool:
        """Return whether the next step of a program is to be verified."""
        if program.unverified is not None:
            return False
        if isinstance(self._options.verify, int):
            self._steps += 1
            return self._steps % self._options.verify == 0
        return not program.is_verified

    def _verified(
        self, program: Program, eager: RunStep, batch: Mapping[str, Any], moved: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Run a step compiled and eagerly, and return the eager results."""
        bound = self._bound
        assert bound is not None
        verification = Verification(program, self._layout.models, self._merging)
        result = verification.run(
            lambda: program.traced.step(moved, bound.state), lambda: eager(batch)
        )
        program.is_verified = True
        self._misses = 0
        if verification.difference is None:
            self._current = program
            return result
        text = (
            "a step of the program gave other results than the same step run eagerly: "
            f"{verification.difference}"
        )
        if isinstance(self._options.verify, int):
            raise RuntimeError(f"In mode '{bound.state['mode']}' {text}.")
        self._programs.remove(program)
        self._current = None
        if program.is_sized:
            # Its code may depend on the size in a way that tracing does not see.
            self._depends = f"each size is compiled by itself, because {text}"
        else:
            self._programs.clear()
            self.refuse(text, bound.state)
        return result

    def _moved(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Bring what ops read of a batch to where they run."""
        assert self._move is not None
        return {key: self._move(batch[key]) for key in self._keys if key in batch}

    def _released(
        self, program: Program, result: dict[str, Any], batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Bring what ops have written to where results go, and lay it over the batch."""
        assert self._release is not None
        (trace,) = program.traced.traces
        return {**batch, **{key: self._release(result[key]) for key in trace.outputs}}

    def _run_eagerly(
        self, eager: RunStep, report: Report | None, batch: Mapping[str, Any], reason: str | None
    ) -> dict[str, Any]:
        """Run a step eagerly, and look up or compile a program for the next one."""
        if self._refused is not None and not self._programs:
            return eager(batch)
        # The program is compiled for a step of the phase of this one, not of the next one.
        again = nullcontext() if self._merging is None else self._merging.again()
        result = eager(batch)
        # Otherwise the fake tensors of another thread's trace would look like a change.
        with again, TRACING:
            self._get_ready(batch, reason, report)
        return result

    def _get_ready(
        self, batch: Mapping[str, Any], reason: str | None, report: Report | None
    ) -> None:
        assert self._bound is not None
        context = self._bound.state
        around = environment(self._device.type)
        if self._layout.takes_gradients and not torch.is_grad_enabled():
            return
        if around is None:
            # It may stay for the rest of the program, so it is reported once.
            if not self._programs and not self._is_looked_at:
                self._is_looked_at = True
                self.records.add(context, "first step", fallback=_LOOKED_AT)
            return
        if any(map(_waits, updates_in(self._layout.ops))):
            return  # Capture a step that updates.
        if self._move is not None:
            batch = self._moved(batch)
        values = [batch[key] for key in self._keys]
        difference: str | None = None
        for program in self._programs:
            if not program.is_of_phase():
                continue
            difference = program.difference()
            if difference is None and program.traced.fits(batch):
                self._current = program
                self._misses = 0
                return
        if self._refused is not None:
            return
        if reason is None:
            reason = "first step" if not self._programs else difference or _OTHER_KIND
        number = next((one.changed_number for one in self._programs if one.changed_number), None)
        if number is not None and f"{number} has changed" == reason:
            self._numbers[number] += 1
            if self._numbers[number] == _MOST_OF_A_NUMBER:
                self.refuse(
                    f"{number} is a number that keeps changing, and each value would be compiled; "
                    "hold it in a tensor, or put it into the batch",
                    context,
                )
                return
        self._misses += reason not in _KINDS
        if self._misses > _MOST_IN_A_ROW:
            self._programs.clear()
            self.refuse(f"in each step something is another one: {reason}", context)
            return
        self._make_room()
        if self._made >= _MOST_PROGRAMS or len(self._programs) >= self._most_kinds():
            self.refuse(
                f"there are more than {self._options.most_kinds} kinds of steps, lastly because "
                f"{reason}",
                context,
            )
            return
        traced = self._capture(batch, values, around, context, reason)
        if report is not None:
            report(*traced)

    def _most_kinds(self) -> int:
        phases = 1 if self._merging is None else self._merging.phases()
        return self._options.most_kinds * phases

    def _make_room(self) -> None:
        """Discard the oldest program that fits no step anymore, if there are many."""
        if len(self._programs) < self._most_kinds():
            return
        for program in self._programs:
            if program.difference() is not None:
                self._programs.remove(program)
                return

    def _capture(
        self,
        batch: Mapping[str, Any],
        values: list[Any],
        around: tuple[Any, ...],
        context: Mapping[str, Any],
        reason: str,
    ) -> tuple[str, float, float]:
        """Make a program of the ops, or refuse to."""
        started = time.perf_counter()
        rows = self._rows(batch, values)
        if rows is not None:
            try:
                program, traced = self._make_program(values, around, context, rows)
                reason = _OTHER_SIZE if reason == _OTHER_KIND else reason
            except _Failed as failed:
                # each size is a program of its own then, or only this one
                if not any(other.is_sized for other in self._programs):
                    self._depends = f"each size is compiled by itself, because {failed}"
                rows = None
        if rows is None:
            if self._depends is not None and reason == _OTHER_KIND:
                reason = f"{reason}; {self._depends}"
            try:
                program, traced = self._make_program(values, around, context, None)
            except _Failed as failed:
                ended = time.perf_counter()
                traced = failed.traced or ended
                self._programs.clear()
                self._refused = str(failed)
                if failed.index and self._make is None and can_split(self._layout, failed.index):
                    self._split_at(failed.index)
                seconds = traced - started, ended - traced
                self.records.add(context, reason, *seconds, fallback=self._refused)
                return reason, *seconds
        self._made += 1
        self._programs.append(program)
        self._current = program
        program.unverified = reason_to_skip(program, self._options)
        seconds = traced - started, time.perf_counter() - traced
        self.records.add(context, reason, *seconds, unverified=program.unverified)
        return reason, *seconds

    def _run_in_two(self, run: RunStep, eager: RunStep, batch: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return run(batch)
        except KeyError:
            assert self._split is not None
            if self._split.missing(batch) is not None:
                return eager(batch)  # This names the op that reads the missing key.
            raise

    def _split_at(self, count: int) -> None:
        """Compile the first ops by themselves from the next step on."""
        what = f"{self._layout.describe(0)} to {self._layout.describe(count - 1)}"
        records = self.records.of(what)

        def make_steps(plan: ExecutionPlan) -> CompiledStep:
            return CompiledStep(plan, self._options, records, Handling(), self._device)

        self._first = CompiledOps(self._layout, count, make_steps)
        self._split = split_kernel(self._layout, self._first, count)
        self._open_split()

    def _open_split(self) -> None:
        assert self._first is not None
        assert self._split is not None
        assert self._bound is not None
        assert self._step_of is not None
        self._first.open(self._bound.state)
        self._run_split = self._step_of(BoundPlan(self._split, self._bound.state))

    def _rows(self, batch: Mapping[str, Any], values: list[Any]) -> Rows | None:
        """Find the rows of a batch of which its program is to take more and fewer, if any."""
        dynamic = self._options.dynamic
        if dynamic is False or self._depends is not None:
            return None
        for program in self._programs:
            if program.is_of_phase() and not program.is_sized:
                (trace,) = program.traced.traces
                found = changed_axes(self._keys, trace.inputs, batch, values)
                if found is not None:
                    return found
        return common_batch_size(values) if dynamic else None

    def _make_program(
        self,
        values: list[Any],
        around: tuple[Any, ...],
        context: Mapping[str, Any],
        rows: Rows | None,
    ) -> tuple[Program, float]:
        """Trace the ops and compile them."""
        plan = self._layout
        assert self._bound is not None
        is_open = () if rows is None else rows.is_open
        try:
            models = {id(one): one for one in (*plan.models, *context.get(TRAINED, ()))}
            state = StepState(list(models.values()), plan.takes_gradients, self._device)
            for one in state.parameters:
                _, gradient, *hooks = grad_hooks(one)
                if any(hooks):
                    raise Uncapturable("a parameter has hooks")
                if gradient is not None:
                    raise Uncapturable("a parameter has a gradient that no op has left there")
            phase = None if self._merging is None else Phase(self._merging, state.parameters)
            captured = capture(
                *(plan, self._bound, self._make, self._keys, values, state),
                phase=phase,
                is_open=is_open,
            )
        except Uncapturable as error:
            text = str(error)
            if error.index is not None and plan.describe(error.index) not in text:
                text = f"{plan.describe(error.index)}: {text}"
            raise _Failed(text, index=error.index) from None
        except Exception as error:
            raise _Failed(f"capturing has failed: {error!r}") from None
        traced = time.perf_counter()
        try:
            with report_if_slow("compiling a step"):
                lowered = lower(captured, self._options, rows and rows.usual)
            forms = [KIND.form_of(value) for value in values]
            sized = None
            if rows is not None:
                # what there is a program for is what that one is for
                admits, other = lowered.admits, rows.known
                assert admits is not None
                length = Length(lambda size: size != other and admits(size))
                forms = open_forms(forms, rows.is_open, length)
                sized = [at for at, opened in enumerate(rows.is_open) if opened], length
            takes = plan.takes_gradients
            program = Program(
                *(self._keys, forms, captured, lowered, state, around, takes),
                phase=phase,
                sized=sized,
            )
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            text = f"the compiler has failed with {type(error).__name__}: {first}"
            raise _Failed(str(error) if isinstance(error, Uncapturable) else text, traced) from None
        return program, traced


class _Failed(Exception):
    """There is no program, and its text says why.

    Args:
        reason: Why.
        traced: When tracing ended, None if it has failed.
        index: The index of the op that cannot be captured, None where it is not known.
    """

    def __init__(self, reason: str, traced: float | None = None, index: int | None = None) -> None:
        super().__init__(reason)
        self.traced = traced
        self.index = index


def _waits(update: Any) -> bool:
    """Return whether an update takes no step in many steps, and has still to take a first one."""
    optimizer = get_metadata(update.model, "current_optimizer")
    if optimizer is None or not (
        update.merge_grad > 1 or getattr(optimizer, "scaler", None) is not None
    ):
        return False
    return waits_for_state(optimizer)
