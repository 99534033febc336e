"""What a program can ask for when it has a network's steps compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastnet.errors import shown
from fastnet.op.checks import is_int

__all__ = ["CompileOptions", "read_compile"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """How the steps of a network are compiled (torch only).

    Attributes:
        backend: What compiles them: "inductor"; "eager", which runs what was captured as it is and
            needs no C++ compiler; another name of a backend that `torch.compile` knows; or a
            function that is one: it takes an FX graph and a list of example tensors, and returns
            the function to call with such tensors.
        most_kinds: How many kinds of batches (shapes, types, values of what is no tensor) are
            compiled for each opening's ops; further ones run op by op.
        fallback_random: Whether Inductor draws random numbers as torch does without it, so that
            the same seed gives the same numbers. Other backends always do.

    Raises:
        TypeError: If one of them is of another type.
        ValueError: If `most_kinds` is less than 1.

    >>> CompileOptions(backend="eager")
    CompileOptions(backend='eager', most_kinds=8, fallback_random=False)
    """

    backend: str | Callable[[Any, list[Any]], Any] = "inductor"
    most_kinds: int = 8
    fallback_random: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str) and not callable(self.backend):
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
