"""The compiled programs of an execution plan: looks them up, and compiles new ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fastnet._execute import BoundPlan
from fastnet._trace import Length
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch._internals import GlobalState, hook_tables_of
from fastnet.backend.torch.update import TRAINED
from fastnet.network.compile_options import CompileOptions
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.accumulation import Accumulation, Phase
from fastnet.network.torch.compiled.capture import capture
from fastnet.network.torch.compiled.dynamic_batch import (
    Rows,
    changed_axes,
    common_batch_size,
    open_forms,
)
from fastnet.network.torch.compiled.fake_tensors import StepState
from fastnet.network.torch.compiled.input_signature import KIND
from fastnet.network.torch.compiled.lowering import lower
from fastnet.network.torch.compiled.number_inputs import NumberInput
from fastnet.network.torch.compiled.optimizers import waits_for_state
from fastnet.network.torch.compiled.program import Program, is_observed
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.torch.compiled.verification import reason_to_skip
from fastnet.network.trace_records import Records, report_if_slow
from fastnet.network.updates import update_ops_in
from fastnet.op.tensorop.model.ema import EMA
from fastnet.op.tensorop.model.update import UpdateOp

# A change in every step would compile a program in every step.
_MAX_CHANGES_IN_A_ROW = 4
_MAX_COMPILATIONS = 64
_OBSERVED = (
    "a mode is active while steps run: a torch mode, such as inference_mode or that of "
    "set_default_device, a transform, saved tensor hooks or anomaly detection"
)
ANOTHER_SIGNATURE = "a batch has another input signature"
_ANOTHER_SIZE = "a batch has another size"
ANOTHER_PHASE = "gradients of another number of steps are merged"

# Report in a step why it was traced, and the seconds that tracing and compiling took.
Report = Callable[[str, float, float], None]


class ProgramCache:
    """The programs of a plan."""

    def __init__(
        self,
        plan: ExecutionPlan,
        options: CompileOptions,
        records: Records,
        device: torch.device,
    ) -> None:
        self._plan = plan
        self._options = options
        self._records = records
        self._device = device
        self.keys = sorted(plan.kernel.resolution.device_inputs.names())
        self.programs: list[Program] = []
        self.current: Program | None = None
        self.fallback_reason: str | None = None
        self.accumulation: Accumulation | None = None
        self.misses = 0
        # Why each batch size needs a program of its own, if it does.
        self._depends: str | None = None
        self._compiled = 0
        # The paths of numbers that have changed, with the reasons why they are constants, or None.
        self._changed: dict[str, str | None] = {}
        self._held = list(_scheduled_decays(plan))
        self._is_observed = False

    def open(self) -> None:
        """Prepare the steps of a context."""
        if self._plan.takes_gradients and self.accumulation is None:
            accumulation = Accumulation(self._plan.ops)
            self.accumulation = accumulation if accumulation.updates else None
        # Ops resolve values of a new context in its first step, which therefore runs eagerly.
        self.current = None

    def fall_back(self, reason: str, context: Mapping[str, Any]) -> None:
        """Compile no further programs."""
        if self.fallback_reason != reason:
            self.fallback_reason = reason
            self._records.add(context, "first step", fallback=reason)

    def reject(self, program: Program, difference: str, context: Mapping[str, Any]) -> None:
        """Discard a program whose results differ from those of an eager step."""
        self._discard(program)
        if program.is_dynamic:
            # Its code may depend on the size in a way that tracing does not see.
            self._depends = f"each size is compiled by itself, because {difference}"
        else:
            self._discard_all()
            self.fall_back(difference, context)

    def _discard(self, program: Program) -> None:
        self.programs.remove(program)
        if self.current is program:
            self.current = None

    def _discard_all(self) -> None:
        self.programs.clear()
        self.current = None

    def prepare(
        self,
        batch: Mapping[str, Any],
        bound: BoundPlan,
        make: Callable[[], Any] | None,
        reason: str | None,
        report: Report | None,
    ) -> None:
        """Look up or compile the program for steps like the one that has just run eagerly."""
        context = bound.state
        if self._plan.takes_gradients and not torch.is_grad_enabled():
            return
        if is_observed():
            # It may stay for the rest of the program, so it is reported once.
            if not self.programs and not self._is_observed:
                self._is_observed = True
                self._records.add(context, "first step", fallback=_OBSERVED)
            return
        if any(map(_waits, update_ops_in(self._plan.ops))):
            return  # Capture a step that updates.
        difference: str | None = None
        for program in self.programs:
            if not program.matches_phase():
                continue
            difference = program.difference()
            if difference is None and program.traced.fits(batch):
                self.current = program
                self.misses = 0
                return
        if self.fallback_reason is not None:
            return
        if reason is None:
            reason = "first step" if not self.programs else difference or ANOTHER_SIGNATURE
        changed = [one.changed_number for one in self.programs if one.changed_number]
        number = next((one for one in changed if reason == f"{one.path} has changed"), None)
        refusal = self._refusal(reason, number)
        if refusal is not None:
            self.fall_back(refusal, context)
            return
        traced = self._compile(_Step(batch, bound, make, GlobalState()), reason, number)
        if report is not None:
            report(*traced)

    def _refusal(self, reason: str, number: NumberInput | None) -> str | None:
        """Return why another program must not be compiled, or None."""
        if number is not None and number.path in self._changed:
            why = self._changed[number.path]
            return (
                f"{number.path} is a number that keeps changing, and each value would be "
                f"compiled{f', because {why}' if why else ''}; hold it in a tensor, or put it into "
                "the batch"
            )
        self.misses += reason not in (ANOTHER_SIGNATURE, ANOTHER_PHASE)
        if self.misses > _MAX_CHANGES_IN_A_ROW:
            self._discard_all()
            return f"something changes in each step: {reason}"
        phases = 1 if self.accumulation is None else self.accumulation.count_phases()
        most = self._options.most_kinds * phases
        if len(self.programs) >= most:
            unusable = next((one for one in self.programs if one.difference() is not None), None)
            if unusable is not None:
                self._discard(unusable)
        if self._compiled >= _MAX_COMPILATIONS or len(self.programs) >= most:
            return (
                f"there are more than {self._options.most_kinds} input signatures, most recently "
                f"because {reason}"
            )
        return None

    def _compile(
        self, step: _Step, reason: str, number: NumberInput | None
    ) -> tuple[str, float, float]:
        """Compile a program, or fall back; return the reason, and the seconds it took."""
        started = time.perf_counter()
        values = [step.batch[key] for key in self.keys]
        rows, held = self._rows(values), self._held
        attempts: list[tuple[Rows | None, list[NumberInput]]] = [(None, held)]
        if rows is not None:
            attempts.insert(0, (rows, held))
        if number is not None and number.table is not None:
            attempts.insert(0, (rows, [*held, number]))
        failed: _Failed | None = None
        for rows, held in attempts:
            try:
                program, traced = self._make_program(step, values, rows, held)
                break
            except _Failed as error:
                failed = error
                if number is not None and held is not self._held:
                    self._changed[number.path] = str(failed)
                elif rows is not None and not any(other.is_dynamic for other in self.programs):
                    self._depends = f"each size is compiled by itself, because {failed}"
        else:
            assert failed is not None
            ended = time.perf_counter()
            traced = failed.traced or ended
            self._discard_all()
            self.fallback_reason = str(failed)
            seconds = traced - started, ended - traced
            self._records.add(step.bound.state, reason, *seconds, fallback=self.fallback_reason)
            return reason, *seconds
        if number is not None:
            self._changed.setdefault(number.path)
        if held is not self._held:
            reason = f"{reason}; it is an input of the program from now on"
        elif rows is not None and reason == ANOTHER_SIGNATURE:
            reason = _ANOTHER_SIZE
        elif self._depends is not None and reason == ANOTHER_SIGNATURE:
            reason = f"{reason}; {self._depends}"
        self._held = held
        self._compiled += 1
        self.programs.append(program)
        self.current = program
        program.unverified = reason_to_skip(program, self._options)
        if program.unverified is not None:
            program.graph = None
        seconds = traced - started, time.perf_counter() - traced
        self._records.add(step.bound.state, reason, *seconds, unverified=program.unverified)
        return reason, *seconds

    def _rows(self, values: list[Any]) -> Rows | None:
        """Find the tensors of a batch whose size its program leaves open, if any."""
        dynamic = self._options.dynamic
        if dynamic is False or self._depends is not None:
            return None
        for program in self.programs:
            if program.matches_phase() and not program.is_dynamic:
                (trace,) = program.traced.traces
                found = changed_axes(trace.inputs, values)
                if found is not None:
                    return found
        return common_batch_size(values) if dynamic else None

    def _is_here(self, model: torch.nn.Module) -> bool:
        return all(one.device == self._device for one in model.parameters())

    def _make_program(
        self, step: _Step, values: list[Any], rows: Rows | None, held: list[NumberInput]
    ) -> tuple[Program, float]:
        """Trace the ops and compile them; return the program, and when it was traced."""
        plan, context = self._plan, step.bound.state
        takes_gradients = plan.takes_gradients
        try:
            # A model that joins in another epoch may not have been moved to the device yet.
            others = [one for one in context.get(TRAINED, ()) if self._is_here(one)]
            models = {id(one): one for one in (*plan.models, *others)}
            state = StepState(list(models.values()), takes_gradients, self._device, held)
            if any(hook_tables_of(state.parameters)):
                raise Uncapturable("a parameter has hooks")
            if any(parameter.grad is not None for parameter in state.parameters):
                raise Uncapturable("a parameter has a gradient that no op has left there")
            phase = (
                None if self.accumulation is None else Phase(self.accumulation, state.parameters)
            )
            is_open = () if rows is None else rows.is_open
            captured = capture(
                *(plan, step.bound, step.make, self.keys, values, state),
                phase=phase,
                is_open=is_open,
            )
        except Uncapturable as error:
            text = str(error)
            if error.index is not None and plan.describe(error.index) not in text:
                text = f"{plan.describe(error.index)}: {text}"
            raise _Failed(text) from None
        except Exception as error:
            raise _Failed(f"capturing has failed: {error!r}") from None
        traced = time.perf_counter()
        try:
            with report_if_slow("compiling a step"):
                lowered = lower(captured, self._options, rows and rows.usual)
            forms = [KIND.form_of(value) for value in values]
            dynamic = None
            if rows is not None:
                # Batches of the size that another program was compiled for are left to it.
                admits, other = lowered.admits, rows.known
                assert admits is not None
                length = Length(lambda size: size != other and admits(size))
                forms = open_forms(forms, rows.is_open, length)
                dynamic = [at for at, opened in enumerate(rows.is_open) if opened], length
            program = Program(
                *(self.keys, forms, captured, lowered, state, step.global_state, takes_gradients),
                phase=phase,
                dynamic=dynamic,
            )
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            text = f"the compiler has failed with {type(error).__name__}: {first}"
            raise _Failed(str(error) if isinstance(error, Uncapturable) else text, traced) from None
        return program, traced


class _Step(NamedTuple):
    """The step that a program is compiled for."""

    batch: Mapping[str, Any]
    bound: BoundPlan
    make: Callable[[], Any] | None
    global_state: GlobalState


class _Failed(Exception):
    """Raised where there is no program; its text is the reason."""

    def __init__(self, reason: str, traced: float | None = None) -> None:
        super().__init__(reason)
        self.traced = traced


def _waits(update: UpdateOp) -> bool:
    """Return whether an update may take no step, and has still to take a first one."""
    optimizer = get_metadata(update.model, "current_optimizer")
    may_skip = update.merge_grad > 1 or update.weight is not None or update.skip_nonfinite
    return optimizer is not None and may_skip and waits_for_state(optimizer)


def _scheduled_decays(plan: ExecutionPlan) -> Iterator[NumberInput]:
    """Yield the decays that change in each step."""
    for index, op in enumerate(plan.ops):
        if isinstance(op, EMA) and op.is_scheduled:
            table = op.kept()
            yield NumberInput(f"the decay of {plan.describe(index)}", table, table, "decay", float)
