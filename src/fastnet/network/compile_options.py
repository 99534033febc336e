"""Options for compiling the steps of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_int

__all__ = ["CompileOptions", "read_compile", "require_xla"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """How the steps of a network are compiled.

    Attributes:
        backend: The compiler; None for the default. In torch the default is "inductor"; "eager"
            runs the captured graph as it is and needs no C++ compiler; other values are the name of
            a `torch.compile` backend, or a function that takes an FX graph and a list of example
            tensors and returns a function of such tensors. In TensorFlow only "xla" exists.
        most_kinds: The number of input signatures (shapes, dtypes and values of non-tensors) that
            are compiled for each execution plan. Batches of further signatures run eagerly, in
            TensorFlow as graphs.
        fallback_random: Whether a compiled step draws the same random numbers as an eager step with
            the same seed. This applies to Inductor; other torch backends always do. In TensorFlow,
            steps that draw random numbers then run as graphs.
        dynamic: Whether one program serves every batch size (the length of axis 0). None compiles
            the first batch size alone, and a program for any size when a second one comes. True
            compiles for any size at once, if all tensors of the batch have the same length. False
            compiles each size alone. XLA always does that, and accepts only None and False.
        cuda_graphs: Whether compiled steps on a CUDA device are recorded as CUDA graphs and
            replayed. This applies to Inductor programs for one batch size.
        memory_budget: The fraction, from 0 to 1, of the activation memory that a compiled torch
            step may keep for its backward pass. What does not fit is recomputed, cheapest first:
            less memory for more time.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If `most_kinds` is less than 1, or `memory_budget` is not from 0 to 1.

    >>> CompileOptions(backend="eager")
    CompileOptions(backend='eager', most_kinds=8, fallback_random=False, dynamic=None,
                   cuda_graphs=True, memory_budget=1.0)
    """

    backend: str | Callable[[Any, list[Any]], Any] | None = None
    most_kinds: int = 8
    fallback_random: bool = False
    dynamic: bool | None = None
    cuda_graphs: bool = True
    memory_budget: float = 1.0

    def __post_init__(self) -> None:
        backend: Any = self.backend
        budget: Any = self.memory_budget
        is_backend = backend is None or isinstance(backend, str) or callable(backend)
        is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
        for name, fits, expected in (
            ("backend", is_backend, "a name such as 'inductor', or a function"),
            ("most_kinds", is_int(self.most_kinds), "an int"),
            ("fallback_random", isinstance(self.fallback_random, bool), "a bool"),
            ("dynamic", isinstance(self.dynamic, bool | None), "None, True or False"),
            ("cuda_graphs", isinstance(self.cuda_graphs, bool), "a bool"),
            ("memory_budget", is_number, "a number from 0 to 1"),
        ):
            if not fits:
                raise TypeError(
                    f"CompileOptions has {name}={shorten(getattr(self, name))}. Pass {expected}."
                )
        if self.most_kinds < 1:
            raise ValueError(
                f"CompileOptions has most_kinds={self.most_kinds}. Pass at least 1, or compile="
                "False to the network to compile nothing."
            )
        if not 0 <= budget <= 1:
            raise ValueError(
                f"CompileOptions has memory_budget={budget}. Pass a number from 0 to 1."
            )


def read_compile(given: Any) -> CompileOptions | None:
    """Return the options for a network's `compile` argument, or None for no compiling."""
    if isinstance(given, CompileOptions):
        return given
    if not isinstance(given, bool):
        raise TypeError(f"compile is True, False or CompileOptions, not {shorten(given)}.")
    return CompileOptions() if given else None


def require_xla(options: CompileOptions | None) -> None:
    """Check that a TensorFlow network's options fit XLA."""
    if options is None:
        return
    for name, fits, reason in (
        ("backend", options.backend in (None, "xla"), "XLA compiles TensorFlow networks"),
        ("dynamic", not options.dynamic, "XLA compiles a program for each batch size"),
        ("memory_budget", options.memory_budget == 1, "XLA decides itself what it keeps"),
    ):
        if not fits:
            value = shorten(getattr(options, name))
            raise ValueError(f"CompileOptions has {name}={value}, but {reason}. Leave it out.")
