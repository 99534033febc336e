"""A framework of tensors that compute nothing, and random batches of them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.containers import Ice, Labels, Plain, Point, Slotted, SlottedIce
from tests.kernel import nests
from tests.reference import Kernel


class Tensor:
    """A plain tensor: nothing but its type and its shape."""

    def __init__(
        self, type: str = "float", *lengths: int, shape: tuple[int, ...] | None = ()
    ) -> None:
        self.type = type
        self.shape = lengths if lengths else shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type!r}, shape={self.shape!r})"


class Derived(Tensor):
    """A tensor that is not plain."""


class Array:
    """What stands for a tensor."""

    def __init__(self, type: str = "float", *lengths: int) -> None:
        self.tensor = Tensor(type, *lengths)

    def __repr__(self) -> str:
        return f"Array({self.tensor!r})"


class Pair:
    """What is made of several tensors."""

    def __init__(self, kind: str, tensors: list[Tensor]) -> None:
        self.kind = kind
        self.tensors = tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pair({self.kind!r}, {self.tensors!r})"


class Store(MutableMapping[Any, Any]):
    """A mapping that keeps its items in a dict, which a plain copy of it would share."""

    def __init__(self, items: Any, name: str = "") -> None:
        self.items_of_its_own = dict(items)
        self.name = name

    def __getitem__(self, key: Any) -> Any:
        return self.items_of_its_own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items_of_its_own[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.items_of_its_own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_of_its_own)

    def __len__(self) -> int:
        return len(self.items_of_its_own)

    def __repr__(self) -> str:
        return f"Store({self.items_of_its_own!r})"


def convert(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    return value.tensor if isinstance(value, Array) else None


def flatten(value: Any) -> tuple[str, list[Tensor]] | None:
    return (value.kind, list(value.tensors)) if isinstance(value, Pair) else None


class Traced(NamedTuple):
    """A function of tensors, and the forms of its inputs and outputs."""

    call: Callable[[list[Any]], Any]
    inputs: list[Any]
    outputs: dict[Any, Any]


class Step:
    """Runs steps by traced functions, and traces one for a batch that no signature matches."""

    def __init__(
        self,
        kernel: Kernel,
        keys: Iterable[Any],
        adapter: Any,
        trace: Callable[[list[Any]], Traced],
        context: Iterable[str] = (),
    ) -> None:
        self.kernel, self.keys, self.adapter, self.trace = kernel, list(keys), adapter, trace
        self.context = list(context)
        # Signatures and functions, the last used first.
        self.programs: list[tuple[Any, Callable[[list[Any]], Any]]] = []

    def step(self, batch: Any, state: Any) -> Any:
        found = self.find(batch)
        if found is None:
            traced = self.trace([batch[key] for key in self.keys])
            signature = self.kernel.Signature(
                self.keys, self.adapter, traced.inputs, traced.outputs
            )
            self.programs.insert(0, (signature, traced.call))
            del self.programs[16:]
            found = self.find(batch)
        if found is None:
            raise RuntimeError("the batch does not match what was traced for it")
        signature, call, tensors = found
        return signature.merge(call([*(state[key] for key in self.context), *tensors]), batch)

    def find(self, batch: Any) -> tuple[Any, Callable[[list[Any]], Any], list[Any]] | None:
        for place, (signature, call) in enumerate(self.programs):
            tensors = signature.match(batch)
            if tensors is not None:
                self.programs.insert(0, self.programs.pop(place))
                return signature, call, tensors
        return None

    def fits(self, batch: Any) -> bool:
        return self.find(batch) is not None


class Framework:
    """Traces by leaving the first axis of each tensor open, and logs what it traces and calls.

    What it traces returns tensors that it was given: outputs are described by what each key
    returns, "first" for the first tensor of all, or the key of an input for its whole value.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.adapter = self.new_adapter()
        self.traced: list[list[Any]] = []
        self.called: list[list[Any]] = []

    def new_adapter(self, **callbacks: Any) -> Any:
        given: dict[str, Any] = {
            "type_of": lambda tensor: tensor.type,
            "shape_of": lambda tensor: tensor.shape,
            "convert": convert,
            "flatten": flatten,
            "pack": Pair,
        }
        return self.kernel.TensorAdapter(Tensor, **{**given, **callbacks})

    def step(
        self,
        keys: list[Any],
        outputs: dict[Any, Any] | None = None,
        context: list[str] | None = None,
        adapter: Any = None,
    ) -> Step:
        kernel, context, adapter = self.kernel, context or [], adapter or self.adapter

        def trace(values: list[Any]) -> Traced:
            self.traced.append(list(values))
            forms = [kernel.map_form(adapter.form_of(value), self.open, True) for value in values]
            places: dict[Any, Any] = {}
            taken: list[int] = []
            counts = [count_of(kernel, form) for form in forms]
            for key, source in (outputs or {}).items():
                if source == "first":
                    places[key] = kernel.TensorSpec()
                    taken.append(0)
                    continue
                index = keys.index(source)
                start = len(context) + sum(counts[:index])
                places[key] = forms[index]
                taken += range(start, start + counts[index])

            def call(tensors: list[Any]) -> list[Any]:
                self.called.append(tensors)
                return [tensors[place] for place in taken]

            return Traced(call, forms, places)

        return Step(kernel, keys, adapter, trace, context)

    def open(self, part: Any) -> Any:
        if isinstance(part, self.kernel.CompositeSpec):
            return self.kernel.CompositeSpec(part.kind, map(self.open, part.specs))
        shape = (None, *part.shape[1:]) if part.shape else part.shape
        return self.kernel.TensorSpec(part.type, shape)

    def step_count(self, step: Any, batch: Any) -> int:
        """Run a step; say how often was traced by then."""
        step.step(batch, {})
        return len(self.traced)


