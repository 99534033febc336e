"""What networks of every framework share: opening, stepping, transforming."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastnet._execute import Plan, RecordedPlan
from fastnet._guard import call_within, enter, leave
from fastnet._nest import NestMap
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet.backend import to_tensor
from fastnet.backend.facts import fact, put_fact
from fastnet.errors import add_note
from fastnet.network import metering
from fastnet.network.binding import collect_models
from fastnet.network.checks import (
    agree_on_precision,
    check_items,
    check_mode,
    check_names,
    desired_keys,
    not_data,
)
from fastnet.network.copying import Value
from fastnet.network.layout import Adopt, Layout, LayoutCache, Setting
from fastnet.network.metering import Meter, RangeMeter, Ranges, StepMeter
from fastnet.network.readings import settle_all
from fastnet.op.numpyop import forward_numpyop
from fastnet.op.settings import bind_settings
from fastnet.schedule import get_current_items
from fastnet.types import Forward, Model, State, is_given, is_scheduler
from fastnet.util import to_list

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from fastnet.explain import Explanation

__all__ = ["BaseNetwork"]

Step = Callable[[Mapping[str, Any]], dict[str, Any]]


class _Opening:
    """One opening of a network: what to run, and the context it runs in."""

    __slots__ = ("layout", "state", "step_state", "transforms")

    def __init__(self, layout: Layout, state: State) -> None:
        self.layout = layout
        self.state = state
        # what the ops are given, which may be more than is shown
        self.step_state = state
        # a single batch through `transform`: op by op will do, and what was traced will do too
        self.transforms = False


class BaseNetwork(Value):
    """A graph of ops over a batch, opened for a mode and an epoch, then run a step at a time.

    Programs make a `TorchNetwork`, or let `Network` choose.

    Args:
        target_type: The framework, "torch" or "tf".
        device: The device that ops run on (torch only).
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        postprocessing: Ops on numpy arrays, for whole batches, which run on the CPU after the rest.
        slicers: What cuts a batch into minibatches and joins their results.

    Attributes:
        ops: The ops and schedulers, without Nones.
        postprocessing: The postprocessing ops and schedulers, without Nones.
        slicers: The slicers and schedulers, without Nones.
        models: The models that any op holds.
        mixed_precision: Whether the models compute in half precision where it is safe.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer, or if two models have
            one name (case aside).
        ValueError: If only some models have mixed precision, or a postprocessing op would drop or
            make batches.
    """

    def __init__(
        self,
        target_type: str,
        device: torch.device | None,
        ops: Any,
        postprocessing: Any = None,
        slicers: Any = None,
    ) -> None:
        self.target_type = target_type
        self.device: Any = device
        self.ops: list[Any] = list(filter(is_given, to_list(ops)))
        self.postprocessing: list[Any] = list(filter(is_given, to_list(postprocessing)))
        self.slicers: list[Any] = list(filter(is_given, to_list(slicers)))
        self._check_items()
        for op in get_current_items(self.ops + self.postprocessing):
            settle_all(op)
        for op in get_current_items(self.ops):
            self._build(op)
        self.models: list[Model] = []
        self.mixed_precision = False
        self._collect_models()
        self._layouts = self._make_layouts()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # what this thread has configured and not entered yet
        self._configured = threading.local()
        self._opening: _Opening | None = None
        # held while what runs a step is put together, by the thread that opens or one that profiles
        self._composing = threading.Lock()
        # what takes the times of openings and steps, while there is something that does
        self._meter: Meter | None = None
        # A step that is nothing but its plan's run is called without anything in between.
        self._plan: Plan | RecordedPlan | None = None
        self._state: State = {}
        self._step: Step | None = None

    @cached_property
    def _layouts(self) -> LayoutCache:
        # of a network that a copy came to before it had all of its ops
        return self._make_layouts()

    def _make_layouts(self) -> LayoutCache:
        return LayoutCache(
            lambda: (self.ops, self.postprocessing, self.slicers),
            self._bind,
            self._value_maps(),
            self._step_setting,
            self._build,
            (self._check_items, self._collect_models),
            self._adoption(),
        )

    # ------------------------------------------------------------------ what a framework decides

    def _first_deferred(self, ops: list[Any]) -> int:
        """Give the place from which on updates are put off until after the last op."""
        return len(ops)

    def _value_maps(self) -> tuple[NestMap | None, NestMap | None]:
        """Give what is done to values on their way to the ops, and on their way back."""
        return None, None

    def _adoption(self) -> Adopt | None:
        """Give what makes tensors of foreign ones on their way in: see `Plan`."""
        return None

    def _step_setting(self, gradients: bool) -> Setting | None:
        """Give what must be set while ops run."""
        return None

    def _check_ops(self, layout: Layout) -> None:
        """Refuse ops that cannot run where the network is opened."""

    def _enter_models(self, opening: _Opening) -> None:
        """Get the models in force ready to run."""

    def _exit_models(self, opening: _Opening) -> None:
        """Undo `_enter_models`."""

    def _recorded(self, opening: _Opening) -> Plan | RecordedPlan:
        """Give the plan, with what records gradients around it where something must."""
        return opening.layout.plan

    def _step_state(self, opening: _Opening) -> State:
        """Give the context that the plan's ops are given."""
        return opening.state

    def _make_step(self, opening: _Opening) -> Step | None:
        """Give what runs a step, slicing and postprocessing aside; None if the plan alone does."""
        return None

    def _make_metered_step(self, opening: _Opening, meter: StepMeter) -> Step:
        """Give what runs a step as `_make_step` does, with stamps."""
        return metering.run_plan(opening.layout.plan, opening.step_state, meter)

    def _is_profiled(self) -> bool:
        """Tell whether the framework's profiler is on."""
        return False

    def _ranges(self, opening: _Opening) -> Ranges | None:
        """Give what names the ops to the framework's profiler, or None."""
        return None

    def _whole(self, step: Step) -> Step:
        """Give a step whose results are in one piece each."""
        return step

    def _fit_slicers(self, slicers: list[Any]) -> list[Any]:
        """Give slicers for the batches that this network is run on."""
        return slicers

    def _waiter(self) -> Callable[[], None] | None:
        """Give what waits for the copies that a step has queued, or None if it queues none."""
        return None

    # ------------------------------------------------------------------ what programs call

    def __call__(
        self,
        mode: str,
        epoch: int,
        ds_id: str = "",
        desired_output_keys: Collection[str] | None = None,
        warmup: bool = False,
        eager: bool = False,
    ) -> Self:
        """Configure the network; used as `with network(mode="train", epoch=1) as opened:`.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            desired_output_keys: The keys wanted back. None or empty for all that ops write. Keys
                that postprocessing reads come back too.
            warmup: Whether this is a trial run that updates no weights.
            eager: Whether to run op by op even where a graph could be used (TensorFlow only).

        Returns:
            The network itself, to be entered.

        Raises:
            TypeError: If a desired key is no string.
            ValueError: If there is no such mode, the network is in use, slicers clash, or a wanted
                key is left in pieces.
        """
        if self._lock.locked():
            raise ValueError(
                f"This {type(self).__name__} is in use: it was entered and not left. Leave it "
                "before you configure it anew, or make a second network of the same ops."
            )
        self._configured.opening = None
        check_mode(mode)
        layout = self._find_layout(mode, epoch, ds_id, desired_keys(desired_output_keys))
        state: State = {
            "warmup": warmup,
            "mode": mode,
            "req_grad": layout.takes_gradients,
            "epoch": epoch,
            "deferred": {},
            "eager": eager,
        }
        self._configured.opening = _Opening(layout, state)
        return self

    # compiled, so that no interrupt finds a network that is taken and not yet watched over
    __enter__ = enter
    __exit__ = leave

    def run_step(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Run one batch through the ops in force, and through postprocessing.

        Args:
            batch: The values by key. It is not changed. Ops find tensors of the network's own
                framework: of another one's, and of arrays, copies are made, also in nests.

        Returns:
            A new dict: the batch's own entries and, over them, the outputs, on the CPU. Of another
            framework's tensors that ops have read those that they were given are there.

        Raises:
            ValueError: If the network was not entered, or not configured.
            KeyError: If a key that is needed is not in the batch.
            Exception: Whatever an op raises, with a note that names the op.
        """
        plan = self._plan
        if plan is not None:
            return plan.step(batch, self._state)
        step = self._step
        if step is not None:
            return step(batch)
        raise self._not_open()

    def transform(
        self,
        data: Any,
        mode: str,
        epoch: int = 1,
        ds_id: str = "",
        progress: bool = False,
    ) -> Any:
        """Run data through the network, opening it for just this.

        Args:
            data: A batch (a dict); an iterable of batches, such as a list or a DataLoader; or,
                like FastEstimator's Pipeline, something that is called with mode, epoch, ds_id and
                shuffle, and then entered to give a loader. Numbers and arrays become tensors, in
                copies of the batches.
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            progress: Whether to show a bar (with tqdm) where the number of batches is known.

        Returns:
            For a batch its result, else a list of results: the predictions over the batch.
        """
        single = isinstance(data, Mapping)
        if isinstance(data, str) or not (hasattr(data, "__iter__") or callable(data)):
            raise not_data(data)
        eager = single and not self.slicers
        self(mode=mode, epoch=epoch, ds_id=ds_id, warmup=False, eager=eager)
        self._configured.opening.transforms = eager
        with self:
            if single:
                return self._do_transform(self._to_batch(data))
            if callable(data) and not hasattr(data, "__iter__"):
                with data(mode=mode, epoch=epoch, ds_id=ds_id, shuffle=False) as loader:
                    return self._transform_all(loader, progress)
            return self._transform_all(data, progress)

    def explain(
        self,
        mode: str = "train",
        epoch: int = 1,
        ds_id: str = "",
        desired_output_keys: Collection[str] | None = None,
    ) -> Explanation:
        """Say what an opening would run and why, without opening the network.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            desired_output_keys: The keys wanted back. None or empty for all that ops write.

        Returns:
            The explanation: `str` of it is text; see its methods for other forms. Where an opening
            would fail it says with what, and explains as far as it can.

        >>> from fastnet.network import TorchNetwork
        >>> from fastnet.op.tensorop import LambdaOp
        >>> network = TorchNetwork([LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")])
        >>> network.explain("infer", desired_output_keys=["y"]).findings[0].text
        "Nothing needs op 1, LambdaOp (x -> z): 'z' is neither read nor wanted back."
        """
        from fastnet.network.explaining import explain

        return explain(self, mode, epoch, ds_id, desired_output_keys)

    def get_loss_keys(self) -> set[str]:
        """List the keys of the losses that models are updated by.

        Returns:
            The keys, of all ops of all epochs.
        """
        keys: set[str] = set()
        for op in get_current_items(self.ops):
            if hasattr(op, "get_fe_loss_keys"):
                keys |= op.get_fe_loss_keys()
        return keys

    def get_scheduled_items(self, mode: str) -> list[Any]:
        """List what may change with the epoch.

        Args:
            mode: The mode; optimizers count in "train" only.

        Returns:
            Ops, optimizers, postprocessing ops and slicers, schedulers among them.
        """
        optimizers = [fact(model, "optimizer") for model in self.models] if mode == "train" else []
        return self.ops + optimizers + self.postprocessing + self.slicers

    def clear_plans(self) -> None:
        """Read all ops anew at the next opening, and forget what was worked out of them.

        What is set on an op, or changed in a list, set or dict that it holds, is noticed without
        this. Call it after something was written past the op, as to `vars(op)`.
        """
        self._layouts.clear()

    # ------------------------------------------------------------------ the opening, for others

    @property
    def ctx_inputs(self) -> set[str]:
        """The keys that the opened network needs from its batch."""
        layout = self._layout()
        return set() if layout is None else layout.plan.resolution.inputs.names()

    @property
    def ctx_gpu_inputs(self) -> set[str]:
        """Those of them that go to the device."""
        layout = self._layout()
        return set() if layout is None else layout.plan.resolution.device_inputs.names()

    @property
    def ctx_outputs(self) -> set[str]:
        """The keys that the opened network returns."""
        layout = self._layout()
        return set() if layout is None else layout.plan.resolution.outputs.names()

    @property
    def ctx_ops(self) -> list[Any]:
        """The ops in force."""
        layout = self._layout()
        return [] if layout is None else list(layout.ops)

    @property
    def ctx_postprocessing(self) -> list[Any]:
        """The postprocessing ops in force."""
        layout = self._layout()
        return [] if layout is None else list(layout.postprocessing)

    @property
    def ctx_slicers(self) -> list[Any]:
        """The slicers in force."""
        layout = self._layout()
        return [] if layout is None else list(layout.slicers)

    @property
    def ctx_models(self) -> set[Model]:
        """The models in force."""
        layout = self._layout()
        return set() if layout is None else set(layout.models)

    @property
    def ctx_state(self) -> State:
        """The context that ops are given: mode, epoch, warmup, req_grad, deferred, eager."""
        opening = self._current()
        return {} if opening is None else opening.state

    # ------------------------------------------------------------------ inside

    def _build(self, op: Any) -> None:
        """Get an op ready for the framework."""
        if hasattr(op, "build"):
            op.build(framework=self.target_type, device=self.device)

    def _check_items(self) -> None:
        check_items(self.ops, self.postprocessing, self.slicers)

    def _collect_models(self) -> None:
        """List the models that the ops hold now, and refuse those that cannot be together."""
        models = collect_models(self.ops)
        check_names(models)
        self.mixed_precision = agree_on_precision(models)
        self.models = models

    def _current(self) -> _Opening | None:
        return self._opening or getattr(self._configured, "opening", None)

    def _layout(self) -> Layout | None:
        opening = self._current()
        return None if opening is None else opening.layout

    def _bind(self, ops: list[Any], forwards: list[Forward], takers: list[int]) -> list[Forward]:
        """Settle, for each op that takes gradients, when it updates and what it leaves."""
        first = self._first_deferred(ops)
        for place in {*takers, *range(first, len(ops))}:
            forwards[place] = bind_settings(
                ops[place],
                defer=place >= first,
                retain_graph=bool(takers) and place < takers[-1],
            )
        return forwards

    def _find_layout(self, mode: str, epoch: int, ds_id: str, desired: frozenset[str]) -> Layout:
        if self._meter is None:
            return self._layouts.find(mode, epoch, ds_id, desired)
        known = self._layouts.worked_out
        started = perf_counter()
        layout = self._layouts.find(mode, epoch, ds_id, desired)
        seconds = perf_counter() - started
        self._meter.found(mode, seconds, worked_out=self._layouts.worked_out > known)
        return layout

    def _open(self, opening: _Opening) -> None:
        """Get ready for steps; whatever this raises, the network is given back."""
        started = perf_counter()
        for model in opening.layout.models:
            _choose_optimizer(model, opening.state["epoch"])
        self._enter_models(opening)
        opening.step_state = self._step_state(opening)
        call_within(self._composing, self._compose_step, opening)
        if self._meter is not None:
            self._meter.opened(opening.state["mode"], perf_counter() - started)

    def _compose_step(self, opening: _Opening) -> None:
        layout, state = opening.layout, opening.step_state
        plan = self._recorded(opening)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            return plan.step(batch, state)

        step: Step = self._make_step(opening) or run
        wait = self._waiter()
        if layout.slicers:
            step = _sliced(step, self._fit_slicers(layout.slicers), wait)
        elif wait is not None:
            step = _waiting(step, wait)
        if layout.postprocessing:
            step = self._postprocessed(self._whole(step), layout.postprocessing, opening.state)
        step = self._whole(step)
        meter = self._step_meter(opening)
        self._state = state
        # in this order: a step may be under way in another thread
        if meter is not None:
            self._step = meter.measured(self._metered(opening, meter), step)
            self._plan = None
        else:
            self._step = step
            self._plan = plan if step is run else None

    def _step_meter(self, opening: _Opening) -> StepMeter | None:
        if self._meter is None and not self._is_profiled():
            return None
        ranges = self._ranges(opening)
        if self._meter is not None:
            return self._meter.open_step(opening.layout, opening.state, ranges)
        return None if ranges is None else RangeMeter(ranges)

    def _metered(self, opening: _Opening, meter: StepMeter) -> Step:
        layout = opening.layout
        step = self._make_metered_step(opening, meter)
        wait = self._waiter()
        if layout.slicers:
            step = metering.sliced(step, self._fit_slicers(layout.slicers), wait, meter)
        elif wait is not None:
            step = metering.waiting(step, wait, meter)
        if layout.postprocessing:
            step = metering.postprocessed(
                self._whole(step), layout.postprocessing, opening.state, self.target_type, meter
            )
        return self._whole(step)

    def _measure_with(self, meter: Meter | None) -> None:
        """Have a meter take the times from now on, or nobody; an opening that there is goes on."""
        self._meter = meter
        call_within(self._composing, self._compose_anew)

    def _compose_anew(self) -> None:
        opening = self._opening
        if opening is None:
            return
        self._compose_step(opening)
        if self._opening is not opening:
            # another thread has closed it meanwhile, and might have opened the network again
            self._plan = None
            self._step = None
            self._state = {}

    def _postprocessed(self, step: Step, ops: list[Any], state: State) -> Step:
        batched = self.target_type

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            result = step(batch)
            try:
                forward_numpyop(ops=ops, data=result, state=state, batched=batched, shared=False)
            except Exception as error:
                add_note(error, "This was in the network's postprocessing.")
                raise
            return result

        return run

    def _in_use(self) -> ValueError:
        return ValueError(
            f"This {type(self).__name__} is in use: it can be entered once at a time. Leave it "
            "first, or make a second network of the same ops."
        )

    def _not_open(self) -> ValueError:
        if self._lock.locked():
            return ValueError(
                f"This {type(self).__name__} was entered without being configured. Write "
                '`with network(mode="train", epoch=1, ds_id=""):` around run_step.'
            )
        return ValueError(
            f"run_step needs an entered {type(self).__name__}. Write "
            '`with network(mode="train", epoch=1, ds_id=""):` around it.'
        )

    def _to_batch(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise not_data(data)
        return {key: to_tensor(value, self.target_type) for key, value in data.items()}

    def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
        return self.run_step(batch)

    def _transform_all(self, batches: Iterable[Any], progress: bool) -> list[dict[str, Any]]:
        if progress and hasattr(batches, "__len__"):
            from tqdm import tqdm

            batches = tqdm(batches, unit="batch", desc="transform")
        return [self._do_transform(self._to_batch(batch)) for batch in batches]


def _choose_optimizer(model: Model, epoch: int) -> None:
    optimizer = fact(model, "optimizer")
    if optimizer is None:
        return
    current = optimizer.get_current_value(epoch) if is_scheduler(optimizer) else optimizer
    if fact(model, "current_optimizer") is not current:
        put_fact(model, "current_optimizer", current)


def _waiting(step: Step, wait: Callable[[], None]) -> Step:
    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        wait()
        return result

    return run


def _sliced(step: Step, slicers: list[Any], wait: Callable[[], None] | None) -> Step:
    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        results = [step(minibatch) for minibatch in forward_slicers(slicers, batch)]
        if wait is not None:
            wait()
        return reverse_slicers(slicers, results, batch)

    return run
