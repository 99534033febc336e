"""Execution plans of a network, and the check that what they were built from is unchanged.

What fastnet resolves in advance of an op (its keys, modes and settings, its bound `forward`, its
models) is read when the network is made. On each entry a `Snapshot` of the ops' own attributes is
compared; only where it differs are the ops read again. Values that `forward` itself reads are live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from fastnet._execute import Plan
from fastnet._resolve import KeyTable, OpSpec, SlicerSpec, gather, resolve, same_items, select
from fastnet._slice import check_slicers
from fastnet.guards import Snapshot
from fastnet.network.execution_plan import ExecutionPlan, Specs
from fastnet.network.updates import bind_updates
from fastnet.network.validation import check_items, describe_inactive_writer
from fastnet.op.op import Op, is_delete
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp, forward_of
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.schedule import get_current_items
from fastnet.types import is_given, is_scheduler
from fastnet.util import to_list

__all__ = ["MAX_PLANS", "PlanCache", "resolve_all_settings"]

# Schedulers that create new ops in every epoch, or requests with ever-changing desired keys, must
# not exhaust the memory.
MAX_PLANS = 64

Lists = tuple[list[Any], list[Any], list[Any]]


class PlanCache:
    """The execution plans of one network.

    Args:
        network: The network.

    Attributes:
        handling: What is done to values on their way, and around ops.
        built: How many plans were built so far.
    """

    def __init__(self, network: Any) -> None:
        self.handling = network._handling()
        self.built = 0
        self._network = network
        # Reentrant: a scheduler, or an op that is built, may ask for a plan in turn.
        self._lock = threading.RLock()
        self._is_stale = False
        self._items = _Items(_lists(network))

    def find(
        self, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str]
    ) -> ExecutionPlan:
        """Return the plan for a mode, an epoch, a dataset and desired keys (none for all outputs).

        Raises:
            ValueError: If slicers clash, or a desired key is sliced and not un-sliced.
            Exception: Whatever is wrong with a setting that was changed.
        """
        items = self._current_items()
        items, scheduled = self._with_scheduled(items, epoch)
        key = mode, ds_id, desired, tuple(map(id, scheduled))
        plan = items.plans.get(key)
        if plan is not None:
            return plan
        with self._lock:
            plan = items.plans.get(key)
            if plan is None:
                plan = self._build(items, mode, epoch, ds_id, desired, scheduled)
                self.built += 1
                while len(items.plans) >= MAX_PLANS:
                    del items.plans[next(iter(items.plans))]
                items.plans[key] = plan
            return plan

    def draft(
        self,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
        sliced: bool = True,
    ) -> ExecutionPlan:
        """Build a plan as `find` does, without keeping it; `sliced=False` leaves slicers out."""
        items, scheduled = self._with_scheduled(self._current_items(), epoch)
        with self._lock:
            return self._build(items, mode, epoch, ds_id, desired, scheduled, sliced)

    def read(self, item: Any) -> OpSpec | SlicerSpec:
        """Return the spec of an op, a postprocessing op or a slicer."""
        items = self._items
        return items.specs.get(id(item)) or _read(item, items.table)

    def written(self) -> set[str]:
        """Return the keys that any op writes, in whatever mode or epoch."""
        return self._items.written()

    def clear(self) -> None:
        """Drop all plans, and have all items read again on the next entry."""
        self._is_stale = True
        # Another dict, since another thread may be iterating over this one.
        self._items.plans = {}

    def _current_items(self) -> _Items:
        """Return the items as they are now, read again where anything has changed."""
        items, lists = self._items, _lists(self._network)
        if not self._is_stale and items.are_unchanged(lists):
            return items
        with self._lock:
            stale, self._is_stale = self._is_stale, False
            try:
                self._items = self._read_again(self._items, lists, stale)
            except BaseException:
                # Some of the changes may have been applied: the next entry applies all.
                self._is_stale = True
                raise
            return self._items

    def _read_again(self, items: _Items, lists: Lists, stale: bool) -> _Items:
        """Apply what has changed in the items, and return them as they are now."""
        network = self._network
        changes = items.changes(everything=stale)
        same_lists = items.hold(lists)
        if same_lists and not changes and not stale:
            items.renew(lists)
            return items
        check_items(*lists)
        new = [] if same_lists else [one for one in _each_of(lists) if id(one) not in items.specs]
        for item in items.items:
            _apply_changes(item, changes, items.specs, network._build)
        for item in new:
            resolve_all_settings(item)
            network._build(item)
        network._collect_models()
        same_keys = all(items.specs[key].has_keys_as_read() for key in changes)
        if stale or not same_lists or not same_keys:
            # With a new table, since one that is only added to grows with each new key.
            return _Items(lists, extra=items.extra if same_lists else [])
        changed = items.ids_around(changes)
        specs = {key: spec for key, spec in items.specs.items() if key not in changed}
        made = items.with_specs(specs, {})
        for key, plan in items.plans.items():
            mode, ds_id = key[:2]
            if made.select(mode, ds_id, plan.scheduled) == plan.selected:
                made.plans[key] = plan
        return made

    def _with_scheduled(self, items: _Items, epoch: int) -> tuple[_Items, tuple[Any, ...]]:
        """Return what the schedulers stand for, and the items with those that are new among them.

        No lock is held while a scheduler runs, since it may be user code.
        """
        if not items.schedulers:
            return items, ()
        scheduled = tuple([one.get_current_value(epoch) for one in items.schedulers])
        new = [one for one in scheduled if is_given(one) and id(one) not in items.specs]
        if not new:
            return items, scheduled
        with self._lock:
            items = self._items
            for item in new:
                if id(item) not in items.specs:
                    resolve_all_settings(item)
                    self._network._build(item)
            self._network._collect_models()
            ids = set(map(id, new))
            plans = {
                key: plan
                for key, plan in items.plans.items()
                if ids.isdisjoint(map(id, plan.scheduled))
            }
            known = {id(one) for one in items.extra} - set(map(id, scheduled))
            specs = {key: spec for key, spec in items.specs.items() if key not in known}
            extra = [one for one in scheduled if is_given(one) and not items.is_static(one)]
            self._items = items.with_specs(specs, plans, extra)
            return self._items, scheduled

    def _build(
        self,
        items: _Items,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
        scheduled: tuple[Any, ...],
        sliced: bool = True,
    ) -> ExecutionPlan:
        selected = items.select(mode, ds_id, scheduled, sliced)
        specs, after, cutters = selected
        slicers = [spec.item for spec in cutters]
        check_slicers(slicers)
        resolved_with = after, cutters, desired, f"{mode=}, {epoch=}, {ds_id=}"
        resolution = resolve(items.table, specs, *resolved_with)
        ops, forwards, models, gradient_indices = gather(specs)
        if items.has_meta_ops:
            # They prepare what is the same in each step.
            for index, op in enumerate(ops):
                if isinstance(op, TensorMetaOp):
                    forwards[index] = forward_of(op, retain_graph=False)
        first_deferred = self._network._first_deferred(ops)
        on_exit = []
        if gradient_indices or items.has_followers or first_deferred < len(ops):
            on_exit = bind_updates(ops, forwards, gradient_indices, first_deferred)
        takes_gradients = bool(gradient_indices)
        abandons = [
            ops[index].abandon for index in gradient_indices if hasattr(ops[index], "abandon")
        ]
        handling = (
            self.handling.move,
            self.handling.release,
            self.handling.setting(takes_gradients),
            abandons,
            self.handling.adopt,
        )
        kernel = Plan(items.table, specs, forwards, resolution, *handling)
        kernel.elsewhere = partial(describe_inactive_writer, items.ops, ops, mode, ds_id)
        unwritten = [key for key in sorted(desired) if key not in resolution.outputs]
        if unwritten:
            # FastEstimator's traces ask for "*", which stands for all keys.
            written = {*items.written(), "*"}
            unwritten = [key for key in unwritten if key not in written]
        return ExecutionPlan(
            kernel=kernel,
            ops=ops,
            postprocessing=[spec.item for spec in after],
            slicers=slicers,
            models=models,
            takes_gradients=takes_gradients,
            unwritten=unwritten,
            scheduled=scheduled,
            selected=selected,
            table=items.table,
            forwards=forwards,
            resolved_with=resolved_with,
            handling=handling,
            on_exit=on_exit,
        )


class _Items:
    """The items of a network as they were read, the snapshot of them, and the plans built of them.

    An instance is complete when it replaces an earlier one, so that a thread that opens the network
    finds either.
    """

    def __init__(
        self,
        lists: Lists,
        extra: Iterable[Any] = (),
        table: KeyTable | None = None,
        specs: Mapping[int, OpSpec | SlicerSpec] | None = None,
        plans: dict[tuple[Any, ...], ExecutionPlan] | None = None,
    ) -> None:
        # Current values of schedulers that `get_all_values` does not list.
        self.extra = list(extra)
        self.table = KeyTable() if table is None else table
        self.plans = {} if plans is None else plans
        self._contents = tuple([tuple(items) for items in lists])
        self.schedulers = [one for items in self._contents for one in items if is_scheduler(one)]
        static = _each_of(self._contents)
        self._static = set(map(id, static))
        self.items = list({id(one): one for one in [*static, *self.extra]}.values())
        # By the ids of items, and of ops inside of these; the snapshot keeps them alive.
        self.specs: dict[int, OpSpec | SlicerSpec] = dict(specs or {})
        self._resolved: dict[int, dict[str, Any]] = {}
        # The outermost items that an op is inside of.
        self._owners: dict[int, list[int]] = {}
        # The ops that are compared, each with its class's name.
        self._roots: list[tuple[str, Any]] = []
        for item in self.items:
            self._add(item, self.table, id(item))
        # Ops that are no longer inside of any item are dropped.
        self.specs = {key: self.specs[key] for key in self._resolved}
        self._entries = [
            [one if is_scheduler(one) else self.specs[id(one)] for one in filter(is_given, items)]
            for items in self._contents
        ]
        self.has_meta_ops = any(isinstance(item, TensorMetaOp) for item in self.items)
        self.has_followers = any(isinstance(item, FollowsUpdates) for item in self.items)
        self.renew(lists)
        # A property may return a different value each time, so these are always read again.
        self._asked = [spec for spec in self.specs.values() if _has_properties(spec.item)]

    def _add(self, op: Any, table: KeyTable, owner: int) -> None:
        if id(op) not in self.specs:
            self.specs[id(op)] = _read(op, table)
        self._resolved[id(op)] = _resolved_by(op)
        if id(op) not in self._owners:
            self._roots.append((type(op).__name__, op))
        self._owners.setdefault(id(op), []).append(owner)
        for inner in _inner_ops(op):
            # Its keys are not keys of the network.
            self._add(inner, KeyTable(), owner)

    def renew(self, lists: Lists) -> None:
        """Compare with the items as they are now from here on, since no change matters."""
        self._snapshot = Snapshot([*self._roots, *(("", one) for one in lists)], shallow=True)
        self.lists = lists

    def with_specs(
        self,
        specs: Mapping[int, OpSpec | SlicerSpec],
        plans: dict[tuple[Any, ...], ExecutionPlan],
        extra: list[Any] | None = None,
    ) -> _Items:
        """Return the items as they are now, of which some were read before."""
        extra = self.extra if extra is None else extra
        return _Items(self.lists, extra, self.table, specs, plans)

    @property
    def ops(self) -> tuple[Any, ...]:
        """The network's ops, with schedulers among them."""
        return self._contents[0]

    def hold(self, lists: Lists) -> bool:
        """Return whether these lists hold the items, in the same order."""
        return all(map(same_items, lists, self._contents))

    def are_unchanged(self, lists: Lists) -> bool:
        """Return whether a network has the same lists, of items that are as they were read."""
        return (
            lists[0] is self.lists[0]
            and lists[1] is self.lists[1]
            and lists[2] is self.lists[2]
            and self._snapshot.is_unchanged()
            and (not self._asked or all(spec.is_as_read() for spec in self._asked))
        )

    def is_static(self, item: Any) -> bool:
        """Return whether an item is in the lists, or among all values of a scheduler in them."""
        return id(item) in self._static

    def changes(self, everything: bool = False) -> dict[int, list[str]]:
        """Return the changed settings by the ids of the ops for which a change matters.

        A change of an attribute that only `forward` reads does not matter: it is live.
        """
        changed = self._snapshot.changed_roots()
        suspects = {id(self._roots[index][1]) for index in changed if index < len(self._roots)}
        suspects.update(id(spec.item) for spec in self._asked)
        found: dict[int, list[str]] = {}
        for key, spec in self.specs.items():
            if everything or key in suspects:
                then, now = self._resolved[key], _resolved_by(spec.item)
                names = [name for name in now if not _is_same(then[name], now[name])]
                if names or everything or not _is_as_read(spec):
                    found[key] = names
        return found

    def ids_around(self, changes: Iterable[int]) -> set[int]:
        """Return the ids of ops, and of the items that they are inside of."""
        return {one for key in changes for one in (key, *self._owners[key])}

    def written(self) -> set[str]:
        """Return the keys that any op writes."""
        return {key for item in self.items for key in getattr(item, "outputs", ())}

    def select(
        self, mode: str, ds_id: str | None, scheduled: tuple[Any, ...], sliced: bool = True
    ) -> Specs:
        """Return the specs of the ops, postprocessing ops and slicers that are active."""
        entries = self._entries if sliced else [*self._entries[:2], []]
        if self.schedulers:
            values = dict(zip(map(id, self.schedulers), scheduled, strict=True))
            entries = [
                [
                    entry if id(entry) not in values else self.specs[id(values[id(entry)])]
                    for entry in each
                    if is_given(values.get(id(entry), entry))
                ]
                for each in entries
            ]
        ops, after, slicers = (select(each, mode, ds_id) for each in entries)
        return ops, after, slicers


