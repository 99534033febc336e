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
from fastnet.network.update_warnings import warn_of_partial_optimizers, warn_of_values
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
            open, possibly by another thread, when profiling starts or ends.
        bound: The plan bound to the state, which runs the ops eagerly.
        is_prepared: Whether `prepare` has succeeded.
        may_trace: In TensorFlow, whether a step may trace a graph. If False, as in a `transform` of
            one batch, a step runs by a graph that exists, or else eagerly.
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
        self.may_trace = True
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
        timed = self._open_meter(meter)
        run = self._make_wrapped_step(None)
        if timed is not None:
            run = timed.measured(self._make_wrapped_step(timed), run)
        self._is_timed = timed is not None
        run = self._convert_result(run)
        if self.plan.awaits_values:
            run = self._with_check_of_values(run)
        # Assigned once, because a step may be running in another thread.
        self.run = run

    def _with_check_of_values(self, run: RunStep) -> RunStep:
        """Return a step that looks at the predictions of the first result, and is then replaced."""

        def run_first(batch: Mapping[str, Any]) -> dict[str, Any]:
            result = run(batch)
            warn_of_values(self._network, self.plan, result)
            self.plan.awaits_values = False
            with self._network._mutex:
                if self.run is run_first:
                    self.run = run
            return result

        return run_first

    def run_consecutively(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run a step for each batch; see `BaseNetwork.run_steps`."""
        run = self.run
        step = None if self._is_timed else self._make_consecutive_step()
        if step is not None:
            run = self._convert_result(self._add_wrappers(step, None))
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
        """Run the exit calls, and release the devices.

        Args:
            error: The exception that the network is left with. The exit calls are skipped then,
                unless a generator that entered the network is closed.
        """
        try:
            if error is None or isinstance(error, GeneratorExit):
                for call in self._exit_calls:
                    call()
        finally:
            self.run = self._network._raise_not_open
            self._release()

    def skip_exit_calls(self) -> None:
        """Run no exit calls when the network is left."""
        self._exit_calls = ()

    def check_loader(self, loader: Any) -> None:
        """Raise an error for a loader that cannot be run."""

    def _make_wrapped_step(self, meter: StepMeter | None) -> RunStep:
        """Return the step with its wrappers, timed by `meter` if there is one."""
        return self._add_wrappers(self._make_step(meter), meter)

    def _add_wrappers(self, run: RunStep, meter: StepMeter | None) -> RunStep:
        """Wrap a step in the slicing, waiting for the device and postprocessing of the plan."""
        plan = self.plan
        if plan.slicers:
            run = with_slicing(run, plan.slicers, plan.synchronize, meter)
        elif plan.synchronize is not None:
            run = with_synchronization(run, plan.synchronize, meter)
        run = self._with_joined_replicas(run)
        if plan.postprocessing:
            target_type = self._network.target_type
            run = with_postprocessing(run, plan.postprocessing, self.state, target_type, meter)
        return run

    def _make_eager_step(self, meter: StepMeter | None) -> RunStep:
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

    def _open_meter(self, meter: Meter | None) -> StepMeter | None:
        """Return what times the steps, or names them to the framework's profiler, or None."""
        ranges = self._ranges()
        if meter is not None:
            return meter.open_step(self.plan, self.state, ranges)
        if ranges is not None and ranges.active():
            return StepMeter(ranges.before, ranges.after)
        return None

    # The methods that the frameworks override.

    def _acquire(self) -> None:
        """Prepare the active models, and the state for the ops of this session."""

    def _release(self) -> None:
        """Undo `_acquire`, even if it failed halfway or was not called."""

    def _bind(self) -> BoundPlan:
        """Bind the plan to the state that ops are given."""
        return BoundPlan(self.plan.kernel, self.state)

    def _make_step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, timed by `meter` if there is one."""
        return self._make_eager_step(meter)

    def _make_consecutive_step(self) -> RunStep | None:
        """Return a faster function for steps between which nothing changes, or None."""
        return None

    def _with_joined_replicas(self, run: RunStep) -> RunStep:
        """Return a step around which the values of this process's replicas are joined.

        These are, in TensorFlow, the batch if there are slicers, else the results.
        """
        return run

    def _convert_result(self, run: RunStep) -> RunStep:
        """Wrap a step to change what `run_step` returns; `fastnet.compat.v1` overrides this."""
        return run

    def _ranges(self) -> OpRanges | None:
        """Return what names the ops to the framework's profiler, or None."""
        return None
