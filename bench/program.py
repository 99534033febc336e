"""What a peer hands to the timer: something to call, and what to call it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any


def unchanged(output: Any) -> Any:
    """Return `output` as it is."""
    return output


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Program:
    """One peer's way to do one workload, ready to be called.

    The timer calls `step(argument)` again and again, and nothing else: what a program needs before
    its first step (entering a network, wrapping a model) is done when the program is made.

    Attributes:
        step: What is timed. It takes one argument and returns what the peer returns.
        argument: What each call gets, unless `fresh` is given.
        fresh: Makes a new argument for every call, outside the clock, for steps that use theirs up.
        steps_per_call: How many steps one call does. Engines with their own loop do many.
        once: Does exactly one step, where `step` does many. Used to check results.
        result: Turns what a step returned into what the workload's baseline returns.
        probe: Returns a result to check, where a step itself returns nothing worth checking.
        model: The model that the program trains, so that weights can be compared.
        extra_keys: Whether the peer's result holds more keys than the baseline's.
        lacks: The keys of the baseline's result that the peer has no way to return.
        plain: A step without what is to be measured, for workloads that ask what it adds.
        before_a_round: Done before each round, outside the clock.
        close: Leaves what making the program entered.
    """

    step: Callable[[Any], Any]
    argument: Any = None
    fresh: Callable[[], Any] | None = None
    steps_per_call: int = 1
    once: Callable[[Any], Any] | None = None
    result: Callable[[Any], Any] = unchanged
    probe: Callable[[], Any] | None = None
    model: Any = None
    extra_keys: bool = False
    lacks: frozenset[str] = frozenset()
    plain: Program | None = None
    before_a_round: Callable[[], None] = nothing
    close: Callable[[], None] = nothing

    def arguments(self, count: int) -> Iterable[Any]:
        """Return the arguments of `count` calls; fresh ones are all made now."""
        if self.fresh is None:
            return repeat(self.argument, count)
        return [self.fresh() for _ in range(count)]

    def run_once(self) -> Any:
        """Do one step and return its result, in the form of the baseline's."""
        if self.probe is not None:
            return self.probe()
        argument = self.argument if self.fresh is None else self.fresh()
        return self.result((self.once or self.step)(argument))
