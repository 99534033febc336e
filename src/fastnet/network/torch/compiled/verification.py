"""Verification of compiled steps: they are compared with the same step run eagerly.

The eager step runs on the model. The compiled program and the captured graph then run on copies of
the tensors that they write. Both are judged by how each tensor changes, in the Euclidean norm.
Where that differs by more than rounding errors usually do, the graph runs again from slightly
disturbed values, which shows how much rounding matters to each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from fastnet._nest import NestMap
from fastnet.backend.model_metadata import name_of
from fastnet.backend.torch._internals import version_of
from fastnet.backend.torch.preserve_state import load_random_state, random_state
from fastnet.backend.torch.update import Merged
from fastnet.network.compile_options import CompileOptions
from fastnet.network.torch.compiled.accumulation import Accumulation
from fastnet.network.torch.compiled.fake_tensors import StepState
from fastnet.network.torch.compiled.input_signature import all_in
from fastnet.network.torch.compiled.program import Program
from fastnet.types import Model
from fastnet.util.memory import free_memory

# How far a change may be off, relative to its norm, by the lowest precision of a step: in the
# captured graph, which runs the kernels of the eager step, and in the compiled program.
_TOLERANCES = {
    torch.float64: (1e-10, 1e-8),
    torch.float32: (1e-5, 1e-3),
}
_LOW_PRECISION = 1e-3, 2e-2
# How much further than disturbed steps a program may be off: if they hardly move a tensor, since
# whether an error turns a ReLU or the sign in a step of Adam is chance, and if they do. Steps with
# other random numbers do.
_RARE_FACTOR = 8.0
_FACTOR = 3.0
# This part of a change is large for errors that turn something by chance.
_LARGE = 0.5
# The norm of a change depends less on what rounding errors turn.
_NORM_TOLERANCE = 10.0
# The share of the elements of an integer tensor that may differ, beside a disturbed step.
_SHARE_FACTOR = 2.0
# The errors of the values in disturbed steps, in units of the last place. A small tensor may move
# little by chance, so there are several; larger errors, such as those of long sums, are used where
# smaller ones do not explain a difference.
_DISTURBANCES = (2, 2, 2, 8, 8, 8, 32, 32, 32, 32, 32, 32)
# So many show that a tensor should have changed.
_FEW = 3
# Few draws, such as those of a small dropout, may be the same by chance in so many steps.
_REPETITIONS = 15


def reason_to_skip(program: Program, options: CompileOptions) -> str | None:
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


def draws_other_numbers(program: Program, options: CompileOptions) -> bool:
    """Return whether a program draws other random numbers than an eager step."""
    is_inductor = options.backend in (None, "inductor")
    return program.is_random and is_inductor and not options.fallback_random


def _size_of_copies(program: Program) -> dict[torch.device, int]:
    sizes: dict[torch.device, int] = {}
    written = set(program.writes)
    for at, tensor in enumerate(program.tensors):
        # Disturbed steps also have copies of what is only read.
        copies = 2 if at in written else 1
        sizes[tensor.device] = sizes.get(tensor.device, 0) + copies * tensor.nbytes
    return sizes


def _free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is not known."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return free_memory()


class _Mismatch(Exception):
    """Raised where a step differs in more than numbers; its text describes the difference."""


class _Deviation(NamedTuple):
    """How far a value is from that of the eager step.

    Attributes:
        distance: The norm of the difference.
        change: The norm of the change in this step.
        expected: The norm of the change in the eager step.
        rounding: The norm of the rounding errors of the values themselves.
        share: The share of the elements that are another integer, infinite or NaN.
    """

    distance: float
    change: float
    expected: float
    rounding: float
    share: float


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
        program: Program,
        models: Sequence[Model],
        accumulation: Accumulation | None,
        draws_others: bool,
    ) -> None:
        self._program = program
        self._accumulation = accumulation
        self._draws_others = draws_others
        self._names = _names_of(program.state, models)
        self._tolerances = _TOLERANCES.get(program.precision, _LOW_PRECISION)
        self.difference: str | None = None

    def run(
        self, batch: Mapping[str, Any], state: dict[str, Any], eager: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of the eager step; `difference` then names what differs, or is None.

        Args:
            batch: The batch, on the device of the ops.
            state: The state of the step.
            eager: Runs the step eagerly.
        """
        tensors, writes = self._program.tensors, self._program.writes
        written = set(writes)
        self._batch = {key: batch[key] for key in self._program.traced.keys}
        self._state = state
        self._merged = [] if self._accumulation is None else self._accumulation.now()
        before = [_copy(tensors[at]) for at in writes]
        unwritten = [one for at, one in enumerate(tensors) if at not in written]
        versions = list(map(_version, unwritten))
        self._start = random_state()
        result = eager()
        end = random_state()

        for tensor, version in zip(unwritten, versions, strict=True):
            if _version(tensor) != version:
                self.difference = f"{self._name(tensor)} is written by the eager step alone"
                return result
        self._before, self._work = before, list(map(_copy, before))
        merged = [] if self._accumulation is None else self._accumulation.now()
        self._expected = self._values([tensors[at] for at in writes], result, merged)
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
        draws_others = compiled and self._draws_others
        try:
            found = _deviations(self._run(compiled), self._expected)
            disturbed: list[list[_Deviation]] = []
            # The graph has been compared with the eager step when the program is.
            undisturbed = self._expected
            while (excess := self._first_excess(found, disturbed, compiled)) is not None:
                index, is_missing = excess
                number = len(disturbed)
                if number >= (_FEW if is_missing else len(_DISTURBANCES)):
                    return f"{self._describe(index, found[index])} in {what}"
                if not compiled and not disturbed:
                    undisturbed = [one.copied() for one in self._run(compiled=False)]
                disturb = _Disturbance(number, self._program.precision)
                draws = number + 1 if draws_others else None
                run = self._run(False, disturb, draws)
                disturbed.append(_deviations(run, undisturbed, disturb))
            if draws_others and disturbed and self._has_fixed_draws(found):
                return f"{what} draws the same random numbers in each step"
        except _Mismatch as mismatch:
            return f"{mismatch} in {what}"
        return None

    def _run(
        self, compiled: bool, disturb: _Disturbance | None = None, draws: int | None = None
    ) -> list[_Value]:
        """Run the step on copies, which the next run overwrites.

        Args:
            compiled: Whether to run the compiled program, or else the captured graph.
            disturb: Disturbs the values; None to leave them as they are.
            draws: The seed of the random numbers; None for those of the eager step.
        """
        tensors = [one.detach() for one in self._program.tensors]
        batch: Any = self._batch
        merged: Sequence[Merged] = []
        try:
            for place, at in enumerate(self._program.writes):
                value = self._before[place]
                value = value if disturb is None else disturb(value, place)
                tensors[at] = self._work[place].copy_(value)
            if disturb is not None:
                places = count(len(self._work))
                written = set(self._program.writes)
                for at, tensor in enumerate(tensors):
                    if at not in written:
                        tensors[at] = disturb(tensor, next(places))
                batch = NestMap(torch.Tensor, lambda tensor: disturb(tensor, next(places)))(batch)
            load_random_state([], self._start)
            if draws is not None:
                torch.manual_seed(draws)
            step = self._program.on_copies(tensors, compiled)
            if self._accumulation is None:
                result = step.step(batch, self._state)
            else:
                with self._accumulation.replaced_by(self._merged):
                    result = step.step(batch, self._state)
                    merged = self._accumulation.now()
        except Exception as error:
            raise _Mismatch(f"there is a {type(error).__name__}") from error
        return self._values(self._work, result, merged)

    def _values(
        self, written: Sequence[torch.Tensor], result: Mapping[str, Any], merged: Sequence[Merged]
    ) -> list[_Value]:
        """List all that a step has written and returned."""
        names = [self._name(self._program.tensors[at]) for at in self._program.writes]
        values = list(map(_Value, names, written, self._before, count()))
        for key in self._program.outputs:
            values += [_Value(f"'{key}'", leaf) for leaf in all_in(result[key])]
        for earlier, later in zip(self._merged, merged, strict=True):
            values.append(_Value("the number of merged steps", later.times))
            for parameter, total in sorted(later.sums.items(), key=lambda item: id(item[0])):
                name = f"the merged gradient of {self._name(parameter)}"
                values.append(_Value(name, total, earlier.sums.get(parameter)))
        return values

    def _first_excess(
        self, found: list[_Deviation], disturbed: list[list[_Deviation]], compiled: bool
    ) -> tuple[int, bool] | None:
        """Return the index of a tensor that is off by too much, and whether it has not changed."""
        tolerance = self._tolerances[compiled]
        draws_others = compiled and self._draws_others
        for index, one in enumerate(found):
            others = [each[index] for each in disturbed]
            if one.share > _SHARE_FACTOR * max((other.share for other in others), default=0.0):
                return index, False
            allowed = tolerance * one.expected + one.rounding
            if one.distance <= allowed:
                continue
            moved = max((other.distance for other in others), default=0.0)
            rare = 0.0 if draws_others else min(_RARE_FACTOR * moved, _LARGE * one.expected)
            is_missing = one.change == 0 and all(other.change > 0 for other in others)
            if is_missing or one.distance > max(allowed, rare, _FACTOR * moved):
                return index, is_missing
            spread = max((abs(other.change - other.expected) for other in others), default=0.0)
            allowed = _NORM_TOLERANCE * tolerance * one.expected + one.rounding
            if abs(one.change - one.expected) > max(allowed, _FACTOR * spread):
                return index, False
        return None

    def _has_fixed_draws(self, found: list[_Deviation]) -> bool:
        """Return whether the program computes the same where other draws change the results."""
        expected = [one.copied() for one in self._run(compiled=False)]
        tolerance = self._tolerances[True]
        others = _deviations(self._run(compiled=False, draws=1), expected)
        reached = [
            index
            for index, one in enumerate(others)
            if one.distance > tolerance * one.expected + one.rounding or one.share
        ]
        return bool(reached) and all(
            again[index] == found[index]
            for again in (
                _deviations(self._run(True, draws=seed), self._expected)
                for seed in range(1, _REPETITIONS + 1)
            )
            for index in reached
        )

    def _describe(self, index: int, deviation: _Deviation) -> str:
        tensors = [one for one in self._expected if isinstance(one.value, torch.Tensor)]
        name, _, before, _ = tensors[index]
        if deviation.share:
            return f"{name} differs in {deviation.share:.2g} of its elements"
        off = deviation.distance / deviation.expected if deviation.expected else float("inf")
        return f"{name} differs by {off:.2%} of its {'norm' if before is None else 'change'}"


