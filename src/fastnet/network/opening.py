"""One opening of a network: what it runs, in which context, and what runs its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastnet._execute import BoundPlan, Plan
from fastnet.network.layout import Layout
from fastnet.network.metering import Around, Ranges, StepMeter
from fastnet.types import RunStep, State

__all__ = ["Opening", "Runner"]


class Opening:
    """One opening of a network.

    Args:
        layout: What it runs.
        state: The context that it shows.
        refuse: Called in place of a step until the network is entered.

    Attributes:
        layout: What it runs.
        state: The context that it shows.
        transforms: Whether it is for a single batch through `transform`: op by op will do, and what
            was traced will do too.
        runner: What the framework runs its steps by.
        run: Runs a step.
        bound: What `run` is the step of, where nothing else is around it; else None.
    """

    __slots__ = ("bound", "layout", "run", "runner", "state", "transforms")

    runner: Runner

    def __init__(self, layout: Layout, state: State, refuse: RunStep) -> None:
        self.layout = layout
        self.state = state
        self.transforms = False
        self.run = refuse
        self.bound: BoundPlan | None = None


class Runner:
    """Runs the steps of one opening op by op; those of the frameworks derive from it.

    Slicing, waiting for the device and postprocessing are laid around it: see `compose_step`.

    Args:
        opening: The opening.

    Attributes:
        opening: The opening.
        bound: The plan with the context of the steps, from when it was opened.
        context: What a profile calls what is entered around the ops of each step: its kind and its
            name. None for nothing.
        ranks: What watches over the steps of processes that communicate, from when it was opened.
            None where none do.
    """

    bound: BoundPlan
    context: tuple[str, str] | None = None
    ranks: Any = None

    def __init__(self, opening: Opening) -> None:
        self.opening = opening

    # ------------------------------------------------------------------ what a framework decides

    def open(self) -> None:
        """Get the models in force ready to run."""

    def close(self) -> None:
        """Undo `open`, whatever it came to."""

    def bind(self) -> BoundPlan:
        """Bind the plan to the context that ops are given, which may be more than is shown."""
        return BoundPlan(self.opening.layout.plan, self.opening.state)

    def is_profiled(self) -> bool:
        """Return whether the framework's profiler is on."""
        return False

    def ranges(self) -> Ranges | None:
        """Return the object that names the ops to the framework's profiler, None without one."""
        return None

    def waiter(self) -> Callable[[], None] | None:
        """Return the function that waits for the copies that a step has queued; None if none is."""
        return None

    def slicers(self) -> list[Any]:
        """Return the slicers in force, for the batches that the steps are run on."""
        return self.opening.layout.slicers

    def whole(self, run: RunStep) -> RunStep:
        """Return a step whose results are in one piece each."""
        return run

    # ------------------------------------------------------------------ how a step is run

    def step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch.

        Args:
            meter: What takes the times of its parts, or None.

        Returns:
            The function.
        """
        return self.step_of(meter, self.bound, self.bound.plan)

    def step_of(self, meter: StepMeter | None, bound: BoundPlan, timed_as: Plan) -> RunStep:
        """Return the function that runs a minibatch by a plan.

        Args:
            meter: What takes the times of its parts, or None.
            bound: The plan: that of the opening, or another one for the same ops.
            timed_as: The plan whose parts are timed: this one, or another one of as many parts.

        Returns:
            The function.
        """
        if meter is None:
            return bound.step
        first, log = meter.plan_rows(timed_as), meter.log
        around = -1 if self.context is None else meter.row(*self.context)
        places = bound.plan.places
        # and what is put off has the place after the last op's
        told = None if places is None else [*places, len(self.opening.layout.ops)]

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            before, after = _at(told, meter.before), _at(told, meter.after)
            return bound.step_timed(batch, log, first, before, after, around)

        return run


def _at(places: Sequence[int] | None, call: Around) -> Around:
    """Return what tells the opening's place of an op, in the place of that in a plan."""
    if places is None or call is None:
        return call
    return lambda place: call(places[place])
