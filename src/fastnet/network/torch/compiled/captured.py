"""The request to capture a step, and the captured step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.accumulation import Phase
from fastnet.network.torch.compiled.guard import Guard
from fastnet.network.torch.compiled.number_inputs import BatchNumber
from fastnet.network.torch.compiled.open_lengths import OpenLength, TracedLength
from fastnet.network.torch.compiled.step_state import StepState
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.types import State

TRACING = threading.RLock()
"""Held during a trace: fake tensors are in the places of parameters, where all threads see them."""


class InputLayout(NamedTuple):
    """The order of a graph's inputs.

    These are the tensors of the `StepState`, one tensor of all numbers of ops and optimizers, the
    tensors of the batch, one for each of its numbers, merged gradients, and tensors that ops hold.
    In a compiled program, open lengths come before them. Each attribute is the number of tensors of
    a kind.
    """

    step_tensors: int
    batch: int
    batch_numbers: int
    sums: int
    held: int = 0

    @property
    def numbers_index(self) -> int:
        """The index of the tensor of numbers."""
        return self.step_tensors

    @property
    def passed(self) -> range:
        """The indices of the inputs that each step passes: the batch, its numbers and the sums."""
        first = self.numbers_index + 1
        return range(first, first + self.batch + self.batch_numbers + self.sums)

    @property
    def first_batch_number(self) -> int:
        """The index of the first number of the batch."""
        return self.passed.start + self.batch

    def own_index(self, index: int) -> int:
        """Return the index of an input among a program's own tensors.

        These are the tensors of the `StepState`, what ops hold, and then the numbers, so that the
        index of a tensor that is written is also one of `TorchProgram.tensors`.
        """
        if index < self.step_tensors:
            return index
        if index == self.numbers_index:
            return self.step_tensors + self.held
        return index - len(self.passed) - 1


@dataclass(frozen=True)
class CaptureRequest:
    """A step to capture.

    Attributes:
        plan: The plan, whose ops are traced.
        state: The state of the session.
        make_autocast: Makes the context manager around the ops; None for none.
        keys: The keys that ops read from the batch.
        values: The values under these keys.
        batch_numbers: The numbers of the batch that are inputs, whose keys are not in `keys`, and
            their values.
        step_state: The tensors, numbers and optimizers that the step reads and writes.
        phase: The merged gradients that the step reads and leaves; None if none are merged.
        open_lengths: The lengths of the batch that are open.
    """

    plan: ExecutionPlan
    state: State
    make_autocast: Callable[[], AbstractContextManager[Any]] | None
    keys: Sequence[str]
    values: Sequence[Any]
    batch_numbers: Mapping[BatchNumber, Any]
    step_state: StepState
    phase: Phase | None
    open_lengths: Sequence[OpenLength]


@dataclass(frozen=True)
class Capture:
    """A captured step.

    Attributes:
        graph: Takes tensors as `layout` says; returns those of the outputs, and merged gradients.
        layout: The order of its inputs.
        mode: The mode of its example inputs.
        examples: Fake tensors of the types and shapes that it takes.
        held_tensors: Tensors that ops hold themselves.
        outputs: The form of each key that ops write.
        aliases: The outputs that are a tensor of the `StepState` itself, which the graph does not
            return: their places among the tensors of the outputs, and the indices of the tensors.
        guard: Tells whether the ops have changed.
        is_random: Whether the step draws random numbers.
        precision: The floating-point dtype of the lowest precision in the graph.
        followed: The ops whose `advance` is to be called after the updates.
        lengths: The lengths that are open.
    """

    graph: torch.fx.GraphModule
    layout: InputLayout
    mode: Any
    examples: Sequence[torch.Tensor]
    held_tensors: Sequence[torch.Tensor]
    outputs: dict[str, Any]
    aliases: Sequence[tuple[int, int]]
    guard: Guard
    is_random: bool
    precision: torch.dtype
    followed: Sequence[FollowsUpdates]
    lengths: Sequence[TracedLength]
