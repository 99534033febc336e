"""A compiled step with all that must be as it was when it was traced."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from operator import is_
from typing import Any

import torch

from fastnet._trace import Length, Trace, TracedStep
from fastnet.backend.torch._internals import (
    grad_hooks,
    modes_are_active,
    note_step,
    set_grad_enabled,
    tensor_guard,
    transforms_are_active,
)
from fastnet.network.torch.compiled.accumulation import Phase
from fastnet.network.torch.compiled.capture import Capture
from fastnet.network.torch.compiled.fake_tensors import StepState
from fastnet.network.torch.compiled.input_signature import KIND
from fastnet.network.torch.compiled.lowering import Lowered
from fastnet.network.torch.compiled.number_inputs import NumberInput
from fastnet.network.torch.compiled.uncapturable import Uncapturable

__all__ = ["NoFit", "Program", "SharedMemory", "environment"]


class SharedMemory(Exception):
    """A batch is in the memory of a parameter or a buffer that the step writes to."""


class NoFit(Exception):
    """A batch is of another kind than those that a step was traced for."""


class Program:
    """A compiled step with all that must be as it was when it was traced."""

    def __init__(
        self,
        keys: Sequence[str],
        forms: list[Any],
        capture: Capture,
        lowered: Lowered,
        state: StepState,
        around: tuple[Any, ...],
        takes_gradients: bool,
        phase: Phase | None = None,
        sized: tuple[Sequence[int], Length] | None = None,
    ) -> None:
        self._phase = phase
        self.followed = capture.followed
        self.is_sized = sized is not None
        self._sized: Sequence[int] = () if sized is None else sized[0]
        self._guard = capture.guard
        self.is_random = capture.is_random
        self.precision = capture.precision
        self.outputs = list(capture.outputs)
        self.is_verified = False
        self.unverified: str | None = None
        self.changed_number: NumberInput | None = None
        self._around = around
        self._device = state.device.type
        self._disables_grad = torch.is_grad_enabled() and not lowered.needs_grad_mode
        self.state = state
        # in the order of the graph's inputs: state, numbers, batch and sums of gradients, others
        bound, last = len(state.tensors), len(capture.examples) - len(capture.others)
        batch = range(bound + 1, last)
        if any(place in batch for place in lowered.written):
            raise Uncapturable("an op writes into a tensor of the batch")
        self.tensors = [*state.tensors, *capture.others]
        self._numbers = torch.zeros(max(len(state.numbers()), 1), dtype=torch.float64)
        self._call = lowered.call
        # the first input is the size that is open, where one is
        self._first = int(self.is_sized)
        # of the graph's inputs those that it takes: a tensor of ours, or a place in the batch
        self._used = [
            (True, place - bound - 1) if place in batch else (False, self._own(place, bound, last))
            for place in lowered.used
        ]
        self._writes = [self._own(place, bound, last) for place in lowered.written]
        self._takes_gradients = takes_gradients
        self._grad_hooks = list(map(grad_hooks, state.parameters))
        self._bind()
        run = self._run_sized if self.is_sized else self._run
        trace = Trace(run, forms, capture.outputs, length=sized and sized[1])
        self.traced = TracedStep(keys, KIND, _refuse)
        self.traced.traces = [trace]
        self._note_steps()

    def _note_steps(self) -> None:
        """Let learning rate schedulers know that their optimizers take steps."""
        for one in self.state.optimizers.values():
            if "step" in vars(one.optimizer):
                note_step(one.optimizer)

    @staticmethod
    def _own(place: int, bound: int, last: int) -> int:
        """Return the place among our own tensors: state, others, and then the numbers."""
        if place < bound:
            return place
        return -1 if place == bound else bound + place - last

    def _bind(self) -> None:
        """Take the tensors that there are now, in the places of those that there were."""
        self._are_in_place = tensor_guard(self.tensors)
        # These share memory and versions with the tensors, and need no gradients.
        aliases = [tensor.detach() for tensor in self.tensors]
        memory = sorted(
            (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            for storage in (one.untyped_storage() for one in aliases)
        )
        # of the memory of each, where it begins and where it ends, with something behind the last
        self._begins = [begin for begin, _ in memory] + [sys.maxsize]
        self._ends = [end for _, end in memory]
        ours = [*aliases, self._numbers]
        self._template: list[Any] = [None] * self._first
        self._template += [None if of_batch else ours[at] for of_batch, at in self._used]
        self._slots = [
            (slot, at) for slot, (of_batch, at) in enumerate(self._used, self._first) if of_batch
        ]
        self._written = tuple(ours[at] for at in self._writes)
        self._guard_optimizers()

    def _guard_optimizers(self) -> None:
        guards = [one.guard() for one in self.state.optimizers.values()]
        self._optimizers = [snapshot for snapshot, _ in guards]
        self._groups = [group for _, groups in guards for group in groups]
        self._fill()

    def _fill(self) -> None:
        """Write the numbers of the optimizers to the tensor that the program reads them from."""
        self._held_numbers = [repr(one.read()) for one in self.state.held]
        self._live = [read(group) for group, read in self._groups]
        numbers = self.state.numbers()
        if numbers:
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _follow_numbers(self) -> None:
        """Follow changes of the numbers that ops hold."""
        # NaN is equal to itself by this comparison, and 0.0 and -0.0 are not.
        now = [repr(one.read()) for one in self.state.held]
        if now != self._held_numbers:
            self._fill()

    def merged(self) -> list[torch.Tensor]:
        """Return the merged gradients, as they are now."""
        return [] if self._phase is None else self._phase.tensors()

    def is_of_phase(self) -> bool:
        """Return whether it takes as many gradients, that were added up, as there are now."""
        return self._phase is None or self._phase.is_now()

    def difference(self) -> str | None:
        """Return why the program does not fit a step now, or None if it does."""
        if environment(self._device) != self._around:
            return "what is around the step (autocast, modes, gradients off) has changed"
        if not self._guard.is_unchanged():
            change = self._guard.first_change()
            if change is not None:
                self.changed_number = self._guard.changed_number()
                return f"{change} has changed"
        if self.state.held:
            try:
                self._follow_numbers()
            except Uncapturable as error:
                return str(error)
        if self._takes_gradients:
            if self.state.has_other_optimizers():
                return "another optimizer is current"
            if not self._fit_optimizers():
                return "the optimizer of a model was changed"
            if list(map(grad_hooks, self.state.parameters)) != self._grad_hooks:
                return "the requires_grad, gradient or hooks of a parameter have changed"
        if not self._are_in_place():
            return "a parameter or a buffer has other memory, or another requires_grad"
        return None

    def _fit_optimizers(self) -> bool:
        """Follow changes of the optimizers' numbers and state; return False for other changes."""
        try:
            if not all(one.is_unchanged() for one in self._optimizers):
                return self._rebind()
            if [read(group) for group, read in self._groups] != self._live:
                if any(
                    one.settings_now() != one.settings for one in self.state.optimizers.values()
                ):
                    return False
                self._fill()
        except (Uncapturable, KeyError):
            return False
        return True

    def _rebind(self) -> bool:
        """Bind the state tensors that optimizers have now; return False if they do not fit."""
        for one in self.state.optimizers.values():
            again = type(one)(one.optimizer, one.first)
            if again.settings != one.settings or again.keys != one.keys:
                return False
        fresh = self.state.optimizer_tensors()
        known = len(self.state.tensors) - len(fresh)
        if all(map(is_, self.state.tensors[known:], fresh)):
            self._guard_optimizers()
            return True
        for old, new in zip(self.state.tensors[known:], fresh, strict=True):
            if (
                old.shape != new.shape
                or old.dtype != new.dtype
                or old.stride() != new.stride()
                or new.device != old.device
                or new.requires_grad
            ):
                return False
        memory = [one.untyped_storage().data_ptr() for one in fresh if one.numel()]
        others = {
            one.untyped_storage().data_ptr() for one in self.state.tensors[:known] if one.numel()
        }
        if len(set(memory)) != len(memory) or not others.isdisjoint(memory):
            return False
        self.state.tensors[known:] = fresh
        self.tensors[known : known + len(fresh)] = fresh
        self._bind()
        self._note_steps()
        return True

    def _run(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        return self._run_with(self._template.copy(), tensors)

    def _run_sized(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        sizes = {tensors[at].shape[0] for at in self._sized}
        if len(sizes) > 1:
            # another thread was matching its batch meanwhile
            raise NoFit
        inputs = self._template.copy()
        inputs[0] = sizes.pop()
        return self._run_with(inputs, tensors)

    def _run_with(self, inputs: list[Any], tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._written:
            self._require_apart(tensors)
        if self._phase is not None:
            tensors = [*tensors, *self._phase.tensors()]
        for slot, at in self._slots:
            inputs[slot] = tensors[at]
        if self._disables_grad:
            set_grad_enabled(False)
            try:
                results = self._call(inputs)
            finally:
                set_grad_enabled(True)
        else:
            results = self._call(inputs)
        if self._written:
            torch.autograd.graph.increment_version(self._written)
        return results if self._phase is None else self._phase.settle(results)

    def _require_apart(self, tensors: list[torch.Tensor]) -> None:
        """Refuse tensors of a batch that are in memory of our own."""
        begins, ends = self._begins, self._ends
        for tensor in tensors:
            begin = tensor.data_ptr()
            behind = bisect_right(begins, begin)
            if begins[behind] < begin + tensor.nbytes or (behind and begin < ends[behind - 1]):
                raise SharedMemory


def _refuse(values: list[Any]) -> Trace:
    raise NoFit


def environment(device: str) -> tuple[Any, ...] | None:
    """Return the settings of this thread that decide how torch computes on a kind of device."""
    if (
        modes_are_active()
        or transforms_are_active()
        or torch.is_inference_mode_enabled()
        or torch.is_anomaly_enabled()
    ):
        return None
    autocast = torch.is_autocast_enabled(device)
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_autocast_dtype(device) if autocast else None,
        torch.is_autocast_cache_enabled(),
    )
