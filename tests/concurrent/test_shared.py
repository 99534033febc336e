"""What threads share while others change it: nothing crashes, and nothing is lost.

With a GIL these hold by themselves. Without one they hold because the kernel takes its locks.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from fastnet._execute import BoundPlan, KernelPlan
from fastnet._nest import NestMap, leaves_of, map_leaves
from fastnet._resolve import KeySet, KeyTable, OpSpec, resolve, same_entries, same_items
from fastnet._stamps import StampLog
from fastnet._trace import Signature, TensorAdapter, TensorSpec
from fastnet.network.program_set import Program, ProgramSet
from fastnet.network.trace_records import Records
from tests.kernel.ops import Op, new_state

TURNS = 20_000


def at_once(*works: Callable[[], Any], turns: int = TURNS) -> None:
    """Call each function over and over, each in a thread of its own; raise what one raises."""
    barrier = threading.Barrier(len(works))

    def repeat(work: Callable[[], Any]) -> None:
        barrier.wait(60)
        for _ in range(turns):
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(repeat, work) for work in works]:
            done.result(300)


def tolerant(work: Callable[[], Any], *errors: type[Exception]) -> Callable[[], Any]:
    """Let a walk fail as Python's own does where what it goes over changes."""

    def call() -> None:
        with suppress(*errors):
            work()

    return call


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="there is a GIL")
def test_importing_the_kernel_leaves_the_gil_off() -> None:
    names = ["execute", "guards", "nest", "resolve", "slice", "stamps", "trace"]
    program = f"import sys, {', '.join(f'fastnet._{name}' for name in names)}\n"
    program += "assert not sys._is_gil_enabled()"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("turn", range(20))
def test_keys_get_the_same_ids_in_all_threads(turn: int) -> None:
    names = [f"key{place}" for place in range(60)]
    table = KeyTable()
    seen: list[dict[str, int]] = []

    def intern_all() -> None:
        found = {}
        for name in random.sample(names, len(names)):
            found[name] = table.intern(name)
            assert KeySet(table, [name]).names() == {name}
        seen.append(found)

    at_once(*[intern_all] * 6, turns=1)
    assert len(table) == 60
    assert all(found == seen[0] for found in seen)


def test_dicts_and_lists_are_compared_while_they_change() -> None:
    table: dict[str, Any] = {str(place): place for place in range(20)}
    items: list[Any] = list(range(20))

    def change() -> None:
        table[str(random.randrange(60))] = object()
        table.pop(str(random.randrange(60)), None)
        items.append(object())
        if len(items) > 50:
            del items[10:]

    def compare() -> None:
        same_entries([(table, "0", None)], [table], 20)
        same_items(items, tuple(items))

    compare = tolerant(compare, RuntimeError)
    at_once(change, change, compare, compare, compare)


def test_one_log_for_all() -> None:
    log = StampLog()
    at_once(
        *[lambda: log.stamp(0)] * 3,
        lambda: log.stamp_at(0, 1.0),
        log.take,
        lambda: log.keep(3),
        tolerant(lambda: log.sum_up(bytes(8), bytes(1), bytes(1)), ValueError),
    )
    log.take()
    at_once(*[lambda: log.stamp(0)] * 4)
    assert len(log) == 4 * TURNS


def test_nests_are_mapped_while_they_change() -> None:
    nest: dict[str, Any] = {"items": list(range(10)), "deep": [1, (2, {"x": 3})]}
    add_one = NestMap(int, lambda leaf: leaf + 1)

    def change() -> None:
        nest["items"].append(1)
        if len(nest["items"]) > 30:
            del nest["items"][3:]
        nest[str(random.randrange(9))] = [random.random()]
        nest.pop(str(random.randrange(9)), None)

    def walk() -> None:
        assert add_one(nest)["deep"] == [2, (3, {"x": 4})]
        map_leaves(nest, str)
        leaves_of(nest)

    walk = tolerant(walk, RuntimeError)
    at_once(change, change, walk, walk)


def test_batches_and_results_change_during_steps() -> None:
    results: list[Any] = [1, 2]
    batch: dict[str, Any] = {"x": 1}
    table = KeyTable()
    specs = [OpSpec(op, table) for op in (Op("x", "y"), Op("y", ["a", "b"]))]
    forwards = [lambda data, state: data, lambda data, state: results]
    plan = KernelPlan(table, specs, forwards, resolve(table, specs, [], []))

    def change() -> None:
        batch["x"] = object()
        batch[str(random.randrange(40))] = object()
        batch.pop(str(random.randrange(40)), None)
        results.append(3)
        results.pop()

    step = tolerant(lambda: plan.step(batch, new_state()), ValueError)
    at_once(change, step, step, step)


@pytest.mark.parametrize("kinds", [3, 40])
def test_programs_are_found_while_others_take_their_places(kinds: int) -> None:
    class Tensor:
        def __init__(self, length: int) -> None:
            self.shape = (length,)

    adapter = TensorAdapter(
        Tensor,
        lambda tensor: "float",
        lambda tensor: tensor.shape,
        lambda value: value if type(value) is Tensor else None,
        lambda value: None,
        None,
    )

    class Last(Program):
        """Returns the last tensor of a batch."""

        def __init__(self, batch: dict[str, Any]) -> None:
            forms = [adapter.form_of(batch["x"])]
            super().__init__(Signature(["x"], adapter, forms, {"y": TensorSpec("float", (1,))}))
            self.has_dynamic_axes = random.random() < 0.3

        def difference(self) -> str | None:
            return None

        def run(self, batch: Mapping[str, Any], tensors: list[Any]) -> dict[str, Any]:
            return self.signature.merge(tensors[-1:], batch)

    programs: ProgramSet[Last] = ProgramSet(16, Records("eagerly"))
    shared: dict[str, Any] = {"tensor": Tensor(1)}

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        program, tensors, _ = programs.find(batch)
        if program is None:
            program = Last(batch)
            programs.add(program)
            tensors = program.match(batch) or []
        return program.run(batch, tensors)

    def run() -> None:
        tensor = Tensor(random.randrange(kinds))
        assert step({"x": {"a": tensor}})["y"] is tensor
        generals = [program.has_dynamic_axes for program in programs.programs]
        assert generals == sorted(generals)

    def change() -> None:
        shared[str(random.randrange(20))] = Tensor(2)
        shared.pop(str(random.randrange(20)), None)

    def run_shared() -> None:
        step({"x": shared})

    def discard() -> None:
        for program in programs.programs[5:]:
            programs.discard(program)

    # A batch that changes while it is matched is refused.
    at_once(run, run, run, tolerant(run_shared, RuntimeError), change, discard, turns=TURNS // 3)


def test_one_plan_for_all() -> None:
    table = KeyTable()
    count = 100
    ops = [Op(f"k{place}", f"k{place + 1}", lambda data, state: data + 1) for place in range(count)]
    ops.append(Op(["k1", f"k{count}"], "sum", lambda data, state: sum(data)))
    specs = [OpSpec(op, table) for op in ops]
    forwards = [op.forward for op in ops]
    plan = KernelPlan(table, specs, forwards, resolve(table, specs, [], [], {"sum", "k5"}))
    starts = itertools.count()

    def work() -> None:
        start = next(starts)
        result = BoundPlan(plan, new_state()).step_timed({"k0": start}, StampLog())
        assert result == {"k0": start, "k5": start + 5, "sum": 2 * start + 1 + count}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once(*[work] * 8, turns=200)
    finally:
        sys.setswitchinterval(before)
