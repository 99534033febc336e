"""Where values die, against values that tell when they do."""

from __future__ import annotations

import weakref
from typing import Any

from hypothesis import given, settings

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Delete, TensorOp
from tests.explain.programs import KEYS, desired_keys, shapes

Name = tuple[int | None, str]


class Value:
    """Something that can be watched."""


class Watcher:
    """Knows which values are still there when each op starts."""

    def __init__(self) -> None:
        self.values: dict[Name, weakref.ref[Value]] = {}
        self.alive: list[set[Name]] = []

    def make(self, writer: int | None, key: str) -> Value:
        value = Value()
        self.values[writer, key] = weakref.ref(value)
        return value

    def look(self) -> None:
        self.alive.append({name for name, value in self.values.items() if value() is not None})


class Watched(TensorOp):
    """Looks around before it writes new values."""

    def __init__(self, watcher: Watcher, place: int, reads: list[str], writes: list[str]) -> None:
        super().__init__(reads, writes)
        self.watcher = watcher
        self.place = place

    def forward(self, data: Any, state: Any) -> list[Value]:
        self.watcher.look()
        return [self.watcher.make(self.place, key) for key in self.outputs]


class WatchedDelete(Delete):
    """Looks around before it deletes."""

    def __init__(self, watcher: Watcher, keys: list[str]) -> None:
        super().__init__(keys)
        self.watcher = watcher

    def forward(self, data: Any, state: Any) -> None:
        self.watcher.look()


class Empties(TensorOp):
    """Takes the batch's values out of the caller's hands."""

    def __init__(self, watcher: Watcher, batch: dict[str, Any]) -> None:
        super().__init__()
        self.watcher = watcher
        # A network keeps what its ops hold in containers until it compares them again.
        self.clear = batch.clear

    def forward(self, data: Any, state: Any) -> None:
        self.clear()
        self.watcher.look()


@given(drawn=shapes(), desired=desired_keys)
@settings(max_examples=60)
def test_values_die_where_it_says(drawn: Any, desired: list[str]) -> None:
    watcher = Watcher()
    batch: dict[str, Any] = {}
    ops: list[TensorOp] = [Empties(watcher, batch)]
    for place, (reads, writes) in enumerate(drawn, start=1):
        op = Watched(watcher, place, reads, writes) if writes else WatchedDelete(watcher, reads)
        ops.append(op)
    ops.append(Watched(watcher, len(ops), [], []))
    network = TorchNetwork(ops)
    explanation = network.explain("infer", 1, "", desired)
    batch.update((key, watcher.make(None, key)) for key in KEYS)
    with network("infer", 1, "", desired):
        result = network.run_step(batch)
    assert set(result) == explanation.returned
    lives = {(life.writer, key.name): life for key in explanation.keys for life in key.lifetimes}
    unread = {(None, key) for key in KEYS if (None, key) not in lives}
    assert set(watcher.values) == set(lives) | unread
    for place, alive in enumerate(watcher.alive):
        expected = {
            (writer, key)
            for (writer, key), life in lives.items()
            if (writer is None or writer < place)
            and (life.last_op is None or place <= life.last_op)
        }
        assert alive == expected
