"""One opening of a network: what it runs, in which context, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fastnet._execute import BoundPlan
from fastnet.network.layout import Layout
from fastnet.types import State

if TYPE_CHECKING:
    from fastnet.network.runner import Runner

__all__ = ["Opening", "RunStep"]

RunStep: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]


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
