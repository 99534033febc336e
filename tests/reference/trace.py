"""Matches batches with forms and runs traced functions; compares values as lists of parts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastnet.errors import not_a_batch
from fastnet.trace_constants import attribute_tokens, snapshot_of_constant
from tests.reference.nest import parts_of, remade


@dataclasses.dataclass(frozen=True, eq=False)
class TensorSpec:
    type: Any = None
    shape: tuple[int | None, ...] | None = None

    def __repr__(self) -> str:
        return f"TensorSpec({self.type!r}, {self.shape!r})"


class CompositeSpec:
    def __init__(self, kind: Any, specs: Iterable[TensorSpec]) -> None:
        self.kind = kind
        self.specs = tuple(specs)
        for spec in self.specs:
            if not isinstance(spec, TensorSpec):
                raise TypeError(f"specs holds a {type(spec).__name__}, not a TensorSpec")

    def __repr__(self) -> str:
        return f"CompositeSpec({self.kind!r}, {self.specs!r})"


class WithAttributes:
    def __init__(self, form: Any, state: Any) -> None:
        self.form = form
        self.state = state

    def __repr__(self) -> str:
        return f"WithAttributes({self.form!r}, {self.state!r})"


class TensorAdapter:
    def __init__(
        self,
        cls: type,
        type_of: Callable[[Any], Any],
        shape_of: Callable[[Any], Any],
        convert: Callable[[Any], Any],
        flatten: Callable[[Any], Any],
        pack: Callable[[Any, list[Any]], Any],
        others: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
    ) -> None:
        self.cls = cls
        self.type_of = type_of
        self.shape_of = shape_of
        self.convert = convert
        self.flatten = flatten
        self.pack = pack
        self.type_of_others, self.shape_of_others = others or (type_of, shape_of)

    def type_in(self, tensor: Any) -> Any:
        return (self.type_of if type(tensor) is self.cls else self.type_of_others)(tensor)

    def shape_in(self, tensor: Any) -> Any:
        return (self.shape_of if type(tensor) is self.cls else self.shape_of_others)(tensor)

    def form_of(self, value: Any) -> Any:
        tensor = self.tensor_of(value)
        if tensor is not None:
            return TensorSpec(self.type_in(tensor), self.shape_in(tensor))
        flat = None if value is None else self.flatten(value)
        if flat is not None:
            kind, tensors = flat
            return CompositeSpec(kind, [self.form_of(tensor) for tensor in tensors])
        state = snapshot_of_constant(value)
        form = form_around(value, self.form_of)
        return form if state is None else WithAttributes(form, state)

    def matches(self, form: Any, value: Any) -> bool:
        return tensors_of(self, [value], [form]) is not None

    def tensor_of(self, value: Any) -> Any:
        if type(value) is self.cls:
            return value
        return None if value is None or type(value) is str else self.convert(value)

    def match(self, value: Any, form: Any) -> list[Any]:
        """List the tensors of a value; raise Mismatch if it does not match the form."""
        if isinstance(form, TensorSpec):
            tensor = self.tensor_of(value)
            insist(tensor is not None and self.accepts(form, tensor))
            return [tensor]
        if isinstance(form, CompositeSpec):
            flat = self.flatten(value)
            insist(flat is not None)
            kind, tensors = flat
            insist(kind == form.kind and len(tensors) == len(form.specs))
            insist(all(map(self.accepts, form.specs, tensors)))
            return list(tensors)
        if isinstance(form, WithAttributes):
            kept = value if isinstance(value, WithAttributes) else None
            if kept is None:
                insist(type(value) is type(form.form))
            tensors = self.match(kept.form if kept else value, form.form)
            tokens = kept.state[0] if kept else attribute_tokens(value)
            insist(tokens == form.state[0] and form.state[1].is_unchanged())
            return tensors
        insist(type(value) is type(form))
        items = items_of(form)
        if items is None:
            insist(value is form or same(value, form))
            return []
        own = {exactly(key): part for key, part in items_of(value) or ()}
        insist(list(own) == [exactly(key) for key, _ in items])
        return [tensor for key, part in items for tensor in self.match(own[exactly(key)], part)]

    def accepts(self, spec: TensorSpec, tensor: Any) -> bool:
        shape = self.shape_in(tensor)
        if self.type_in(tensor) != spec.type:
            return False
        if spec.shape is None or shape is None:
            return spec.shape is shape
        if len(shape) != len(spec.shape):
            return False
        pairs = zip(shape, spec.shape, strict=True)
        return all(wanted in (None, length) for length, wanted in pairs)


class Mismatch(Exception):
    pass


def insist(fits: bool) -> None:
    if not fits:
        raise Mismatch


def items_of(data: Any) -> list[tuple[Any, Any]] | None:
    """List the keys and parts of a container; None for a set or any other value."""
    return None if isinstance(data, set | frozenset | TensorSpec) else parts_of(data)


def exactly(constant: Any) -> Any:
    """Return a constant with its type, so that 1 and True differ."""
    if isinstance(constant, float | complex):
        return type(constant), repr(constant)
    if isinstance(constant, tuple):
        return type(constant), tuple(map(exactly, constant))
    if isinstance(constant, set | frozenset):
        return type(constant), frozenset(map(exactly, constant))
    return type(constant), constant


def same(value: Any, form: Any) -> bool:
    try:
        equal = value == form
        if type(form) in (float, complex) or isinstance(form, set | frozenset):
            equal = exactly(value) == exactly(form)
        return bool(equal) and getattr(equal, "shape", ()) == ()
    except Exception:
        return False


def form_around(value: Any, fn: Callable[[Any], Any]) -> Any:
    items = items_of(value)
    return kept(value) if items is None else remade(value, items, fn)


def kept(value: Any) -> Any:
    if type(value).__hash__ is not None:
        return value
    try:
        result = copy.copy(value)
    except Exception:
        return value
    return result if type(result) is type(value) and same(value, result) else value


def map_form(form: Any, fn: Callable[[Any], Any], as_form: bool = False) -> Any:
    if isinstance(form, TensorSpec | CompositeSpec):
        return fn(form)
    if isinstance(form, WithAttributes):
        inner = map_form(form.form, fn, as_form)
        return WithAttributes(inner, form.state) if as_form else inner
    return form_around(form, lambda part: map_form(part, fn, as_form))


def tensors_of(adapter: TensorAdapter, values: list[Any], forms: list[Any]) -> list[Any] | None:
    """List the tensors of values, or return None if they do not match the forms."""
    try:
        insist(len(values) == len(forms))
        return [part for pair in zip(values, forms, strict=True) for part in adapter.match(*pair)]
    except Mismatch:
        return None


def values_of(keys: Iterable[str], batch: Mapping[str, Any]) -> list[Any]:
    if not hasattr(batch, "keys"):
        raise not_a_batch(batch)
    for key in keys:
        if key not in batch:
            raise KeyError(key)
    return [batch[key] for key in keys]


def filled(adapter: TensorAdapter, outputs: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """Return outputs with results in their specs."""
    specs: list[TensorSpec | CompositeSpec] = []
    map_form(outputs, specs.append)
    count = sum(len(part.specs) if isinstance(part, CompositeSpec) else 1 for part in specs)
    if len(results) != count:
        raise RuntimeError(
            f"The program returned {len(results)} tensors, but its outputs have {count}."
        )
    tensors: Iterator[Any] = iter(results)

    def replace(part: TensorSpec | CompositeSpec) -> Any:
        if isinstance(part, TensorSpec):
            return next(tensors)
        return adapter.pack(part.kind, [next(tensors) for _ in part.specs])

    return map_form(outputs, replace)  # type: ignore[no-any-return]


FORMS = TensorAdapter(
    TensorSpec,
    type_of=lambda spec: spec.type,
    shape_of=lambda spec: spec.shape,
    convert=lambda form: None,
    flatten=lambda form: (form.kind, form.specs) if isinstance(form, CompositeSpec) else None,
    pack=CompositeSpec,
)


class Signature:
    def __init__(
        self,
        keys: Iterable[str],
        adapter: TensorAdapter,
        inputs: Iterable[Any],
        outputs: dict[str, Any],
    ) -> None:
        self.keys = tuple(keys)
        self.adapter = adapter
        self.inputs = list(inputs)
        self.outputs = dict(outputs)

    def match(self, batch: Mapping[str, Any]) -> list[Any] | None:
        return tensors_of(self.adapter, values_of(self.keys, batch), self.inputs)

    def merge(self, results: Iterable[Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        return {**batch, **filled(self.adapter, self.outputs, list(results))}
