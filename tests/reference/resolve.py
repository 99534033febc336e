"""Key sets as Python sets, and the resolution of keys as in FastEstimator's networks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from fastnet.errors import sliced_not_unsliced


class KeyTable:
    def __init__(self) -> None:
        self._names: list[str] = []

    def intern(self, key: str) -> int:
        if not isinstance(key, str):
            raise TypeError(f"a key is a string, not {key!r} of type {type(key).__name__}")
        if key not in self._names:
            self._names.append(key)
        return self._names.index(key)

    def __len__(self) -> int:
        return len(self._names)


class KeySet:
    def __init__(self, table: KeyTable, keys: Iterable[str] = ()) -> None:
        self.table = table
        self._keys: set[str] = set()
        for key in keys:
            table.intern(key)
            self._keys.add(key)

    def copy(self) -> KeySet:
        return KeySet(self.table, self._keys)

    def names(self) -> set[str]:
        return set(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self.table._names if key in self._keys])

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"KeySet({sorted(self._keys)})"


class Spec:
    def __init__(self, item: Any) -> None:
        self.item = item
        self.mode = as_set(getattr(item, "mode", None))
        self.ds_id = as_set(getattr(item, "ds_id", None))

    def runs_in(self, mode: str, ds_id: str | None) -> bool:
        mode_fits = not self.mode or mode in self.mode
        if not self.ds_id or ds_id is None:
            return mode_fits
        included = ds_id in self.ds_id
        excluding = any(name.startswith("!") for name in self.ds_id)
        not_excluded = excluding and "!" + ds_id not in self.ds_id
        return mode_fits and (included or not_excluded)


def as_set(names: Iterable[str] | None) -> set[str]:
    if names is None:
        return set()
    return {names} if isinstance(names, str) else set(names)


class OpSpec(Spec):
    def __init__(
        self, op: Any, table: KeyTable, deletes: bool = False, read_models: Any = None
    ) -> None:
        super().__init__(op)
        self.forward = getattr(op, "forward", None)
        self.in_list = bool(op.in_list)
        self.out_list = bool(op.out_list)
        self.deletes = deletes
        self.read_models = read_models
        self.models, self.takes_gradients = ((), False) if read_models is None else read_models(op)
        self.inputs: list[str] = list(op.inputs)
        self.outputs: list[str] = list(op.outputs)
        for key in self.inputs + self.outputs:
            table.intern(key)

    def is_current(self) -> bool:
        now = OpSpec(self.item, KeyTable(), self.deletes, self.read_models)
        same_models = {id(model) for model in now.models} == {id(model) for model in self.models}
        now.models = self.models
        return same_models and vars(now) == vars(self)


class SlicerSpec(Spec):
    def __init__(self, slicer: Any, table: KeyTable) -> None:
        super().__init__(slicer)
        self.keys = set(slicer.slice_inputs), set(slicer.unslice_inputs)
        self.slices = KeySet(table, slicer.slice_inputs)
        self.unslices = KeySet(table, slicer.unslice_inputs)

    def is_current(self) -> bool:
        now = SlicerSpec(self.item, KeyTable())
        return (now.keys, now.mode, now.ds_id) == (self.keys, self.mode, self.ds_id)


class Resolution:
    def __init__(
        self,
        inputs: KeySet,
        device_inputs: KeySet,
        outputs: KeySet,
        returned: KeySet | None = None,
    ) -> None:
        self.inputs = inputs
        self.device_inputs = device_inputs
        self.outputs = outputs
        self.returned = outputs if returned is None else returned


def select(specs: list[Any], mode: str, ds_id: str | None) -> list[Any]:
    return [spec for spec in specs if spec.runs_in(mode, ds_id)]


def gather(specs: list[OpSpec]) -> tuple[list[Any], list[Any], list[Any], list[int]]:
    models: list[Any] = []
    for spec in specs:
        models += [model for model in spec.models if all(model is not known for known in models)]
    return (
        [spec.item for spec in specs],
        [spec.forward for spec in specs],
        models,
        [index for index, spec in enumerate(specs) if spec.takes_gradients],
    )


def same_items(items: list[Any], snapshot: tuple[Any, ...]) -> bool:
    return [id(item) for item in items] == [id(item) for item in snapshot]


def same_entries(entries: list[Any], tables: list[dict[Any, Any]], size: int) -> bool:
    found = [(table.get(key, entries), value) for table, key, value in entries]
    return all(one is value for one, value in found) and size == sum(map(len, tables))


def resolve(
    table: KeyTable,
    ops: list[OpSpec],
    postprocessing: list[OpSpec],
    slicers: list[SlicerSpec],
    desired: Collection[str] | None = None,
    context: str = "",
) -> Resolution:
    sliced = {key for slicer in slicers for key in slicer.slices.names()}
    unsliced = {key for slicer in slicers for key in slicer.unslices.names()}

    produced: set[str] = set()
    read_by_ops: set[str] = set()
    for op in ops:
        read_by_ops |= set(op.inputs) - produced
        produced |= set(op.outputs)
        if op.deletes:
            produced -= set(op.inputs)
    needed = sliced | read_by_ops | (unsliced - produced)
    made_by_ops = set(produced)
    cut = sliced | made_by_ops

    made_by_pops: set[str] = set()
    used_by_pops: set[str] = set()
    dropped_by_pops: set[str] = set()
    for pop in postprocessing:
        needed |= set(pop.inputs) - produced
        reads = dropped_by_pops if pop.deletes else used_by_pops
        reads |= set(pop.inputs) - made_by_pops
        produced |= set(pop.outputs)
        made_by_pops |= set(pop.outputs)
        if pop.deletes:
            produced -= set(pop.inputs)
            made_by_pops -= set(pop.inputs)

    read_by_pops = used_by_pops | dropped_by_pops
    outputs = set(produced)
    if desired is not None:
        outputs = (produced & set(desired)) | read_by_pops
    # Postprocessing must get the keys that it reads, even if it then deletes them.
    returned = outputs | (made_by_ops & read_by_pops)
    if sliced:
        # Postprocessing runs on joined values, and may delete a key that is still in pieces.
        harmless = (made_by_pops | dropped_by_pops) - used_by_pops
        in_pieces = (cut & returned) - unsliced - harmless
        if in_pieces:
            raise sliced_not_unsliced(in_pieces, context)

    sets = (needed, read_by_ops, outputs, returned)
    return Resolution(*(KeySet(table, keys) for keys in sets))