def bare(kernel: Kernel, form: Any) -> Any:
    """Take off a form what it says of attributes."""
    return kernel.map_form(form, lambda part: part)


def count_of(kernel: Kernel, form: Any) -> int:
    found: list[Any] = []
    kernel.map_form(form, found.append)
    return sum(len(part.specs) if isinstance(part, kernel.CompositeSpec) else 1 for part in found)


def shapes_of(form: Any) -> Any:
    """A form, or a nest of tensors, with (type, shape) for each tensor."""
    if isinstance(form, dict):
        return {key: shapes_of(part) for key, part in form.items()}
    if isinstance(form, tuple) and hasattr(form, "_make"):
        return form._make(map(shapes_of, form))
    if isinstance(form, list | tuple):
        return type(form)(map(shapes_of, form))
    return (form.type, form.shape) if hasattr(form, "shape") else form


def types_of(data: Any) -> Any:
    """A nest spelled out with the classes of all that it holds."""
    if isinstance(data, MutableMapping):
        return type(data), [(key, types_of(part)) for key, part in data.items()]
    return (
        nests.shape(data)
        if not isinstance(data, list | tuple)
        else (type(data), list(map(types_of, data)))
    )


types_ = st.sampled_from(["float", "int"])
lengths = st.lists(st.integers(1, 2), max_size=2).map(tuple)
tensors = st.builds(Tensor, types_, shape=lengths | st.none()) | st.builds(
    lambda type, shape: Tensor(type, shape=shape), types_, lengths
)
leaves = st.one_of(
    tensors,
    st.builds(Derived, types_, shape=lengths),
    st.builds(lambda type, shape: Array(type, *shape), types_, lengths),
    st.builds(Pair, st.sampled_from("pq"), st.lists(tensors, max_size=2)),
)
constants = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]).map(lambda number: float(str(number))),
    st.sampled_from([0j, 1 + 0j, complex("nan")]),
    st.sampled_from(["a", "b", b"a", int, len]),
    st.frozensets(st.integers(0, 1) | st.booleans(), max_size=2),
    st.sets(st.sampled_from([1, True, 1.0, (1,), (True,)]), max_size=1),
    st.sampled_from([b"", b"a"]).map(bytearray),
)


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(parts, max_size=2)
    keyed = st.dictionaries(st.sampled_from(["a", "b", 1, True, (1,)]), parts, max_size=2)
    return st.one_of(
        items,
        items.map(tuple),
        items.map(Labels),
        st.builds(Point, parts, parts),
        keyed,
        keyed.map(nests.Row),
        keyed.map(collections.OrderedDict),
        keyed.map(lambda items: collections.defaultdict(list, items)),
        keyed.map(collections.UserDict),
        keyed.map(Store),
        *(st.builds(cls, parts, parts) for cls in (Plain, Ice, Slotted, SlottedIce)),
    )


values = st.recursive(leaves | constants, containers, max_leaves=4)
batches = st.lists(
    st.fixed_dictionaries({"x": values, "y": leaves}, optional={"other": constants}),
    min_size=1,
    max_size=6,
)
