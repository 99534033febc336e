"""What ops reach in Python: whatever of it changes counts from the next opening on."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastnet.network import TFNetwork
from fastnet.network.tf import fingerprint
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse
from tests.network.keras_models import KERAS_3, infer, keras, tf
from tests.network.tf_programs import ones, reasons

pytestmark = pytest.mark.tf

# yields ops, and then once after each change
Case = Callable[[], Iterator[Any]]


class Own(TensorOp):
    """Calls a function with itself and the data."""

    held: Any
    table: Any

    def __init__(self, fn: Callable[[Any, Any], Any], **values: Any) -> None:
        super().__init__("x", "y")
        self.fn = fn
        vars(self).update(values)

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return self.fn(self, data)


class Config:
    """An object of the program's, which is no function."""

    def __init__(self, value: float = 2.0) -> None:
        self.value = value
        self.values = [value]
        self.beside = 0


SCALE = 2.0
SCALES = {"one": [2.0]}
CONFIG = Config()
MODULE = types.ModuleType("a_module_of_the_program")


def helper(x: Any) -> Any:
    return x * SCALE


def held(make: Callable[[], Any], read: Callable[[Any], Any], change: Any) -> Case:
    """Return a case of an op that holds a value, which is changed in place."""

    def case() -> Iterator[Any]:
        op = Own(lambda op, x: x * read(op.held), held=make())
        yield op
        change(op.held)
        yield

    return case


def replaced(make: Callable[[], Any], read: Callable[[Any], Any], change: Any) -> Case:
    """Return a case of a value that is replaced by an equal one, which is then changed."""

    def case() -> Iterator[Any]:
        op = Own(lambda op, x: x * read(op.held), held=make())
        yield op
        op.held = make()
        yield
        change(op.held)
        yield
        op.held = make()
        yield

    return case


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 2.0


@dataclasses.dataclass
class SlotsData:
    __slots__ = ("value",)
    value: float


class OwnList(list[float]):
    scale = 2.0


def changes(name: str, value: Any = 3.0) -> Callable[[Any], None]:
    return lambda owner: setattr(owner, name, value)


def puts(key: Any, value: Any = 3.0) -> Callable[[Any], None]:
    return lambda owner: owner.__setitem__(key, value)


def of(*keys: Any) -> Callable[[Any], Any]:
    return lambda value: functools.reduce(lambda one, key: one[key], keys, value)


def moves_first(owner: dict[str, Any]) -> None:
    owner["one"] = owner.pop("one")


def class_list() -> Iterator[Any]:
    class Op(TensorOp):
        values: Any = [2.0]  # noqa: RUF012

        def forward(self, data: Any, state: Any) -> Any:
            return data * self.values[0]

    yield Op("x", "y")
    Op.values[0] = 3.0
    yield
    Op.values = [3.0]
    yield
    Op.values[0] = 4.0
    yield


def class_by_name() -> Iterator[Any]:
    class Settings:
        value = 2.0

    yield LambdaOp(lambda x: x * Settings.value, "x", "y")
    Settings.value = 3.0
    yield


def closure_of_a_method() -> Iterator[Any]:
    scale, scales = 2.0, [1.0]

    def inner(x: Any) -> Any:
        return x * scales[0]

    class Op(TensorOp):
        @property
        def scale(self) -> float:
            return scale

        @staticmethod
        def inner(x: Any) -> Any:
            return inner(x)

        def forward(self, data: Any, state: Any) -> Any:
            return self.inner(data) * self.scale

    yield Op("x", "y")
    scale = 3.0
    yield
    scales[0] = 5.0
    yield


def method_itself() -> Iterator[Any]:
    class Op(TensorOp):
        def scaled(self, x: Any, by: Any = ([2.0],)) -> Any:
            return x * by[0][0]

        def forward(self, data: Any, state: Any) -> Any:
            return self.scaled(data)

    op = Op("x", "y")
    yield op
    scaled: Any = Op.scaled
    scaled.__defaults__[0][0][0] = 3.0
    yield
    scaled.__code__ = (lambda self, x, by=(): x * 7.0).__code__
    yield
    vars(op)["forward"] = lambda data, state: data * 9.0
    yield