def resolve_all_settings(item: Any) -> None:
    """Let an op, and the ops inside of it, apply what was set on them since they were made."""
    inner = _inner_ops(item)
    for op in inner:
        resolve_all_settings(op)
    if isinstance(item, Op) and (item.resolved_from or inner):
        item.resolve_settings()


def _apply_changes(
    item: Any,
    changes: Mapping[int, list[str]],
    known: Mapping[int, Any],
    build: Callable[[Any], None],
) -> bool:
    """Let an item, and each op inside of it that has changed, derive anew what follows from it."""
    has_changed = id(item) in changes
    for op in _inner_ops(item):
        if id(op) in known:
            has_changed |= _apply_changes(op, changes, known, build)
        else:
            resolve_all_settings(op)
            build(op)
            has_changed = True
    if has_changed and hasattr(item, "resolve_settings"):
        item.resolve_settings(changes.get(id(item), ()))
    if has_changed and isinstance(item, Op) and item.resolved_from:
        build(item)
    return has_changed


def _lists(network: Any) -> Lists:
    """Return the lists of a network; a program may have assigned something else than a list."""
    for name in ("ops", "postprocessing", "slicers"):
        if type(getattr(network, name)) is not list:
            setattr(network, name, to_list(getattr(network, name)))
    return network.ops, network.postprocessing, network.slicers


