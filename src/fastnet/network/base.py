"""What networks of every framework share: opening, stepping, transforming."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastnet._execute import BoundPlan
from fastnet._guard import call_within, enter, leave
from fastnet.backend import to_tensor
from fastnet.backend.facts import fact, name_of, put_fact
from fastnet.backend.precision import Precision
from fastnet.distributed import is_main
from fastnet.errors import describe_op, unwritten_key
from fastnet.network.copying import Value
from fastnet.network.layout import Handling, Layout, LayoutCache
from fastnet.network.metering import Meter, RangeMeter, StepMeter
from fastnet.network.models import collect_models
from fastnet.network.opening import Opening, Runner
from fastnet.network.progress_bar import bar_class
from fastnet.network.readings import settle_all
from fastnet.network.step import compose_step
from fastnet.network.updates import check_updates, close_after, followers_of, forget_endings
from fastnet.network.validation import (
    agree_on_precision,
    check_dataset,
    check_epoch,
    check_items,
    check_mode,
    check_names,
    desired_keys,
    not_data,
)
from fastnet.op.settings import bind_settings
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.schedule import get_current_items
from fastnet.types import Forward, Mode, Model, RunStep, State, is_given, is_scheduler
from fastnet.util import to_list
from fastnet.util.warned import warn

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from fastnet.explain import Explanation

__all__ = ["BaseNetwork"]


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
        mixed_precision: What the models compute in where it is safe: False for float32, "float16",
            "bfloat16", or True for what is usual on the device.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer, or if two models have
            one name (case aside).
        ValueError: If only some models have mixed precision, or a postprocessing op would drop or
            make batches.
    """

    _first_epoch = 1
    _warns_of_unwritten = True
    # what comes back where no keys are named; none for all outputs
    _wanted: frozenset[str] = frozenset()

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
        self.mixed_precision: Precision = False
        self._collect_models()
        self._layouts = self._make_layouts()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # what this thread has configured and not entered yet
        self._configured = threading.local()
        self._opening: Opening | None = None
        # the wanted keys that no op writes and that a batch was looked through for
        self._looked_for: set[str] = set()
        # held while what runs a step is put together, by the thread that opens or one that profiles
        self._composing = threading.Lock()
        # what takes the times of openings and steps, while there is something that does
        self._meter: Meter | None = None

    @cached_property
    def _layouts(self) -> LayoutCache:
        # of a network that a copy came to before it had all of its ops
        return self._make_layouts()

    def _make_layouts(self) -> LayoutCache:
        return LayoutCache(
            lambda: (self.ops, self.postprocessing, self.slicers),
            self._bind,
            self._handling(),
            self._build,
            (self._check_items, self._collect_models),
        )

    # ------------------------------------------------------------------ what a framework decides

    def _first_deferred(self, ops: list[Any]) -> int:
        """Return the place from which on updates are put off until after the last op."""
        return len(ops)

    def _handling(self) -> Handling:
        """Return what is done to values on their way, and around ops."""
        return Handling()

    def _check_ops(self, layout: Layout) -> None:
        """Refuse ops that cannot run where the network is opened."""

    def _make_runner(self, opening: Opening) -> Runner:
        """Make what runs the steps of an opening."""
        return Runner(opening)

    def _on_device(self, device: Any) -> AbstractContextManager[None]:
        """Run on another device for a while; None for the network's own."""
        if device is None:
            return nullcontext()
        raise TypeError(
            f"transform got the device {device!r}, which is for torch; this network runs in "
            f"{self.target_type}. Leave it out."
        )

    # ------------------------------------------------------------------ what programs call

    def __call__(
        self,
        mode: Mode,
        epoch: int,
        ds_id: str | None = "",
        desired_output_keys: Collection[str] | None = None,
        warmup: bool = False,
        eager: bool = False,
    ) -> Self:
        """Configure the network; used as `with network(mode="train", epoch=1) as opened:`.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1: an int, Python's or numpy's.
            ds_id: The id of the dataset, "" if it has none. None to run the ops of every id, as in
                FastEstimator.
            desired_output_keys: The keys wanted back. None or empty for all that ops write. Keys
                that postprocessing reads come back too, and keys of the batch in any case. One that
                no op of the network writes and the batch does not have is warned of once.
            warmup: Whether this is a trial run that updates no weights.
            eager: Whether to run op by op even where a graph, or a compiled step, could be used.

        Returns:
            The network itself, to be entered.

        Raises:
            TypeError: If the epoch is no whole number, or the dataset's id or a desired key is no
                string.
            ValueError: If there is no such mode or epoch, the network is in use, slicers clash, or
                a wanted key is left in pieces.
        """
        if self._lock.locked():
            raise ValueError(
                f"This {type(self).__name__} is in use: it was entered and not left. Leave it "
                "before you configure it anew, or make a second network of the same ops."
            )
        self._configured.opening = None
        check_mode(mode)
        epoch = check_epoch(epoch, self._first_epoch)
        check_dataset(ds_id)
        desired = desired_keys(desired_output_keys) or self._wanted
        layout = self._find_layout(mode, epoch, ds_id, desired)
        state: State = {
            "warmup": warmup,
            "mode": mode,
            "req_grad": layout.takes_gradients,
            "epoch": epoch,
            "deferred": {},
            "eager": eager,
        }
        opening = Opening(layout, state, self._refuse)
        opening.runner = self._make_runner(opening)
        self._configured.opening = opening
        return self

    def __repr__(self) -> str:
        held = {"op": self.ops, "postprocessing op": self.postprocessing, "slicer": self.slicers}
        parts = [
            f"{len(items)} {kind}{'' if len(items) == 1 else 's'}"
            for kind, items in held.items()
            if items or kind == "op"
        ]
        if self.models:
            names = ", ".join(repr(name_of(model)) for model in self.models)
            parts.append(f"model{'' if len(self.models) == 1 else 's'} {names}")
        if self.device is not None:
            parts.append(f"on {self.device}")
        opening = self._opening
        if opening is not None:
            parts.append(f"open in mode {opening.state['mode']!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Show what an opening for training would run, for a notebook."""
        return self.explain()._repr_html_()

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
        opening = self._opening
        if opening is None:
            raise self._not_open()
        return opening.run(batch)

    def transform(
        self,
        data: Any,
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        progress: bool = False,
        desired_output_keys: Collection[str] | None = None,
        device: Any = None,
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
            progress: Whether to show a bar (with tqdm) where the number of batches is known; of
                several processes the first one does.
            desired_output_keys: The keys wanted back, beside the batch's own. None or empty for all
                that ops write.
            device: Where to run for just this, instead of on the network's device (torch only): a
                `torch.device`, its name, or an index among the devices of the best kind. Models go
                there, and back.

        A loader whose sampler wants to know the epoch, as a DistributedSampler does to draw another
        order in each, is told it.

        Returns:
            For a batch its result, else a list of results. A result is a `ChainMap` of two dicts,
            what was written over the batch's entries; with slicers one dict of both.
        """
        if not isinstance(data, Mapping):
            return list(
                self.iter_transform(data, mode, epoch, ds_id, progress, desired_output_keys, device)
            )
        eager = not self.slicers
        with self._on_device(device):
            self(mode, epoch, ds_id, desired_output_keys, eager=eager)
            self._configured.opening.transforms = eager
            with self:
                return self._do_transform(self._to_batch(data))

    def iter_transform(
        self,
        data: Any,
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        progress: bool = False,
        desired_output_keys: Collection[str] | None = None,
        device: Any = None,
    ) -> Iterator[Any]:
        """Run batches through the network as their results are asked for, and keep none of them.

        Args:
            data: As for `transform`, but no single batch.
            mode: As for `transform`.
            epoch: As for `transform`.
            ds_id: As for `transform`.
            progress: As for `transform`.
            desired_output_keys: As for `transform`.
            device: As for `transform`.

        Returns:
            A generator of results. From its first result on the network is in use, until it has
            come to its end or was closed. One that is closed before its end, as a loop does that is
            left by `break` or by an error, leaves the opening as an error does: see `steps`.

        Raises:
            TypeError: If `data` is no iterable of batches.
        """
        if isinstance(data, Mapping):
            raise TypeError(
                "iter_transform takes batches, but was given one. Put it into a list, or call "
                "transform."
            )
        if isinstance(data, str) or not (hasattr(data, "__iter__") or callable(data)):
            raise not_data(data)

        def results() -> Iterator[Any]:
            with self._on_device(device), self(mode, epoch, ds_id, desired_output_keys):
                try:
                    if callable(data) and not hasattr(data, "__iter__"):
                        with data(mode=mode, epoch=epoch, ds_id=ds_id, shuffle=False) as loader:
                            yield from self._transform_all(loader, progress)
                    else:
                        yield from self._transform_all(data, progress)
                except GeneratorExit:
                    # nobody can tell a loop that was left from one that has failed
                    forget_endings(self._opening)
                    raise

        return results()

    def explain(
        self,
        mode: Mode = "train",
        epoch: int = 1,
        ds_id: str | None = "",
        desired_output_keys: Collection[str] | None = None,
    ) -> Explanation:
        """Explain what an opening would run, and why, without opening the network.

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
        "Nothing needs op 1, LambdaOp[abs] (x -> z): 'z' is neither read nor wanted back."
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

    def _current(self) -> Opening | None:
        return self._opening or getattr(self._configured, "opening", None)

    def _layout(self) -> Layout | None:
        opening = self._current()
        return None if opening is None else opening.layout

    def _bind(self, ops: list[Any], forwards: list[Forward], takers: list[int]) -> list[Forward]:
        """Settle, for each op that takes gradients, when it updates and what it leaves."""
        first = self._first_deferred(ops)
        check_updates(ops, first)
        followers = followers_of(ops)
        for place in {*takers, *range(first, len(ops))}:
            op, defer = ops[place], place >= first
            retain = bool(takers) and place < takers[-1]
            following = followers.get(id(op.model)) if isinstance(op, UpdateOp) else None
            if following is not None:
                bound = op.bind(defer, retain, following)
                if bound is None:
                    raise ValueError(
                        f"{describe_op(op, place)} has a forward of its own, whose steps nothing "
                        "can follow. Take out what follows them, or override nothing."
                    )
                forwards[place] = bound
            else:
                forwards[place] = bind_settings(op, defer=defer, retain_graph=retain)
        return forwards

    def _find_layout(
        self, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str]
    ) -> Layout:
        if self._meter is None:
            return self._layouts.find(mode, epoch, ds_id, desired)
        known = self._layouts.worked_out
        started = perf_counter()
        layout = self._layouts.find(mode, epoch, ds_id, desired)
        seconds = perf_counter() - started
        self._meter.found(mode, seconds, worked_out=self._layouts.worked_out > known)
        return layout

    def _open(self, opening: Opening) -> None:
        """Get ready for steps; whatever this raises, the network is given back."""
        started = perf_counter()
        for model in opening.layout.models:
            _choose_optimizer(model, opening.state["epoch"])
        runner = opening.runner
        runner.open()
        endings = opening.layout.endings
        if endings and not opening.state["warmup"]:
            vars(runner)["close"] = close_after(endings, runner.close)
        runner.bound = runner.bind()
        call_within(self._composing, self._compose_step, opening)
        if self._meter is not None:
            self._meter.opened(opening.state["mode"], perf_counter() - started)

    def _compose_step(self, opening: Opening) -> None:
        runner = opening.runner
        run = compose_step(runner, self.target_type)
        meter = self._step_meter(opening)
        bound = runner.bound if meter is None and run == runner.bound.step else None
        if meter is not None:
            run = meter.measured(compose_step(runner, self.target_type, meter), run)
        if runner.ranks is not None:
            run, bound = runner.ranks.counted(run), None
        unwritten = opening.layout.unwritten
        if unwritten and self._warns_of_unwritten and not self._looked_for.issuperset(unwritten):
            run, bound = self._looking(opening, run, bound), None
        # a step may be under way in another thread
        opening.bound = bound
        opening.run = run

    def _looking(self, opening: Opening, run: RunStep, bound: BoundPlan | None) -> RunStep:
        """Return a first step, which looks for wanted keys in its batch and makes way for the rest.

        Args:
            opening: The opening.
            run: What runs the others.
            bound: What they are the steps of, where nothing else is around it.
        """

        def look(batch: Mapping[str, Any]) -> dict[str, Any]:
            if hasattr(batch, "keys"):
                call_within(self._composing, make_way)
                self._look_for(opening.layout, batch)
            return run(batch)

        def make_way() -> None:
            if opening.run is look:
                opening.bound = bound
                opening.run = run

        return look

    def _look_for(self, layout: Layout, batch: Mapping[str, Any]) -> None:
        """Warn of wanted keys that nothing writes and that a batch lacks: once of each."""
        for key in layout.unwritten:
            if key in self._looked_for:
                continue
            self._looked_for.add(key)
            if key not in batch:
                known = {*self._layouts.written(), *batch.keys()}
                warn(unwritten_key(key, known))

    def _step_meter(self, opening: Opening) -> StepMeter | None:
        runner = opening.runner
        if self._meter is None and not runner.is_profiled():
            return None
        ranges = runner.ranges()
        if self._meter is not None:
            return self._meter.open_step(opening.layout, opening.state, ranges)
        return None if ranges is None else RangeMeter(ranges)

    def _measure_with(self, meter: Meter | None) -> None:
        """Let a meter time the network from now on, or none; an opening under way goes on."""
        self._meter = meter
        call_within(self._composing, self._compose_anew)

    def _compose_anew(self) -> None:
        opening = self._opening
        if opening is not None:
            self._compose_step(opening)

    def _refuse(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        raise self._not_open()

    def _in_use(self) -> ValueError:
        return ValueError(
            f"This {type(self).__name__} is in use: it can only be entered once at a time. "
            "Leave it first, or make a second network of the same ops."
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

    def _do_transform(self, batch: dict[str, Any]) -> Any:
        result = self.run_step(batch)
        layout = self._layout()
        if layout is None or layout.slicers:
            return result
        outputs = layout.plan.resolution.outputs
        # what is not of the batch is a postprocessing op's, or a derived class's
        written = {
            key: value for key, value in result.items() if key in outputs or key not in batch
        }
        read = {
            key: batch[key] if key in written else value
            for key, value in result.items()
            if key in batch
        }
        return ChainMap(written, read)

    def _begin_loader(self, loader: Any) -> None:
        """Get a loader ready for the opening that is under way."""
        opening: Any = self._opening
        if opening.runner.ranks is not None:
            opening.runner.ranks.require_even(loader)
        _tell_epoch(loader, opening.state["epoch"])

    def _transform_all(self, batches: Iterable[Any], progress: bool) -> Iterator[Any]:
        self._begin_loader(batches)
        if progress and hasattr(batches, "__len__") and is_main():
            batches = bar_class("transform")(batches, unit="batch", desc="transform")
        for batch in batches:
            yield self._do_transform(self._to_batch(batch))


def _tell_epoch(loader: Any, epoch: int) -> None:
    """Tell the samplers of a loader the epoch, where they are made to be told."""
    inner = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), inner, getattr(inner, "sampler", None)):
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def _choose_optimizer(model: Model, epoch: int) -> None:
    optimizer = fact(model, "optimizer")
    if optimizer is None:
        return
    current = optimizer.get_current_value(epoch) if is_scheduler(optimizer) else optimizer
    if fact(model, "current_optimizer") is not current:
        put_fact(model, "current_optimizer", current)
