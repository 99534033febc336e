"""Compiled steps of a context: runs each step by the program that fits it, or eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from fastnet._execute import BoundPlan
from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import COMPILED
from fastnet.backend.torch.wrappers import parallel_type
from fastnet.errors import add_note, describe_op
from fastnet.network.compile_options import CompileOptions
from fastnet.network.plan_cache import ExecutionPlan, StepOptions
from fastnet.network.torch.compiled.capture import TRACING
from fastnet.network.torch.compiled.input_signature import tensors_in
from fastnet.network.torch.compiled.program import AliasedInput, NoMatch, Program
from fastnet.network.torch.compiled.program_cache import (
    ANOTHER_PHASE,
    ANOTHER_SIGNATURE,
    ProgramCache,
    Report,
)
from fastnet.network.torch.compiled.verification import Verification, draws_other_numbers
from fastnet.network.trace_records import Records
from fastnet.network.updates import update_ops_in
from fastnet.op.meta_op import OneOfOps
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import RunStep

_IN_PROGRAM = (
    "This was in a compiled step, whose ops are one program. Open the network with eager=True to "
    "see in which op."
)


def never_captured(plan: ExecutionPlan, device: torch.device, spread: bool) -> str | None:
    """Return why no step of a plan can be captured, whatever its batch."""
    if device.type not in ("cpu", "cuda"):
        return f"the ops run on {device}; steps are captured on the CPU and on CUDA only, so far"
    if spread:
        return "the gradients of several processes are communicated"
    for model in plan.models:
        engine = parallel_type(model)
        if engine is not None:
            return f"the model '{name_of(model)}' is run by {engine}"
        for module in model.modules():
            if hasattr(module, COMPILED):
                return f"the model '{name_of(model)}' comes from torch.compile"
    for place, op in enumerate(plan.ops):
        if any(isinstance(one, OneOfOps) for one in with_inner_ops([op])):
            return f"{describe_op(op, place)} draws one of its ops outside of torch"
        if as_tensor_op(op).merge_grad != 1 and not isinstance(op, UpdateOp):
            return f"{describe_op(op, place)} merges the gradients of several steps"
    followed = {id(op.model): op for op in plan.ops if isinstance(op, FollowsUpdates)}
    for update in update_ops_in(plan.ops):
        if (update.skip_nonfinite or update.weight is not None) and id(update.model) in followed:
            return (
                f"{describe_op(followed[id(update.model)])} follows the updates of "
                f"'{name_of(update.model)}', which may skip a step because of `weight` or "
                "`skip_nonfinite`"
            )
    return None


class CompiledStep:
    """The steps of a plan, run by compiled programs where possible."""

    def __init__(
        self,
        plan: ExecutionPlan,
        options: CompileOptions,
        records: Records,
        step_options: StepOptions,
        device: torch.device,
    ) -> None:
        self._plan = plan
        self._options = options
        self.records = records
        self._move, self._release = step_options.move, step_options.release
        self._cache = ProgramCache(plan, options, records, device)
        self._steps = 0
        self._bound: BoundPlan | None = None
        self._make: Callable[[], Any] | None = None

    @property
    def fallback_reason(self) -> str | None:
        """Why steps run eagerly from now on, or None."""
        return self._cache.fallback_reason

    def fall_back(self, reason: str, context: Mapping[str, Any]) -> None:
        """Run all further steps eagerly."""
        self._cache.fall_back(reason, context)

    def open(self, bound: BoundPlan, make: Callable[[], Any] | None) -> None:
        """Prepare the steps of a session: of its bound plan, and what makes its autocast."""
        self._bound = bound
        self._make = make
        self._cache.open()

    def step(
        self,
        eager: RunStep,
        called: Callable[[], None] | None = None,
        report: Report | None = None,
    ) -> RunStep:
        """Return the function that runs the steps of a session."""
        if self._cache.fallback_reason is not None and not self._cache.programs:
            return eager
        return partial(self._run, eager, called, report)

    def _run(
        self,
        eager: RunStep,
        called: Callable[[], None] | None,
        report: Report | None,
        batch: Mapping[str, Any],
    ) -> dict[str, Any]:
        program = self._cache.current
        if program is None:
            return self._run_eagerly(eager, report, batch, None)
        self._steps += 1
        moved = batch if self._move is None else self._moved(batch)
        result, reason = self._run_by(program, eager, called, batch, moved)
        if result is None:
            for other in self._cache.programs:
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
        """Run a step by a program, or return the reason why it does not fit."""
        if not program.matches_phase():
            return None, ANOTHER_PHASE
        reason = program.difference()
        if reason is not None:
            return None, reason
        assert self._bound is not None
        if self._is_due(program) and program.traced.fits(moved):
            return self._verified(program, eager, batch, moved), None
        try:
            result: dict[str, Any] = program.traced.step(moved, self._bound.state)
        except NoMatch:
            return None, ANOTHER_SIGNATURE
        except (AliasedInput, KeyError):
            return eager(batch), None  # Raises the error for a missing key.
        except Exception as error:
            add_note(error, _IN_PROGRAM)
            raise
        self._cache.current = program
        self._cache.misses = 0
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
            return self._steps % self._options.verify == 0
        return not program.is_verified

    def _verified(
        self, program: Program, eager: RunStep, batch: Mapping[str, Any], moved: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Run a step compiled and eagerly, and return the eager results."""
        bound, cache = self._bound, self._cache
        assert bound is not None
        if program.writes:
            try:
                program.require_separate(tensors_in([moved[key] for key in program.traced.keys]))
            except AliasedInput:
                return eager(batch)
        draws_others = draws_other_numbers(program, self._options)
        verification = Verification(program, self._plan.models, cache.accumulation, draws_others)
        result = verification.run(moved, bound.state, lambda: eager(batch))
        program.is_verified = True
        if self._options.verify == "first":
            program.graph = None
        cache.misses = 0
        if verification.difference is None:
            cache.current = program
            return result
        text = (
            "a step of the program gave other results than the same step run eagerly: "
            f"{verification.difference}"
        )
        if isinstance(self._options.verify, int):
            raise RuntimeError(f"In mode '{bound.state['mode']}' {text}.")
        cache.reject(program, text, bound.state)
        return result

    def _moved(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Move the values that ops read to the device of the ops."""
        assert self._move is not None
        return {key: self._move(batch[key]) for key in self._cache.keys if key in batch}

    def _released(
        self, program: Program, result: dict[str, Any], batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the batch with the values that ops have written, moved to where results go."""
        assert self._release is not None
        (trace,) = program.traced.traces
        return {**batch, **{key: self._release(result[key]) for key in trace.outputs}}

    def _run_eagerly(
        self, eager: RunStep, report: Report | None, batch: Mapping[str, Any], reason: str | None
    ) -> dict[str, Any]:
        """Run a step eagerly, and look up or compile a program for the next one."""
        cache = self._cache
        if cache.fallback_reason is not None and not cache.programs:
            return eager(batch)
        assert self._bound is not None
        # The program is compiled for a step of the phase of this one, not of the next one.
        preserved = nullcontext() if cache.accumulation is None else cache.accumulation.preserved()
        result = eager(batch)
        moved = batch if self._move is None else self._moved(batch)
        # Otherwise the fake tensors of another thread's trace would look like a change.
        with preserved, TRACING:
            cache.prepare(moved, self._bound, self._make, reason, report)
        return result
