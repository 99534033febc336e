"""Runs the ops of a network over a dict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fastnet.errors import (
    add_note,
    describe_op,
    missing_key,
    not_a_batch,
    not_a_sequence,
    note_failure,
    other_keys,
    wrong_count,
)
from tests.reference.nest import NestMap
from tests.reference.resolve import KeyTable, OpSpec, Resolution
from tests.reference.stamps import StampLog

Forward = Callable[[Any, dict[str, Any]], Any]
OpHook = Callable[[int], None]
Stamp = Callable[..., None]
GradMode = tuple[Callable[[], Any], Callable[[Any], Any], Any]


def no_stamp(kind: str, which: str | int | None = None) -> None:
    pass


class KernelPlan:
    def __init__(
        self,
        table: KeyTable,
        specs: list[OpSpec],
        forwards: list[Forward],
        resolution: Resolution,
        to_device: NestMap | None = None,
        detach: NestMap | None = None,
        grad_mode: GradMode | None = None,
        on_failure: Iterable[Callable[[], None]] = (),
        conversion: tuple[type, NestMap, NestMap] | None = None,
    ) -> None:
        if len(specs) != len(forwards):
            raise ValueError(f"{len(specs)} ops, but {len(forwards)} forwards")
        for index, spec in enumerate(specs):
            if len(spec.outputs) > 1 and not spec.out_list:
                raise ValueError(
                    f"{describe_op(spec.item, index)} has {len(spec.outputs)} outputs, but its "
                    "out_list is False: it says that forward returns one bare value. Set "
                    "out_list to True, or name one output."
                )
        self.ops = tuple(spec.item for spec in specs)
        self.resolution = resolution
        self._specs = list(specs)
        self._forwards = list(forwards)
        self._to_device = to_device or (lambda value: value)
        self._detach = detach or (lambda value: value)
        self._grad_mode = grad_mode
        self._on_failure = list(on_failure)
        self._conversion = conversion[1:] if conversion else None

    @property
    def flow(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]:
        flow = []
        live: set[str] = set(self.resolution.device_inputs)
        for index, spec in enumerate(self._specs):
            live |= {*spec.inputs, *spec.outputs}
            gone = [key for key in live if not self._is_needed(key, after=index)]
            gone += [key for key in spec.inputs if spec.deletes and key not in gone]
            live -= set(gone)
            flow.append((tuple(spec.inputs), tuple(spec.outputs), tuple(gone)))
        return tuple(flow)

    def missing_key_error(self, batch: Mapping[str, Any]) -> KeyError | None:
        if not hasattr(batch, "keys"):
            raise not_a_batch(batch)
        for key in self.resolution.device_inputs:
            if key not in batch:
                return self._missing_input(key, batch)
        return None

    def run(self, batch: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        return self._run(batch, state)

    def step(self, batch: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        return self._run(batch, state, merge=True)

    @property
    def spans(self) -> tuple[tuple[str, str | int | None], ...]:
        once = ("dispatch", "grad_mode", "deferred", "merge", "release", "measuring")
        spans: list[tuple[str, str | int | None]] = [(kind, None) for kind in once]
        spans += [("input", key) for key in self._keys_of(self.resolution.device_inputs)]
        spans += [("output", key) for key in self._keys_of(self.resolution.returned)]
        return tuple(spans + [("op", index) for index in range(len(self.ops))])

    def _keys_of(self, keys: Any) -> list[str]:
        mentioned = {key for spec in self._specs for key in spec.inputs + spec.outputs}
        return [key for key in keys if key in mentioned]

    def _run(
        self,
        batch: Mapping[str, Any],
        state: dict[str, Any],
        stamp: Stamp = no_stamp,
        before: OpHook | None = None,
        after: OpHook | None = None,
        merge: bool = False,
    ) -> dict[str, Any]:
        stamp("dispatch")
        if self._grad_mode is None:
            return self._run_ops(batch, state, stamp, before, after, merge)
        read, write, needed = self._grad_mode
        value = read()
        try:
            if value is not needed:
                write(needed)
            stamp("grad_mode")
            return self._run_ops(batch, state, stamp, before, after, merge)
        finally:
            write(value)
            stamp("grad_mode")

    def _run_ops(
        self,
        batch: Mapping[str, Any],
        state: dict[str, Any],
        stamp: Stamp,
        before: OpHook | None,
        after: OpHook | None,
        merge: bool,
    ) -> dict[str, Any]:
        store: dict[str, Any] = {}
        try:
            if not hasattr(batch, "keys"):
                raise not_a_batch(batch)
            for key in self._keys_of(self.resolution.device_inputs):
                if key not in batch:
                    raise self._missing_input(key, batch)
                if self._conversion is None:
                    store[key] = self._to_device(batch[key])
                else:
                    foreign, arrays = self._conversion
                    if foreign._holds_leaf(batch[key]):
                        batch = {**batch, key: foreign(batch[key])}
                    found = arrays._holds_leaf(batch[key])
                    store[key] = self._to_device(arrays(batch[key]) if found else batch[key])
                stamp("input", key)
            for index in range(len(self.ops)):
                try:
                    self._run_op(index, store, state, stamp, before, after)
                except BaseException as error:
                    note_failure(error, self.ops[index], index, self._reads_of(index, store))
                    raise
            stamp("dispatch")
            if state.get("deferred"):
                if before is not None:
                    before(len(self.ops))
                    stamp("measuring")
                try:
                    run_deferred(state)
                    stamp("deferred")
                finally:
                    if before is not None and after is not None:
                        after(len(self.ops))
                if before is not None:
                    stamp("measuring")
            result = dict(batch) if merge else {}
            stamp("merge")
            for key in self._keys_of(self.resolution.returned):
                if key in store:
                    result[key] = self._detach(store[key])
                stamp("output", key)
            if self._on_failure:
                take_undo(state)
            return result
        except BaseException as error:
            take_deferred(state)
            undo = reversed(take_undo(state)) if self._on_failure else []
            clean_up([*undo, *self._on_failure], error)
            raise
        finally:
            store.clear()
            stamp("release")

    def _missing_input(self, key: str, batch: Mapping[str, Any]) -> KeyError:
        reader = self._first_reader_from_batch(key)
        deleter = self._deleter(key, before=reader)
        written: dict[str, str] = {}
        for index, spec in enumerate(self._specs[:reader]):
            if spec.deletes:
                written = {name: op for name, op in written.items() if name not in spec.inputs}
            written |= dict.fromkeys(spec.outputs, describe_op(self.ops[index], index))
        reason = None
        for index, spec in reversed(list(enumerate(self._specs))):
            if index > reader and key in spec.outputs:
                reason = f"{describe_op(self.ops[index], index)} writes it later."
        return missing_key(
            self.ops[reader], key, batch, reader, deleter, reason=reason, written=written
        )

    def _reads_of(self, reader: int, store: Mapping[str, Any]) -> list[Any]:
        """List the key, value and writer of each input that exists."""
        writers: dict[str, tuple[Any, int | None]] = {}
        for index, spec in enumerate(self._specs[:reader]):
            writers |= dict.fromkeys(spec.outputs, (self.ops[index], index))
        keys = [key for key in self._specs[reader].inputs if key in store]
        return [(key, store[key], *writers.get(key, (None, None))) for key in keys]

    def _run_op(
        self,
        index: int,
        store: dict[str, Any],
        state: dict[str, Any],
        stamp: Stamp,
        before: OpHook | None,
        after: OpHook | None,
    ) -> None:
        spec = self._specs[index]
        for key in spec.inputs:
            if key not in store:
                raise missing_key(spec.item, key, store, index, self._deleter(key, before=index))
        values = [store[key] for key in spec.inputs]
        data = values if spec.in_list else (values[0] if values else None)
        stamp("dispatch")
        if before is not None:
            before(index)
            stamp("measuring")
        try:
            result = self._forwards[index](data, state)
            stamp("op", index)
        finally:
            if before is not None and after is not None:
                after(index)
        if before is not None:
            stamp("measuring")
        if spec.outputs:
            parts = parts_of(spec.outputs, result, spec.item, index) if spec.out_list else [result]
            store.update(zip(spec.outputs, parts, strict=True))
        if spec.deletes:
            for key in set(spec.inputs):
                del store[key]
        for key in list(store):
            if not self._is_needed(key, after=index):
                del store[key]

    def _is_needed(self, key: str, after: int) -> bool:
        """Return whether a value is read again or returned before it is overwritten."""
        for spec in self._specs[after + 1 :]:
            if key in spec.inputs:
                return True
            if key in spec.outputs:
                return False
        return key in self.resolution.returned

    def _first_reader_from_batch(self, key: str) -> int:
        produced = False
        for index, spec in enumerate(self._specs):
            if key in spec.inputs and not produced:
                return index
            produced = (produced or key in spec.outputs) and not (
                spec.deletes and key in spec.inputs
            )
        raise AssertionError(f"no op reads '{key}' from the batch")

    def _deleter(self, key: str, before: int) -> str | None:
        for index in reversed(range(before)):
            if self._specs[index].deletes and key in self._specs[index].inputs:
                return describe_op(self.ops[index], index)
        return None


def parts_of(
    keys: Sequence[str], result: Any, op: Any, index: int | None, source: str = "forward"
) -> list[Any]:
    """Return the value of each output."""
    if isinstance(result, Mapping):
        if not set(keys) <= set(result):
            raise other_keys(op, index, keys, result, source)
        return [result[key] for key in keys]
    if not isinstance(result, list | tuple) or hasattr(result, "_fields"):
        raise not_a_sequence(op, index, keys, result, source)
    if len(result) != len(keys):
        raise wrong_count(op, index, keys, len(result), source)
    return list(result)


def split_outputs(
    op: Any, result: Any, keys: Sequence[str], source: str = "forward"
) -> tuple[Any, ...]:
    return tuple(parts_of(keys, result, op, None, source))


def run_deferred(state: dict[str, Any]) -> None:
    # These functions may defer others.
    while functions := take_deferred(state):
        for function in functions:
            function()


def take_deferred(state: dict[str, Any]) -> list[Any]:
    deferred = state.get("deferred") or {}
    functions = [function for group in deferred.values() for function in group]
    deferred.clear()
    return functions


def take_undo(state: dict[str, Any]) -> list[Any]:
    undo = state.get("undo") or {}
    functions = list(undo.values())
    undo.clear()
    return functions


def clean_up(functions: list[Callable[[], None]], error: BaseException) -> None:
    for function in functions:
        try:
            function()
        except Exception as second:
            add_note(error, f"Cleaning up by {function!r} failed too: {second!r}")


class BoundPlan:
    def __init__(
        self,
        plan: KernelPlan,
        state: dict[str, Any],
        make_context: Callable[[], AbstractContextManager[Any]] | None = None,
        context_key: str | None = None,
    ) -> None:
        self.plan = plan
        self.state = state
        self._make_context = make_context
        self._context_key = context_key

    def run(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._within(lambda state: self.plan.run(batch, state))

    def step(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._within(lambda state: self.plan.step(batch, state))

    def step_timed(
        self,
        batch: Mapping[str, Any],
        log: StampLog,
        first: int = 0,
        before: OpHook | None = None,
        after: OpHook | None = None,
        context_row: int = 0,
    ) -> dict[str, Any]:
        rows = {span: first + row for row, span in enumerate(self.plan.spans)}

        def stamp(kind: str, which: str | int | None = None) -> None:
            log.stamp(rows[kind, which])

        def run(state: dict[str, Any]) -> dict[str, Any]:
            if self._make_context is not None:
                log.stamp(context_row)
            return self.plan._run(batch, state, stamp, before, after, merge=True)

        result = self._within(run)
        if self._make_context is not None:
            log.stamp(context_row)
        return result

    def _within(self, run: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        if self._make_context is None:
            return run(self.state)
        with self._make_context() as entered:
            if self._context_key is None:
                return run(self.state)
            return run({**self.state, self._context_key: entered})


def get_inputs_by_op(op: Any, store: Any, copy_on_write: bool = False) -> Any:
    values = []
    for key in op.inputs:
        if key not in store:
            raise missing_key(op, key, store)
        value = store[key]
        read_only = not getattr(getattr(value, "flags", None), "writeable", True)
        if copy_on_write and read_only:
            value = store[key] = copy.deepcopy(value)
        values.append(value)
    if op.in_list:
        return values
    return values[0] if values else None


def write_outputs_by_op(
    op: Any, store: MutableMapping[str, Any], outputs: Any, index: int | None = None
) -> None:
    if not op.outputs:
        return
    parts = parts_of(op.outputs, outputs if op.out_list else [outputs], op, index)
    for key, part in zip(op.outputs, parts, strict=True):
        store[key] = part
