"""Execution plans of a network, and the check that what they were built from is unchanged.

An op's keys, modes, settings, bound `forward` and models are read when the network is made. Values
that `forward` itself reads are live. On each entry, in this order:

1. a `Snapshot` of the network's lists and of the ops' own attributes is compared, by identity;
2. of the ops that differ, the spec (`OpSpec.is_current`: keys, modes, models) and the settings that
   were resolved (`changed_settings`) are compared; a change of anything else needs nothing;
3. settings of changed ops are resolved again, which replaces what ops have derived from them, and
   new ops are prepared, by the network;
4. changed ops are read again, and plans that select other specs are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet._execute import InputConversion, KernelPlan
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, SlicerSpec, gather, resolve, same_items, select
from fastnet._slice import check_slicers
from fastnet.errors import describe_op, note_failure
from fastnet.guards import Snapshot
from fastnet.network.update_binding import bind_forwards, find_first_deferred
from fastnet.network.validation import check_items, describe_inactive_writer, find_position
from fastnet.op.op import inner_ops_of, is_delete
from fastnet.op.settings import changed_settings, is_unresolved, last_resolved, resolve_settings
from fastnet.op.tensorop.foreign_op import models_and_gradients
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.schedule import get_current_items
from fastnet.types import Forward, Model, is_given, is_scheduler
from fastnet.util import to_list

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork

# Bounds the memory where schedulers create new ops, or desired keys change, in every epoch.
MAX_PLANS = 64

Lists = tuple[list[Any], list[Any], list[Any]]

# A getter, a setter, and the value while ops run.
Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]


class StepOptions(NamedTuple):
    """Framework-specific processing of the values of a step, and settings for its ops."""

    # Converts foreign tensors and arrays on their way in.
    conversion: InputConversion | None = None
    # Applied to values on their way in, after that, and on their way out.
    to_device: NestMap | None = None
    detach: NestMap | None = None
    # Waits for the copies that `detach` has queued.
    synchronize: Callable[[], None] | None = None
    # Returns the grad mode while ops run, given whether an op takes gradients.
    grad_mode: Callable[[bool], Setting | None] = lambda gradients: None
    # Clears the gradients that a failed step may have left on a model.
    clear_gradients: Callable[[Model], None] | None = None
    # Whether the updates that end the list of ops take their steps after the last op.
    defers_last_updates: bool = False


@dataclass(eq=False, slots=True)
class ExecutionPlan:
    """The active items of a network in one mode, epoch and dataset, and what follows from them."""

    kernel: KernelPlan
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    takes_gradients: bool
    # The values of the schedulers, kept alive since plans are found by their identity.
    scheduled: tuple[Any, ...]
    selected: Lists
    table: KeyTable
    # The functions that the kernel calls, one for each op.
    forwards: list[Forward]
    # Called when a network that runs this plan is left without an error.
    exit_calls: list[Callable[[], None]] = field(default_factory=list)
    # Waits for the copies of what is returned, also to postprocessing; None if nothing is copied.
    synchronize: Callable[[], None] | None = None
    # The sets of traced or compiled programs of this plan.
    program_sets: dict[Hashable, Any] = field(default_factory=dict)
    # Whether a session has used it, and mistakes such as missing updates were warned of.
    is_checked: bool = False
    # Whether it has losses of probabilities, and no result has shown yet what these are given.
    awaits_values: bool = False

    def describe(self, index: int) -> str:
        """Describe an op the way every error does."""
        return describe_op(self.ops[index], index)

    def uses_optimizers(self, mode: str) -> bool:
        """Return whether steps in a mode use the models' optimizers."""
        return mode == "train" or self.takes_gradients

    def kernel_with(self, wrap: Callable[[Any, int, Forward], Forward]) -> KernelPlan:
        """Build a kernel plan with `wrap(op, index, forward)` as each forward, without options."""
        wrapped = [
            wrap(op, index, forward)
            for index, (op, forward) in enumerate(zip(self.ops, self.forwards, strict=True))
        ]
        kernel = KernelPlan(self.table, self.selected[0], wrapped, self.kernel.resolution)
        kernel.find_inactive_writer = self.kernel.find_inactive_writer
        return kernel


