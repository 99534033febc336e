"""What a program can ask for when it has a network's steps compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastnet.errors import shown
from fastnet.op.checks import is_int

__all__ = ["CompileOptions", "read_compile", "require_xla"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """How the steps of a network are compiled.

    Attributes:
        backend: What compiles them, None for what is usual: in TensorFlow "xla", which is all there
            is; in torch "inductor"; "eager", which runs what was captured as it is and needs no C++
            compiler; another name of a backend that `torch.compile` knows; or a function that is
            one: it takes an FX graph and a list of example tensors, and returns the function to
            call with such tensors.
        most_kinds: How many kinds of batches (shapes, types, values of what is no tensor) are
            compiled for each opening's ops; further ones run op by op, or in TensorFlow as graphs.
        fallback_random: Whether random numbers are drawn as without compiling, so that the same
            seed gives the same numbers: by Inductor; other backends of torch always do. In
            TensorFlow steps with such numbers run as graphs then.
        dynamic: Whether a program is for batches with any number of rows (the size of axis 0).
            None: the first is for as many as there are, and the second, when another number comes,
            for any. True: the first is, if all tensors of the batch have as many. False: each
            number is compiled by itself, as what depends on it is. XLA always does that, and only
            takes None and False.
        cuda_graphs: Whether a compiled step on a CUDA device is recorded as a CUDA graph, and
            replayed. It is not where it is for any number of rows, nor where another compiler than
            Inductor makes it.
        memory_budget: How much of what a compiled step of torch would hold in memory when it holds
            the most (for its way back through the model, beside weights, states, the batch and
            results) it may hold, from 0 to 1. What it lacks then it works out again, the cheapest
            first: less memory for more time.

    Raises:
        TypeError: If one of them is of another type.
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
        named = self.backend is None or isinstance(self.backend, str)
        if not named and not callable(self.backend):
            raise TypeError(
                f"CompileOptions has backend={shown(self.backend)}. Pass the name of one, such as "
                "'inductor', or a function."
            )
        if not is_int(self.most_kinds):
            raise TypeError(f"CompileOptions has most_kinds={shown(self.most_kinds)}, no int.")
        if self.most_kinds < 1:
            raise ValueError(
                f"CompileOptions has most_kinds={self.most_kinds}; the least is 1. To compile "
                "nothing pass compile=False to the network."
            )
        if not isinstance(self.fallback_random, bool):
            raise TypeError(
                f"CompileOptions has fallback_random={shown(self.fallback_random)}, no bool."
            )
        if not isinstance(self.cuda_graphs, bool):
            raise TypeError(f"CompileOptions has cuda_graphs={shown(self.cuda_graphs)}, no bool.")
        if isinstance(self.memory_budget, bool) or not isinstance(self.memory_budget, (int, float)):
            raise TypeError(
                f"CompileOptions has memory_budget={shown(self.memory_budget)}, no number."
            )
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(
                f"CompileOptions has memory_budget={self.memory_budget}; it is from 0 to 1."
            )
        if not isinstance(self.dynamic, bool | None):
            raise TypeError(
                f"CompileOptions has dynamic={shown(self.dynamic)}; it is None, True or False."
            )


def read_compile(given: Any) -> CompileOptions | None:
    """Read what a network was given as `compile`.

    Args:
        given: True, False or the options.

    Returns:
        The options; None where nothing is compiled.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(given, CompileOptions):
        return given
    if not isinstance(given, bool):
        raise TypeError(f"compile is True, False or CompileOptions, not {shown(given)}.")
    return CompileOptions() if given else None


def require_xla(options: CompileOptions | None) -> None:
    """Refuse another backend than XLA.

    Args:
        options: The options of a network of TensorFlow, or None.

    Raises:
        ValueError: If they name another backend, or ask for programs for any number of rows or for
            less memory.
    """
    if options is not None and options.backend not in (None, "xla"):
        raise ValueError(
            f"CompileOptions has backend={shown(options.backend)}, but the steps of a TensorFlow "
            "network are compiled by XLA. Leave the backend out."
        )
    if options is not None and options.dynamic:
        raise ValueError(
            "CompileOptions has dynamic=True, but XLA compiles a program for each size of a batch. "
            "Leave it out, and see `most_kinds`."
        )
    if options is not None and options.memory_budget != 1:
        raise ValueError(
            f"CompileOptions has memory_budget={options.memory_budget}, but XLA decides by itself "
            "what it keeps. Leave it out."
        )
