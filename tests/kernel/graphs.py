"""Random op graphs, batches, wanted keys and slicers."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from tests.kernel.ops import Delete, Op, Slicer, State, new_state, shown
from tests.reference import Kernel

KEYS = "abcdef"
MODES = ["train", "eval"]
DS_IDS = ["", "one", "two"]

keys = st.lists(st.sampled_from(KEYS), max_size=3)
mode_sets = st.sampled_from([(), (), (), ("train",), ("eval",)])
ds_id_sets = st.sampled_from([(), (), (), ("one",), ("one", "two"), ("!one",), ("!one", "!two")])
wanted = st.none() | st.sets(st.sampled_from([*KEYS, "unknown"]), max_size=4)


class Value:
    """What ops write: something that a weak reference can watch."""

    alive: ClassVar[weakref.WeakSet[Value]] = weakref.WeakSet()

    def __init__(self, name: str) -> None:
        self.name = name
        Value.alive.add(self)

    def __repr__(self) -> str:
        return self.name


class Call:
    """A function that a step defers, or that is called after a failure; it may fail."""

    def __init__(
        self, log: list[Any], name: str, fails: bool = False, then: Callable[[], None] | None = None
    ) -> None:
        self.log, self.name, self.fails, self.then = log, name, fails, then

    def __repr__(self) -> str:
        return f"Call({self.name})"

    def __call__(self) -> None:
        self.log.append(f"{self.name} ran")
        if self.then is not None:
            self.then()
        if self.fails:
            raise OSError(f"{self.name} failed")


class Tape:
    """A context manager of steps."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __repr__(self) -> str:
        return "Tape()"

    def __enter__(self) -> Tape:
        self.log.append("on")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.log.append(("off", kind))


@dataclass(frozen=True)
class Recipe:
    """How to make an op, once for each kernel: its log must not be shared between them."""

    inputs: list[str]
    outputs: list[str]
    in_list: bool
    out_list: bool
    mode: tuple[str, ...]
    ds_id: tuple[str, ...]
    behaviour: str
    number: int

    def make(self, log: list[Any]) -> Op:
        where = {"mode": self.mode, "ds_id": self.ds_id}
        if self.behaviour == "delete":
            return Delete(self.inputs, in_list=self.in_list, **where)
        return Op(
            self.inputs,
            self.outputs,
            self._forward(log),
            in_list=self.in_list,
            out_list=self.out_list,
            **where,
        )

    def _forward(self, log: list[Any]) -> Callable[[Any, State], Any]:
        def forward(data: Any, state: State) -> Any:
            # not the data itself: nothing but the plan may keep it alive
            log.append((self.number, repr(data), sorted(map(repr, Value.alive))))
            log.append(repr(state.get("tape")))
            if self.behaviour.startswith("defer"):

                def then() -> None:
                    if self.behaviour == "defer more":
                        later = state["deferred"].setdefault("later", [])
                        later.append(Call(log, f"later {self.number}"))

                late = Call(log, f"late {self.number}", self.behaviour == "defer failing", then)
                plain = [late, lambda: log.append(("plain", self.number))]
                state["deferred"].setdefault(f"list{self.number % 2}", []).extend(plain)
            if self.number % 3 == 0:
                undo = Call(log, f"undo {self.number}", fails=self.number % 2 == 0)
                state["undo"].setdefault(self.number, undo)
            if self.behaviour == "raise":
                raise ArithmeticError(f"op number {self.number}")
            values = [Value(f"{self.number}.{place}") for place in range(len(self.outputs))]
            if self.behaviour == "too few":
                values = values[:-1]
            if self.behaviour == "too many":
                values.append(Value("one more"))
            if self.behaviour == "bare":
                return self.number
            if self.out_list and self.behaviour == "generator":
                return iter(values)
            if self.out_list:
                return tuple(values) if self.number % 2 else values
            return values[0] if values else None

        return forward


@st.composite
def recipes(draw: st.DrawFn) -> list[Recipe]:
    """Up to eight ops; most do what they should."""
    made = []
    for number in range(draw(st.integers(0, 8))):
        behaviour = draw(
            st.sampled_from(
                ["well"] * 8
                + ["delete", "delete", "too many", "generator", "raise", "too few", "bare"]
                + ["defer", "defer more", "defer failing"]
            )
        )
        outputs = [] if behaviour == "delete" else draw(keys)
        made.append(
            Recipe(
                inputs=draw(keys),
                outputs=outputs,
                in_list=draw(st.booleans()),
                # several outputs of a bare value are refused; that is rare enough to go on with
                out_list=len(outputs) > 1 if draw(st.integers(0, 9)) else draw(st.booleans()),
                mode=draw(mode_sets),
                ds_id=draw(ds_id_sets),
                behaviour=behaviour,
                number=number,
            )
        )
    return made


