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
        place: The place of the tensor among those that the program writes; None for other values.
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
        self._names = _names_of(program.step_state, models)
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
        self._windows_before = [] if self._accumulation is None else self._accumulation.windows()
        before = [_copy(tensors[index]) for index in writes]
        unwritten = [tensor for index, tensor in enumerate(tensors) if index not in written]
        versions = [_version(tensor) for tensor in unwritten]
        self._random_state_before = random_state()
        with self._messages.recorded():
            result = eager()
        random_state_after = random_state()

        for tensor, version in zip(unwritten, versions, strict=True):
            if _version(tensor) != version:
                self.difference = f"{self._name(tensor)} is written by the eager step alone"
                return result
        self._before, self._copies = before, list(map(_copy, before))
        windows = [] if self._accumulation is None else self._accumulation.windows()
        self._expected = self._values([tensors[index] for index in writes], result, windows)
        try:
            self.difference = self._check(compiled=False) or self._check(compiled=True)
        finally:
            load_random_state([], random_state_after)
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
        disturbed_steps: list[DisturbedStep] = []
        # When the program is compared, the graph has already passed, so the eager step stands for
        # the undisturbed graph.
        undisturbed = self._expected
        while True:
            excess = next(excesses(deviations, disturbed_steps, tolerance, TORCH), None)
            if excess is None:
                break
            max_steps = _STEPS_OF_LOST_UPDATE if excess.is_unwritten else len(TORCH.disturbances)
            if len(disturbed_steps) >= max_steps:
                return self._describe(excess.index, deviations[excess.index])
            if not compiled and not disturbed_steps:
                undisturbed = [value.copied() for value in self._run(compiled=False)]
            step = self._run_disturbed(len(disturbed_steps), redraws, undisturbed)
            disturbed_steps.append(step)
        if redraws and disturbed_steps and self._has_fixed_draws(deviations):
            return "the same random numbers are drawn in each step"
        return None

    def _run_disturbed(
        self, number: int, redraws: bool, undisturbed: list[_Value]
    ) -> DisturbedStep:
        """Run the graph on disturbed values.

        Args:
            number: The number of disturbed steps that have run.
            redraws: Whether to draw other random numbers than the eager step, except in the first
                disturbed step, which shows how much rounding errors alone change.
            undisturbed: The values of the undisturbed step.
        """
        seed: int | None
        if redraws and number == 0:
            seed, size = None, TORCH.disturbances[-1]
        else:
            seed, size = number if redraws else None, TORCH.disturbances[number]
        disturb = _Disturbance(number, size, self._program.precision)
        values = self._run(compiled=False, disturb=disturb, seed=seed)
        deviations = _deviations(values, undisturbed, disturb, only_rounds=seed is None)
        return DisturbedStep(deviations, is_redrawn=seed is not None)

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
        windows: Sequence[Window] = []
        try:
            for place, index in enumerate(self._program.writes):
                value = self._before[place]
                value = value if disturb is None else disturb(value, place)
                tensors[index] = self._copies[place].copy_(value)
            if disturb is not None:
                places = count(len(self._copies))
                written = set(self._program.writes)
                for index, tensor in enumerate(tensors):
                    if index not in written:
                        tensors[index] = disturb(tensor, next(places))
                batch_tensors = [disturb(tensor, next(places)) for tensor in batch_tensors]
            load_random_state([], self._random_state_before)
            if seed is not None:
                torch.manual_seed(seed)
            with self._messages.repeated():
                if self._accumulation is None:
                    results = self._program.run_on(tensors, batch_tensors, compiled)
                else:
                    with self._accumulation.with_windows(self._windows_before):
                        results = self._program.run_on(tensors, batch_tensors, compiled)
                        windows = self._accumulation.windows()
            result = self._program.signature.merge(results, self._batch)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            first_line = str(error).strip().partition("\n")[0]
            raise Mismatch(f"there is a {type(error).__name__}, {shorten(first_line)},") from error
        return self._values(self._copies, result, windows)

    def _values(
        self, written: Sequence[torch.Tensor], result: Mapping[str, Any], windows: Sequence[Window]
    ) -> list[_Value]:
        """List all that a step has written and returned."""
        names = [self._name(self._program.tensors[index]) for index in self._program.writes]
        values = list(map(_Value, names, written, self._before, count()))
        for key in self._program.signature.outputs:
            values += [
                _Value(f"'{key}'", leaf) for leaf in leaves_of(result[key], builtin_only=True)
            ]
        for before, after in zip(self._windows_before, windows, strict=True):
            values.append(_Value("the number of merged steps", after.steps))
            if after.weight is not None:
                values.append(_Value("the sum of the weights", after.weight, before.weight))
            for parameter, total in sorted(after.sums.items(), key=lambda item: id(item[0])):
                name = f"the merged gradient of {self._name(parameter)}"
                values.append(_Value(name, total, before.sums.get(parameter)))
        for number, message in enumerate(self._messages.sent):
            values.append(_Value(f"message {number} to the other processes", message))
        return values

    def _has_fixed_draws(self, deviations: list[Deviation]) -> bool:
        """Return whether other seeds change values of the graph, but not those of the program."""
        expected = [value.copied() for value in self._run(compiled=False)]
        redrawn = _deviations(self._run(compiled=False, seed=1), expected)
        tolerance = self._program_tolerance
        random_indices = [
            index for index, deviation in enumerate(redrawn) if deviation.exceeds(tolerance)
        ]
        if not random_indices:
            return False
        for seed in range(1, _REPETITIONS + 1):
            reseeded = _deviations(self._run(compiled=True, seed=seed), self._expected)
            if any(reseeded[index] != deviations[index] for index in random_indices):
                return False
        return True

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
        is_exact = (tensor == tensor.trunc()) | ~tensor.isfinite()
        return copy.add_(torch.where(is_exact, 0, errors * tensor))


def _deviations(
    actual: list[_Value],
    expected: list[_Value],
    disturb: _Disturbance | None = None,
    only_rounds: bool = False,
) -> list[Deviation]:
    """Compare the tensors of two steps, and raise a `Mismatch` for other differences.

    Args:
        actual: The values of a step.
        expected: The values of the undisturbed step that it is compared with.
        disturb: Has disturbed the values before the step; None if they were not disturbed.
        only_rounds: Whether the step has only rounding errors, and no other random numbers: these
            explain no infinite value or NaN of another step.
    """
    if [value.name for value in actual] != [value.name for value in expected]:
        raise Mismatch("other values are written or returned")
    deviations = []
    for (name, value, _, _), (_, reference, before, place) in zip(actual, expected, strict=True):
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


def _names_of(step_state: StepState, models: Sequence[Model]) -> dict[int, str]:
    """Return descriptions of the tensors of a step, by their ids."""
    names = {
        id(tensor): f"'{name}' of model '{name_of(model)}'"
        for model in models
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    for optimizer in step_state.used_optimizers:
        class_name = type(optimizer.optimizer).__name__
        for parameter, name in optimizer.entries():
            owner = names.get(id(parameter), "a parameter")
            names[id(optimizer.optimizer.state[parameter][name])] = (
                f"'{name}' of {class_name} for {owner}"
            )
    return names