class _Disturbance:
    """Makes copies of tensors with relative errors of the size of rounding errors."""

    def __init__(self, number: int, precision: torch.dtype) -> None:
        self._number = number
        self._size = _DISTURBANCES[number] * torch.finfo(precision).eps

    def __call__(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Return a copy; its errors are the same for each call with the same place."""
        copy = tensor.detach().clone()
        if not tensor.is_floating_point():
            return copy
        seed = self._number + place * len(_DISTURBANCES)
        generator = torch.Generator(tensor.device).manual_seed(seed)
        noise = torch.rand(
            tensor.shape, dtype=torch.float32, generator=generator, device=tensor.device
        )
        errors = noise.mul_(2 * self._size).sub_(self._size)
        # Whole numbers may be labels or masks.
        errors[tensor == tensor.trunc()] = 0
        return copy.add_(errors * tensor)


def _deviations(
    found: list[_Value], expected: list[_Value], disturb: _Disturbance | None = None
) -> list[_Deviation]:
    """Compare the tensors of two steps, and raise a `_Mismatch` for other differences.

    Args:
        found: The values of a step.
        expected: Those of the undisturbed step that it is compared with.
        disturb: What disturbed the values before the first step.
    """
    if [one.name for one in found] != [one.name for one in expected]:
        raise _Mismatch("there are other values")
    deviations = []
    for (name, value, _, _), (_, wanted, before, place) in zip(found, expected, strict=True):
        if not isinstance(wanted, torch.Tensor):
            if type(value) is not type(wanted) or repr(value) != repr(wanted):
                raise _Mismatch(f"{name} is {value!r} instead of {wanted!r}")
            continue
        if value.dtype != wanted.dtype or value.shape != wanted.shape:
            raise _Mismatch(
                f"{name} has dtype {value.dtype} and shape {tuple(value.shape)} instead of "
                f"{wanted.dtype} and {tuple(wanted.shape)}"
            )
        start = before
        if disturb is not None and before is not None and place is not None:
            start = disturb(before, place)
        deviations.append(_deviation(value, wanted, start, before))
    return deviations


def _deviation(
    found: torch.Tensor,
    expected: torch.Tensor,
    found_before: torch.Tensor | None,
    expected_before: torch.Tensor | None,
) -> _Deviation:
    found, expected = found.detach().to(expected.device), expected.detach()
    if not (expected.is_floating_point() or expected.is_complex()):
        return _Deviation(0.0, 0.0, 0.0, 0.0, _share(found != expected))
    share, eps = 0.0, torch.finfo(expected.dtype).eps
    if not (found.isfinite().all() and expected.isfinite().all()):
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        finite = found.isfinite() & expected.isfinite()
        share = _share(~(finite | is_same))
        found, expected = (torch.where(finite, one, 0) for one in (found, expected))
    if found.dtype in (torch.float16, torch.bfloat16):  # Differences could overflow.
        found, expected = found.float(), expected.float()
    if found_before is None or expected_before is None:
        # Distances of results are relative to their size, unless they are 0.
        size = _norm(expected)
        rounding = 0.0 if size else eps * expected.numel() ** 0.5
        return _Deviation(_norm(found - expected), _norm(found), size, rounding, share)
    rounding = eps * _norm(expected)
    difference = found - expected
    if found_before is not expected_before:
        difference -= found_before - expected_before
    change, expected_change = _norm(found - found_before), _norm(expected - expected_before)
    return _Deviation(_norm(difference), change, expected_change, rounding, share)


def _norm(tensor: torch.Tensor) -> float:
    """Return the Euclidean norm of the finite elements."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    if norm != norm or norm == float("inf"):
        return float(torch.linalg.vector_norm(tensor.nan_to_num(0, 0, 0), dtype=torch.float64))
    return norm


def _share(differs: torch.Tensor) -> float:
    return float(differs.sum()) / max(differs.numel(), 1)


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
    for optimizer in state.optimizers.values():
        title = type(optimizer.optimizer).__name__
        for parameter, name in optimizer.entries():
            owner = names.get(id(parameter), "a parameter")
            names[id(optimizer.optimizer.state[parameter][name])] = (
                f"'{name}' of {title} for {owner}"
            )
    return names
