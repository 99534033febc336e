"""The compiled programs of the same ops in torch: decides when to compile another, and does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from fastnet._trace import Signature
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch._internals import GlobalState, gradient_hook_tables
from fastnet.backend.torch.update import TRAINED
from fastnet.errors import is_from_signal_handler
from fastnet.network.compile_options import CompileOptions
from fastnet.network.dynamic_axes import DynamicAxes
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_set import (
    ANOTHER_PHASE,
    ANOTHER_SIGNATURE,
    OnProgram,
    ProgramSet,
)
from fastnet.network.step_times import StepTimes
from fastnet.network.torch.compiled.accumulation import Accumulation, Phase
from fastnet.network.torch.compiled.capture import capture
from fastnet.network.torch.compiled.captured import Capture, CaptureRequest
from fastnet.network.torch.compiled.input_signature import TENSOR_ADAPTER, first_difference
from fastnet.network.torch.compiled.lowering import lower
from fastnet.network.torch.compiled.number_inputs import BatchNumber, OpNumber
from fastnet.network.torch.compiled.open_lengths import (
    Axis,
    BatchLengths,
    LengthValues,
    OpenLengths,
    with_open_axes,
)
from fastnet.network.torch.compiled.optimizers import waits_for_state
from fastnet.network.torch.compiled.program import TorchProgram, modes_observe_steps
from fastnet.network.torch.compiled.step_state import StepState
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.torch.compiled.verification import reason_to_skip
from fastnet.network.trace_records import Records, describe_step, report_if_slow
from fastnet.network.update_binding import update_ops_in
from fastnet.op.tensorop.model.ema import EMA
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import State
from fastnet.util.warnings import warn

_FIRST_STEP = "first step"
_FAILED_VERIFICATION = "a program has failed its verification"
_OBSERVED = (
    "a mode is active while steps run: a torch mode, such as inference_mode or that of "
    "set_default_device, a transform, saved tensor hooks or anomaly detection"
)
_ANOTHER_SIZE = "a batch has another size"
# After this number of programs for other kinds of batches there is a warning.
_MANY_SIGNATURES = 2


class EagerStep(NamedTuple):
    """A step of a session that has run eagerly, and that a program is made for.

    Attributes:
        batch: The values that ops read, on the device of the ops.
        state: The state of the session.
        make_autocast: Makes the context manager around the ops of each step; None for none.
    """

    batch: Mapping[str, Any]
    state: State
    make_autocast: Callable[[], AbstractContextManager[Any]] | None


class _Variant(NamedTuple):
    """The lengths and numbers that a program takes as inputs.

    Attributes:
        open_lengths: The lengths of the batch that are open; None if there are none.
        op_numbers: The Python numbers of ops that are inputs.
        batch_numbers: Those of the batch.
        adds_number: Whether the last of either was a constant before.
    """

    open_lengths: OpenLengths | None
    op_numbers: list[OpNumber]
    batch_numbers: list[BatchNumber]
    adds_number: bool = False

    @property
    def usual_lengths(self) -> LengthValues:
        """The most likely value of each open length."""
        if self.open_lengths is None:
            return ()
        return tuple(length.usual for length in self.open_lengths.groups)


class _Failure(Exception):
    """Raised where no program can be made; its text is the reason.

    Args:
        reason: The reason.
        traced_at: The time when the trace was complete; None if it failed.
        specialized: The indices of open lengths to whose values the trace is specialized.
    """

    def __init__(
        self, reason: str, traced_at: float | None = None, specialized: Sequence[int] = ()
    ) -> None:
        super().__init__(reason)
        self.traced_at = traced_at
        self.specialized = specialized


class TorchProgramSet(ProgramSet[TorchProgram]):
    """The programs of the ops of a plan.

    Args:
        plan: The plan.
        options: The options for compiling.
        records: The records of the network.
        device: The device of the ops.
        dynamic: The axes of a batch whose lengths may vary within one program.

    Attributes:
        plan: The plan, as far as programs use it.
        keys: The keys that ops read from the batch, in the order of a signature's forms.
        accumulation: The gradients that updates merge over several steps; None if none do.
        steps_of_programs: With `verify=N`, the number of steps of programs that await verification;
            every Nth is verified.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        options: CompileOptions,
        records: Records,
        device: torch.device,
        dynamic: DynamicAxes,
    ) -> None:
        super().__init__(options.max_programs, records)
        # A copy without programs: the set is freed with the plans that refer to it.
        self.plan = dataclasses.replace(plan, program_sets={})
        self.options = options
        self.keys = sorted(plan.kernel.resolution.device_inputs.names())
        self.accumulation: Accumulation | None = None
        self.steps_of_programs = 0
        self._device = device
        # The numbers of ops that are inputs: first those that change in each step.
        self._scheduled = list(_scheduled_decays(plan))
        self._op_numbers = list(self._scheduled)
        self._batch_numbers: list[BatchNumber] = []
        # Numbers that have changed and cannot be inputs, by path and class, with the reason; None
        # if none is known.
        self._constant_numbers: dict[tuple[str, type], str | None] = {}
        # The differences between batches that have needed a program of their own.
        self._noted_differences: set[str] = set()
        self._dynamic = dynamic
        # The axes each length of which needs a program of its own, with the reasons.
        self._fixed_axes: dict[Axis, str] = {}
        self._has_recorded_mode = False

    @property
    def is_given_up(self) -> bool:
        """Whether all further steps run eagerly."""
        return self.fallback_reason is not None and not self.programs

    def find_merging_updates(self) -> None:
        """Find the updates that merge gradients, since an op's settings may have changed."""
        if self.plan.takes_gradients and self.accumulation is None:
            accumulation = Accumulation(self.plan.ops)
            self.accumulation = accumulation if accumulation.updates else None

    def fall_back(self, fallback: str, state: State, reason: str = _FIRST_STEP) -> None:
        """Compile no further programs, and record why.

        Args:
            fallback: Why no further programs are compiled.
            state: The state of the session.
            reason: Why one would be needed.
        """
        if self.fallback_reason != fallback:
            self.stop_compiling(fallback)
            self.records.add(state, reason, fallback=fallback)

    def note_compiled(self, program: TorchProgram, seconds: float, state: State) -> None:
        """Note how long a compiled step took, while they are timed, and warn of a slow program."""
        times = program.times
        if times is not None:
            times.add_compiled(seconds)
            if times.is_complete:
                program.times = None
                self.records.warn_if_slower(str(state["mode"]), times)

    def reject(self, program: TorchProgram, difference: str, state: State) -> None:
        """Discard a program whose results differ from those of an eager step."""
        self.discard(program)
        added = [
            number
            for number in program.step_state.op_numbers
            if all(number is not scheduled for scheduled in self._scheduled)
        ]
        # The ops may depend on lengths or numbers in a way that tracing does not see.
        if program.open_lengths is not None:
            self._fix(program.open_lengths.axes, difference)
        elif added or program.batch_numbers:
            numbers: list[OpNumber | BatchNumber] = [*added, *program.batch_numbers]
            for number in numbers:
                self._constant_numbers[number.path, number.kind] = difference
            self._op_numbers, self._batch_numbers = list(self._scheduled), []
        else:
            self.clear()
            self.fall_back(difference, state, _FAILED_VERIFICATION)

    def compile_for(
        self, step: EagerStep, reason: str | None, on_compile: OnProgram | None
    ) -> None:
        """Compile a program for steps like one that has run eagerly, unless there is one.

        Args:
            step: The step.
            reason: Why no program was valid for it; None if none was looked for.
            on_compile: Records what was compiled in a profile.
        """
        if not self._can_compile(step.state):
            return
        program, _, _ = self.find(step.batch)
        if program is not None or self.fallback_reason is not None:
            return

        if reason is None:
            reason = self._find_reason()
        op_number = self._changed_number(reason)
        # Before the reason names a changed number of the batch, which is no change of the ops.
        is_change = reason not in (ANOTHER_SIGNATURE, ANOTHER_PHASE)
        # `reason` stays the constant, with which it is compared.
        reason_for_refusal = reason
        if reason == ANOTHER_SIGNATURE:
            reason_for_refusal = self._describe_signature(step.batch)
        refusal = self._reason_against_another(reason_for_refusal, is_change, op_number)
        if refusal is not None:
            self.fall_back(refusal, step.state, reason_for_refusal)
            return
        number: OpNumber | BatchNumber | None = op_number
        if reason == ANOTHER_SIGNATURE:
            number = self._changed_batch_number(step.batch)
            reason = reason if number is None else f"{number.path} has changed"
        reason, trace_seconds, compile_seconds = self._add_program(step, reason, is_change, number)
        if on_compile is not None:
            on_compile(reason, trace_seconds, compile_seconds)

    # --- whether another program is compiled ---

    def _can_compile(self, state: State) -> bool:
        """Return whether steps as they run now can be compiled.

        Record once that a mode prevents it, which may stay active from now on.
        """
        if self.plan.takes_gradients and not torch.is_grad_enabled():
            return False
        if modes_observe_steps():
            if not self.programs and not self._has_recorded_mode:
                self._has_recorded_mode = True
                self.records.add(state, _FIRST_STEP, fallback=_OBSERVED)
            return False
        # Wait for the first update, in which the optimizer creates its state.
        return not any(map(_waits_for_update, update_ops_in(self.plan.ops)))

    def _find_reason(self) -> str:
        """Return why no program is valid for a step that has run without looking for one."""
        if not self.programs:
            return _FIRST_STEP
        differences = [program.difference() for program in self.programs if program.matches_phase()]
        return next(filter(None, differences), ANOTHER_SIGNATURE)

    def _changed_number(self, reason: str) -> OpNumber | None:
        """Return the number whose change is the reason for another program, if it is one."""
        for program in self.programs:
            # `difference` has named the number in the reason.
            number = program.changed_number
            if number is not None and reason == f"{number.path} has changed":
                return number
        return None

    def _changed_batch_number(self, batch: Mapping[str, Any]) -> BatchNumber | None:
        """Return the first number that differs from a program, if only possible inputs differ."""
        for program in self.programs:
            if not program.matches_phase():
                continue
            if not all(number.fits(batch[number.key]) for number in program.batch_numbers):
                continue
            forms = zip(program.signature.keys, program.signature.inputs, strict=True)
            changed = [
                (key, form) for key, form in forms if not TENSOR_ADAPTER.matches(form, batch[key])
            ]
            numbers = [
                BatchNumber(key, type(form)) for key, form in changed if type(form) in (int, float)
            ]
            if len(numbers) < len(changed):
                continue
            if all(self._can_become_input(number, batch) for number in numbers):
                return next(iter(numbers), None)
        return None

    def _can_become_input(self, number: BatchNumber, batch: Mapping[str, Any]) -> bool:
        is_constant = (number.path, number.kind) in self._constant_numbers
        is_input = number in self._batch_numbers
        return number.fits(batch[number.key]) and not is_constant and not is_input

    def _reason_against_another(
        self, reason: str, is_change: bool, number: OpNumber | None
    ) -> str | None:
        """Return why another program must not be compiled, or None; see `make_room_or_refuse`."""
        if number is not None and (number.path, number.kind) in self._constant_numbers:
            problem = self._constant_numbers[number.path, number.kind]
            because = f", because {problem}" if problem else ""
            return (
                f"{number.path} is a number that keeps changing, and each value would be compiled"
                f"{because}; hold it in a tensor, and where a function takes none, write its "
                "formula with tensors"
            )
        phases = 1 if self.accumulation is None else self.accumulation.count_phases()
        return self.make_room_or_refuse(reason, is_change, phases=phases)

    # --- compiling ---

    def _add_program(
        self,
        step: EagerStep,
        reason: str,
        is_change: bool,
        number: OpNumber | BatchNumber | None,
    ) -> tuple[str, float, float]:
        """Compile a program, or fall back; return the reason, and the seconds it took."""
        started = time.perf_counter()
        batch_lengths = BatchLengths(
            step.batch, self.keys, self._dynamic.possibly_dynamic, self._signatures_of_phase()
        )
        try:
            program, traced_at, variant = self._compile_most_general(step, batch_lengths, number)
        except _Failure as error:
            return self._give_up(step, reason, error, started)

        if reason == ANOTHER_SIGNATURE and not self._is_another_size(variant, batch_lengths):
            self._warn_of_signatures(step.batch)
        reason = self._describe(reason, variant, batch_lengths, step.batch)
        if variant.adds_number:
            if isinstance(number, BatchNumber):
                self._batch_numbers.append(number)
            elif number is not None:
                self._op_numbers.append(number)
        elif number is not None and not self._is_input(number):
            self._constant_numbers.setdefault((number.path, number.kind))
        program.unverified = reason_to_skip(program, self.options)
        if program.unverified is not None:
            program.awaits_verification = False
            program.graph = None
        if self._device.type == "cpu" and self.options.backend != "eager":
            program.times = StepTimes()
        self.add(program, is_change)
        seconds = traced_at - started, time.perf_counter() - traced_at
        self.records.add(step.state, reason, *seconds, unverified=program.unverified)
        return reason, *seconds

    def _compile_most_general(
        self, step: EagerStep, batch_lengths: BatchLengths, number: OpNumber | BatchNumber | None
    ) -> tuple[TorchProgram, float, _Variant]:
        """Compile the most general variant that can be compiled; note what cannot be an input.

        Args:
            step: The step.
            batch_lengths: The lengths of its batch.
            number: The number whose change is the reason, if it is one.

        Returns:
            The program, when it was traced, and its variant.

        Raises:
            _Failure: If the last variant cannot be compiled, either.
        """
        variants = self._variants_to_try(step.batch, batch_lengths, number)
        while True:
            variant = variants.pop(0)
            try:
                program, traced_at = self._compile(step, variant)
            except _Failure as error:
                if not variants:
                    raise
                if variant.open_lengths is not None:
                    fewer = self._fewer_lengths_after(variant, batch_lengths, error)
                    if fewer is not None:
                        variants.insert(0, variant._replace(open_lengths=fewer))
                elif number is not None and variant.adds_number:
                    self._constant_numbers[number.path, number.kind] = str(error)
            else:
                return program, traced_at, variant

    def _compile(self, step: EagerStep, variant: _Variant) -> tuple[TorchProgram, float]:
        """Trace the ops and compile them; return the program, and when it was traced."""
        number_keys = {number.key for number in variant.batch_numbers}
        values = {key: step.batch[key] for key in self.keys if key not in number_keys}
        global_state = GlobalState()
        try:
            step_state = self._step_state(step.state, variant.op_numbers)
            phase = None
            if self.accumulation is not None:
                phase = Phase(self.accumulation, step_state.parameters)
            captured = self._capture(step, values, step_state, phase, variant)
        except Uncapturable as error:
            text = str(error)
            if error.index is not None and self.plan.describe(error.index) not in text:
                text = f"{self.plan.describe(error.index)}: {text}"
            raise _Failure(text) from None
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            raise _Failure(f"capturing has failed: {error!r}") from None

        traced_at = time.perf_counter()
        try:
            what = f"compiling {describe_step(self.plan.models, step.state['mode'])}"
            with report_if_slow(what, self.records.last_compilation()):
                lowered = lower(captured, self.options, variant.usual_lengths)
            program = TorchProgram(
                self._signature(values, captured, variant.open_lengths),
                captured,
                lowered,
                step_state,
                global_state,
                self.plan.takes_gradients,
                phase=phase,
                open_lengths=variant.open_lengths,
                batch_numbers=variant.batch_numbers,
            )
        except Uncapturable as error:
            raise _Failure(str(error), traced_at, error.specialized) from None
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            first_line = str(error).strip().partition("\n")[0]
            text = f"the compiler has failed with {type(error).__name__}: {first_line}"
            raise _Failure(text, traced_at) from None
        return program, traced_at

    def _step_state(self, state: State, op_numbers: list[OpNumber]) -> StepState:
        """Collect the tensors, numbers and optimizers that the step reads and writes."""
        # A model that joins in another epoch may not have been moved to the device yet.
        trained = [model for model in state.get(TRAINED, ()) if self._is_on_device(model)]
        models = {id(model): model for model in (*self.plan.models, *trained)}
        step_state = StepState(
            list(models.values()), self.plan.takes_gradients, self._device, op_numbers
        )
        if any(gradient_hook_tables(step_state.parameters)):
            raise Uncapturable("a parameter has hooks")
        if any(parameter.grad is not None for parameter in step_state.parameters):
            names = (
                f"'{name}' of model '{name_of(model)}'"
                for model in models.values()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            )
            raise Uncapturable(
                f"a parameter, {next(names, 'of an optimizer')}, has a gradient that no op uses; "
                "freeze it by requires_grad_(False), or clear the gradient in the loop"
            )
        return step_state

    def _is_on_device(self, model: torch.nn.Module) -> bool:
        return all(parameter.device == self._device for parameter in model.parameters())

    def _capture(
        self,
        step: EagerStep,
        values: Mapping[str, Any],
        step_state: StepState,
        phase: Phase | None,
        variant: _Variant,
    ) -> Capture:
        request = CaptureRequest(
            plan=self.plan,
            state=step.state,
            make_autocast=step.make_autocast,
            keys=list(values),
            values=list(values.values()),
            batch_numbers={number: step.batch[number.key] for number in variant.batch_numbers},
            step_state=step_state,
            phase=phase,
            open_lengths=() if variant.open_lengths is None else variant.open_lengths.groups,
        )
        return capture(request)

    def _signature(
        self, values: Mapping[str, Any], captured: Capture, open_lengths: OpenLengths | None
    ) -> Signature:
        """Return the signature of a program, which matches any value of lengths that are open."""
        forms = [TENSOR_ADAPTER.form_of(value) for value in values.values()]
        if open_lengths is not None:
            forms = with_open_axes(forms, set(open_lengths.axes))
        return Signature(values, TENSOR_ADAPTER, forms, captured.outputs)

    def _variants_to_try(
        self,
        batch: Mapping[str, Any],
        batch_lengths: BatchLengths,
        number: OpNumber | BatchNumber | None,
    ) -> list[_Variant]:
        """Return the variants of a program, the most general first; later ones where it fails."""
        op_numbers = [op_number for op_number in self._op_numbers if op_number.is_readable()]
        batch_numbers = [
            batch_number
            for batch_number in self._batch_numbers
            if batch_number.fits(batch[batch_number.key])
        ]
        variants = [_Variant(None, op_numbers, batch_numbers)]
        if isinstance(number, BatchNumber):
            batch_numbers = [*batch_numbers, number]
            variants.insert(0, _Variant(None, op_numbers, batch_numbers, adds_number=True))
        elif number is not None and number.table is not None and not self._is_input(number):
            op_numbers = [*op_numbers, number]
            variants.insert(0, _Variant(None, op_numbers, batch_numbers, adds_number=True))

        initially_open = batch_lengths.with_batch_sizes(
            batch_lengths.axes(self._dynamic.initially_dynamic)
        )
        axes = initially_open | batch_lengths.changed
        open_lengths = batch_lengths.open_lengths(axes - self._fixed_axes.keys())
        if open_lengths is None:
            return variants
        variants_with_lengths = []
        for variant in variants:
            variants_with_lengths += [variant._replace(open_lengths=open_lengths), variant]
        return variants_with_lengths

    def _signatures_of_phase(self) -> list[Signature]:
        """Return the signatures of the programs for the current phase."""
        return [program.signature for program in self.programs if program.matches_phase()]

    def _is_input(self, number: OpNumber | BatchNumber) -> bool:
        """Return whether a number is an input of new programs."""
        inputs: list[OpNumber | BatchNumber] = [*self._op_numbers, *self._batch_numbers]
        return any(
            number_input.path == number.path and number_input.kind is number.kind
            for number_input in inputs
        )

    def _fewer_lengths_after(
        self, variant: _Variant, batch_lengths: BatchLengths, failure: _Failure
    ) -> OpenLengths | None:
        """Remember which axes programs cannot leave open; return fewer lengths to try, if any."""
        open_lengths = variant.open_lengths
        assert open_lengths is not None
        axes = set(open_lengths.axes)
        if failure.specialized:
            fixed = {
                axis for index in failure.specialized for axis in open_lengths.groups[index].axes
            }
        else:
            # Leave only batch sizes open. If that has failed, too, leave nothing open.
            beyond_batch_sizes = {axis for axis in axes if axis.number > 0}
            fixed = beyond_batch_sizes or axes
        # If the program adds a number, this may be what cannot be an input.
        if not variant.adds_number and all(
            program.open_lengths is None for program in self.programs
        ):
            self._fix(fixed, str(failure))
        return batch_lengths.open_lengths(axes - fixed)

    def _fix(self, axes: Iterable[Axis], reason: str) -> None:
        """Compile a program for each length of some axes from now on."""
        for axis in axes:
            self._fixed_axes.setdefault(axis, reason)

    def _give_up(
        self, step: EagerStep, reason: str, failure: _Failure, started: float
    ) -> tuple[str, float, float]:
        """Discard all programs and run every further step eagerly, since none can be made.

        `fall_back` keeps the programs that there are.
        """
        ended = time.perf_counter()
        traced_at = failure.traced_at or ended
        self.clear()
        self.stop_compiling(str(failure))
        seconds = traced_at - started, ended - traced_at
        self.records.add(step.state, reason, *seconds, fallback=self.fallback_reason)
        return reason, *seconds

    # --- reasons ---

    def _describe(
        self,
        reason: str,
        variant: _Variant,
        batch_lengths: BatchLengths,
        batch: Mapping[str, Any],
    ) -> str:
        """Add to a reason what differs in the batch, and what the program leaves open."""
        if variant.adds_number:
            return f"{reason}; it is an input of the program from now on"
        if reason != ANOTHER_SIGNATURE:
            return reason
        if self._is_another_size(variant, batch_lengths):
            return f"{_ANOTHER_SIZE}{self._describe_unequal_lengths(batch_lengths, batch)}"
        reason = self._describe_signature(batch)
        axis = self._changed_fixed_axis(batch_lengths)
        if axis is None:
            return reason
        length = "size"
        if axis.number > 0:
            length = f"length of axis {axis.number} of '{batch_lengths.key_of(axis)}'"
        return f"{reason}; each {length} is compiled by itself, because {self._fixed_axes[axis]}"

    def _is_another_size(self, variant: _Variant, batch_lengths: BatchLengths) -> bool:
        """Return whether a batch differs from those of a program in lengths that are open now."""
        return (
            batch_lengths.has_similar_program
            and variant.open_lengths is not None
            and self._changed_fixed_axis(batch_lengths) is None
        )

    def _changed_fixed_axis(self, batch_lengths: BatchLengths) -> Axis | None:
        """Return a changed axis whose lengths need a program each; None if there is none."""
        return min(batch_lengths.changed & self._fixed_axes.keys(), default=None)

    def _describe_unequal_lengths(
        self, batch_lengths: BatchLengths, batch: Mapping[str, Any]
    ) -> str:
        """Describe axes that differ now, but share an open length of a program; "" if none do."""
        for program in self.programs:
            axes = program.unequal_axes(batch) if program.matches_phase() else ()
            if axes:
                names = [f"axis {axis.number} of '{batch_lengths.key_of(axis)}'" for axis in axes]
                return f": {' and '.join(names)} were equal before"
        return ""

    def _warn_of_signatures(self, batch: Mapping[str, Any]) -> None:
        """Note how a batch differs, and warn once, when batches have differed in several ways."""
        reason = self._describe_signature(batch)
        if reason in self._noted_differences:
            return
        self._noted_differences.add(reason)
        if len(self._noted_differences) == _MANY_SIGNATURES:
            warn(
                f"A program for each of {_MANY_SIGNATURES + 1} kinds of batches has been compiled, "
                f"most recently because {reason}. Each takes as long as many steps. "
                f"{self._advice_on_lengths(batch)}Pad batches to few shapes, and hold numbers that "
                "vary in tensors. network.traces lists all programs."
            )

    def _advice_on_lengths(self, batch: Mapping[str, Any]) -> str:
        """Return how to make one program take a changed length of a batch; "" if none has."""
        batch_lengths = BatchLengths(
            batch, self.keys, lambda key, rank: set(range(rank)), self._signatures_of_phase()
        )
        allowed = batch_lengths.axes(self._dynamic.possibly_dynamic)
        axis = min(batch_lengths.changed - allowed, default=None)
        if axis is None:
            return ""
        key = batch_lengths.key_of(axis)
        return (
            f"One program takes any length of axis {axis.number} of '{key}' with "
            f"Network(..., {self._dynamic.with_axis(key, axis.number)}). "
        )

    def _describe_signature(self, batch: Mapping[str, Any]) -> str:
        """Describe how a batch differs from the last used program with another signature."""
        differences = (
            first_difference(program.signature, batch) or program.describe_lengths(batch)
            for program in self.programs
            if program.matches_phase()
        )
        difference = next(filter(None, differences), "")
        return f"{ANOTHER_SIGNATURE}: {difference}" if difference else ANOTHER_SIGNATURE


def _waits_for_update(update: UpdateOp) -> bool:
    """Return whether an update may take no step, and has still to take a first one."""
    optimizer = get_metadata(update.model, "current_optimizer")
    may_skip = update.merge_grad > 1 or update.weight is not None or update.skip_nonfinite
    return optimizer is not None and may_skip and waits_for_state(optimizer)


def _scheduled_decays(plan: ExecutionPlan) -> Iterator[OpNumber]:
    """Yield the decays that change in each step."""
    for index, op in enumerate(plan.ops):
        if isinstance(op, EMA) and op.affects_next_update:
            table = op.compared_state()
            yield OpNumber(f"the decay of {plan.describe(index)}", table, table, "decay", float)