def _each_of(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """Return all items, in the place of schedulers those that these stand for in any epoch."""
    return get_current_items(chain.from_iterable(lists))


def _inner_ops(item: Any) -> list[Any]:
    return item.inner_ops() if isinstance(item, Op) else []


def _read(item: Any, table: KeyTable) -> OpSpec | SlicerSpec:
    if hasattr(item, "slice_inputs"):
        return SlicerSpec(item, table)
    return OpSpec(item, table, is_delete(item))


def _is_as_read(spec: OpSpec | SlicerSpec) -> bool:
    if isinstance(spec, OpSpec) and is_delete(spec.item) != spec.deletes:
        return False
    return spec.is_as_read()


# Methods that are called when a plan is built, and not in a step.
_CALLED = ("apply", "bind", "forward_batch", "make_run", "make_take")


def _resolved_by(op: Any) -> dict[str, Any]:
    """Return what an op has resolved in advance: its settings, and the methods that plans call."""
    values = {name: _contents(getattr(op, name, None)) for name in getattr(op, "resolved_from", ())}
    methods = {name: getattr(type(op), name, None) for name in _CALLED}
    return {**values, **methods, "ops": _inner_ops(op)}


def _contents(value: Any) -> Any:
    """Return a list of what a container holds, and any other value as it is."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_contents(one) for one in value]
    return value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other


# What fastnet reads of items in advance.
_READ = ("inputs", "outputs", "slice_inputs", "unslice_inputs", "mode", "ds_id", "in_list")


def _has_properties(item: Any) -> bool:
    cls: Any = type(item)
    if hasattr(cls, "__getattr__") or cls.__getattribute__ is not object.__getattribute__:
        return True
    return any(isinstance(getattr(cls, name, None), property) for name in (*_READ, "out_list"))
