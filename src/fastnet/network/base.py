"""The base class of networks."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, overload

from fastnet._execute import DEFERRED
from fastnet._nest import leaves_of, map_leaves
from fastnet.backend import to_tensor
from fastnet.backend.model_metadata import get_metadata, name_of, note_new_models
from fastnet.backend.precision import Precision
from fastnet.distributed import is_main
from fastnet.errors import advise_program, missing_attribute, not_a_batch, require_batches
from fastnet.network.compile_options import CompileOptions
from fastnet.network.copying import Copyable
from fastnet.network.loaders import begin_loader, end_loader
from fastnet.network.plan_cache import (
    ExecutionPlan,
    PlanCache,
    StepOptions,
    normalized_lists,
)
from fastnet.network.session import Session
from fastnet.network.step import Meter
from fastnet.network.update_warnings import (
    losses_of_probabilities,
    note_updates,
    warn_of_logits,
    warn_of_missing_updates,
    warn_of_untrained_modules,
    warn_of_updates_in,
)
from fastnet.network.validation import (
    agree_on_precision,
    check_batches,
    check_items,
    check_names,
    check_request,
    collect_models,
    warn_of_misspelled,
)
from fastnet.op.settings import resolve_settings
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.schedule import get_current_items
from fastnet.types import Batch, Mode, Model, NumpyOps, Ops, Slicers, State, is_given
from fastnet.util import to_list
from fastnet.util.formatting import format_repr

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from fastnet.explain import Explanation


class BaseNetwork(Copyable):
    """A graph of ops over a batch, entered for a mode and an epoch and then run step by step.

    Args:
        target_type: The framework, "torch" or "tf".
        device: The device that ops run on (torch only).
        ops: The ops, in order; None and schedulers of ops are allowed.
        postprocessing: Ops on whole batches of numpy arrays, which run on the CPU after the rest.
        slicers: Slicers, which slice a batch into minibatches and unslice their results.

    Attributes:
        ops: The ops and schedulers, without Nones.
        postprocessing: The postprocessing ops and schedulers, without Nones.
        slicers: The slicers and schedulers, without Nones.
        models: The models of the ops.
        mixed_precision: The compute precision of the models: False for float32, "float16",
            "bfloat16", or True for the default of the device.

    Raises:
        AssertionError: If an item is not an op, postprocessing op or slicer, or if two models have
            one name (case aside).
        ValueError: If only some models have mixed precision, or a postprocessing op would drop or
            make batches.
    """

    _first_epoch = 1
    # If no keys are requested: whether all outputs are returned, or none.
    _returns_all = True
    # How steps are compiled, or None.
    _compile_options: CompileOptions | None = None
    _session_type: ClassVar[type[Session]] = Session

    def __init__(
        self,
        target_type: str,
        device: torch.device | None,
        ops: Ops,
        postprocessing: NumpyOps = None,
        slicers: Slicers = None,
    ) -> None:
        self.target_type = target_type
        self.device: Any = device
        self.ops: list[Any] = list(filter(is_given, to_list(ops)))
        self.postprocessing: list[Any] = list(filter(is_given, to_list(postprocessing)))
        self.slicers: list[Any] = list(filter(is_given, to_list(slicers)))
        check_items(self.ops, self.postprocessing, self.slicers)
        for op in get_current_items(self.ops + self.postprocessing):
            resolve_settings(op)
        for op in get_current_items(self.ops):
            self._build_op(op)
        self.models: list[Model] = []
        self.mixed_precision: Precision = False
        self._collect_models()
        self._plan_cache = self._make_plan_cache(is_resolved=True)
        self._init_state()

    def _init_state(self) -> None:
        """Set the attributes that copies do not share."""
        # None unless the network is open.
        self._session: Session | None = None
        # Times the network while it is profiled.
        self._meter: Meter | None = None
        # Held while the session is set, while `_meter` changes, and while `compose` runs.
        self._mutex = threading.Lock()
        # Holds the session that this thread has configured and not entered yet.
        self._configured = threading.local()
        # The ids of the ops and models that were warned of.
        self._warned: set[int] = set()

    def _trainable_in(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Yield the trainable parameters of a model, a layer or an optimizer, with their names."""
        return ()

    def _warn_of_unsaved_state(self) -> None:
        """Warn of state that a checkpoint does not contain."""

    @cached_property
    def _plan_cache(self) -> PlanCache:
        # Used if a network was copied before all of its ops were restored.
        return self._make_plan_cache()

    def _make_plan_cache(self, is_resolved: bool = False) -> PlanCache:
        return PlanCache(
            partial(normalized_lists, self),
            self._step_options(),
            build_op=self._build_op,
            on_change=self._collect_models,
            is_resolved=is_resolved,
        )

    def _take_snapshot(self) -> None:
        self._plan_cache  # noqa: B018

    def _step_options(self) -> StepOptions:
        """Return how values are converted and moved, and the settings around ops."""
        return StepOptions()

    def _check_ops(self, plan: ExecutionPlan) -> None:
        """Raise an error for ops that cannot run in the network when it is entered."""

    def _on_device(self, device: Any) -> AbstractContextManager[None]:
        """Run on another device for a while; None for the network's own."""
        if device is not None:
            raise TypeError(f"transform got device={device!r}, which is for torch. Leave it out.")
        return nullcontext()

    def __call__(
        self,
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        desired_output_keys: Collection[str] | None = None,
        warmup: bool = False,
        eager: bool = False,
    ) -> Self:
        """Configure the network; used as `with network(mode="train", epoch=1):`.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1: an int of Python or numpy.
            ds_id: The id of the dataset, "" if it has none. None to run the ops of every id.
            desired_output_keys: The keys to return. None or empty for all outputs. Keys that
                postprocessing reads are returned too, and keys of the batch in any case. A key that
                nothing writes is missing from the result; `explain` reports it.
            warmup: Whether this is a trial run that updates no weights.
            eager: Whether to run eagerly even where a graph, or a compiled step, could be used.

        Returns:
            The network itself, to be entered.

        Raises:
            TypeError: If the epoch is not an integer, or the dataset id or a key not a string.
            ValueError: If there is no such mode or epoch, the network is open already, slicers
                clash, or a desired key is sliced and not unsliced.
        """
        self._configure(mode, epoch, ds_id, desired_output_keys, warmup, eager)
        return self

    def __enter__(self) -> Self:
        """Enter the network as it was configured.

        Raises:
            ValueError: If it is open already, or was not configured.
        """
        session: Session | None = getattr(self._configured, "session", None)
        self._configured.session = None
        if session is None:
            raise self._not_open() if self._session is None else self._in_use()

        try:
            with self._mutex:
                if self._session is not None:
                    raise self._in_use()
                self._session = session
            self._start(session)
        except BaseException as error:
            # An interrupt may come at any point: the network is released if it is this session's.
            # A subclass's `__exit__` belongs to a network that was entered.
            if self._session is session:
                BaseNetwork.__exit__(self, type(error), error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Leave the network, which can then be entered again."""
        session = self._session
        try:
            if session is not None:
                if isinstance(error, (KeyError, TypeError)):
                    advise_program(error, session.plan.kernel.resolution.outputs.names())
                session.close(error)
        finally:
            # Without the mutex: while this thread holds it, the garbage collector may close a
            # generator that entered the network.
            self._session = None

    if not TYPE_CHECKING:  # Type checkers would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            error = None if hasattr(type(self), name) else missing_attribute(self, name)
            if error is not None:
                raise error
            # If a property has failed, looking it up again raises its own error.
            return self.__getattribute__(name)

    def __repr__(self) -> str:
        session = self._session
        parts = {
            "ops": len(self.ops),
            "postprocessing": len(self.postprocessing),
            "slicers": len(self.slicers),
            "models": list(map(name_of, self.models)),
            "device": self.device and str(self.device),
            "mode": None if session is None else session.state["mode"],
        }
        return format_repr(self, [f"{name}={value!r}" for name, value in parts.items() if value])

    def _repr_html_(self) -> str:
        """Show what a training step would run, for a notebook."""
        return self.explain()._repr_html_()

    def run_step(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Run one batch through the active ops, and through postprocessing.

        Args:
            batch: A mapping of keys to values. It is not changed. Arrays and another framework's
                tensors, also nested ones, are converted to tensors of the network's framework.

        Returns:
            A new dict: the entries of the batch, overwritten by the outputs, which are on the CPU
            unless the network returns them on its device. Tensors of another framework that ops
            have read are returned converted.

        Raises:
            ValueError: If the network is not open.
            KeyError: If a key that is needed is not in the batch.
            Exception: Whatever an op raises, with a note that names the op.
        """
        session = self._session
        if session is None:
            raise self._not_open()
        return session.run(batch)

    def run_steps(self, batches: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run a step for each of several batches, as calls of `run_step` do one after the other.

        With compiled steps in PyTorch, what a program was made from is compared once, which makes
        small steps faster. What other code changes meanwhile, such as another thread or a hook,
        takes effect after the call.

        Args:
            batches: The batches, which are all read before the first step.

        Returns:
            The result of each step; see `run_step`.

        Raises:
            ValueError: If the network is not open.
            TypeError: If `batches` is a single batch.
            Exception: Whatever a step raises, with a note that names the batch. The steps before it
                were taken.
        """
        session = self._session
        if session is None:
            raise self._not_open()
        check_batches(batches, "run_steps")
        return session.run_consecutively(list(batches))

    @overload
    def transform(
        self,
        data: Mapping[str, Any],
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        progress: bool = False,
        desired_output_keys: Collection[str] | None = None,
        device: Any = None,
    ) -> Batch: ...

    @overload
    def transform(
        self,
        data: Iterable[Mapping[str, Any]] | Callable[..., Any],
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        progress: bool = False,
        desired_output_keys: Collection[str] | None = None,
        device: Any = None,
    ) -> list[Batch]: ...

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
        """Enter the network and run data through it.

        Args:
            data: A batch (a dict); an iterable of batches, such as a list or a DataLoader; or,
                like FastEstimator's Pipeline, a callable that takes mode, epoch, ds_id and shuffle
                and returns a context manager of a loader. Arrays and integers become tensors, in
                copies of the batches; floats become tensors in the results only. `set_epoch` of a
                loader's samplers, and `on_epoch_begin` and `on_epoch_end` of a Keras `PyDataset`
                are called.
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            progress: Whether to show a progress bar (with tqdm) where the number of batches is
                known, in the first of several processes.
            desired_output_keys: The keys to return, in addition to those of the batch. None for all
                outputs.
            device: Where to run instead of on the network's device (torch only): a `torch.device`,
                its name, or an index among the devices of the best kind. Models are moved there,
                and back.

        Returns:
            The result of a single batch, or a list of results. A result is a `ChainMap` of two
            dicts, the outputs and the batch's entries; with slicers it is one dict of both.
        """
        if not isinstance(data, Mapping):
            require_batches(data)
            return list(
                self.iter_transform(data, mode, epoch, ds_id, progress, desired_output_keys, device)
            )
        # Tracing is not worth its time for a single batch, but an existing trace is used.
        # Minibatches of slicers share one.
        may_trace = bool(self.slicers)
        with self._on_device(device):
            self(mode, epoch, ds_id, desired_output_keys, eager=not may_trace)
            self._configured.session.may_trace = may_trace
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
    ) -> Iterator[Batch]:
        """Enter the network and run batches through it one at a time, keeping no result.

        Args:
            data: As for `transform`, but not a single batch.
            mode: As for `transform`.
            epoch: As for `transform`.
            ds_id: As for `transform`.
            progress: As for `transform`.
            desired_output_keys: As for `transform`.
            device: As for `transform`.

        Returns:
            A generator of results. The network is open from the first result until the generator
            is exhausted or closed. Leaving the loop early has the same effect as an error: see
            `steps`.

        Raises:
            TypeError: If `data` is not an iterable of batches.
        """
        check_batches(data, "iter_transform")
        request = mode, epoch, ds_id, desired_output_keys
        return self._iter_transform(data, request, progress, device)

    def explain(
        self,
        mode: Mode = "train",
        epoch: int = 1,
        ds_id: str | None = "",
        desired_output_keys: Collection[str] | None = None,
    ) -> Explanation:
        """Explain what a step would run, and why, without entering the network.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            desired_output_keys: The keys to return. None or empty for all that ops write.

        Returns:
            The explanation: `str()` formats it as text, and its methods return other forms. If
            entering the network would fail, it includes the error and explains as much as it can.

        >>> from fastnet.network import TorchNetwork
        >>> from fastnet.op.tensorop import LambdaOp
        >>> network = TorchNetwork([LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")])
        >>> network.explain("infer", desired_output_keys=["y"]).findings[0].text
        "Op 1, LambdaOp[abs] (x -> z), is not needed: 'z' is neither read nor returned."
        """
        from fastnet.network.explaining import explain

        return explain(self, mode, epoch, ds_id, desired_output_keys)

    def get_loss_keys(self) -> set[str]:
        """List the keys of the losses that update models.

        Returns:
            The keys, of all ops of all epochs.
        """
        ops = map(as_tensor_op, get_current_items(self.ops))
        return set().union(*(op.get_fe_loss_keys() for op in ops))

    def get_scheduled_items(self, mode: str) -> list[Any]:
        """List the items and optimizers that may change with the epoch.

        Args:
            mode: The mode; optimizers are listed only in "train".

        Returns:
            Ops, optimizers, postprocessing ops and slicers, schedulers among them.
        """
        models = self.models if mode == "train" else []
        optimizers = [get_metadata(model, "optimizer") for model in models]
        return self.ops + optimizers + self.postprocessing + self.slicers

    def retrace(self) -> None:
        """Discard all plans, traces and compiled programs; the next entry creates new ones.

        Call it after a change that is not compared, such as a change of an array's contents: see
        `docs/contract.md`.
        """
        self._plan_cache.clear()

    @property
    def ctx_inputs(self) -> set[str]:
        """The keys that the network needs from a batch."""
        plan = self._current_plan()
        return set() if plan is None else plan.kernel.resolution.inputs.names()

    @property
    def ctx_gpu_inputs(self) -> set[str]:
        """The keys of a batch that are moved to the device."""
        plan = self._current_plan()
        return set() if plan is None else plan.kernel.resolution.device_inputs.names()

    @property
    def ctx_outputs(self) -> set[str]:
        """The keys that a step returns."""
        plan = self._current_plan()
        return set() if plan is None else plan.kernel.resolution.outputs.names()

    @property
    def ctx_ops(self) -> list[Any]:
        """The active ops."""
        plan = self._current_plan()
        return [] if plan is None else list(plan.ops)

    @property
    def ctx_postprocessing(self) -> list[Any]:
        """The active postprocessing ops."""
        plan = self._current_plan()
        return [] if plan is None else list(plan.postprocessing)

    @property
    def ctx_slicers(self) -> list[Any]:
        """The active slicers."""
        plan = self._current_plan()
        return [] if plan is None else list(plan.slicers)

    @property
    def ctx_models(self) -> set[Model]:
        """The active models."""
        plan = self._current_plan()
        return set() if plan is None else set(plan.models)

    @property
    def ctx_state(self) -> State:
        """The state that ops are given: mode, epoch, warmup, req_grad, deferred, eager."""
        session = self._current_session()
        return {} if session is None else session.state

    def _build_op(self, op: Any) -> None:
        """Prepare an op for the framework."""
        as_tensor_op(op).build(framework=self.target_type, device=self.device)

    def _collect_models(self) -> None:
        """List the current models of the ops, and check that they are compatible."""
        models = collect_models(self.ops)
        check_names(models)
        self.mixed_precision = agree_on_precision(models)
        self.models = models
        note_new_models(models)
        note_updates(self.ops)

    def _configure(
        self,
        mode: Any,
        epoch: Any,
        ds_id: Any,
        desired_keys: Any,
        warmup: bool,
        eager: bool,
    ) -> None:
        """Validate the arguments, find or build the execution plan, and make a session of it."""
        if self._session is not None:
            raise self._in_use()
        self._configured.session = None
        epoch, desired = check_request(mode, epoch, ds_id, desired_keys, self._first_epoch)
        started = perf_counter()
        plan = self._find_plan(mode, epoch, ds_id, desired)
        is_new = not plan.is_checked
        if is_new:
            plan.is_checked = True
            self._warn_of_mistakes(plan, mode, desired)
        meter = self._meter
        if meter is not None:
            name = "resolve (computed)" if is_new else "resolve (cached)"
            meter.record(mode, name, perf_counter() - started)

        state: State = {
            "warmup": warmup,
            "mode": mode,
            "req_grad": plan.takes_gradients,
            "epoch": epoch,
            DEFERRED: {},
            "eager": eager,
        }
        self._configured.session = self._session_type(self, plan, state)

    def _find_plan(
        self, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str]
    ) -> ExecutionPlan:
        """Find or build the plan that returns the desired keys, or all or none if it is empty."""
        no_keys = None if self._returns_all else frozenset[str]()
        return self._plan_cache.find(mode, epoch, ds_id, desired or no_keys)

    def _warn_of_mistakes(self, plan: ExecutionPlan, mode: str, desired: frozenset[str]) -> None:
        """Warn of misspelled keys, missing or misplaced updates, and logits, now or later."""
        if not desired <= plan.kernel.resolution.outputs.names():
            warn_of_misspelled(desired, self.ops + self.postprocessing)
        warn_of_logits(self, plan)
        plan.awaits_values = bool(losses_of_probabilities(self, plan))
        if mode == "train":
            warn_of_missing_updates(self, plan)
            warn_of_untrained_modules(self)
        else:
            warn_of_updates_in(mode, self, plan)

    def _require_session(self) -> Session:
        """Return the session of the open network."""
        if self._session is None:
            raise self._not_open()
        return self._session

    def _current_session(self) -> Session | None:
        return self._session or getattr(self._configured, "session", None)

    def _current_plan(self) -> ExecutionPlan | None:
        session = self._current_session()
        return None if session is None else session.plan

    def _start(self, session: Session) -> None:
        """Prepare for steps."""
        started = perf_counter()
        session.prepare()
        with self._mutex:
            meter = self._meter
            session.compose(meter)
        if meter is not None:
            meter.record(session.state["mode"], "open", perf_counter() - started)

    def _measure_with(self, meter: Meter | None) -> None:
        """Start timing the network with a meter, or stop if it is None, even while it is open.

        Raises:
            ValueError: If it is being timed already.
        """
        with self._mutex:
            if meter is not None and self._meter is not None:
                raise ValueError(
                    f"This {type(self).__name__} is being profiled already. Leave that profile's "
                    "block first; one profile measures all modes and epochs."
                )
            self._meter = meter
            session = self._session
            if session is not None and session.is_prepared:
                session.compose(meter)

    def _in_use(self) -> ValueError:
        return ValueError(
            f"This {type(self).__name__} is open already, and can be entered only once at a time. "
            "Leave it first, or enter copy.copy(network), a second network of the same ops."
        )

    def _not_open(self) -> ValueError:
        return ValueError(
            f"This {type(self).__name__} is not open. Write "
            '`with network(mode="train", epoch=1):` around run_step.'
        )

    def _raise_not_open(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        raise self._not_open()

    def _to_batch(self, data: Any) -> dict[str, Any]:
        """Return a copy of a batch of `transform` whose arrays and integers are tensors.

        Floats stay as they are for the ops, because float64 tensors would widen a loss.
        """
        if not isinstance(data, Mapping):
            raise not_a_batch(data)

        def convert(value: Any) -> Any:
            return value if isinstance(value, float) else to_tensor(value, self.target_type)

        return {key: map_leaves(value, convert) for key, value in data.items()}

    def _iter_transform(
        self, data: Any, request: tuple[Any, ...], progress: bool, device: Any
    ) -> Iterator[Batch]:
        mode, epoch, ds_id, _ = request
        loader_context = nullcontext(data)
        with self._on_device(device), self(*request):
            session = self._require_session()
            try:
                if callable(data) and not hasattr(data, "__iter__"):
                    loader_context = data(mode=mode, epoch=epoch, ds_id=ds_id, shuffle=False)
                with loader_context as loader:
                    begin_loader(loader, session)
                    batches: Any = loader
                    if progress and hasattr(loader, "__len__") and is_main():
                        from tqdm import tqdm

                        batches = tqdm(loader, unit="batch", desc="transform")
                    count = 0
                    for batch in batches:
                        yield self._do_transform(self._to_batch(batch))
                        count += 1
                    end_loader(loader, count)
            except GeneratorExit:
                # A loop that was left early cannot be distinguished from one that failed.
                session.skip_exit_calls()
                raise

    def _floats_to_tensors(self, batch: dict[str, Any]) -> list[str]:
        """Convert the values of a batch that have floats, for its result; return their keys."""
        keys = [
            key
            for key, value in batch.items()
            if any(isinstance(leaf, float) for leaf in leaves_of(value))
        ]
        for key in keys:
            batch[key] = to_tensor(batch[key], self.target_type)
        return keys

    def _do_transform(self, batch: dict[str, Any]) -> Any:
        """Run a batch of `transform`; return the outputs over the batch's entries."""
        plan = self._require_session().plan
        result = self.run_step(batch)
        outputs = plan.kernel.resolution.outputs
        for key in self._floats_to_tensors(batch):
            if key in result and key not in outputs:
                result[key] = batch[key]
        if plan.slicers:
            return result
        # Keys that neither the ops nor the batch have come from postprocessing.
        written = {key: result[key] for key in result if key in outputs or key not in batch}
        read = {
            key: batch[key] if key in written else value
            for key, value in result.items()
            if key in batch
        }
        return ChainMap(written, read)
