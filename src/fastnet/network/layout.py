"""What one opening of a network runs, worked out once and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from fastnet._execute import Plan
from fastnet._guard import call_within
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, SlicerSpec, gather, resolve, same_items, select
from fastnet._slice import check_slicers
from fastnet._watch import Lookout, writes
from fastnet.errors import describe_op
from fastnet.network.readings import CLASS_ATTRIBUTES, Reading, settle_all
from fastnet.network.updates import endings_of, followers_of
from fastnet.network.validation import find_inactive_writer
from fastnet.op.tensorop.meta.chain import forward_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, Model, is_given, is_scheduler

__all__ = ["Handling", "Layout", "LayoutCache", "Setting"]

# schedulers that make new ops in every epoch, or ever new desired keys, must not fill the memory
MOST_LAYOUTS = 64

Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]
Adopt = tuple[type, NestMap, NestMap]


def _no_setting(gradients: bool) -> Setting | None:
    return None


class Handling(NamedTuple):
    """What a framework does to values on their way through a step, and around its ops: see `Plan`.

    Attributes:
        adopt: What makes tensors of foreign ones on their way in, or None.
        move: What is done to values on their way in, after that, or None.
        release: What is done to them on their way out, or None.
        wait: What waits for the copies that `release` has queued, or None where it queues none.
        setting: Given whether an op takes gradients, what must be set while ops run, or None.
    """

    adopt: Adopt | None = None
    move: NestMap | None = None
    release: NestMap | None = None
    wait: Callable[[], None] | None = None
    setting: Callable[[bool], Setting | None] = _no_setting


class Layout:
    """The ops of one opening, and what follows from them.

    Attributes:
        plan: The ops laid out for the kernel.
        ops: The ops in force, in order.
        postprocessing: The postprocessing ops in force, in order.
        slicers: The slicers in force.
        models: The models that the ops hold.
        takes_gradients: Whether any of the ops takes gradients.
        keep_alive: The scheduled values that this layout is for.
        chosen: What is known of the ops, the postprocessing ops and the slicers in force.
        made_up: The readings of items that a scheduler has made up for this opening.
        unwritten: The wanted keys that no op of the network writes, in this opening or another.
        programs: What a framework has made of the plan; it lives as long as the layout does.
        endings: What is to be done when the opening is left.
    """

    __slots__ = (
        "_handled",
        "_parts",
        "_resolved",
        "chosen",
        "endings",
        "keep_alive",
        "made_up",
        "models",
        "ops",
        "plan",
        "postprocessing",
        "programs",
        "slicers",
        "takes_gradients",
        "unwritten",
    )

    plan: Plan
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    takes_gradients: bool
    keep_alive: tuple[Any, ...]
    chosen: tuple[list[Any], list[Any], list[Any]]
    made_up: list[Reading]
    unwritten: list[str]
    programs: dict[Hashable, Any]
    endings: list[Callable[[], None]]
    _parts: tuple[KeyTable, list[OpSpec], list[Forward]]
    # what keys were resolved with besides, and what the plan does besides
    _resolved: tuple[list[OpSpec], list[SlicerSpec], frozenset[str], str]
    _handled: tuple[Any, ...]

    def plan_with(
        self, wrap: Callable[[Any, int, Forward], Forward], handles: bool = False
    ) -> Plan:
        """Lay the same ops out again, with something around the forward of each.

        Args:
            wrap: Given an op, its place and what the plan calls for it, gives what to call instead.
            handles: Whether to do to values on their way in and out, and around the ops, what the
                plan does.

        Returns:
            A plan of its own.
        """
        table, specs, forwards = self._parts
        wrapped = [
            wrap(op, place, forward)
            for place, (op, forward) in enumerate(zip(self.ops, forwards, strict=True))
        ]
        handled = self._handled if handles else ()
        return self._like_plan(Plan(table, specs, wrapped, self.plan.resolution, *handled))

    @property
    def specs(self) -> list[OpSpec]:
        """What the kernel knows of each op."""
        return self._parts[1]

    def part(self, places: range, wanted: Iterable[str]) -> Layout:
        """Lay out ops in a row by themselves, for values that are on their way through a step.

        Args:
            places: Their places.
            wanted: The keys of theirs that are read after them.

        Returns:
            A layout of their own.
        """
        table, specs, forwards = self._parts
        specs = specs[places.start : places.stop]
        part = Layout()
        part.ops, _, part.models, taking = gather(specs)
        part.takes_gradients = bool(taking)
        part.chosen, part.made_up, part.unwritten = (specs, [], []), [], []
        part.postprocessing, part.slicers, part.endings = [], [], []
        part.keep_alive, part.programs = self.keep_alive, {}
        part._parts = table, specs, forwards[places.start : places.stop]
        part._resolved = [], [], frozenset(wanted), self._resolved[3]
        part._handled = ()
        part.plan = Plan(*part._parts, resolve(table, specs, *part._resolved))
        part.plan.places = [self._place(place) for place in places]
        return part

    def plan_of_parts(self, parts: Iterable[tuple[range, Any]]) -> Plan:
        """Lay the ops out again, with one op in the place of each of some parts.

        Args:
            parts: The places of ops in a row, and the op that does what these do; in order.

        Returns:
            A plan of its own, which handles values as this layout's does.
        """
        table, all_specs, all_forwards = self._parts
        specs, forwards, places = list(all_specs), list(all_forwards), [*range(len(all_specs))]
        for part, op in reversed(list(parts)):
            within = slice(part.start, part.stop)
            specs[within], forwards[within] = [OpSpec(op, table)], [op.forward]
            places[within] = [part.start]
        resolution = resolve(table, specs, *self._resolved)
        plan = self._like_plan(Plan(table, specs, forwards, resolution, *self._handled))
        plan.places = [self._place(place) for place in places]
        return plan

    def describe(self, place: int) -> str:
        """Name an op the way every error text does.

        Args:
            place: Its place among those of the layout.
        """
        return describe_op(self.ops[place], self._place(place))

    def _place(self, place: int) -> int:
        """Return the place that an op has in the opening, of which this may be a part."""
        return place if self.plan.places is None else self.plan.places[place]

    def _like_plan(self, plan: Plan) -> Plan:
        plan.elsewhere, plan.places = self.plan.elsewhere, self.plan.places
        return plan

    def is_of(self, chosen: tuple[list[Any], list[Any], list[Any]]) -> bool:
        """Return whether the very same items are in force, and say the same of themselves.

        Args:
            chosen: What is known of the items in force.

        Returns:
            True if they are.
        """
        return all(
            len(now) == len(then)
            and all(one is other for one, other in zip(now, then, strict=True))
            for now, then in zip(chosen, self.chosen, strict=True)
        )


class _Items:
    """The items of a network as they were read, and what was worked out of that.

    It is made as a whole, and takes the place of an earlier one as a whole, so that an opening in
    another thread finds either.

    Args:
        lists: The network's lists of ops, postprocessing ops and slicers.
        since: How many writes there were before anything was read.
        table: The keys.
        known: The readings, by that table, of items that are still what they were.

    Attributes:
        table: The keys.
        readings: What each item has said of itself, by its id.
        schedulers: The schedulers among the items, in order.
        entries: For each list what is known of each item; a scheduler stands for itself until an
            epoch is known.
        layouts: What was worked out.
    """

    def __init__(
        self,
        lists: Iterable[list[Any]],
        since: int,
        table: KeyTable,
        known: Iterable[Reading] = (),
    ) -> None:
        self.table = table
        self.readings = {id(reading.item): reading for reading in known}
        self.layouts: dict[tuple[Any, ...], Layout] = {}
        self._snapshots = tuple(tuple(items) for items in lists)
        # what the classes of the items have, which these share
        self._methods: dict[type, tuple[Any, ...]] = {}
        self.schedulers = [
            item for items in self._snapshots for item in items if is_scheduler(item)
        ]
        for item in self.schedulers:
            for value in item.get_all_values():
                if is_given(value):
                    self._keep(value)
        self.entries = [
            [item if is_scheduler(item) else self._keep(item) for item in items]
            for items in self._snapshots
        ]
        # found here so that a long list is not looked through in each layout
        self.holds_meta_ops = any(
            isinstance(reading.item, MetaOp) for reading in self.readings.values()
        )
        watched = [
            (one.item, reading)
            for reading in self.readings.values()
            for one in reading.each()
            if one.is_watched
        ]
        self._owners = [reading for _, reading in watched]
        self._lookout = Lookout(
            [item for item, _ in watched],
            list({type(item): None for item, _ in watched}),
            CLASS_ATTRIBUTES,
            since,
        )
        # what may change without a mark is compared in each opening
        self._unwatched = [
            reading
            for reading in self.readings.values()
            if not all(one.is_watched for one in reading.each())
        ]

    def are_in(self, lists: Iterable[list[Any]]) -> bool:
        """Return whether lists hold the very same items, in the same order.

        Args:
            lists: The network's lists.

        Returns:
            True if they do.
        """
        return all(map(same_items, lists, self._snapshots))

    def are_still_in(self, lists: Iterable[list[Any]]) -> bool:
        """Return whether lists hold the very same items, and none of these has changed.

        Args:
            lists: The network's lists.

        Returns:
            True if that is so; False if one perhaps has changed.
        """
        if not (self.are_in(lists) and self._lookout.is_still()):
            return False
        return not self._unwatched or all(reading.is_same() for reading in self._unwatched)

    def changed(self, all_of_them: bool) -> list[Reading]:
        """Look for items that are not what they were.

        Args:
            all_of_them: Whether to look at items that nothing was written to, too.

        Returns:
            Their readings.
        """
        places = self._lookout.written()
        if all_of_them or places is None:
            suspects = list(self.readings.values())
        else:
            suspects = [*[self._owners[place] for place in places], *self._unwatched]
        return [one for one in dict.fromkeys(suspects) if not one.is_same()]

    def look_again(self, since: int) -> None:
        """Go on from a later time: nothing has changed until then.

        Args:
            since: How many writes there were.
        """
        self._lookout.renew(since)

    def read(self, item: Any) -> Reading:
        """Look up what an item has said; one that is not kept is asked.

        Args:
            item: The item.

        Returns:
            What it says.
        """
        return self.readings.get(id(item)) or Reading(item, self.table)

    @property
    def ops(self) -> tuple[Any, ...]:
        """The network's ops, with schedulers among them."""
        return self._snapshots[0]

    def written(self) -> set[str]:
        """Collect the keys that any op writes, in whatever mode or epoch.

        Returns:
            The keys.
        """
        items = [reading.item for reading in self.readings.values()]
        return {key for item in items for key in getattr(item, "outputs", ())}

    def choose(
        self, mode: str, ds_id: str | None, current: tuple[Any, ...], sliced: bool = True
    ) -> tuple[tuple[list[Any], list[Any], list[Any]], list[Reading]]:
        """Pick the items in force.

        Args:
            mode: The mode.
            ds_id: The id of the dataset.
            current: What the schedulers stand for.
            sliced: Whether slicers count.

        Returns:
            What is known of the ops, the postprocessing ops and the slicers in force, and the
            readings of those that were made up on the spot.
        """
        entries = self.entries if sliced else [*self.entries[:2], []]
        made_up: list[Reading] = []
        if self.schedulers:
            values = dict(zip(map(id, self.schedulers), current, strict=True))
            readings = {id(value): self.read(value) for value in current if is_given(value)}
            made_up = [one for key, one in readings.items() if key not in self.readings]
            entries = [
                [
                    entry if id(entry) not in values else readings[id(values[id(entry)])].spec
                    for entry in each
                    if is_given(values.get(id(entry), entry))
                ]
                for each in entries
            ]
        ops, after, cutters = (select(each, mode, ds_id) for each in entries)
        return (ops, after, cutters), made_up

    def _keep(self, item: Any) -> OpSpec | SlicerSpec:
        reading = self.readings.get(id(item))
        if reading is None:
            reading = self.readings[id(item)] = Reading(item, self.table, self._methods)
        return reading.spec


