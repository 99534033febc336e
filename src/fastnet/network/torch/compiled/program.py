"""Compiled steps in torch, with the conditions under which they are valid."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import torch

from fastnet._trace import Signature
from fastnet.backend.torch._internals import (
    GlobalState,
    gradient_hook_tables,
    modes_are_active,
    note_step,
    read_gradients,
    set_grad_enabled,
    tensor_guard,
    transforms_are_active,
)
from fastnet.backend.torch.disable_autocast import without_autocast
from fastnet.network.program_limits import MAX_LENGTHS
from fastnet.network.program_set import Program
from fastnet.network.step_times import StepTimes
from fastnet.network.torch.compiled.accumulation import Phase
from fastnet.network.torch.compiled.captured import Capture
from fastnet.network.torch.compiled.lowering import Lowered
from fastnet.network.torch.compiled.number_inputs import BatchNumber, OpNumber
from fastnet.network.torch.compiled.open_lengths import (
    Axis,
    LengthValues,
    OpenLengths,
    has_other_strides,
    read_lengths,
    unequal_axes,
)
from fastnet.network.torch.compiled.step_state import (
    OptimizerState,
    StepState,
    memory_ranges,
    share_memory,
)
from fastnet.network.torch.compiled.uncapturable import Uncapturable


class AliasedInput(Exception):
    """Raised where a batch shares memory with the tensors of a program that writes to some."""


class TorchProgram(Program):
    """A compiled step, with the conditions under which it is valid.

    Args:
        signature: The forms of the values that it reads from a batch, and of its outputs.
        capture: The captured step.
        lowered: The compiled step.
        step_state: The tensors, numbers and optimizers that the step reads and writes.
        global_state: The settings of torch that the step was captured with.
        takes_gradients: Whether an op of the step takes gradients.
        phase: The merged gradients that the step reads and leaves; None if none are merged.
        open_lengths: The lengths of a batch that are open; None if there are none.
        batch_numbers: The numbers of a batch that are inputs.

    Attributes:
        open_lengths: See above.
        is_random: Whether it draws random numbers.
        precision: The floating-point dtype of the lowest precision in it.
        followed: The ops whose `advance` is to be called after each step.
        step_state: See above.
        tensors: The tensors of models, optimizers and ops that the step uses.
        writes: The indices of those that it writes to.
        graph: The captured graph, which runs when the program is verified; None if it never is, or
            once it was.
        changed_number: The number whose change has made the program invalid; None if none has.
        awaits_verification: Whether a step is still to be compared with an eager one.
        verified_lengths: The open lengths of the first verified step; None before it.
        times: How long its first steps take; None if they are not timed, or were.
    """

    def __init__(
        self,
        signature: Signature,
        capture: Capture,
        lowered: Lowered,
        step_state: StepState,
        global_state: GlobalState,
        takes_gradients: bool,
        phase: Phase | None,
        open_lengths: OpenLengths | None,
        batch_numbers: Sequence[BatchNumber],
    ) -> None:
        super().__init__(signature)
        self.step_state = step_state
        self.graph: torch.fx.GraphModule | None = capture.graph
        self.followed = capture.followed
        self.is_random = capture.is_random
        self.precision = capture.precision
        self.changed_number: OpNumber | None = None

        self._call = lowered.call
        self._disables_grad = torch.is_grad_enabled() and not lowered.needs_grad_mode
        self._phase = phase
        self._broadcasts = step_state.broadcasts if step_state.broadcasts.has_wrappers else None
        self._aliases = capture.aliases
        self.open_lengths = open_lengths
        self.awaits_verification = True
        self.verified_lengths: LengthValues | None = None
        self.times: StepTimes | None = None
        self._admits = lowered.admits
        self._admitted: dict[LengthValues, bool] = {}
        self.batch_numbers = batch_numbers
        if open_lengths is not None or batch_numbers:
            self.match = self._match
        # Open lengths are the first inputs.
        self._length_axes = [
            open_lengths.groups[index].axes[0]
            for index in lowered.length_inputs
            if open_lengths is not None
        ]
        self._length_count = len(self._length_axes)

        layout = capture.layout
        if any(index in layout.passed for index in lowered.written):
            raise Uncapturable("an op writes into a tensor of the batch; return a new one")
        if layout.numbers_index in lowered.written:
            raise Uncapturable("the step writes into the numbers of optimizers and ops")
        self.tensors = [*step_state.tensors, *capture.held_tensors]
        self._numbers = step_state.new_numbers()
        # For each input that the program uses: whether it is passed in each step, and its index
        # among the inputs that are, or else among the program's own tensors.
        self._input_sources = [
            (True, index - layout.passed.start)
            if index in layout.passed
            else (False, layout.own_index(index))
            for index in lowered.used
        ]
        self.writes = [layout.own_index(index) for index in lowered.written]

        self._guard = capture.guard
        self._global_state = global_state
        self._takes_gradients = takes_gradients
        self._gradients = read_gradients(step_state.parameters)
        # Empty tables are left where hooks were removed, and may be filled again.
        self._hook_tables = gradient_hook_tables(step_state.parameters)
        self._bind()
        self._note_steps()

    # --- what the program is bound to ---

    def _note_steps(self) -> None:
        """Mark the optimizers as stepped, so that learning rate schedulers do not warn."""
        for optimizer_state in self.step_state.used_optimizers:
            if "step" in vars(optimizer_state.optimizer):
                note_step(optimizer_state.optimizer)

    def _bind(self) -> None:
        """Bind the current tensors to the inputs of the program."""
        self._are_in_place = tensor_guard(self.tensors)
        # Detached aliases share memory and versions with the tensors, but require no gradients.
        aliases = [tensor.detach() for tensor in self.tensors]
        memory = memory_ranges(aliases)
        # The begin and end addresses of each storage, with a sentinel after the last.
        self._begins = [begin for begin, _ in memory] + [sys.maxsize]
        self._ends = [end for _, end in memory]
        own_inputs = [*aliases, self._numbers]
        self._inputs_without_batch = self._inputs_with(own_inputs)
        self._batch_inputs = [
            (slot, index)
            for slot, (is_passed, index) in enumerate(self._input_sources, self._length_count)
            if is_passed
        ]
        self._written = tuple(own_inputs[index] for index in self.writes)
        self._note_optimizers()

    def _inputs_with(self, own_inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the inputs of the program, with None for those that come from the batch."""
        used = [
            None if is_passed else own_inputs[index] for is_passed, index in self._input_sources
        ]
        return [None] * self._length_count + used

    def _note_optimizers(self) -> None:
        """Take snapshots of the optimizers, and write their numbers."""
        pairs = [state.snapshot_and_readers() for state in self.step_state.used_optimizers]
        self._optimizers = [snapshot for snapshot, _ in pairs]
        self._groups = [reader for _, readers in pairs for reader in readers]
        self._group_numbers = [read(group) for group, read in self._groups]
        self._write_numbers()

    def _write_numbers(self) -> None:
        """Write the numbers of ops and optimizers to the tensor that the program reads."""
        numbers = self.step_state.numbers()
        if numbers:
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        # Afterwards: another thread that finds no difference runs with these numbers.
        self._last_op_numbers = self._read_op_numbers()

    def _read_op_numbers(self) -> list[str]:
        """Return the numbers of ops by their repr: NaN equals NaN, and 0.0 differs from -0.0."""
        return [repr(number.read()) for number in self.step_state.op_numbers]

    # --- running ---

    def run(self, batch: Mapping[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Run a step; see `Program.run`.

        Raises:
            AliasedInput: If a tensor of the batch is in the memory of one that the step writes to.
        """
        inputs = self._inputs_without_batch.copy()
        if self._written:
            self.require_separate(tensors)
            results = self._compute(inputs, tensors)
            torch.autograd.graph.increment_version(self._written)
        else:
            results = self._compute(inputs, tensors)
        if self._broadcasts is not None:
            self._broadcasts.advance()
        if self._aliases:
            results = self._with_aliases(results, self.tensors)
        return self.signature.merge(results, batch)

    def run_on(
        self, own_tensors: Sequence[torch.Tensor], tensors: list[torch.Tensor], compiled: bool
    ) -> Sequence[torch.Tensor]:
        """Run a step with other tensors in place of the program's own, and return its results.

        Args:
            own_tensors: Tensors of the shapes, dtypes and strides of `self.tensors`.
            tensors: The tensors of a batch.
            compiled: Whether to run the compiled program, or else the captured graph.
        """
        if compiled:
            results = self._compute(self._inputs_with([*own_tensors, self._numbers]), tensors)
        else:
            results = self._run_graph(own_tensors, tensors)
        return self._with_aliases(results, own_tensors)

    def _with_aliases(
        self, results: Sequence[torch.Tensor], own_tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return results with the parameters and buffers that are outputs themselves."""
        complete = list(results)
        for place, index in self._aliases:
            complete.insert(place, own_tensors[index].detach())
        return complete

    @without_autocast  # The graph has the casts of the traced ops.
    def _run_graph(
        self, own_tensors: Sequence[torch.Tensor], tensors: list[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        assert self.graph is not None
        bound, phase = len(self.step_state.tensors), self._phase
        sums = [] if phase is None else phase.sums()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._disables_grad):
            results: Sequence[torch.Tensor] = self.graph(
                *own_tensors[:bound], self._numbers, *tensors, *sums, *own_tensors[bound:]
            )
        return results if phase is None else phase.store_sums(results, by_program=False)

    def _compute(self, inputs: list[Any], tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Fill in the inputs that come from the batch, and call the program."""
        phase = self._phase
        for place, axis in enumerate(self._length_axes):
            inputs[place] = tensors[axis.tensor].shape[axis.number]
        if phase is not None:
            tensors = [*tensors, *phase.sums()]
        for slot, index in self._batch_inputs:
            inputs[slot] = tensors[index]
        if self._disables_grad:
            set_grad_enabled(False)
            try:
                results = self._call(inputs)
            finally:
                set_grad_enabled(True)
        else:
            results = self._call(inputs)
        return results if phase is None else phase.store_sums(results, by_program=True)

    def _match(self, batch: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """Return the tensors of a batch, and one for each of its numbers, or None."""
        values = []
        for number in self.batch_numbers:
            if number.key not in batch:
                raise KeyError(number.key)  # A defaultdict would make a value.
            values.append(batch[number.key])
        if not all(map(BatchNumber.fits, self.batch_numbers, values)):
            return None

        tensors = self.signature.match(batch)
        if tensors is None:
            return None
        if self.open_lengths is not None and not self._takes_lengths(self.open_lengths, tensors):
            return None
        device = self.step_state.device
        return tensors + [torch.tensor(v, dtype=torch.float64, device=device) for v in values]

    def _takes_lengths(self, lengths: OpenLengths, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the program runs batches of the lengths of these tensors.

        It leaves lengths for which another program was compiled to that program.
        """
        values = read_lengths(lengths, tensors)
        if values is None or has_other_strides(lengths, tensors):
            return False
        is_admitted = self._admitted.get(values)
        if is_admitted is None:
            is_admitted = values not in lengths.left_to_other_programs and self._admits(values)
            if len(self._admitted) >= MAX_LENGTHS:
                self._admitted.clear()
            self._admitted[values] = is_admitted
        return is_admitted

    def unequal_axes(self, batch: Mapping[str, Any]) -> tuple[Axis, ...]:
        """Return two axes of a batch that have one open length for the program, and now differ."""
        tensors = None if self.open_lengths is None else self.signature.match(batch)
        if self.open_lengths is None or tensors is None:
            return ()
        return unequal_axes(self.open_lengths, tensors)

    def describe_lengths(self, batch: Mapping[str, Any]) -> str:
        """Return why the program does not take the lengths of a batch that its signature matches.

        The text is empty if it has no open lengths, or takes these.
        """
        tensors = None if self.open_lengths is None else self.signature.match(batch)
        if (
            self.open_lengths is None
            or tensors is None
            or self._takes_lengths(self.open_lengths, tensors)
        ):
            return ""
        values = read_lengths(self.open_lengths, tensors) or ()
        if 1 in values:
            return "an axis has the length 1"
        if has_other_strides(self.open_lengths, tensors):
            return "a tensor has other strides"
        return f"the ops treat the lengths {list(values)} differently"

    def require_separate(self, tensors: Iterable[torch.Tensor]) -> None:
        """Raise if a tensor of the batch overlaps the program's own memory."""
        begins, ends = self._begins, self._ends
        for tensor in tensors:
            begin = tensor.data_ptr()
            behind = bisect_right(begins, begin)
            if begins[behind] < begin + _extent(tensor) or (behind and begin < ends[behind - 1]):
                raise AliasedInput

    # --- what the program is valid for ---

    def matches_phase(self) -> bool:
        """Return whether the program is for the current merging phase and buffer broadcasts."""
        is_current = self._phase is None or self._phase.is_current()
        return is_current and (self._broadcasts is None or self._broadcasts.is_current())

    def difference(self) -> str | None:
        """Return why the program is not valid for the next step, or None if it is.

        The program adopts those changes that it can, such as that of a learning rate.
        """
        if modes_observe_steps() or not self._global_state.check():
            return "the environment of the step (autocast, modes, grad mode) has changed"
        if not self._guard.is_unchanged():
            change = self._guard.first_change()
            if change is not None:
                self.changed_number = self._guard.changed_number()
                return f"{change} has changed"
        change = self.adopt_changes()
        if change is not None:
            return change
        if self._takes_gradients and (
            not self._gradients.are_unchanged() or any(self._hook_tables)
        ):
            return "the gradient or hooks of a parameter have changed"
        if not self._are_in_place():
            return "the storage or requires_grad of a parameter or buffer has changed"
        return None

    def adopt_changes(self) -> str | None:
        """Adopt changed numbers of ops and changed settings and state of optimizers.

        Returns:
            The change, if it cannot be adopted; None if there is no such change.
        """
        if self.step_state.op_numbers:
            try:
                if self._read_op_numbers() != self._last_op_numbers:
                    self._write_numbers()
            except Uncapturable as error:
                return str(error)
        if self._takes_gradients:
            if self.step_state.has_other_optimizers():
                return "the current optimizer has changed"
            if not self._sync_optimizers():
                return "the optimizer of a model has changed"
        return None

    def _sync_optimizers(self) -> bool:
        """Adopt changed numbers and state of the optimizers; return False for other changes."""
        try:
            if not all(snapshot.is_unchanged() for snapshot in self._optimizers):
                return self._rebind()
            group_numbers = [read(group) for group, read in self._groups]
            if group_numbers != self._group_numbers:
                states = self.step_state.used_optimizers
                if any(state.settings_now() != state.settings for state in states):
                    return False
                self._write_numbers()
                self._group_numbers = group_numbers
        except (Uncapturable, KeyError):
            return False
        return True

    def _rebind(self) -> bool:
        """Bind the current state tensors of the optimizers; return False if they do not match."""
        if not self._are_in_place():
            # `_bind` renews the tensor guard, which would hide that a parameter was frozen.
            return False
        for state in self.step_state.used_optimizers:
            current = OptimizerState(state.optimizer, state.first_number)
            if current.settings != state.settings or current.keys != state.keys:
                return False

        tensors = self.step_state.optimizer_tensors()
        first = len(self.step_state.tensors) - len(tensors)
        if all(map(is_, self.step_state.tensors[first:], tensors)):
            self._note_optimizers()
            return True
        for old, new in zip(self.step_state.tensors[first:], tensors, strict=True):
            if (
                old.shape != new.shape
                or old.dtype != new.dtype
                or old.stride() != new.stride()
                or new.device != old.device
                or new.requires_grad
            ):
                return False
        bound_tensors = self.tensors.copy()
        bound_tensors[first : first + len(tensors)] = tensors
        if share_memory(bound_tensors):
            return False

        self.step_state.tensors[first:] = tensors
        self.tensors = bound_tensors
        self._bind()
        self._note_steps()
        return True


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to the last element of a tensor."""
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize if tensor.numel() else 0


def modes_observe_steps() -> bool:
    """Return whether a mode, a transform or anomaly detection observes the steps of this thread."""
    return (
        modes_are_active()
        or transforms_are_active()
        or torch.is_inference_mode_enabled()
        or torch.is_anomaly_enabled()
    )
