"""A compiled step with all that must be as it was when it was traced."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from fastnet._trace import Length, Trace, TracedStep
from fastnet._watch import Contents
from fastnet.backend.torch._internals import (
    grad_hooks,
    hook_tables,
    note_step,
    scaler_records,
    set_grad_enabled,
)
from fastnet.network.torch.captured.capture import Capture
from fastnet.network.torch.captured.environment import environment
from fastnet.network.torch.captured.lowering import Lowered
from fastnet.network.torch.captured.merging import Phase
from fastnet.network.torch.captured.observing import Uncapturable
from fastnet.network.torch.captured.stand_ins import State
from fastnet.network.torch.captured.values import KIND

__all__ = ["NoFit", "Program", "SharedMemory"]

_OPTIMIZERS = "the optimizer of a model was changed"
# what a program may put its own in the place of, or have besides
_OF_OPTIMIZERS = ("state", "param_groups", "step", "zero_grad", "scaler")


class SharedMemory(Exception):
    """A batch is in the memory of a parameter or a buffer that the step writes to."""


class NoFit(Exception):
    """A batch is of another kind than those that a step was traced for."""


class Program:
    """A compiled step with all that must be as it was when it was traced.

    Args:
        keys: The keys that ops read from the batch.
        forms: The forms of their values.
        capture: What was traced.
        lowered: What was compiled.
        state: The tensors that the step reads and writes.
        around: What was around it, as `environment` gives it.
        takes_gradients: Whether it takes gradients.
        phase: What it takes and leaves of gradients that are added up, or None where none are.
        sized: Which tensors of the batch have the open size, and what the forms have in its place;
            None if no size is open.

    Attributes:
        followed: The ops that step schedulers of learning rates after its updates.
        traced: Matches batches and runs the step; it raises `NoFit` for what does not fit.
        is_sized: Whether a size is open.

    Raises:
        Uncapturable: If the step writes to its batch.
    """

    def __init__(
        self,
        keys: Sequence[str],
        forms: list[Any],
        capture: Capture,
        lowered: Lowered,
        state: State,
        around: tuple[Any, ...],
        takes_gradients: bool,
        phase: Phase | None = None,
        sized: tuple[Sequence[int], Length] | None = None,
    ) -> None:
        self._phase = phase
        self.followed = capture.followed
        self.is_sized = sized is not None
        length = None
        self._sized: list[int] = []
        if sized is not None:
            self._sized, length = list(sized[0]), sized[1]
        self._held = capture.held
        self._around = around
        self._device = state.device.type
        self._grads_are_on = torch.is_grad_enabled()
        self._state = state
        # in the order of the graph's inputs: state, numbers, batch and sums of gradients, others
        bound, last = len(state.tensors), len(capture.examples) - len(capture.others)
        batch = range(bound + 1, last)
        if any(place in batch for place in lowered.written):
            raise Uncapturable("an op writes into a tensor of the batch")
        self._reals = [*state.tensors, *capture.others]
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
        # gradients there are, and what is called with them, count in steps that take some
        self._read = grad_hooks if takes_gradients else attrgetter("requires_grad")
        self._training = list(map(self._read, state.parameters))
        self._bind()
        run = self._run_sized if self.is_sized else self._run
        trace = Trace(run, forms, capture.outputs, length=length)
        self.traced = TracedStep(keys, KIND, _refuse)
        self.traced.traces = [trace]
        for optimizer in self._optimizers():
            if "step" in vars(optimizer):
                note_step(optimizer)

    @staticmethod
    def _own(place: int, bound: int, last: int) -> int:
        """Return the place among our own tensors: state, others, and then the numbers."""
        if place < bound:
            return place
        return -1 if place == bound else bound + place - last

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [one.optimizer for one in self._state.remembered.values()]

    def _bind(self) -> None:
        """Take the tensors that there are now, in the places of those that there were."""
        # they share memory and versions with them, and need no gradients
        self._aliases = [tensor.detach() for tensor in self._reals]
        memory = sorted(
            (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            for storage in (one.untyped_storage() for one in self._aliases)
        )
        # of the memory of each, where it begins and where it ends, with something behind the last
        self._begins = [begin for begin, _ in memory] + [sys.maxsize]
        self._ends = [end for _, end in memory]
        ours = [*self._aliases, self._numbers]
        self._template: list[Any] = [None] * self._first
        self._template += [None if of_batch else ours[at] for of_batch, at in self._used]
        self._slots = [
            (slot, at) for slot, (of_batch, at) in enumerate(self._used, self._first) if of_batch
        ]
        self._written = tuple(ours[at] for at in self._writes)
        self._look_at_optimizers()
        self._fill()

    def _look_at_optimizers(self) -> None:
        tables: list[dict[Any, Any]] = []
        entries: list[tuple[dict[str, Any], str]] = []
        lists: list[list[Any]] = []
        absent: list[tuple[dict[str, Any], set[str]]] = []
        for optimizer in self._optimizers():
            own = vars(optimizer)
            entries += [(own, name) for name in _OF_OPTIMIZERS if name in own]
            absent.append((own, {name for name in _OF_OPTIMIZERS if name not in own}))
            lists.append(optimizer.param_groups)
            for group in optimizer.param_groups:
                tables.append(group)
                # the parameters, and pairs of numbers that are no tuples
                lists += [value for value in group.values() if type(value) is list]
            # which states there are, and what is in each
            tables.append(optimizer.state)
            tables += [one for one in optimizer.state.values() if isinstance(one, dict)]
            tables += hook_tables(optimizer)
            scaler = getattr(optimizer, "scaler", None)
            if scaler is not None:
                records = scaler_records(scaler)
                tables += [vars(scaler), records]
        self._steps = [(one, _called_of(one)) for one in self._optimizers()]
        self._of_optimizers = Contents(entries, tables, lists, absent, self._optimizers())

    def _fill(self) -> None:
        numbers = self._state.numbers()
        if numbers:
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))

    def is_of_phase(self) -> bool:
        """Return whether it takes as many gradients, that were added up, as there are now."""
        return self._phase is None or self._phase.is_now()

    def difference(self) -> str | None:
        """Return why this does not stand for a step now; None if it does.

        Returns:
            What has changed, in words.
        """
        if environment(self._device) != self._around:
            return "what is around the step (autocast, modes, gradients off) has changed"
        if not self._held.is_same():
            change = next(self._held.changes(), None)
            if change is not None:
                return f"{change} has changed"
        if self._state.has_other_optimizers():
            return "another optimizer is in force"
        if not self._are_optimizers_still() and not self._rebind():
            return _OPTIMIZERS
        if list(map(self._read, self._state.parameters)) != self._training:
            return self._grad_difference()
        if not all(map(torch.Tensor.is_set_to, self._reals, self._aliases)):
            return "a parameter or a buffer has other memory"
        return None

    def _grad_difference(self) -> str:
        for parameter, then in zip(self._state.parameters, self._training, strict=True):
            if self._read is not grad_hooks or parameter.requires_grad is not then[0]:
                return "parameters were frozen or thawed"
            if parameter.grad is not None:
                return "a parameter has a gradient already"
        return "a parameter has hooks"

    def _are_optimizers_still(self) -> bool:
        return self._of_optimizers.are_still() and all(
            _called_of(optimizer) == called for optimizer, called in self._steps
        )

    def _rebind(self) -> bool:
        """Go along with numbers that were set, and with states that were loaded."""
        try:
            for one in self._state.remembered.values():
                again = type(one)(one.optimizer, one.first)
                if again.settings != one.settings or again.places_told() != one.told:
                    return False
            fresh = self._state.tensors_remembered()
        except (Uncapturable, KeyError):
            return False
        known = len(self._state.tensors) - len(fresh)
        if all(map(is_, self._state.tensors[known:], fresh)):
            self._look_at_optimizers()
            self._fill()
            return True
        for old, new in zip(self._state.tensors[known:], fresh, strict=True):
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
            one.untyped_storage().data_ptr() for one in self._state.tensors[:known] if one.numel()
        }
        if len(set(memory)) != len(memory) or not others.isdisjoint(memory):
            return False
        self._state.tensors[known:] = fresh
        self._reals[known : known + len(fresh)] = fresh
        self._bind()
        for optimizer in self._optimizers():
            if "step" in vars(optimizer):
                note_step(optimizer)
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
        if self._grads_are_on:
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


def _called_of(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Return what a step calls of the class of an optimizer."""
    return type(optimizer).step, type(optimizer).zero_grad


def _refuse(values: list[Any]) -> Trace:
    raise NoFit
