"""The compiled steps of a session: runs each step by a program that is valid for it, or eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch

from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import COMPILED, has_communication_hooks, weight_hook_of
from fastnet.backend.torch.parallel_update import shares_parameters_with_others
from fastnet.backend.torch.update import TRAINED
from fastnet.backend.torch.wrappers import parallel_type, without_compile
from fastnet.errors import add_note, describe_op
from fastnet.network.plan_cache import ExecutionPlan, StepOptions
from fastnet.network.program_set import OnProgram
from fastnet.network.step_times import StepTimes
from fastnet.network.torch.compiled.buffer_broadcasts import BufferBroadcasts
from fastnet.network.torch.compiled.captured import TRACING
from fastnet.network.torch.compiled.open_lengths import read_lengths
from fastnet.network.torch.compiled.program import AliasedInput, TorchProgram
from fastnet.network.torch.compiled.program_set import EagerStep, TorchProgramSet
from fastnet.network.torch.compiled.verification import Verification, draws_other_numbers
from fastnet.network.update_binding import update_ops_in
from fastnet.op.meta_op import OneOfOps
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import RunStep, State

_IN_PROGRAM = (
    "This was in a compiled step, whose ops are one program. Open the network with eager=True to "
    "see in which op."
)


def reason_not_to_compile(
    plan: ExecutionPlan, device: torch.device, is_distributed: bool
) -> str | None:
    """Return why no step of a plan can be compiled, whatever its batch; None if one may be.

    Args:
        plan: The plan.
        device: The device of the ops.
        is_distributed: Whether other processes take part in training steps.
    """
    reasons = _reasons_against(plan, device, is_distributed and plan.takes_gradients)
    return "; ".join(dict.fromkeys(reasons)) or None


def _reasons_against(
    plan: ExecutionPlan, device: torch.device, communicates: bool
) -> Iterator[str]:
    if device.type not in ("cpu", "cuda"):
        yield f"the ops run on {device}; steps are captured on the CPU and on CUDA only, so far"
    for model in plan.models:
        engine = parallel_type(model)
        if engine == "fsdp":
            yield (
                f"the model '{name_of(model)}' is sharded by FSDP2, whose modules gather their "
                "weights when they run; with parallel='ddp' steps are compiled"
            )
        elif engine == "dp":
            yield f"the model '{name_of(model)}' is run by DataParallel"
        elif engine == "ddp" and communicates:
            yield from _reasons_against_ddp(model, list(map(without_compile, plan.models)))
        for module in model.modules():
            if hasattr(module, COMPILED):
                yield f"the model '{name_of(model)}' comes from torch.compile"
            function = weight_hook_of(module)
            if function is not None:
                yield (
                    f"a hook of torch.nn.utils.{function} replaces a weight of the model "
                    f"'{name_of(model)}'; use torch.nn.utils.parametrizations.{function}"
                )
    for index, op in enumerate(plan.ops):
        if any(isinstance(inner, OneOfOps) for inner in with_inner_ops([op])):
            yield f"{describe_op(op, index)} draws one of its ops outside of torch"
        if as_tensor_op(op).merge_grad != 1 and not isinstance(op, UpdateOp):
            yield f"{describe_op(op, index)} merges the gradients of several steps"
    followed = {id(op.model): op for op in plan.ops if isinstance(op, FollowsUpdates)}
    for update in update_ops_in(plan.ops):
        if (update.skip_nonfinite or update.weight is not None) and id(update.model) in followed:
            yield (
                f"{describe_op(followed[id(update.model)])} follows the updates of "
                f"'{name_of(update.model)}', which may skip a step because of `weight` or "
                "`skip_nonfinite`"
            )


def _reasons_against_ddp(
    model: torch.nn.Module, wrappers: Sequence[torch.nn.Module]
) -> Iterator[str]:
    """Yield why DistributedDataParallel itself has to average the gradients of a model.

    `wrappers` are those of all models of the plan.
    """
    wrapper: Any = without_compile(model)
    settings = {
        "find_unused_parameters=True": wrapper.find_unused_parameters,
        "static_graph=True": wrapper.static_graph,
        "mixed_precision": wrapper.mixed_precision is not None,
        "parameters that it ignores": wrapper.parameters_to_ignore,
        "a communication hook": has_communication_hooks(wrapper),
        "sparse gradients": any(map(_is_sparse, wrapper.modules())),
        "parameters of another model": shares_parameters_with_others(wrapper, wrappers),
    }
    for setting, is_used in settings.items():
        if is_used:
            yield (
                f"the DistributedDataParallel of the model '{name_of(model)}' has {setting}, so it "
                "averages gradients itself, in its hooks"
            )


def _is_sparse(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse


class CompiledSession:
    """The compiled steps of one session.

    Args:
        programs: The programs of the session's ops, which sessions of other plans may share.
        state: The state of the session.
        make_autocast: Makes the context manager around the ops of each step; None for none.
        step_options: How values are converted, moved to the device of the ops, and back.
    """

    def __init__(
        self,
        programs: TorchProgramSet,
        state: State,
        make_autocast: Callable[[], AbstractContextManager[Any]] | None,
        step_options: StepOptions,
    ) -> None:
        programs.find_merging_updates()
        self.programs = programs
        self._state = state
        self._make_autocast = make_autocast
        self._conversion = step_options.conversion
        self._move, self._detach = step_options.to_device, step_options.detach
        # Whether a batch had arrays, so that batches are converted before a program is looked for.
        self._converts = False
        # Ops resolve values of a new session in its first step, which therefore runs eagerly.
        self._has_run = False
        self._broadcasts = BufferBroadcasts([*programs.plan.models, *state.get(TRAINED, ())])

    def step(
        self,
        eager: RunStep,
        on_call: Callable[[], None] | None = None,
        on_compile: OnProgram | None = None,
    ) -> RunStep:
        """Return the function that runs the steps of the session.

        Args:
            eager: Runs a step eagerly.
            on_call: Called after each step that a program has run.
            on_compile: Called with the reason and the seconds when a program was compiled.
        """
        programs = self.programs
        eager = self._broadcasts.restored_on_error(eager)
        if programs.is_given_up:
            return eager

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not self._has_run:
                return self._run_eagerly(batch, eager, on_compile, None)
            moved = self._moved(batch)
            try:
                program, tensors, reason = programs.find(moved)
            except KeyError:
                return eager(batch)  # Raises the error for a missing key.
            if program is None:
                return self._run_eagerly(batch, eager, on_compile, reason)
            if program.awaits_verification and self._count_if_due(program, tensors):
                verified = self._verified(program, eager, batch, moved, tensors)
                if verified is not None:
                    return verified

            times = program.times
            if times is None:
                return self._run_program(program, eager, batch, moved, tensors, on_call)
            if times.awaits_uncompiled:
                return times.run_uncompiled(lambda: eager(batch))
            started = perf_counter()
            # Again, to time the search with the step; its result is the program from above.
            programs.find(self._moved(batch))
            result = self._run_program(program, eager, batch, moved, tensors, on_call)
            programs.note_compiled(program, perf_counter() - started, self._state)
            return result

        return run

    def consecutive_step(self, eager: RunStep) -> RunStep:
        """Return a function for steps between which nothing changes that guards would notice.

        Before its first step only, a program is compared with everything that it was made from.
        Before each step, it is compared with the phase, the batch, and the numbers of optimizers
        and ops that a schedule may change.
        """
        programs = self.programs
        eager = self._broadcasts.restored_on_error(eager)
        if programs.is_given_up:
            return eager
        compared: list[TorchProgram] = []

        def run_eagerly(batch: Mapping[str, Any]) -> dict[str, Any]:
            compared.clear()  # The ops may change what is compared.
            return eager(batch)

        step = self.step(run_eagerly)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            moved = self._moved(batch)
            try:
                program, tensors = _find_compared(compared, moved)
                if program is None and self._has_run:
                    program, tensors, _ = programs.find(moved)
                    if program is None or program.awaits_verification or program.times is not None:
                        program = None
                    else:
                        compared.append(program)
            except KeyError:
                return run_eagerly(batch)  # Raises the error for a missing key.
            if program is None:
                return step(batch)
            return self._run_program(program, run_eagerly, batch, moved, tensors, None)

        return run

    def _run_program(
        self,
        program: TorchProgram,
        eager: RunStep,
        batch: Mapping[str, Any],
        moved: Mapping[str, Any],
        tensors: list[torch.Tensor],
        on_call: Callable[[], None] | None,
    ) -> dict[str, Any]:
        """Run a step by a program that is valid for it."""
        try:
            result = program.run(moved, tensors)
        except AliasedInput:
            return eager(batch)
        except Exception as error:
            add_note(error, _IN_PROGRAM)
            raise
        for op in program.followed:
            op.advance()
        if moved is not batch:
            result = self._detached(program, result, batch)
        if on_call is not None:
            on_call()
        return result

    def _moved(self, batch: Any) -> Any:
        """Return the values that ops read as tensors on the device of the ops."""
        if self._move is None and not self._converts:
            return batch
        if not isinstance(batch, Mapping):
            return batch  # Looking for a program raises the error.
        moved = self._values_read(batch)
        if self._converts:
            moved = {key: self._converted(value) for key, value in moved.items()}
        if self._move is not None:
            moved = {key: self._move(value) for key, value in moved.items()}
        return moved

    def _converted(self, value: Any) -> Any:
        """Convert arrays to tensors; those of another framework would be in the result, too."""
        assert self._conversion is not None
        try:
            is_foreign = self._conversion.foreign.holds_leaf(value)
            return value if is_foreign else self._conversion.arrays(value)
        except RecursionError:
            return value  # It contains itself, so the step runs eagerly.

    def _has_arrays(self, batch: Mapping[str, Any]) -> bool:
        assert self._conversion is not None
        try:
            return any(map(self._conversion.arrays.holds_leaf, self._values_read(batch).values()))
        except RecursionError:
            return False

    def _values_read(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {key: batch[key] for key in self.programs.keys if key in batch}

    def _detached(
        self, program: TorchProgram, result: dict[str, Any], batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the batch with the values that ops have written, moved to where results go."""
        assert self._detach is not None
        outputs = program.signature.outputs
        return {**batch, **{key: self._detach(result[key]) for key in outputs}}

    def _run_eagerly(
        self,
        batch: Mapping[str, Any],
        eager: RunStep,
        on_compile: OnProgram | None,
        reason: str | None,
    ) -> dict[str, Any]:
        """Run a step eagerly, and compile a program for the next one unless there is one."""
        programs = self.programs
        # The eager step moves windows and flags on. The program is for those before it, so they are
        # put back while it is compiled.
        accumulation = programs.accumulation
        windows_before: AbstractContextManager[Any] = nullcontext()
        if accumulation is not None:
            windows_before = accumulation.with_windows(accumulation.windows())
        flags = self._broadcasts.flags()
        result = eager(batch)
        self._has_run = True
        if programs.is_given_up:
            return result
        self._converts = self._converts or self._has_arrays(batch)
        if programs.fallback_reason is not None:
            return result
        moved = self._moved(batch)
        # Under the lock: fake tensors that another thread's trace has put in place would look like
        # a change.
        with windows_before, self._broadcasts.with_flags(flags), TRACING:
            step = EagerStep(moved, self._state, self._make_autocast)
            programs.compile_for(step, reason, on_compile)
        return result

    # --- verification ---

    def _count_if_due(self, program: TorchProgram, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether to verify a step of a program that awaits it.

        With `verify=N` this counts the step, and returns whether it is an Nth one. Otherwise it
        returns whether no step of the same open lengths was verified.
        """
        programs = self.programs
        verify = programs.options.verify
        if isinstance(verify, int):
            programs.steps_of_programs += 1
            return programs.steps_of_programs % verify == 0
        if program.open_lengths is None:
            return True
        return read_lengths(program.open_lengths, tensors) != program.verified_lengths

    def _verified(
        self,
        program: TorchProgram,
        eager: RunStep,
        batch: Mapping[str, Any],
        moved: Mapping[str, Any],
        tensors: list[torch.Tensor],
    ) -> dict[str, Any] | None:
        """Run a step eagerly and on copies compiled, compare both, and return the eager results.

        Return None if another thread has verified the program meanwhile.

        Args:
            program: The program.
            eager: Runs the step eagerly.
            batch: The batch.
            moved: The values that ops read, on the device of the ops.
            tensors: The tensors of these values.
        """
        programs = self.programs
        with TRACING:
            if not program.awaits_verification:
                return None if program in programs.programs else eager(batch)
            if program.writes:
                try:
                    program.require_separate(tensors)
                except AliasedInput:
                    return eager(batch)
            verification = Verification(
                program,
                programs.plan.models,
                programs.accumulation,
                draws_other_numbers(program, programs.options),
            )
            times = program.times or StepTimes()
            result = verification.run(
                moved, tensors, lambda: times.run_uncompiled(lambda: eager(batch))
            )
            if programs.options.verify == "first":
                _note_verified(program, tensors)
            if verification.difference is None:
                return result

            text = (
                "a step of the program gave other results than the same step run eagerly: "
                f"{verification.difference}"
            )
            if isinstance(programs.options.verify, int):
                raise RuntimeError(f"In mode '{self._state['mode']}' {text}.")
            programs.reject(program, text, self._state)
            return result


def _find_compared(
    programs: Sequence[TorchProgram], batch: Mapping[str, Any]
) -> tuple[TorchProgram | None, list[torch.Tensor]]:
    """Find the program for a step, if all but phase, batch and numbers was compared before.

    Raises:
        KeyError: If the batch lacks a key.
    """
    for program in programs:
        if not program.matches_phase():
            continue
        tensors = program.match(batch)
        if tensors is None:
            continue
        # Only what follows updates may have changed numbers since the last step.
        if program.followed and program.adopt_changes() is not None:
            continue
        return program, tensors
    return None, []


def _note_verified(program: TorchProgram, tensors: Sequence[torch.Tensor]) -> None:
    """Verify no further step of a program, or with open lengths, one more step of other lengths."""
    if program.open_lengths is not None and program.verified_lengths is None:
        program.verified_lengths = read_lengths(program.open_lengths, tensors)
        return
    program.awaits_verification = False
    program.graph = None
