"""What one opening of a network runs, worked out once and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from fastnet._execute import Plan
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, SlicerSpec, gather, resolve, same_items, select
from fastnet._slice import check_slicers
from fastnet.op.op import is_delete
from fastnet.op.tensorop.meta.chain import forward_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, Model, is_given, is_scheduler

__all__ = ["Layout", "LayoutCache"]

# schedulers that make new ops in every epoch, or ever new desired keys, must not fill the memory
MOST_LAYOUTS = 64

Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]


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
        programs: What a framework has made of the plan; it lives as long as the layout does.
    """

    __slots__ = (
        "_parts",
        "keep_alive",
        "models",
        "ops",
        "plan",
        "postprocessing",
        "programs",
        "slicers",
        "takes_gradients",
    )

    plan: Plan
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    takes_gradients: bool
    keep_alive: tuple[Any, ...]
    programs: dict[Hashable, Any]
    _parts: tuple[KeyTable, list[OpSpec], list[Forward]]

    def plan_with(self, wrap: Callable[[Any, int, Forward], Forward]) -> Plan:
        """Lay the same ops out again, with something around the forward of each.

        Args:
            wrap: Given an op, its place and what the plan calls for it, gives what to call instead.

        Returns:
            A plan of its own, which does nothing to values on their way in and out.
        """
        table, specs, forwards = self._parts
        wrapped = [
            wrap(op, place, forward)
            for place, (op, forward) in enumerate(zip(self.ops, forwards, strict=True))
        ]
        return Plan(table, specs, wrapped, self.plan.resolution)


class LayoutCache:
    """The layouts of one network.

    What an item says of itself (its keys, modes and ids) is read when the network is made, or when
    it first turns up; a change to the network's lists of items is noticed.

    Args:
        lists: Gives the network's lists: of its ops, its postprocessing ops and its slicers, each
            with schedulers among them.
        bind: Given the ops in force, their forwards, and the places of those that take gradients,
            gives the functions to call.
        values: What is done to values on their way in and out: `move`, `release`.
        setting: Given whether an op takes gradients, what must be set while ops run (see `Plan`).

    Attributes:
        worked_out: How often a layout was not there and had to be worked out.
    """

    def __init__(
        self,
        lists: Callable[[], tuple[list[Any], list[Any], list[Any]]],
        bind: Callable[[list[Any], list[Forward], list[int]], list[Forward]],
        values: tuple[NestMap | None, NestMap | None],
        setting: Callable[[bool], Setting | None],
    ) -> None:
        self._lists = lists
        self._bind = bind
        self._move, self._release = values
        self._setting = setting
        self._table = KeyTable()
        self._specs: dict[int, OpSpec | SlicerSpec] = {}
        # the ids of ops that run other ops, found here so that a long list is not looked through
        # in each opening
        self._around_others: set[int] = set()
        self._layouts: dict[Hashable, Layout] = {}
        self.worked_out = 0
        self._snapshots: tuple[tuple[Any, ...], ...] = ()
        self._schedulers: list[Any] = []
        self._entries: list[list[Any]] = []
        self._read_items()

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
        """
        current = self._current(epoch)
        key = (
            mode,
            ds_id,
            desired,
            tuple([id(value) for value in current]),
        )
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._lay_out(mode, epoch, ds_id, desired, current)
            self.worked_out += 1
            while len(self._layouts) >= MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = layout
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
        """
        return self._lay_out(mode, epoch, ds_id, desired, self._current(epoch), sliced)

    def read(self, item: Any) -> OpSpec | SlicerSpec:
        """Look up what an item has said of itself; a new one is asked.

        Args:
            item: An op, a postprocessing op or a slicer.

        Returns:
            What an opening would go by.
        """
        return self._spec(item)

    def clear(self) -> None:
        """Forget what was worked out, so that changed ops are read anew."""
        self._specs.clear()
        self._table = KeyTable()
        self._read_items()

    def _current(self, epoch: int) -> tuple[Any, ...]:
        """Give what schedulers stand for, after a look for items that were added or taken away."""
        for items, snapshot in zip(self._lists(), self._snapshots, strict=True):
            if not same_items(items, snapshot):
                self.clear()
                break
        return tuple([one.get_current_value(epoch) for one in self._schedulers])

    def _read_items(self) -> None:
        lists = self._lists()
        self._layouts.clear()
        self._snapshots = tuple(tuple(items) for items in lists)
        self._schedulers = [item for items in lists for item in items if is_scheduler(item)]
        for item in self._schedulers:
            for value in item.get_all_values():
                if is_given(value):
                    self._keep(value)
        # a scheduler stands for itself until an epoch is known
        self._entries = [
            [item if is_scheduler(item) else self._keep(item) for item in items] for items in lists
        ]

    def _keep(self, item: Any) -> OpSpec | SlicerSpec:
        return self._specs.setdefault(id(item), self._spec(item))

    def _spec(self, item: Any) -> OpSpec | SlicerSpec:
        """Read an item; one that a scheduler made up on the spot is not kept beyond its layout."""
        spec = self._specs.get(id(item))
        if spec is not None:
            return spec
        if hasattr(item, "slice_inputs"):
            return SlicerSpec(item, self._table)
        if isinstance(item, MetaOp):
            self._around_others.add(id(item))
        return OpSpec(item, self._table, is_delete(item))

    def _lay_out(
        self,
        mode: str,
        epoch: int,
        ds_id: str | None,
        desired: frozenset[str],
        current: tuple[Any, ...],
        sliced: bool = True,
    ) -> Layout:
        entries = self._entries if sliced else [*self._entries[:2], []]
        if self._schedulers:
            values = dict(zip(map(id, self._schedulers), current, strict=True))
            entries = [
                [
                    entry if id(entry) not in values else self._spec(values[id(entry)])
                    for entry in each
                    if is_given(values.get(id(entry), entry))
                ]
                for each in entries
            ]
        specs, after, cutters = (select(each, mode, ds_id) for each in entries)
        layout = Layout()
        layout.slicers = [spec.item for spec in cutters]
        check_slicers(layout.slicers)
        context = f"mode={mode!r}, epoch={epoch!r}, ds_id={ds_id!r}"
        resolution = resolve(self._table, specs, after, cutters, desired, context)
        layout.ops, forwards, layout.models, places = gather(specs)
        layout.takes_gradients = bool(places)
        layout.postprocessing = [spec.item for spec in after]
        layout.keep_alive = current
        layout.programs = {}
        if self._around_others:
            # these settle ahead what they can, so that each of their steps does without
            for place, op in enumerate(layout.ops):
                if id(op) in self._around_others:
                    forwards[place] = forward_of(op, retain_graph=False)
        bound = self._bind(layout.ops, forwards, places)
        layout._parts = self._table, specs, bound
        layout.plan = Plan(
            self._table,
            specs,
            bound,
            resolution,
            self._move,
            self._release,
            self._setting(layout.takes_gradients),
        )
        return layout