def classes_swapped() -> Iterator[Any]:
    class Twice:
        def __call__(self, x: Any) -> Any:
            return x * 2.0

    class Thrice:
        def __call__(self, x: Any) -> Any:
            return x * 3.0

    class Op(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            return data * 4.0

    inner: Any = Twice()
    op: Any = Own(lambda op, x: op.inner(x), inner=inner)
    yield op
    inner.__class__ = Thrice
    yield
    op.__class__ = Op
    yield


def decorated() -> Iterator[Any]:
    scales = [2.0]

    def scaling(forward: Any) -> Any:
        @functools.wraps(forward)
        def run(self: Any, data: Any, state: Any) -> Any:
            return forward(self, data, state) * scales[0]

        return run

    class Op(TensorOp):
        @scaling
        def forward(self, data: Any, state: Any) -> Any:
            return data

    yield Op("x", "y")
    scales[0] = 3.0
    yield


def global_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    op = LambdaOp(lambda x: helper(x) * SCALES["one"][0] * CONFIG.value, "x", "y")
    yield op
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    yield
    monkeypatch.setitem(SCALES, "one", [5.0])
    yield
    SCALES["one"][0] = 7.0
    yield
    monkeypatch.setattr(CONFIG, "value", 11.0)
    yield
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1.0)
    yield
    monkeypatch.setitem(globals(), "CONFIG", Config(13.0))
    yield


def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    vars(MODULE)["scale"] = 2.0
    yield LambdaOp(lambda x: x * MODULE.scale, "x", "y")
    vars(MODULE)["scale"] = 3.0
    yield


def attribute_of_a_function() -> Iterator[Any]:
    def scaled(x: Any) -> Any:
        return x * vars(scaled)["by"][0]

    vars(scaled)["by"] = [2.0]
    yield LambdaOp(scaled, "x", "y")
    vars(scaled)["by"][0] = 3.0
    yield


def cached() -> Iterator[Any]:
    scales = [2.0]

    @functools.cache
    def scale() -> float:
        return scales[0]

    yield LambdaOp(lambda x: x * scale(), "x", "y")
    scales[0] = 3.0
    scale.cache_clear()
    yield


def weakly_referred() -> Iterator[Any]:
    config = Config()
    refers = weakref.ref(config)

    def scaled(x: Any) -> Any:
        one = refers()
        assert one is not None
        return x * one.values[0]

    yield LambdaOp(scaled, "x", "y")
    config.values[0] = 3.0
    yield


def in_context() -> Iterator[Any]:
    scale = contextvars.ContextVar("scale", default=2.0)
    yield LambdaOp(lambda x: x * scale.get(), "x", "y")
    scale.set(3.0)
    yield


def partial_replaced() -> Iterator[Any]:
    def scaled(x: Any, by: Any) -> Any:
        return x * by[0]

    op = LambdaOp(functools.partial(scaled, by=[2.0]), ["x"], "y")
    yield op
    op.fn = functools.partial(scaled, by=[2.0])
    yield
    op.fn.keywords["by"][0] = 3.0
    yield


def two_ops() -> Iterator[Any]:
    first = Own(lambda op, x: x * op.held[0], held=[2.0])
    second = Own(lambda op, x: x * op.held, held=1.0)
    second.inputs = ["y"]
    yield [first, second]
    first.held, second.held = [2.0], 2.0
    yield
    # back to what the second was, and not to what the first was
    first.held[0], second.held = 5.0, 1.0
    yield


def inside() -> Iterator[Any]:
    op = Own(lambda op, x: x * op.held[0], held=[2.0])
    yield Fuse([op])
    op.held = [2.0]
    yield
    op.held[0] = 3.0
    yield


def computed_name() -> Iterator[Any]:
    config = Config()

    def scaled(x: Any) -> Any:
        return x * getattr(config, "val" + "".join(["u", "e"]))

    yield LambdaOp(scaled, "x", "y")
    config.value = 3.0
    yield


large = functools.partial(np.full, 100_000, 2.0, "float32")