class PlanCache:
    """The execution plans of one network.

    Args:
        get_lists: Returns the ops, the postprocessing ops and the slicers.
        step_options: How values are converted and moved, and the settings around ops.
        build_op: Prepares an op for the framework.
        on_change: Called after a change of the lists, or of something that ops have resolved.
        is_resolved: Whether the ops have resolved their current settings.
    """

    def __init__(
        self,
        get_lists: Callable[[], Lists],
        step_options: StepOptions,
        build_op: Callable[[Any], None],
        on_change: Callable[[], None],
        is_resolved: bool = False,
    ) -> None:
        self.step_options = step_options
        self._get_lists = get_lists
        self._build_op = build_op
        self._on_change = on_change
        # Reentrant: a scheduler, or an op that is built, may ask for a plan in turn.
        self._lock = threading.RLock()
        self._items = _Items(get_lists())
        # Ops of a copied or unpickled network may not have resolved their settings yet.
        specs = () if is_resolved else self._items.specs.values()
        self._is_stale = any(is_unresolved(spec.item) for spec in specs)

    def find(
        self, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str] | None
    ) -> ExecutionPlan:
        """Return the plan for a mode, an epoch, a dataset and desired keys (None for all)."""
        items, scheduled = self._with_scheduled(epoch)
        key = mode, ds_id, desired, tuple(map(id, scheduled))
        with self._lock:
            plan = items.plans.get(key)
            if plan is None:
                plan = self._make_plan(items, key, epoch, scheduled)
                while len(items.plans) >= MAX_PLANS:
                    del items.plans[next(iter(items.plans))]
                items.plans[key] = plan
            return plan

    def _with_scheduled(self, epoch: int) -> tuple[_Items, tuple[Any, ...]]:
        """Return the items as they are now, and the values of the schedulers in an epoch."""
        items = self._current_items()
        scheduled = tuple([scheduler.get_current_value(epoch) for scheduler in items.schedulers])
        if any(is_given(value) and id(value) not in items.specs for value in scheduled):
            items = self._current_items(list(filter(is_given, scheduled)))
        return items, scheduled

    def read(self, item: Any) -> OpSpec | SlicerSpec:
        """Return the spec of an op, a postprocessing op or a slicer."""
        items = self._items
        return items.specs.get(id(item)) or _read(item, items.table)

    def clear(self) -> None:
        """Drop all plans, and have all items read again on the next entry."""
        with self._lock:
            self._is_stale = True
            self._items.plans = {}

    def _current_items(self, scheduled: Sequence[Any] = ()) -> _Items:
        """Return the items as they are now; `scheduled` are values that schedulers do not list."""
        items, lists = self._items, self._get_lists()
        if not scheduled and not self._is_stale and items.are_unchanged(lists):
            return items
        with self._lock:
            self._items = self._read_again(self._items, lists, scheduled)
            self._is_stale = False
            return self._items

    def _read_again(self, items: _Items, lists: Lists, scheduled: Sequence[Any]) -> _Items:
        """Return the items after a change, with the plans that it does not affect.

        If lists or scheduled values are new, all plans are dropped.
        """
        is_same = all(map(same_items, lists, items.contents))
        is_new = self._is_stale or bool(scheduled) or not is_same
        if not is_new and not items.have_outdated():
            items.take_snapshot(lists)
            return items

        extra = scheduled if is_new else items.extra
        self._resolve_changed(items, lists, extra)
        self._on_change()
        if is_new:
            return _Items(lists, extra)

        new_items = _Items(lists, extra, items)
        for key, plan in items.plans.items():
            mode, ds_id = key[:2]
            scheduled_values = filter(is_given, plan.scheduled)
            is_known = all(id(value) in new_items.specs for value in scheduled_values)
            if is_known and new_items.select(mode, ds_id, plan.scheduled) == plan.selected:
                new_items.plans[key] = plan
        return new_items

    def _resolve_changed(self, items: _Items, lists: Lists, extra: Sequence[Any]) -> None:
        """Resolve changed settings of known items, and prepare new ones."""

        def must_resolve(op: Any) -> bool:
            spec = items.specs.get(id(op))
            return self._is_stale or (spec is not None and not _is_current(spec))

        present = {id(item): item for item in [*_all_items(lists), *extra]}.values()
        known = [item for item in present if id(item) in items.specs]
        unknown = [item for item in present if id(item) not in items.specs]
        # Before they are checked, because an invalid setting raises the error of the constructor.
        for item in known:
            try:
                resolve_settings(item, must_resolve, self._build_op)
            except Exception as error:
                note_failure(error, item, find_position(item, *lists[:2]), ())
                raise
        check_items(*lists)
        for item in unknown:
            resolve_settings(item)
            self._build_op(item)

    def _make_plan(
        self, items: _Items, key: tuple[Any, ...], epoch: int, scheduled: tuple[Any, ...]
    ) -> ExecutionPlan:
        mode, ds_id, desired, _ = key
        selected = items.select(mode, ds_id, scheduled)
        specs, postprocessing, slicer_specs = selected
        slicers = [spec.item for spec in slicer_specs]
        check_slicers(slicers)
        resolution = resolve(
            items.table,
            specs,
            postprocessing,
            slicer_specs,
            desired,
            context=f"{mode=}, {epoch=}, {ds_id=}",
        )

        options = self.step_options
        ops, forwards, models, gradient_indices = gather(specs)
        first_deferred = find_first_deferred(ops, options.defers_last_updates)
        exit_calls = []
        if gradient_indices or items.has_inner_ops or items.has_followers:
            exit_calls = bind_forwards(ops, forwards, gradient_indices, first_deferred)

        on_failure = []
        if options.clear_gradients is not None and (mode == "train" or gradient_indices):
            on_failure = [partial(options.clear_gradients, model) for model in models]
        kernel = KernelPlan(
            items.table,
            specs,
            forwards,
            resolution,
            to_device=options.to_device,
            detach=options.detach,
            grad_mode=options.grad_mode(bool(gradient_indices)),
            on_failure=on_failure,
            conversion=options.conversion,
        )
        kernel.find_inactive_writer = partial(
            describe_inactive_writer, items.contents[0], ops, mode, ds_id
        )
        return ExecutionPlan(
            kernel=kernel,
            ops=ops,
            postprocessing=[spec.item for spec in postprocessing],
            slicers=slicers,
            models=models,
            takes_gradients=bool(gradient_indices),
            scheduled=scheduled,
            selected=selected,
            table=items.table,
            forwards=forwards,
            exit_calls=exit_calls,
            synchronize=options.synchronize if resolution.returned else None,
        )


