"""Execution plans of a network, and the check that what they were built from is unchanged.

What fastnet resolves in advance of an op (its keys, modes and settings, its bound `forward`, its
models) is read when the network is made. On each entry a `Snapshot` of the ops' own attributes is
compared; only where it differs are the ops read again. Values that `forward` itself reads are live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
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

__all__ = ["MAX_PLANS", "PlanCache", "resolve_settings"]

# Schedulers that create new ops in every epoch, or requests with ever-changing desired keys, must
# not exhaust the memory.
MAX_PLANS = 64

Lists = tuple[list[Any], list[Any], list[Any]]


class PlanCache:
    """The execution plans of one network.

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
        self._items = _Items(_lists(network))
        # Ops of a copied or unpickled network may not have resolved their settings yet.
        self._is_stale = any(map(_is_unresolved, self._items.specs.values()))

    def find(
        self, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str]
    ) -> ExecutionPlan:
        """Return the plan for a mode, an epoch, a dataset and desired keys (none for all outputs).

        Raises:
            ValueError: If slicers clash, or a desired key is sliced and not un-sliced.
            Exception: Whatever is wrong with a setting that was changed.
        """
        items, scheduled = self._with_scheduled(epoch)
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
        items, scheduled = self._with_scheduled(epoch)
        with self._lock:
            return self._build(items, mode, epoch, ds_id, desired, scheduled, sliced)

    def read(self, item: Any) -> OpSpec | SlicerSpec:
        """Return the spec of an op, a postprocessing op or a slicer."""
        items = self._items
        return items.specs.get(id(item)) or _read(item, items.table)

    def clear(self) -> None:
        """Drop all plans, and have all items read again on the next entry."""
        self._is_stale = True
        # Another dict, since another thread may be iterating over this one.
        self._items.plans = {}

    def _current_items(self, scheduled: Sequence[Any] = ()) -> _Items:
        """Return the items as they are now, read again where anything has changed.

        `scheduled` are values of schedulers that do not list them in `get_all_values`.
        """
        items, lists = self._items, _lists(self._network)
        if not scheduled and not self._is_stale and items.are_unchanged(lists):
            return items
        with self._lock:
            self._items = self._read_again(self._items, lists, scheduled)
            self._is_stale = False
            return self._items

    def _read_again(self, items: _Items, lists: Lists, scheduled: Sequence[Any]) -> _Items:
        """Apply what has changed in the items, and return them as they are now."""
        is_new = self._is_stale or bool(scheduled) or not items.hold(lists)
        if not is_new and not any(map(items.is_outdated, items.changed())):
            items.renew(lists)
            return items

        def is_outdated(op: Any) -> bool:
            spec = items.specs.get(id(op))
            return self._is_stale or (spec is not None and not _is_current(spec))

        check_items(*lists)
        extra = scheduled if is_new else items.extra
        for item in {id(one): one for one in [*_each_of(lists), *extra]}.values():
            resolve_settings(item, is_outdated, self._network._build)
            if id(item) not in items.specs:
                self._network._build(item)
        self._network._collect_models()
        if is_new:
            return _Items(lists, extra)
        known = {key: spec for key, spec in items.specs.items() if not items.is_outdated(spec)}
        made = _Items(lists, extra, items.table, known)
        for key, plan in items.plans.items():
            mode, ds_id = key[:2]
            if made.select(mode, ds_id, plan.scheduled) == plan.selected:
                made.plans[key] = plan
        return made

    def _with_scheduled(self, epoch: int) -> tuple[_Items, tuple[Any, ...]]:
        """Return the items as they are now, and the values of the schedulers in an epoch.

        No lock is held while a scheduler runs, since it may be user code.
        """
        items = self._current_items()
        scheduled = tuple([one.get_current_value(epoch) for one in items.schedulers])
        if any(is_given(one) and id(one) not in items.specs for one in scheduled):
            items = self._current_items(list(filter(is_given, scheduled)))
        return items, scheduled

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
        on_failure = [
            ops[index].abandon for index in gradient_indices if hasattr(ops[index], "abandon")
        ]
        handling = (
            self.handling.move,
            self.handling.release,
            self.handling.setting(takes_gradients),
            on_failure,
            self.handling.adopt,
        )
        kernel = Plan(items.table, specs, forwards, resolution, *handling)
        kernel.find_inactive_writer = partial(describe_inactive_writer, items.ops, ops, mode, ds_id)
        return ExecutionPlan(
            kernel=kernel,
            ops=ops,
            postprocessing=[spec.item for spec in after],
            slicers=slicers,
            models=models,
            takes_gradients=takes_gradients,
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

    Args:
        lists: The network's lists of ops, postprocessing ops and slicers.
        extra: Current values of schedulers that `get_all_values` does not list.
        table: The table of the keys that `specs` uses.
        specs: Specs of items that are unchanged since they were read, by id.
    """

    def __init__(
        self,
        lists: Lists,
        extra: Sequence[Any] = (),
        table: KeyTable | None = None,
        specs: Mapping[int, OpSpec | SlicerSpec] = MappingProxyType({}),
    ) -> None:
        self.extra = extra
        self.table = KeyTable() if table is None else table
        self.plans: dict[tuple[Any, ...], ExecutionPlan] = {}
        self._contents = tuple([tuple(items) for items in lists])
        self.schedulers = [one for items in self._contents for one in items if is_scheduler(one)]
        each = [*_each_of(self._contents), *extra]
        self.items = list({id(one): one for one in each}.values())
        # By the ids of items, and of ops inside of these; the snapshot keeps them alive.
        self.specs: dict[int, OpSpec | SlicerSpec] = {}
        self._resolved: dict[int, Any] = {}
        for item in self.items:
            self._add(item, self.table, specs)
        self._entries = [
            [one if is_scheduler(one) else self.specs[id(one)] for one in filter(is_given, items)]
            for items in self._contents
        ]
        self.has_meta_ops = any(isinstance(item, TensorMetaOp) for item in self.items)
        self.has_followers = any(isinstance(item, FollowsUpdates) for item in self.items)
        self.renew(lists)

    def _add(self, op: Any, table: KeyTable, known: Mapping[int, OpSpec | SlicerSpec]) -> None:
        self.specs[id(op)] = known.get(id(op)) or _read(op, table)
        self._resolved[id(op)] = _last_resolved(op)
        for inner in _inner_ops(op):
            # Its keys are not keys of the network.
            self._add(inner, KeyTable(), known)

    def renew(self, lists: Lists) -> None:
        """Compare with the items as they are now from here on, since no change matters."""
        items = [spec.item for spec in self.specs.values()]
        roots = [(type(item).__name__, item) for item in items]
        self._snapshot = Snapshot([*roots, *(("", one) for one in lists)], shallow=True)
        self.lists = lists

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
        )

    def changed(self) -> list[OpSpec | SlicerSpec]:
        """Return the specs of items with a changed attribute."""
        specs = list(self.specs.values())
        return [specs[index] for index in self._snapshot.changed_roots() if index < len(specs)]

    def is_outdated(self, spec: OpSpec | SlicerSpec) -> bool:
        """Return whether something has changed in an item that was resolved in advance.

        A change of an attribute that only `forward` reads does not matter: it is live.
        """
        last = _last_resolved(spec.item)
        # Another network, which shares the op, may have resolved a change.
        if last is not self._resolved[id(spec.item)] or not _is_current(spec):
            return True
        return last is not None and bool(_changed_settings(spec.item))

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


def _is_current(spec: OpSpec | SlicerSpec) -> bool:
    if isinstance(spec, OpSpec) and is_delete(spec.item) != spec.deletes:
        return False
    return spec.is_current()


def _is_unresolved(spec: OpSpec | SlicerSpec) -> bool:
    op = spec.item
    return isinstance(op, Op) and (_last_resolved(op) is None or bool(_changed_settings(op)))


def resolve_settings(
    item: Any,
    is_outdated: Callable[[Any], bool] = lambda op: False,
    build: Callable[[Any], None] | None = None,
) -> None:
    """Resolve the settings of an op, and of the ops inside of it, that changed since the last time.

    `is_outdated` tells of which ops something else has changed. Ops that have settings are built
    again by `build`.
    """
    if not isinstance(item, Op):
        if is_outdated(item) and hasattr(item, "resolve_settings"):  # a slicer
            item.resolve_settings()
        return
    for op in item.inner_ops():
        resolve_settings(op, is_outdated, build)
    is_new, names = _last_resolved(item) is None, _changed_settings(item)
    if not (is_new or names or is_outdated(item)):
        return
    # If this raises, the next entry tries again.
    vars(item).pop("_last_resolved", None)
    if item.resolved_from or item.inner_ops() or not is_new:
        item.resolve_settings(names)
    if build is not None and item.resolved_from:
        build(item)
    vars(item)["_last_resolved"] = _Resolved(_settings(item))


class _Resolved:
    """The settings of an op that the state derived from them was last resolved from.

    It is kept by the op, as that state is, since several networks may share the op.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings


def _last_resolved(item: Any) -> _Resolved | None:
    return getattr(item, "_last_resolved", None)


def _changed_settings(op: Any) -> list[str]:
    """Return the names of the settings of an op that changed since they were resolved."""
    last = _last_resolved(op)
    if last is None:
        return []
    now = _settings(op)
    return [name for name in now if not _is_same(last.settings[name], now[name])]


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


# Methods that are called when a plan is built, and not in a step.
_CALLED = ("apply", "bind", "forward_batch", "make_run", "make_take")


def _settings(op: Op) -> dict[str, Any]:
    """Return what an op has resolved in advance: settings, methods that plans call, inner ops."""
    values = {name: _contents(getattr(op, name, None)) for name in op.resolved_from}
    methods = {name: getattr(type(op), name, None) for name in _CALLED}
    inner = [one for op in op.inner_ops() for one in (op, _last_resolved(op))]
    return {**values, **methods, "ops": inner}


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
