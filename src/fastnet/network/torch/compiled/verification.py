"""Verification of compiled steps: they are compared with the same step run eagerly.

1. The eager step runs on the model.
2. The captured graph runs uncompiled, on copies of the tensors that it writes. It has the kernels
   of the eager step, and shows what the capture has frozen, lost or mixed up.
3. The compiled program runs on the copies.

Both are compared with the eager step. Where they differ by more than rounding errors usually do,
the graph runs again from slightly disturbed values, which shows how much rounding matters. If the
program draws other random numbers than the eager step, so do disturbed steps.

Only the eager step communicates with other processes. Other runs receive what it has received, and
what all send is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from fastnet._nest import leaves_of
from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import version_of
from fastnet.backend.torch.collectives import Messages
from fastnet.backend.torch.random_state import load_random_state, random_state
from fastnet.backend.torch.update import Window
from fastnet.errors import is_from_signal_handler, shorten
from fastnet.network.compile_options import CompileOptions
from fastnet.network.deviations import (
    Deviation,
    DisturbedStep,
    Mismatch,
    excesses,
    require_same_type,
)
from fastnet.network.torch.compiled.accumulation import Accumulation
from fastnet.network.torch.compiled.deviations import deviation_of
from fastnet.network.torch.compiled.program import TorchProgram
from fastnet.network.torch.compiled.step_state import StepState
from fastnet.network.verification_limits import GRAPH_TOLERANCES, TORCH
from fastnet.types import Model
from fastnet.util.memory import free_memory

# Disturbed steps after which a tensor that they all change, and the program does not, is a lost
# update.
_STEPS_OF_LOST_UPDATE = 3
# A program that gives the same results for so many seeds draws no numbers: even few draws, as of a
# small dropout, hardly repeat so often.
_REPETITIONS = 15


def reason_to_skip(program: TorchProgram, options: CompileOptions) -> str | None:
    """Return why the steps of a program are not verified, or None if they are."""
    if options.verify is None:
        return "verify=None"
    for device, needed in _size_of_copies(program).items():
        free = _free_memory(device)
        if free is not None and needed > free:
            return (
                f"verification copies the tensors of the step, which needs {needed >> 20} MB on "
                f"{device}, where {free >> 20} MB are free"
            )
    return None


def draws_other_numbers(program: TorchProgram, options: CompileOptions) -> bool:
    """Return whether a program draws other random numbers than an eager step."""
    is_inductor = options.backend in (None, "inductor")
    return program.is_random and is_inductor and not options.fallback_random


def _size_of_copies(program: TorchProgram) -> dict[torch.device, int]:
    sizes: dict[torch.device, int] = {}
    written = set(program.writes)
    for index, tensor in enumerate(program.tensors):
        # Disturbed steps also have copies of what is only read.
        copies = 2 if index in written else 1
        sizes[tensor.device] = sizes.get(tensor.device, 0) + copies * tensor.nbytes
    return sizes


def _free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is not known."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return free_memory()


class _Value(NamedTuple):
    """A value of a step: a tensor that it writes, or a part of its results.

    Attributes:
        name: A description for messages.
        value: The value.
        before: The tensor before the step; None if the step creates it.
        place: Its place among the tensors that the program writes; None for others.
    """

    name: str
    value: Any
    before: torch.Tensor | None = None
    place: int | None = None

    def copied(self) -> _Value:
        """Return the value with a copy of its tensor."""
        is_tensor = isinstance(self.value, torch.Tensor)
        return self._replace(value=_copy(self.value)) if is_tensor else self


class Verification:
    """Runs a step eagerly, and the same step of a program on copies, and compares both.

    Args:
        program: The program.
        models: The models of the step.
        accumulation: The gradients that updates merge, if any.
        draws_others: Whether the program draws other random numbers than the eager step.
    """

    def __init__(
        self,
        program: TorchProgram,
        models: Sequence[Model],
        accumulation: Accumulation | None,
        draws_others: bool,
    ) -> None:
        self._program = program
        self._accumulation = accumulation
        self._draws_others = draws_others
        self._names = _names_of(program.state, models)
        self._graph_tolerance = _tolerance(GRAPH_TOLERANCES, program.precision)
        self._program_tolerance = _tolerance(TORCH.program_tolerances, program.precision)
        self._messages = Messages()
        self.difference: str | None = None

    def run(
        self,
        batch: Mapping[str, Any],
        batch_tensors: list[torch.Tensor],
        eager: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return the result of the eager step; `difference` then names what differs, or is None.

        Args:
            batch: The batch, on the device of the ops.
            batch_tensors: The tensors of the batch, as the program takes them.
            eager: Runs the step eagerly.
        """
        tensors, writes = self._program.tensors, self._program.writes
        written = set(writes)
        self._batch, self._batch_tensors = batch, batch_tensors
        self._merged = [] if self._accumulation is None else self._accumulation.windows()
        before = [_copy(tensors[index]) for index in writes]
        unwritten = [tensor for index, tensor in enumerate(tensors) if index not in written]
        versions = [_version(tensor) for tensor in unwritten]
        self._start = random_state()
        with self._messages.recorded():
            result = eager()
        end = random_state()

        for tensor, version in zip(unwritten, versions, strict=True):
            if _version(tensor) != version:
                self.difference = f"{self._name(tensor)} is written by the eager step alone"
                return result
        self._before, self._work = before, list(map(_copy, before))
        merged = [] if self._accumulation is None else self._accumulation.windows()
        self._expected = self._values([tensors[index] for index in writes], result, merged)
        try:
            self.difference = self._check(compiled=False) or self._check(compiled=True)
        finally:
            load_random_state([], end)
        return result

    def _name(self, tensor: torch.Tensor) -> str:
        return self._names.get(id(tensor), "a tensor that an op holds")

    def _check(self, compiled: bool) -> str | None:
        """Describe where the program, or its graph, differs from the eager step."""
        what = "the compiled program" if compiled else "the captured graph"
        try:
            deviations = _deviations(self._run(compiled), self._expected)
            difference = self._difference_of(deviations, compiled)
        except Mismatch as mismatch:
            difference = str(mismatch)
        return None if difference is None else f"{difference} in {what}"

    def _difference_of(self, deviations: list[Deviation], compiled: bool) -> str | None:
        """Describe the first deviation that disturbed steps do not explain."""
        tolerance = self._program_tolerance if compiled else self._graph_tolerance
        redraws = compiled and self._draws_others
        disturbed: list[DisturbedStep] = []
        # The graph has been compared with the eager step when the program is.
        undisturbed = self._expected
        while True:
            excess = next(excesses(deviations, disturbed, tolerance, TORCH), None)
            if excess is None:
                break
            number = len(disturbed)
            if number >= (
                _STEPS_OF_LOST_UPDATE if excess.is_unwritten else len(TORCH.disturbances)
            ):
                return self._describe(excess.index, deviations[excess.index])
            if not compiled and not disturbed:
                undisturbed = [value.copied() for value in self._run(compiled=False)]
            # Of steps with other random numbers, the first tells what rounding errors alone do.
            seed = number if redraws and number else None
            size = TORCH.disturbances[-1 if redraws and not number else number]
            disturb = _Disturbance(number, size, self._program.precision)
            is_redrawn = seed is not None
            moved = _deviations(
                self._run(False, disturb, seed), undisturbed, disturb, only_rounds=not is_redrawn
            )
            disturbed.append(DisturbedStep(moved, is_redrawn))
        if redraws and disturbed and self._has_fixed_draws(deviations):
            return "the same random numbers are drawn in each step"
        return None

    def _run(
        self, compiled: bool, disturb: _Disturbance | None = None, seed: int | None = None
    ) -> list[_Value]:
        """Run the step on copies, which the next run overwrites.

        Args:
            compiled: Whether to run the compiled program, or else the captured graph.
            disturb: Disturbs the values; None to leave them as they are.
            seed: The seed of the random numbers; None for those of the eager step.
        """
        tensors = [tensor.detach() for tensor in self._program.tensors]
        batch_tensors = self._batch_tensors
        merged: Sequence[Window] = []
        try:
            for place, index in enumerate(self._program.writes):
                value = self._before[place]
                value = value if disturb is None else disturb(value, place)
                tensors[index] = self._work[place].copy_(value)
            if disturb is not None:
                places = count(len(self._work))
                written = set(self._program.writes)
                for index, tensor in enumerate(tensors):
                    if index not in written:
                        tensors[index] = disturb(tensor, next(places))
                batch_tensors = [disturb(tensor, next(places)) for tensor in batch_tensors]
            load_random_state([], self._start)
            if seed is not None:
                torch.manual_seed(seed)
            with self._messages.repeated():
                if self._accumulation is None:
                    results = self._program.run_on(tensors, batch_tensors, compiled)
                else:
                    with self._accumulation.with_windows(self._merged):
                        results = self._program.run_on(tensors, batch_tensors, compiled)
                        merged = self._accumulation.windows()
            result = self._program.signature.merge(results, self._batch)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            first_line = str(error).strip().partition("\n")[0]
            raise Mismatch(f"there is a {type(error).__name__}, {shorten(first_line)},") from error
        return self._values(self._work, result, merged)

    def _values(
        self, written: Sequence[torch.Tensor], result: Mapping[str, Any], merged: Sequence[Window]
    ) -> list[_Value]:
        """List all that a step has written and returned."""
        names = [self._name(self._program.tensors[index]) for index in self._program.writes]
        values = list(map(_Value, names, written, self._before, count()))
        for key in self._program.signature.outputs:
            values += [
                _Value(f"'{key}'", leaf) for leaf in leaves_of(result[key], builtin_only=True)
            ]
        for earlier, later in zip(self._merged, merged, strict=True):
            values.append(_Value("the number of merged steps", later.steps))
            if later.weight is not None:
                values.append(_Value("the sum of the weights", later.weight, earlier.weight))
            for parameter, total in sorted(later.sums.items(), key=lambda item: id(item[0])):
                name = f"the merged gradient of {self._name(parameter)}"
                values.append(_Value(name, total, earlier.sums.get(parameter)))
        for number, message in enumerate(self._messages.sent):
            values.append(_Value(f"message {number} to the other processes", message))
        return values

    def _has_fixed_draws(self, deviations: list[Deviation]) -> bool:
        """Return whether the program computes the same where other draws change the results."""
        expected = [value.copied() for value in self._run(compiled=False)]
        redrawn = _deviations(self._run(compiled=False, seed=1), expected)
        tolerance = self._program_tolerance
        reached = [index for index, moved in enumerate(redrawn) if moved.exceeds(tolerance)]
        return bool(reached) and all(
            again[index] == deviations[index]
            for again in (
                _deviations(self._run(True, seed=seed), self._expected)
                for seed in range(1, _REPETITIONS + 1)
            )
            for index in reached
        )

    def _describe(self, index: int, deviation: Deviation) -> str:
        tensors = [value for value in self._expected if isinstance(value.value, torch.Tensor)]
        name, _, before, _ = tensors[index]
        return deviation.describe(name, is_change=before is not None)


