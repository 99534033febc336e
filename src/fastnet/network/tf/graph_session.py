"""The graphs of a session: runs each step by a program that is valid for it, or traces one."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from fastnet._execute import KernelPlan
from fastnet.backend.tf.graph import is_recorded
from fastnet.backend.tf.tensor_adapter import FOREIGN, TENSOR_ADAPTER, holds_foreign
from fastnet.network.program_set import OnProgram
from fastnet.network.tf.program import GraphProgram
from fastnet.network.tf.program_set import GraphProgramSet
from fastnet.types import RunStep, State


class GraphSession:
    """The steps of one session that run as graphs.

    Args:
        programs: The programs of the session's ops, which sessions of other plans may share.
        kernel: The plan of the session.
        state: The state of the session.
        may_trace: Whether to trace a program for a batch that no program is valid for; otherwise
            its step runs eagerly.
    """

    def __init__(
        self, programs: GraphProgramSet, kernel: KernelPlan, state: State, may_trace: bool
    ) -> None:
        # Each session compares once; see `TraceGuard.cached_change`.
        programs.forget_comparisons()
        self._programs = programs
        self._kernel = kernel
        self._state = state
        # The first input of every graph.
        self._epoch = state["epoch"]
        self._may_trace = may_trace

    def step(self, eager: RunStep, on_program: OnProgram | None = None) -> RunStep:
        """Return the function that runs the steps of the session.

        Args:
            eager: Runs a step eagerly.
            on_program: Called after a program was traced or compiled.
        """
        programs, epoch = self._programs, self._epoch

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            try:
                program, tensors, _ = programs.find(batch)
            except KeyError as error:
                raise self._kernel.missing_key_error(batch) or error from None
            if program is None:
                return self._run_without_program(batch, eager, on_program)
            return self._run_program(program, batch, [epoch, *tensors], on_program)

        return run

    def _run_without_program(
        self, batch: Mapping[str, Any], eager: RunStep, on_program: OnProgram | None
    ) -> dict[str, Any]:
        """Run a step that no program was found for, and trace one if there is still none."""
        programs = self._programs
        started = perf_counter()
        missing = self._kernel.missing_key_error(batch)
        if missing is not None:
            raise missing
        program: GraphProgram | None = None
        converted = _with_tf_tensors(batch, programs.keys)
        if converted is not batch:
            batch = converted
            program, tensors, _ = programs.find(batch)
        if program is None:
            # Changes made while the network is open take effect now.
            programs.forget_comparisons()
            program, tensors, _ = programs.find(batch)
        if program is not None:
            return self._run_program(program, batch, [self._epoch, *tensors], on_program)
        if not self._may_trace:
            return eager(batch)
        program = programs.trace(batch, int(self._epoch))
        matched = program.match(batch)
        if matched is None:
            raise _mismatch(program, batch)
        inputs = [self._epoch, *matched]
        return programs.run_and_record(program, batch, inputs, self._state, on_program, started)

    def _run_program(
        self,
        program: GraphProgram,
        batch: Mapping[str, Any],
        inputs: list[Any],
        on_program: OnProgram | None,
    ) -> dict[str, Any]:
        """Run a step by a program that was traced in an earlier one."""
        if program.awaits_compilation and not is_recorded():
            return self._programs.run_and_record(program, batch, inputs, self._state, on_program)
        return program.run(batch, inputs)


def _with_tf_tensors(batch: Mapping[str, Any], keys: list[str]) -> Mapping[str, Any]:
    """Return a batch in which tensors of other frameworks are converted, or the same batch."""
    converted = {key: FOREIGN(batch[key]) for key in keys if holds_foreign(batch[key])}
    return {**batch, **converted} if converted else batch


def _mismatch(program: GraphProgram, batch: Mapping[str, Any]) -> RuntimeError:
    """Return the error for a program that is not for the batch that it was traced for."""
    forms = zip(program.signature.keys, program.signature.inputs, strict=True)
    key = next(key for key, form in forms if not TENSOR_ADAPTER.matches(form, batch[key]))
    return RuntimeError(
        f"The value of '{key}', of type {type(batch[key]).__name__}, does not match the trace that "
        "was made for it: it changed meanwhile, or does not equal itself."
    )