@st.composite
def slicers(draw: st.DrawFn) -> list[Slicer]:
    return [
        Slicer(
            draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True)),
            draw(st.lists(st.sampled_from([*KEYS, "absent"]), max_size=3, unique=True)),
            draw(st.integers(1, 3)),
            draw(mode_sets),
            draw(ds_id_sets),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]


batches = st.lists(st.sampled_from([*KEYS, "other"]), unique=True, max_size=7).map(
    lambda names: {name: f"batch {name}" for name in names}
)
# mostly whole batches: with a key missing, no op runs
batches |= st.just({name: f"batch {name}" for name in [*KEYS, "other"]})


def outcome(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the type and the sorted texts of its error."""
    try:
        return "returned", work()
    except Exception as error:
        return "raised", type(error), sorted(shown(error).split("\n"))


def open_and_run(
    kernel: Kernel,
    ops: list[Recipe],
    pops: list[Recipe],
    cutters: list[Slicer],
    mode: str,
    ds_id: str | None,
    desired: set[str] | None,
    batch: dict[str, Any],
    measured: bool = False,
    around: bool = False,
) -> tuple[str, list[Any]]:
    """Do what a network does to open and to run a step.

    With `around` values are moved and detached; a grad mode and a context manager surround steps.

    Returns:
        What it came to, in a word, and all that could be seen on the way.
    """
    log: list[Any] = []
    table = kernel.KeyTable()
    made = [recipe.make(log) for recipe in ops]
    specs = [kernel.OpSpec(op, table, isinstance(op, Delete)) for op in made]
    after = [
        kernel.OpSpec(op, table, isinstance(op, Delete))
        for op in [recipe.make(log) for recipe in pops]
    ]
    cut = [kernel.SlicerSpec(slicer, table) for slicer in cutters]
    active = kernel.select(specs, mode, ds_id)
    log.append([made.index(spec.item) for spec in active])

    def resolve() -> Any:
        return kernel.resolve(
            table,
            active,
            kernel.select(after, mode, ds_id),
            kernel.select(cut, mode, ds_id),
            desired,
            f"mode {mode}",
        )

    resolved = outcome(resolve)
    if resolved[0] == "raised":
        return "not resolved", [*log, resolved]
    resolution = resolved[1]
    for name in ("inputs", "device_inputs", "outputs", "returned"):
        found = getattr(resolution, name)
        log.append((list(found), len(found), bool(found)))

    def lay_out() -> Any:
        forwards = kernel.gather(active)[1]
        surroundings = {
            "to_device": kernel.NestMap(str, lambda value: [value, len(stamps)]),
            "detach": kernel.NestMap(Value, lambda value: (repr(value), len(stamps))),
            "grad_mode": (lambda: "before", lambda value: log.append(("set", value)), "needed"),
            "on_failure": [Call(log, "first", fails=True), Call(log, "second")],
        }
        return kernel.KernelPlan(
            table, active, forwards, resolution, **(surroundings if around else {})
        )

    stamps = kernel.StampLog()

    laid_out = outcome(lay_out)
    if laid_out[0] == "raised":
        return "not laid out", [*log, laid_out]
    plan = laid_out[1]
    log.append(plan.spans)
    before = dict(batch)
    missing = plan.missing_key_error(batch)
    log.append(missing and (type(missing), shown(missing)))
    tape = [lambda: Tape(log), "tape"][: 2 * around]
    hooked: list[Any] = []

    def step_timed(batch: Any, state: State) -> Any:
        hooks = [lambda index, w=which: hooked.append((w, index)) for which in ("before", "after")]
        bound = kernel.BoundPlan(plan, state, *tape)
        return bound.step_timed(batch, stamps, 1, *hooks[: 2 * measured])

    def run_bound(batch: Any, state: State) -> Any:
        return kernel.BoundPlan(plan, state, *tape).run(batch)

    def step_bound(batch: Any, state: State) -> Any:
        return kernel.BoundPlan(plan, state, *tape).step(batch)

    for run in (plan.run, plan.step, run_bound, step_bound, step_timed):
        state = new_state(mode=mode, tape="none")
        # spelled out, so that what one run returned is gone before the next one
        result = outcome(lambda run=run, state=state: repr(list(run(batch, state).items())))
        log += [result, repr(state)]
    log += [hooked, [row for _, row, _ in struct.iter_unpack("=dii", stamps.take())]]
    assert batch == before
    return result[1].__name__ if result[0] == "raised" else "ran", log
