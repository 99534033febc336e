"""The verification of compiled steps: they run eagerly as well, and the results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from fastnet.backend.model_metadata import name_of
from fastnet.network.compile_options import CompileOptions
from fastnet.network.torch.compiled.fake_tensors import OptimizerState, StepState
from fastnet.network.torch.compiled.input_signature import tensors_in
from fastnet.network.torch.compiled.program import Program
from fastnet.types import Model

MAX_BYTES = 256 * 2**20
"""The size of the state up to which first steps are verified, which copies it twice."""

# Relative tolerances, by the lowest precision among the dtypes of a step.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_LOW_PRECISION = 5e-2
# An absolute tolerance, in units of the relative one, for values that rounding errors make up.
_LEAST = 1e-2
# The updates of these are linear in the gradient. Others divide by its size, so that an element
# whose gradient is a rounding error moves by the learning rate, in one direction or the other.
_LINEAR = (torch.optim.SGD, torch.optim.ASGD, torch.optim.Adadelta)
_NORMALIZED_STEPS = 20
# Changes by a factor, in one direction or the other, with the sign of the gradient.
_UNSTABLE_STATE = {"step_size", "prev"}


def reason_to_skip(program: Program, options: CompileOptions) -> str | None:
    """Return why the steps of a program are not verified, or None if they are."""
    if options.verify is None:
        return "verify=None"
    inductor = options.backend in (None, "inductor")
    if program.is_random and inductor and not options.fallback_random:
        return "it draws other random numbers than an eager step without fallback_random=True"
    size = sum(one.nbytes for one in program.tensors)
    if options.verify == "first" and size > MAX_BYTES:
        return f"its state of {size / 2**20:.0f} MB is larger than {MAX_BYTES // 2**20} MB"
    return None


class _Named(NamedTuple):
    name: str
    # Tensors of the same role have gradients, or whatever else they hold, of a similar size.
    role: str
    # What may differ besides rounding errors.
    extra: float


class Verification:
    """Runs a step of a program and the same step eagerly, from the same state."""

    def __init__(self, program: Program, models: Sequence[Model], accumulation: Any) -> None:
        self._program = program
        self._accumulation = accumulation
        self._names = _names_of(program.state, models)
        self.difference: str | None = None

    def run(
        self, compiled: Callable[[], dict[str, Any]], eager: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of the eager step; `difference` then names what differs, or is None."""
        program = self._program
        tensors = program.tensors
        before = [one.detach().clone() for one in tensors]
        random_state = torch.get_rng_state() if program.is_random else None
        preserved = nullcontext() if self._accumulation is None else self._accumulation.preserved()
        error: Exception | None = None
        found: dict[str, Any] = {}
        with preserved:
            merged: list[torch.Tensor] = []
            try:
                found = compiled()
                merged = program.merged()
            except Exception as raised:
                error = raised
            after = [one.detach().clone() for one in tensors]
        with torch.no_grad():
            for tensor, values in zip(tensors, before, strict=True):
                tensor.copy_(values)
        if random_state is not None:
            torch.set_rng_state(random_state)
        result = eager()
        if error is not None:
            self.difference = f"it raised {type(error).__name__}, and the eager step did not"
            return result
        expected = [one.detach() for one in tensors]
        pairs = [*zip(self._all_names(len(tensors)), after, expected, strict=True)]
        for key in program.outputs:
            one, other = tensors_in(found[key]), tensors_in(result[key])
            pairs += [(_Named(f"'{key}'", key, 0), *both) for both in zip(one, other, strict=True)]
        sums = [_Named("a merged gradient", "merged", 0)] * len(merged)
        pairs += zip(sums, merged, program.merged(), strict=True)
        self.difference = _first_difference(pairs, program.precision)
        return result

    def _all_names(self, count: int) -> list[_Named]:
        others = _Named("a tensor that an op holds", "other", 0)
        return self._names + [others] * (count - len(self._names))


def _names_of(state: StepState, models: Sequence[Model]) -> list[_Named]:
    """Return the names of the tensors of a step."""
    names = {
        id(tensor): f"'{name}' of model '{name_of(model)}'"
        for model in models
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    extra: dict[int, float] = {}
    roles: dict[int, tuple[str, str]] = {}
    for optimizer in state.optimizers.values():
        extra.update(_extra_of(optimizer))
        title = type(optimizer.optimizer).__name__
        for parameter, name in optimizer.entries():
            tensor = optimizer.optimizer.state[parameter][name]
            of = names.get(id(parameter), "a parameter")
            roles[id(tensor)] = f"'{name}' of {title} for {of}", name
            if name in _UNSTABLE_STATE:
                extra[id(tensor)] = float("inf")
    found = []
    for tensor in state.tensors:
        name, role = roles.get(id(tensor), (names.get(id(tensor), "a parameter"), ""))
        found.append(_Named(name, role or "parameters", extra.get(id(tensor), 0)))
    return found


def _extra_of(state: OptimizerState) -> Iterator[tuple[int, float]]:
    for group in state.optimizer.param_groups:
        if not isinstance(state.optimizer, _LINEAR):
            for parameter in group["params"]:
                yield id(parameter), _NORMALIZED_STEPS * float(group["lr"])


def _first_difference(
    pairs: Iterable[tuple[_Named, torch.Tensor, torch.Tensor]], precision: torch.dtype
) -> str | None:
    """Describe the first pair that differs by more than the tolerance."""
    pairs = list(pairs)
    tolerance = _TOLERANCES.get(precision, _LOW_PRECISION)
    scales: dict[str, float] = {}
    for named, _, expected in pairs:
        if expected.is_floating_point() and expected.numel():
            largest = float(expected.double().nan_to_num(0, 0, 0).abs().max())
            scales[named.role] = max(scales.get(named.role, _LEAST), largest)
    for named, found, expected in pairs:
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return (
                f"{named.name} is of {found.dtype} and shape {tuple(found.shape)}, and eagerly of "
                f"{expected.dtype} and {tuple(expected.shape)}"
            )
        found = found.to(expected.device)
        if not expected.is_floating_point():
            if not torch.equal(found, expected):
                return f"{named.name} differs"
            continue
        limit = tolerance * scales.get(named.role, _LEAST) + named.extra
        if not torch.allclose(
            found.double(), expected.double(), rtol=tolerance, atol=limit, equal_nan=True
        ):
            off = float((found.double() - expected.double()).abs().nan_to_num(float("inf")).max())
            return f"{named.name} differs by {off:.3g}, which is more than {limit:.3g}"
    return None