class LayoutCache:
    """The layouts of one network.

    What an item says of itself (its keys, modes and ids, its forward, its models and settings) is
    read when the network is made, or when it first turns up. Before each opening it is compared, at
    the cost of one number where nothing at all was written to an item; what has changed is read,
    and laid out, anew. Several threads may ask at once.

    Args:
        lists: Gives the network's lists: of its ops, its postprocessing ops and its slicers, each
            with schedulers among them.
        bind: Given the ops in force, their forwards, and the places of those that take gradients,
            gives the functions to call.
        handling: What is done to values on their way, and around ops.
        build: Gets an op ready for the network's framework.
        agree: Called after items have changed, before they are settled and after it: refuse what
            cannot run, or cannot run together.

    Attributes:
        handling: What is done to values on their way, and around ops.
        worked_out: How often a layout was not there and had to be worked out.
    """

    def __init__(
        self,
        lists: Callable[[], tuple[list[Any], list[Any], list[Any]]],
        bind: Callable[[list[Any], list[Forward], list[int]], list[Forward]],
        handling: Handling,
        build: Callable[[Any], None],
        agree: tuple[Callable[[], None], Callable[[], None]],
    ) -> None:
        self._lists = lists
        self._bind = bind
        self.handling = handling
        self._build = build
        self._check, self._agree = agree
        # around all that is worked out; a scheduler or an op may ask for it again meanwhile
        self._lock = threading.RLock()
        self._is_cleared = False
        self.worked_out = 0
        self._items = _Items(lists(), writes(), KeyTable())

    def find(
        self,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
    ) -> Layout:
        """Find, or work out, what an opening runs.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.
            desired: The keys wanted back; none for all outputs.

        Returns:
            The layout; the same one for the same ops in force.

        Raises:
            ValueError: If slicers clash, or a wanted key is left in pieces.
            Exception: If what was written to an op is wrong, as when one is made so.
        """
        items = self._current()
        current = _values(items, epoch) if items.schedulers else ()
        key = mode, ds_id, desired, tuple(map(id, current)) if current else ()
        layout = items.layouts.get(key)
        if layout is not None and not (layout.made_up and _settle(layout.made_up, self._build)):
            return layout
        opening = mode, epoch, ds_id, desired, current
        return call_within(self._lock, self._add, items, key, layout, opening)

    def _add(
        self,
        items: _Items,
        key: tuple[Any, ...],
        stale: Layout | None,
        opening: tuple[str, int, str | None, frozenset[str], tuple[Any, ...]],
    ) -> Layout:
        layouts = items.layouts
        found = layouts.get(key)
        if found is not None and found is not stale:
            return found  # another thread was faster
        layout = self._lay_out(items, *opening)
        self.worked_out += 1
        layouts.pop(key, None)
        while len(layouts) >= MOST_LAYOUTS:
            del layouts[next(iter(layouts))]
        layouts[key] = layout
        return layout

    def draft(
        self,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
        sliced: bool = True,
    ) -> Layout:
        """Work out what an opening would run, and keep nothing of it.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.
            desired: The keys wanted back; none for all outputs.
            sliced: Whether slicers count; without them an opening fails for fewer reasons.

        Returns:
            A layout of its own.

        Raises:
            ValueError: If slicers clash, or a wanted key is left in pieces.
            Exception: If what was written to an op is wrong, as when one is made so.
        """
        items = self._current()
        current = _values(items, epoch)
        return call_within(
            self._lock, self._lay_out, items, mode, epoch, ds_id, desired, current, sliced
        )

    def read(self, item: Any) -> OpSpec | SlicerSpec:
        """Look up what an item has said of itself; a new one is asked.

        Args:
            item: An op, a postprocessing op or a slicer.

        Returns:
            What an opening would go by.
        """
        return self._items.read(item).spec

    def written(self) -> set[str]:
        """Collect the keys that any op writes, in whatever mode or epoch.

        Returns:
            The keys.
        """
        return self._items.written()

    def clear(self) -> None:
        """Have all items read anew at the next opening, and all layouts worked out anew."""
        self._is_cleared = True
        # another dict, since another thread may go through this one; what was traced goes at once
        self._items.layouts = {}

    def _current(self) -> _Items:
        """Return the items, after a look for what was added, taken away or changed."""
        items = self._items
        if not self._is_cleared and items.are_still_in(self._lists()):
            return items
        return call_within(self._lock, self._look_again)

    def _look_again(self) -> _Items:
        try:
            cleared, self._is_cleared = self._is_cleared, False
            self._renew(cleared)
        except BaseException:
            # whatever was settled until then, the next opening looks at all of it
            self._is_cleared = True
            raise
        return self._items

    def _renew(self, cleared: bool) -> None:
        items, lists, since = self._items, self._lists(), writes()
        same_lists = items.are_in(lists)
        changed = items.changed(all_of_them=cleared)
        if same_lists and not changed and not cleared:
            items.look_again(since)
            return
        self._check()
        for reading in changed:
            reading.settle(self._build)
        if not same_lists:
            new = [item for item in _each_of(lists) if id(item) not in items.readings]
            for item in new:
                settle_all(item)
                self._build(item)
        self._agree()
        since = writes()
        same_keys = all(reading.spec.has_keys_as_read() for reading in changed)
        if cleared or not same_lists or not same_keys:
            # with a new table: one that is never made anew would grow with each new key
            self._items = _Items(lists, since, KeyTable())
            return
        known = [one for one in items.readings.values() if one not in changed]
        made = _Items(lists, since, items.table, known)
        for key, layout in items.layouts.items():
            mode, ds_id = key[:2]
            chosen, made_up = made.choose(mode, ds_id, layout.keep_alive)
            if not made_up and layout.is_of(chosen):
                made.layouts[key] = layout
        self._items = made

    def _lay_out(
        self,
        items: _Items,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
        current: tuple[Any, ...],
        sliced: bool = True,
    ) -> Layout:
        chosen, made_up = items.choose(mode, ds_id, current, sliced)
        specs, after, cutters = chosen
        layout = Layout()
        layout.chosen, layout.made_up = chosen, made_up
        layout.slicers = [spec.item for spec in cutters]
        check_slicers(layout.slicers)
        context = f"mode={mode!r}, epoch={epoch!r}, ds_id={ds_id!r}"
        layout._resolved = after, cutters, desired, context
        resolution = resolve(items.table, specs, *layout._resolved)
        layout.ops, forwards, layout.models, places = gather(specs)
        layout.takes_gradients = bool(places)
        layout.postprocessing = [spec.item for spec in after]
        layout.keep_alive = current
        layout.unwritten = [key for key in sorted(desired) if key not in resolution.outputs]
        if layout.unwritten:
            # FastEstimator's traces want "*" for whatever there is
            written = {*items.written(), "*"}
            layout.unwritten = [key for key in layout.unwritten if key not in written]
        layout.programs = {}
        if items.holds_meta_ops or made_up:
            # these settle ahead what they can, so that each of their steps does without
            for place, op in enumerate(layout.ops):
                if isinstance(op, MetaOp):
                    forwards[place] = forward_of(op, retain_graph=False)
        bound = self._bind(layout.ops, forwards, places)
        layout.endings = endings_of(layout.ops, followers_of(layout.ops)) if places else []
        layout._parts = items.table, specs, bound
        handled: tuple[Any, ...] = (
            self.handling.move,
            self.handling.release,
            self.handling.setting(layout.takes_gradients),
            _abandons([layout.ops[place] for place in places]),
            self.handling.adopt,
        )
        layout._handled = handled
        layout.plan = Plan(*layout._parts, resolution, *handled)
        layout.plan.elsewhere = find_inactive_writer(items.ops, layout.ops, mode, ds_id)
        return layout


def _abandons(ops: list[Any]) -> list[Callable[[], None]]:
    """List what lets go of what a step that failed has left behind in ops that take gradients."""
    return [op.abandon for op in ops if hasattr(op, "abandon")]


def _values(items: _Items, epoch: int) -> tuple[Any, ...]:
    """Ask the schedulers, with no lock held: what they do is up to them."""
    return tuple([one.get_current_value(epoch) for one in items.schedulers])


def _settle(readings: list[Reading], build: Callable[[Any], None]) -> bool:
    """Let items settle that have changed, and tell whether there are any."""
    changed = [reading for reading in readings if not reading.is_same()]
    for reading in changed:
        reading.settle(build)
    return bool(changed)


def _each_of(lists: Iterable[list[Any]]) -> list[Any]:
    """List all items there are, those that schedulers stand for among them."""
    return [
        value
        for items in lists
        for item in items
        for value in (item.get_all_values() if is_scheduler(item) else [item])
        if is_given(value)
    ]
