"""Sessions: one use of a network each, from `network(mode, epoch)` until the network is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastnet._execute import BoundPlan
from fastnet.backend.model_metadata import choose_optimizer
from fastnet.backend.ranges import OpRanges
from fastnet.errors import add_note
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.step import (
    Meter,
    StepMeter,
    with_postprocessing,
    with_slicing,
    with_synchronization,
)
from fastnet.network.update_warnings import warn_of_partial_optimizers
from fastnet.types import RunStep, State

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork


class Session:
    """One use of a network; the base class of the frameworks' sessions.

    Until the network is entered, a session is a plan and a state. Then `prepare` prepares models
    and binds the plan to the state, `compose` sets `run`, which runs each step, and at the end
    `close` releases what `prepare` has acquired.

    Args:
        network: The network.
        plan: The active ops, postprocessing ops, slicers and models.
        state: The state that ops are given.

    Attributes:
        run: Runs a step, including slicing and postprocessing. It is replaced while the network is
            open, possibly by another thread, if the network starts or ends to be profiled.
        bound: The plan bound to the state, which runs the ops eagerly.
        is_prepared: Whether `prepare` has succeeded.
        is_transform: Whether this is a `transform` of a batch without slicers, which in TensorFlow
            runs as a graph only if there is one that fits.
        epoch: The epoch. In TensorFlow that of the state is a tensor.
        optimizers: The optimizers of the plan's models in this epoch, None for a model without one.
    """

    run: RunStep
    bound: BoundPlan
    # The kind and the name of the profile row of a context manager around the ops.
    context_row: tuple[str, str] | None = None

    def __init__(self, network: BaseNetwork, plan: ExecutionPlan, state: State) -> None:
        self.plan = plan
        self.state = state
        self.is_transform = False
        self.is_prepared = False
        self.epoch = int(state["epoch"])
        self.optimizers: list[Any] = []
        self.run = network._raise_not_open
        self._is_timed = False
        self._network = network
        # Called when the network is left without an error.
        self._exit_calls: Sequence[Callable[[], None]] = ()

    @property
    def is_training(self) -> bool:
        """Whether ops take gradients in mode "train", also in a warmup."""
        return self.plan.takes_gradients and self.state["mode"] == "train"

    def prepare(self) -> None:
        """Choose the optimizers of the epoch, prepare the models, and bind the plan."""
        self.optimizers = [choose_optimizer(model, self.epoch) for model in self.plan.models]
        if self.is_training:
            warn_of_partial_optimizers(self.plan)
        self._acquire()
        if not self.state["warmup"]:
            self._exit_calls = self.plan.exit_calls
        self.bound = self._bind()
        self.is_prepared = True

    def compose(self, meter: Meter | None) -> None:
        """Set `run`: the ops, and around them slicing, synchronization and postprocessing.

        Args:
            meter: What times the steps, or None.
        """
        timed = self._step_meter(meter)
        run = self._wrapped_step(None)
        if timed is not None:
            run = timed.measured(self._wrapped_step(timed), run)
        self._is_timed = timed is not None
        # Assigned once, because a step may be running in another thread.
        self.run = self._returning(run)

    def run_consecutively(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run a step for each batch; see `BaseNetwork.run_steps`."""
        run = self.run
        step = None if self._is_timed else self._consecutive_step()
        if step is not None:
            run = self._returning(self._wrapped(step, None))
        results = []
        for index, batch in enumerate(batches):
            try:
                results.append(run(batch))
            except BaseException as error:
                add_note(
                    error,
                    f"Raised by the step of batch {index} of {len(batches)}, counted from 0. The "
                    "steps before it were taken.",
                )
                raise
        return results

    def close(self, error: BaseException | None = None) -> None:
        """Run what is due when the network is left, and release the devices.

        Args:
            error: The exception that the network is left with. What is due at the end is skipped
                then, except for a generator that entered the network and is closed.
        """
        try:
            if error is None or isinstance(error, GeneratorExit):
                for call in self._exit_calls:
                    call()
        finally:
            self.run = self._network._raise_not_open
            self._release()

    def skip_exit_calls(self) -> None:
        """Skip what is due when the network is left without an error."""
        self._exit_calls = ()

    def check_loader(self, loader: Any) -> None:
        """Raise an error for a loader that cannot be run."""

    def _wrapped_step(self, meter: StepMeter | None) -> RunStep:
        """Return the step with what is around it, timed by `meter` if there is one."""
        return self._wrapped(self._step(meter), meter)

    def _wrapped(self, run: RunStep, meter: StepMeter | None) -> RunStep:
        """Return a step with slicing, waiting for the device and postprocessing around it."""
        plan = self.plan
        if plan.slicers:
            run = with_slicing(run, plan.slicers, plan.synchronize, meter)
        elif plan.synchronize is not None:
            run = with_synchronization(run, plan.synchronize, meter)
        run = self._merged(run)
        if plan.postprocessing:
            target_type = self._network.target_type
            run = with_postprocessing(run, plan.postprocessing, self.state, target_type, meter)
        return run

    def _eager_step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch eagerly, timed by `meter` if there is one."""
        bound = self.bound
        if meter is None:
            return bound.step

        log, first_row = meter.log, meter.plan_rows(bound.kernel)
        context_row = -1 if self.context_row is None else meter.row(*self.context_row)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            # A meter may set `before` and `after` for single steps.
            return bound.step_timed(batch, log, first_row, meter.before, meter.after, context_row)

        return run

    def _step_meter(self, meter: Meter | None) -> StepMeter | None:
        """Return what times the steps, or names them to the framework's profiler, or None."""
        ranges = self._ranges()
        if meter is not None:
            return meter.open_step(self.plan, self.state, ranges)
        if ranges is not None and ranges.active():
            return StepMeter(ranges.before, ranges.after)
        return None

    # What the frameworks override.

    def _acquire(self) -> None:
        """Prepare the active models and the state."""

    def _release(self) -> None:
        """Undo `_acquire`, even if it failed halfway or was not called."""

    def _bind(self) -> BoundPlan:
        """Bind the plan to the state that ops are given."""
        return BoundPlan(self.plan.kernel, self.state)

    def _step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, timed by `meter` if there is one."""
        return self._eager_step(meter)

    def _consecutive_step(self) -> RunStep | None:
        """Return a faster function for steps between which nothing changes, or None."""
        return None

    def _merged(self, run: RunStep) -> RunStep:
        """Return a step whose results are merged over all replicas, in TensorFlow."""
        return run

    def _returning(self, run: RunStep) -> RunStep:
        """Return a step that returns what the network's `run_step` does."""
        return run

    def _ranges(self) -> OpRanges | None:
        """Return what names the ops to the framework's profiler, or None."""
        return None
