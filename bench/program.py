"""A program: one peer's implementation of one workload, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any


def unchanged(output: Any) -> Any:
    """Return `output`."""
    return output


@dataclass(frozen=True)
class Program:
    """Calls `step(argument)` again and again.

    Everything that is needed before the first step (entering a network, wrapping a model) is done
    when the program is made.

    Attributes:
        step: The function that is timed.
        argument: The argument of each call, unless `fresh` is given.
        fresh: Makes a new argument for every call, outside the timed region.
        steps_per_call: The number of steps of a call. Engines with their own loop run many.
        once: Runs exactly one step and returns its result, where `step` does not.
        result: Converts a step's return value to that of the workload's baseline.
        model: The model that the program trains, so that weights can be compared.
        extra_keys: Whether the peer's result holds more keys than the baseline's.
        lacks: The keys of the baseline's result that the peer cannot return.
        plain: A step without the part that is measured, whose time is subtracted.
        close: Leaves the network that was entered.
    """

    step: Callable[[Any], Any]
    argument: Any = None
    fresh: Callable[[], Any] | None = None
    steps_per_call: int = 1
    once: Callable[[Any], Any] | None = None
    result: Callable[[Any], Any] = unchanged
    model: Any = None
    extra_keys: bool = False
    lacks: frozenset[str] = frozenset()
    plain: Program | None = None
    close: Callable[[], Any] = lambda: None

    def arguments(self, count: int) -> Iterable[Any]:
        """Return the arguments of `count` calls."""
        if self.fresh is None:
            return repeat(self.argument, count)
        return [self.fresh() for _ in range(count)]

    def run_once(self) -> Any:
        """Run one step and return its result in the form of the baseline's."""
        (argument,) = self.arguments(1)
        return self.result((self.once or self.step)(argument))


def entered(network: Any, mode: str, wanted: set[str], batch: Any, model: Any = None) -> Program:
    """Return a program that runs steps in a network, which is entered now."""
    context = network(mode=mode, epoch=1, ds_id="", desired_output_keys=wanted)
    context.__enter__()
    return Program(
        network.run_step, batch, model=model, close=lambda: context.__exit__(None, None, None)
    )