class _Disturbance:
    """Makes copies of tensors with relative errors of the size of rounding errors."""

    def __init__(self, number: int, size: float, precision: torch.dtype) -> None:
        self._number = number
        self._size = size * torch.finfo(precision).eps

    def __call__(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Return a copy; its errors are the same for each call with the same place."""
        copy = tensor.detach().clone()
        if not tensor.is_floating_point():
            return copy
        seed = self._number + place * len(TORCH.disturbances)
        generator = torch.Generator(tensor.device).manual_seed(seed)
        noise = torch.rand(
            tensor.shape, dtype=torch.float32, generator=generator, device=tensor.device
        )
        errors = noise.mul_(2 * self._size).sub_(self._size)
        # Whole numbers may be labels or masks, and infinite ones are often masks.
        is_kept = (tensor == tensor.trunc()) | ~tensor.isfinite()
        return copy.add_(torch.where(is_kept, 0, errors * tensor))


def _deviations(
    found: list[_Value],
    expected: list[_Value],
    disturb: _Disturbance | None = None,
    only_rounds: bool = False,
) -> list[Deviation]:
    """Compare the tensors of two steps, and raise a `Mismatch` for other differences.

    Args:
        found: The values of a step.
        expected: Those of the undisturbed step that it is compared with.
        disturb: What disturbed the values before the first step.
        only_rounds: Whether rounding errors are all that was disturbed: these explain no infinite
            value or NaN of another step.
    """
    if [value.name for value in found] != [value.name for value in expected]:
        raise Mismatch("there are other values")
    deviations = []
    for (name, value, _, _), (_, reference, before, place) in zip(found, expected, strict=True):
        if not isinstance(reference, torch.Tensor):
            if type(value) is not type(reference) or repr(value) != repr(reference):
                raise Mismatch(f"{name} is {value!r} instead of {reference!r}")
            continue
        require_same_type(name, value.dtype, value.shape, reference)
        start = before
        if disturb is not None and before is not None and place is not None:
            start = disturb(before, place)
        deviation = deviation_of(value, reference, start, before)
        if only_rounds and (reference.is_floating_point() or reference.is_complex()):
            deviation = deviation._replace(share=0.0)
        deviations.append(deviation)
    return deviations


def _tolerance(tolerances: Mapping[str, float], precision: torch.dtype) -> float:
    """Return the tolerance of a precision; that of half precision for all lower ones."""
    return tolerances.get(str(precision).removeprefix("torch."), tolerances["float16"])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of the original, which compiled programs rely on."""
    tensor = tensor.detach()
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to; None if it cannot be."""
    return None if tensor.is_inference() else version_of(tensor)


def _names_of(state: StepState, models: Sequence[Model]) -> dict[int, str]:
    """Return descriptions of the tensors of a step, by their ids."""
    names = {
        id(tensor): f"'{name}' of model '{name_of(model)}'"
        for model in models
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    for optimizer in state.used_optimizers:
        title = type(optimizer.optimizer).__name__
        for parameter, name in optimizer.entries():
            owner = names.get(id(parameter), "a parameter")
            names[id(optimizer.optimizer.state[parameter][name])] = (
                f"'{name}' of {title} for {owner}"
            )
    return names
