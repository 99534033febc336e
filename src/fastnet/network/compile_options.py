"""Options for compiling the steps of a network."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Literal

from fastnet.errors import shorten
from fastnet.op.checks import is_int


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """Options for compiling the steps of a network.

    Attributes:
        backend: In torch the name of a `torch.compile` backend, or such a backend as a function;
            None for "inductor". "eager" runs the captured graph and needs no C++ compiler. In
            TensorFlow "xla" or None.
        max_programs: The number of input signatures (shapes, dtypes and values of non-tensors) that
            are compiled for the active ops of a mode. Batches of further signatures run eagerly, in
            TensorFlow as graphs.
        fallback_random: Whether a compiled step draws the same random numbers as an eager step with
            the same seed. This applies to Inductor; other torch backends always do. In TensorFlow,
            steps whose random numbers would differ in XLA then run as graphs.
        verify: When a step runs eagerly (in TensorFlow as a graph) as well as compiled, from the
            same state and random numbers, and both are compared. "first" verifies the first step of
            each program: where results or changes of tensors differ by more than rounding errors, a
            warning names the tensor and the program is not used. An integer N verifies every Nth
            step, and raises a RuntimeError if they differ; in TensorFlow it verifies the first
            one, too, as "first" does. None never verifies. Where copies of the
            step's tensors do not fit into free memory, it is not verified, with the reason in
            `traces`.

    Raises:
        TypeError: If a value has the wrong type. `dynamic` is an argument of the network.
        ValueError: If `max_programs` or `verify` is less than 1.

    >>> CompileOptions(backend="eager", max_programs=2).max_programs
    2
    """

    backend: str | Callable[[Any, list[Any]], Any] | None = None
    max_programs: int = 8
    fallback_random: bool = False
    verify: Literal["first"] | int | None = "first"
    dynamic: dataclasses.InitVar[None] = None

    def __post_init__(self, dynamic: Any) -> None:
        if dynamic is not None:
            raise TypeError(
                f"CompileOptions has dynamic={shorten(dynamic)}, which is an argument of the "
                f"network: Network(..., dynamic={shorten(dynamic)}, compile=CompileOptions(...))."
            )
        backend: Any = self.backend
        fits = {
            "backend": isinstance(backend, str | None) or callable(backend),
            "max_programs": is_int(self.max_programs),
            "fallback_random": isinstance(self.fallback_random, bool),
            "verify": self.verify in ("first", None) or is_int(self.verify),
        }
        for field in dataclasses.fields(self):
            if not fits[field.name]:
                value = shorten(getattr(self, field.name))
                raise TypeError(f"CompileOptions has {field.name}={value}. Pass {field.type}.")
        for name in ("max_programs", "verify"):
            value = getattr(self, name)
            if is_int(value):
                if value < 1:
                    raise ValueError(f"CompileOptions has {name}={value}. Pass at least 1.")
                # Convert numpy's ints to Python's.
                object.__setattr__(self, name, operator.index(value))


def read_compile(argument: Any) -> CompileOptions | None:
    """Return the options for a network's `compile` argument, or None for no compiling."""
    if isinstance(argument, CompileOptions):
        return argument
    if not isinstance(argument, bool):
        raise TypeError(f"compile is True, False or CompileOptions, not {shorten(argument)}.")
    return CompileOptions() if argument else None