CASES: dict[str, Case] = {
    "an equal list": replaced(lambda: [2.0], of(0), puts(0)),
    "an equal dict": replaced(lambda: {"a": [2.0]}, of("a", 0), lambda own: puts(0)(own["a"])),
    "an equal array": replaced(lambda: np.full(3, 2.0, "float32"), of(slice(3)), puts(1)),
    "an equal large array": replaced(large, of(0), puts(0)),
    "an equal set": replaced(lambda: {2.0}, lambda one: float(sum(one)), lambda own: own.add(3.0)),
    "an equal tuple": replaced(lambda: ([2.0],), of(0, 0), lambda own: puts(0)(own[0])),
    "an equal deque": replaced(lambda: collections.deque([2.0]), of(0), puts(0)),
    "an equal bytearray": replaced(lambda: bytearray(b"2"), of(0), puts(0, 3)),
    "an equal partial": partial_replaced,
    "an equal list while something else differs": two_ops,
    "an equal list inside of another op": inside,
    "an equal object": replaced(Config, lambda one: one.value, changes("value")),
    "an object": held(Config, lambda one: one.value, changes("value")),
    "a list in an object": held(Config, lambda one: one.values[0], lambda own: puts(0)(own.values)),
    "an object in a list": held(
        lambda: [Config()], lambda one: one[0].value, lambda own: changes("value")(own[0])
    ),
    "slots": held(Slots, lambda one: one.value, changes("value")),
    "slots of data": held(lambda: SlotsData(2.0), lambda one: one.value, changes("value")),
    "a list with attributes": held(lambda: OwnList([1.0]), lambda one: one.scale, changes("scale")),
    "a UserDict": held(lambda: collections.UserDict(a=2.0), of("a"), puts("a")),
    "a view of a dict": replaced(
        lambda: types.MappingProxyType({"a": [2.0]}), of("a", 0), lambda own: puts(0)(own["a"])
    ),
    "an array of Python": held(lambda: array.array("d", [2.0]), of(0), puts(0)),
    "an array of objects": held(lambda: np.array([2.0, None]), of(0), puts(0)),
    "a large list of lists": held(
        lambda: [[2.0] for _ in range(2000)], of(7, 0), lambda own: puts(0)(own[7])
    ),
    "the order of a dict": held(
        lambda: {"one": 2.0, "two": 3.0}, lambda one: next(iter(one.values())), moves_first
    ),
    "a weak reference": weakly_referred,
    "a list of a class": class_list,
    "a class by its name": class_by_name,
    "closures of methods": closure_of_a_method,
    "a method": method_itself,
    "classes swapped": classes_swapped,
    "a decorator": decorated,
    "an attribute of a function": attribute_of_a_function,
    "a cache": cached,
    "a context variable": in_context,
    "an attribute by a computed name": computed_name,
}


def follow(case: Iterator[Any], compiled: bool) -> TFNetwork:
    """Check that a network does after each change what it does op by op."""
    network = TFNetwork(next(case), compile=compiled)
    done = False
    while not done:
        wanted = infer(network, {"x": ones(3)}, eager=True)["y"]
        for _ in range(2):
            assert np.array_equal(infer(network, {"x": ones(3)})["y"], wanted)
        done = next(case, case) is case
    return network


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "compiled"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_changes(case: Case, compiled: bool) -> None:
    follow(case(), compiled)


@pytest.mark.parametrize("case", [global_values, module], ids=["values", "module"])
def test_globals(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = follow(case(monkeypatch), False)
    assert reasons(network)[1].startswith("op 0, LambdaOp (x -> y), has another `fn.")


def test_the_reason_names_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    network = TFNetwork(LambdaOp(lambda x: x * SCALE, "x", "y"))
    infer(network, {"x": ones(1)})
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    infer(network, {"x": ones(1)})
    assert reasons(network)[1:] == ["op 0, LambdaOp (x -> y), has another `fn.SCALE`"]


def test_settings_of_keras() -> None:
    if not KERAS_3:
        pytest.skip("tf.keras has the settings of Keras 2")
    network = TFNetwork(
        LambdaOp(lambda x: tf.cast(x * keras.backend.epsilon(), "float64"), "x", "y")
    )
    before = keras.backend.epsilon()
    try:
        for value in (before, 0.5, before):
            keras.backend.set_epsilon(value)
            assert infer(network, {"x": ones(1)})["y"].numpy() == np.float32(value)
    finally:
        keras.backend.set_epsilon(before)
    assert reasons(network)[1:] == ["Keras has another `epsilon`"]


class Trainer:
    """Whatever holds a network and goes on in itself: ops read little of it."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.history: list[float] = []
        self.network = TFNetwork(LambdaOp(lambda x: x * self.scale, "x", "y"))

    def fit(self) -> None:
        for epoch in range(1, 4):
            self.epoch = epoch
            with self.network(mode="train", epoch=epoch):
                self.history.append(float(self.network.run_step({"x": ones()})["y"]))


def test_what_no_op_reads_is_no_change() -> None:
    trainer = Trainer()
    trainer.fit()
    assert len(trainer.network.traces) == 1
    trainer.scale = 3.0
    trainer.fit()
    assert trainer.history == [2.0] * 3 + [3.0] * 3
    assert len(trainer.network.traces) == 2


def test_equal_containers_at_each_opening_are_no_change() -> None:
    op = Own(lambda op, x: x * op.held[0] * op.table[0], held=[2.0], table=large())
    network = TFNetwork(op)
    for _ in range(4):
        op.held, op.table = [2.0], large()
        infer(network, {"x": ones(1)})
    assert len(network.traces) == 1


def test_too_much_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_MOST_NODES", 20)
    op = Own(lambda op, x: x * op.held[0][0], held=[[2.0] for _ in range(50)])
    network = TFNetwork(op)
    with pytest.warns(UserWarning, match=r"lead to more than 20000 objects"):
        infer(network, {"x": ones(1)})