class _Items:
    """The items of a network as they were read, a snapshot of them, and the plans built of them.

    `extra` are current values of schedulers that `get_all_values` does not list. Specs that are up
    to date are taken over from the `previous` items.
    """

    def __init__(
        self, lists: Lists, extra: Sequence[Any] = (), previous: _Items | None = None
    ) -> None:
        self.extra = extra
        self.table: KeyTable = KeyTable() if previous is None else previous.table
        self.plans: dict[tuple[Any, ...], ExecutionPlan] = {}
        self.contents = tuple([tuple(items) for items in lists])
        self.schedulers = list(filter(is_scheduler, chain.from_iterable(self.contents)))
        all_items = [*_all_items(self.contents), *extra]
        self.items = list({id(item): item for item in all_items}.values())
        # By the ids of items, and of ops inside of these; the snapshot keeps them alive.
        self.specs: dict[int, OpSpec | SlicerSpec] = {}
        self._resolved: dict[int, Any] = {}
        for item in self.items:
            self._add(item, self.table, previous)
        self._entries = [
            [
                item if is_scheduler(item) else self.specs[id(item)]
                for item in filter(is_given, items)
            ]
            for items in self.contents
        ]
        self.has_inner_ops = len(self.specs) > len(self.items)
        self.has_followers = any(isinstance(item, FollowsUpdates) for item in self.items)
        self.take_snapshot(lists)

    def _add(self, op: Any, table: KeyTable, previous: _Items | None) -> None:
        """Read an item and the ops inside of it, or take over specs that are up to date."""
        spec = None if previous is None else previous.specs.get(id(op))
        if spec is None or previous is None or previous.is_outdated(spec):
            spec = _read(op, table)
        self.specs[id(op)] = spec
        self._resolved[id(op)] = last_resolved(op)
        for inner in inner_ops_of(op):
            # Its keys are not keys of the network.
            self._add(inner, KeyTable(), previous)

    def take_snapshot(self, lists: Lists) -> None:
        """Take a new snapshot, after changes that affect no plan."""
        items = [spec.item for spec in self.specs.values()]
        roots = [(type(item).__name__, item) for item in items]
        self._snapshot = Snapshot([*roots, *(("", listed) for listed in lists)], shallow=True)
        self.lists = lists

    def are_unchanged(self, lists: Lists) -> bool:
        """Return whether the lists of a network, and the items in them, are unchanged."""
        return (
            lists[0] is self.lists[0]
            and lists[1] is self.lists[1]
            and lists[2] is self.lists[2]
            and self._snapshot.is_unchanged()
        )

    def have_outdated(self) -> bool:
        """Return whether a changed attribute of an item was resolved in advance."""
        specs = list(self.specs.values())
        changed = self._snapshot.changed_roots()
        return any(self.is_outdated(specs[index]) for index in changed if index < len(specs))

    def is_outdated(self, spec: OpSpec | SlicerSpec) -> bool:
        """Return whether something has changed in an item that was resolved in advance.

        A change of an attribute that only `forward` reads does not matter: it is live.
        """
        op = spec.item
        # Another network, which shares the op, may have resolved a change.
        is_resolved = last_resolved(op) is self._resolved[id(op)] and not changed_settings(op)
        return not (is_resolved and _is_current(spec))

    def select(self, mode: str, ds_id: str | None, scheduled: tuple[Any, ...]) -> Lists:
        """Return the specs of the ops, postprocessing ops and slicers that are active."""
        entries = self._entries
        if self.schedulers:
            values = dict(zip(map(id, self.schedulers), scheduled, strict=True))
            entries = [self._with_values(listed, values) for listed in entries]
        ops, postprocessing, slicers = (select(listed, mode, ds_id) for listed in entries)
        return ops, postprocessing, slicers

    def _with_values(self, entries: list[Any], values: Mapping[int, Any]) -> list[Any]:
        """Replace schedulers among entries by the specs of their values, which are by their ids."""
        specs = []
        for entry in entries:
            value = values.get(id(entry), entry)
            if is_given(value):
                specs.append(entry if value is entry else self.specs[id(value)])
        return specs


def _is_current(spec: OpSpec | SlicerSpec) -> bool:
    if isinstance(spec, OpSpec) and is_delete(spec.item) != spec.deletes:
        return False
    try:
        return spec.is_current()
    except TypeError:  # An attribute has a value of the wrong type.
        return False


def normalized_lists(network: BaseNetwork) -> Lists:
    """Replace non-list `ops`, `postprocessing` and `slicers` by lists, and return them."""
    for name in ("ops", "postprocessing", "slicers"):
        if type(getattr(network, name)) is not list:
            setattr(network, name, to_list(getattr(network, name)))
    return network.ops, network.postprocessing, network.slicers


def _all_items(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """Return all items, with the values of all epochs in place of each scheduler."""
    return get_current_items(chain.from_iterable(lists))


def _read(item: Any, table: KeyTable) -> OpSpec | SlicerSpec:
    if hasattr(item, "slice_inputs"):
        return SlicerSpec(item, table)
    return OpSpec(item, table, is_delete(item), models_and_gradients)
