"""Ops, slicers and plans to test the kernel with: plain Python, no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.reference import Kernel

Keys = str | Iterable[str] | None
State = dict[str, Any]


class Op:
    """Anything with the attributes that a network asks an op for."""

    def __init__(
        self,
        inputs: Keys = None,
        outputs: Keys = None,
        fn: Callable[[Any, State], Any] | None = None,
        mode: Iterable[str] = (),
        ds_id: Iterable[str] = (),
        in_list: bool | None = None,
        out_list: bool | None = None,
    ) -> None:
        self.inputs = as_list(inputs)
        self.outputs = as_list(outputs)
        self.mode = set(mode)
        self.ds_id = set(ds_id)
        self.in_list = not isinstance(inputs, str | None) if in_list is None else in_list
        self.out_list = not isinstance(outputs, str | None) if out_list is None else out_list
        self.fn = fn or (lambda data, state: data)

    def forward(self, data: Any, state: State) -> Any:
        return self.fn(data, state)


class Delete(Op):
    """An op that takes its inputs out of the batch."""

    def __init__(self, keys: Keys, **kwargs: Any) -> None:
        super().__init__(keys, None, lambda data, state: None, **kwargs)


class Slicer:
    """Cuts lists into pieces of `size` values, and joins them again."""

    def __init__(
        self,
        slices: Sequence[str] = (),
        unslices: Sequence[str] = (),
        size: int = 1,
        mode: Iterable[str] = (),
        ds_id: Iterable[str] = (),
    ) -> None:
        self.slice_inputs = list(slices)
        self.unslice_inputs = list(unslices)
        self.size = size
        self.mode = set(mode)
        self.ds_id = set(ds_id)

    def slice_batches(self, batches: tuple[list[Any], ...]) -> list[tuple[list[Any], ...]]:
        cut = [
            [batch[start : start + self.size] for start in range(0, len(batch), self.size)]
            for batch in batches
        ]
        return list(zip(*cut, strict=True))

    def _unslice_batch(self, slices: tuple[list[Any], ...], key: str) -> list[Any]:
        return [value for piece in slices for value in piece]


class Nothing:
    """An object that a weak reference can watch, and that looks like a value."""


def as_list(keys: Keys) -> list[str]:
    if keys is None:
        return []
    return [keys] if isinstance(keys, str) else list(keys)


def resolve(
    kernel: Kernel,
    ops: Sequence[Op] = (),
    pops: Sequence[Op] = (),
    slicers: Sequence[Slicer] = (),
    desired: Iterable[str] | None = None,
    context: str = "",
) -> Any:
    """Resolve ops, postprocessing ops and slicers that are all active."""
    table = kernel.KeyTable()
    return kernel.resolve(
        table,
        specs_of(kernel, table, ops),
        specs_of(kernel, table, pops),
        [kernel.SlicerSpec(slicer, table) for slicer in slicers],
        desired,
        context,
    )


def plan_of(
    kernel: Kernel,
    ops: Sequence[Op],
    desired: Iterable[str] | None = None,
    forwards: Sequence[Callable[[Any, State], Any]] | None = None,
    **kwargs: Any,
) -> Any:
    """Lay out a plan of ops that are all active."""
    table = kernel.KeyTable()
    specs = specs_of(kernel, table, ops)
    resolution = kernel.resolve(table, specs, [], [], desired)
    bound = [op.forward for op in ops] if forwards is None else list(forwards)
    return kernel.KernelPlan(table, specs, bound, resolution, **kwargs)


def specs_of(kernel: Kernel, table: Any, ops: Sequence[Op]) -> list[Any]:
    return [kernel.OpSpec(op, table, isinstance(op, Delete)) for op in ops]


def entry_of(kernel: Kernel, plan: Any, name: str) -> Callable[[Any, State], Any]:
    """Return a way to run a step: one of a plan's methods, called with a batch and a state."""
    if name != "step_timed":
        entry: Callable[[Any, State], Any] = getattr(plan, name)
        return entry
    log = kernel.StampLog()

    def run(batch: Any, state: State) -> Any:
        log.keep(0)
        return kernel.BoundPlan(plan, state).step_timed(batch, log)

    return run


def new_state(**entries: Any) -> State:
    return {"mode": "infer", "deferred": {}, "undo": {}, **entries}


def shown(error: BaseException) -> str:
    """Everything that a traceback prints of an error: its text and, below it, its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])
