"""The same chain of ops, run in five ways: by hand, by an interpreter in Python, and by a Plan."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from fastnet._execute import Plan
from fastnet._resolve import KeyTable, OpSpec, resolve
from fastnet._stamps import StampLog

Step = Callable[[dict[str, Any]], Any]

STATE: dict[str, Any] = {"mode": "infer", "epoch": 1, "deferred": {}}


class Identity:
    """An op that returns what it is given: an object, or the list of its two inputs.

    Args:
        inputs: The keys that it reads.
        outputs: The keys that it writes.
    """

    mode: frozenset[str] = frozenset()
    ds_id: frozenset[str] = frozenset()

    def __init__(self, inputs: list[str], outputs: list[str]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.in_list = self.out_list = len(inputs) > 1

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        """Return `data`."""
        return data


class Chain:
    """A chain of identity ops over a batch.

    Args:
        length: How many ops.
        width: How many keys each op reads and writes.
    """

    def __init__(self, length: int, width: int = 1) -> None:
        self.keys = [
            [f"k{index}_{column}" for column in range(width)] for index in range(length + 1)
        ]
        self.ops = [Identity(inputs, outputs) for inputs, outputs in pairwise(self.keys)]
        self.batch: dict[str, Any] = {key: object() for key in self.keys[0]}

    def plan(self) -> Plan:
        """Return a Plan of the chain, its last keys wanted."""
        table = KeyTable()
        specs = [OpSpec(op, table) for op in self.ops]
        resolution = resolve(table, specs, [], [], set(self.keys[-1]))
        return Plan(table, specs, [op.forward for op in self.ops], resolution)

    def by_hand(self) -> Step:
        """Return the loop that a person would write: values are passed on, no key is looked up."""
        forwards = [op.forward for op in self.ops]
        first, last = self.keys[0], self.keys[-1]
        if len(first) > 1:

            def step_many(batch: dict[str, Any]) -> dict[str, Any]:
                values = [batch[key] for key in first]
                for forward in forwards:
                    values = forward(values, STATE)
                return {**batch, **dict(zip(last, values, strict=True))}

            return step_many

        read, write = first[0], last[0]

        def step(batch: dict[str, Any]) -> dict[str, Any]:
            value = batch[read]
            for forward in forwards:
                value = forward(value, STATE)
            return {**batch, write: value}

        return step

    def by_dict(self) -> Step:
        """Return an interpreter in Python that keeps every value in a dict."""
        ops = self.ops
        last = self.keys[-1]

        def step(batch: dict[str, Any]) -> dict[str, Any]:
            store = dict(batch)
            for op in ops:
                values = [store[key] for key in op.inputs]
                outputs = op.forward(values if op.in_list else values[0], STATE)
                for key, value in zip(
                    op.outputs, outputs if op.out_list else [outputs], strict=True
                ):
                    store[key] = value
            return {**batch, **{key: store[key] for key in last}}

        return step

    def by_run(self) -> Step:
        """Return the Plan's loop."""
        run = self.plan().run
        return lambda batch: run(batch, STATE)

    def by_step(self) -> Step:
        """Return the Plan's loop, its outputs laid over the batch as `run_step` does."""
        step = self.plan().step
        return lambda batch: step(batch, STATE)

    def by_step_timed(self) -> Step:
        """Return the Plan's loop with a stamp after each part of the step."""
        step_timed = self.plan().step_timed
        log = StampLog()

        def step(batch: dict[str, Any]) -> dict[str, Any]:
            result = step_timed(batch, STATE, log)
            log.keep(0)
            return result

        return step


WAYS: dict[str, Callable[[Chain], Step]] = {
    "by hand": Chain.by_hand,
    "dict in Python": Chain.by_dict,
    "Plan.run": Chain.by_run,
    "Plan.step": Chain.by_step,
    "Plan.step_timed": Chain.by_step_timed,
}
