"""Execution plans of a network, and the check that what they were built from is unchanged.

What fastnet resolves in advance of an op (its keys, modes and settings, its bound `forward`, its
models) is read when the network is made. On each entry a `Snapshot` of the ops' own attributes is
compared; only where it differs are the ops read again. Values that `forward` itself reads are live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

    Args:
        network: The network.
        is_resolved: Whether the settings of all ops were just resolved. Those of a copied or
            unpickled network may not be.

    Attributes:
        handling: What is done to values on their way, and around ops.
        built: How many plans were built so far.
    """

    def __init__(self, network: Any, is_resolved: bool = False) -> None:
        self.handling = network._handling()
        self.built = 0
        self._network = network
        # Reentrant: a scheduler, or an op that is built, may ask for a plan in turn.
        self._lock = threading.RLock()
        self._items = _Items(_lists(network))
        self._is_stale = not is_resolved and not self._items.are_resolved()

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

    def _read_again(
        self, items: _Items, lists: Lists, stale: bool, scheduled: Sequence[Any] = ()
    ) -> _Items:
        """Apply what has changed in the items, and return them as they are now."""
        same_lists = items.hold(lists) and not scheduled
        changed = items.changed(everything=stale)
        if same_lists and not changed and not stale:
            items.renew(lists)
            return items
        check_items(*lists)
        extra = items.extra if same_lists else list(filter(is_given, scheduled))
        known = {key: spec for key, spec in items.specs.items() if key not in changed}
        unresolved = {key for key, is_resolved in changed.items() if not is_resolved}
        for item in {id(one): one for one in [*_each_of(lists), *extra]}.values():
            if id(item) not in items.specs:
                resolve_settings(item)
                self._network._build(item)
            elif resolve_settings(item, unresolved, self._network._build):
                known.pop(id(item), None)
        self._network._collect_models()
        if stale or not same_lists:
            return _Items(lists, extra)
        made = _Items(lists, extra, items.table, known)
        for key, plan in items.plans.items():
            mode, ds_id = key[:2]
            if made.select(mode, ds_id, plan.scheduled) == plan.selected:
                made.plans[key] = plan
        return made

    def _with_scheduled(self, items: _Items, epoch: int) -> tuple[_Items, tuple[Any, ...]]:
        """Return what the schedulers stand for, and the items with these among them.

        No lock is held while a scheduler runs, since it may be user code.
        """
        scheduled = tuple([one.get_current_value(epoch) for one in items.schedulers])
        if any(is_given(one) and id(one) not in items.specs for one in scheduled):
            # The scheduler did not list it when the items were read.
            with self._lock:
                lists = _lists(self._network)
                self._items = items = self._read_again(self._items, lists, False, scheduled)
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

    def are_resolved(self) -> bool:
        """Return whether all ops have resolved the settings that they have now."""
        ops = [spec.item for spec in self.specs.values() if isinstance(spec.item, Op)]
        return all(_last_resolved(op) is not None and not _changed_settings(op) for op in ops)

    def changed(self, everything: bool = False) -> dict[int, bool]:
        """Return the ids of ops of which something has changed that was resolved in advance.

        The values say whether another network, which shares the op, has resolved the change. A
        change of an attribute that only `forward` reads does not matter: it is live.
        """
        if everything:
            return dict.fromkeys(self.specs, False)
        specs = list(self.specs.items())
        found = {}
        for index in self._snapshot.changed_roots():
            if index < len(specs):
                key, spec = specs[index]
                is_resolved = _is_current(spec) and not _changed_settings(spec.item)
                if not is_resolved or _last_resolved(spec.item) is not self._resolved[key]:
                    found[key] = is_resolved
        return found

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


def _is_current(spec: OpSpec | SlicerSpec) -> bool:
    if isinstance(spec, OpSpec) and is_delete(spec.item) != spec.deletes:
        return False
    return spec.is_current()


def resolve_settings(
    item: Any, changed: Collection[int] = (), build: Callable[[Any], None] | None = None
) -> bool:
    """Resolve the settings of an op, and of the ops inside of it, that changed since the last time.

    `changed` holds the ids of ops of which something else has changed. Ops that have settings are
    built again. Returns whether anything has changed.
    """
    if not isinstance(item, Op):
        if id(item) in changed and hasattr(item, "resolve_settings"):  # a slicer
            item.resolve_settings()
        return id(item) in changed
    inner = [resolve_settings(op, changed, build) for op in item.inner_ops()]
    is_new, names = _last_resolved(item) is None, _changed_settings(item)
    if not (is_new or names or any(inner) or id(item) in changed):
        return False
    if item.resolved_from or inner or not is_new:
        item.resolve_settings(names)
    if build is not None and item.resolved_from:
        build(item)
    vars(item)["_last_resolved"] = _Resolved(_settings(item))
    return True


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
    """Return what an op has resolved in advance: its settings, and the methods that plans call."""
    values = {name: _contents(getattr(op, name, None)) for name in op.resolved_from}
    methods = {name: getattr(type(op), name, None) for name in _CALLED}
    return {**values, **methods, "ops": op.inner_ops()}


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
