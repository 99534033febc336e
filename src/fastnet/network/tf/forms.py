"""Axes of forms: makes them dynamic, finds changed ones, and describes differences.

A form is the structure of a value, with a spec in place of each tensor; see `fastnet._trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet._trace import FORMS, CompositeSpec, TensorSpec, WithAttributes, map_form
from fastnet.backend.tf.tensor_adapter import UNKNOWN
from fastnet.network.dynamic_axes import AxesOf

Shape = tuple[int | None, ...] | None
# A key, and an axis of all its tensors. In PyTorch an `Axis` is of one tensor, by its index.
Axis = tuple[str, int]

# Values of these types are shown in reasons.
_SHOWN = (str, bytes, bool, int, float, complex)
_CONSTANT = "; a value that is not a tensor is a constant"


def specs_of(form: Any) -> list[TensorSpec]:
    """List the specs of the tensors of a form, in order."""
    specs: list[TensorSpec] = []

    def note(part: TensorSpec | CompositeSpec) -> TensorSpec | CompositeSpec:
        specs.extend([part] if isinstance(part, TensorSpec) else part.specs)
        return part

    map_form(form, note, as_form=True)
    return specs


def _shapes_in(form: Any) -> list[Shape]:
    """List the shapes in a form, in order; a sparse tensor has its own, and not those of parts."""
    shapes: list[Shape] = []

    def note(shape: Shape) -> Shape:
        shapes.append(shape)
        return shape

    _map_shapes(form, note)
    return shapes


def select_axes(keys: list[str], forms: list[Any], axes_of: AxesOf) -> set[Axis]:
    """Return the axes that `axes_of` selects by the key and the rank of each tensor."""
    return {
        (key, axis)
        for key, form in zip(keys, forms, strict=True)
        for shape in _shapes_in(form)
        if shape is not None
        for axis in axes_of(key, len(shape))
    }


def with_dynamic_axes(keys: list[str], forms: list[Any], axes: Collection[Axis]) -> list[Any]:
    """Return forms in which some axes are dynamic."""

    def with_axes(key: str, shape: Shape) -> Shape:
        if shape is None:
            return None
        return tuple(None if (key, axis) in axes else length for axis, length in enumerate(shape))

    return [
        _map_shapes(form, partial(with_axes, key)) for key, form in zip(keys, forms, strict=True)
    ]


def with_all_axes_dynamic(form: Any) -> Any:
    """Return a form in which every axis of each tensor is dynamic."""
    return _map_shapes(form, lambda shape: None if shape is None else (None,) * len(shape))


def with_dynamic_rows(form: Any) -> Any:
    """Return a form in which sparse, ragged and similar values have any number of rows."""

    def with_any_rows(spec: TensorSpec) -> TensorSpec:
        if not spec.shape:
            return spec
        return TensorSpec(spec.type, (None, *spec.shape[1:]))

    def change(part: TensorSpec | CompositeSpec) -> TensorSpec | CompositeSpec:
        if isinstance(part, TensorSpec) or part.kind.distributed:
            return part
        return CompositeSpec(part.kind, [with_any_rows(spec) for spec in part.specs])

    return map_form(form, change, as_form=True)


def changed_axes(keys: list[str], forms: list[Any], other_forms: list[Any]) -> set[Axis]:
    """Return the axes whose lengths differ between two lists of forms."""
    axes: set[Axis] = set()
    for key, form, other_form in zip(keys, forms, other_forms, strict=True):
        for shape, other_shape in zip(_shapes_in(form), _shapes_in(other_form), strict=True):
            lengths = zip(shape or (), other_shape or (), strict=True)
            axes.update(
                (key, axis)
                for axis, (length, other_length) in enumerate(lengths)
                if length != other_length
            )
    return axes


def has_unknown_lengths(forms: list[Any]) -> bool:
    """Return whether a graph around the step leaves a length unknown."""
    shapes = [spec.shape for form in forms for spec in specs_of(form)]
    shapes += [shape for form in forms for shape in _shapes_in(form)]
    return any(shape is None or UNKNOWN in shape for shape in shapes)


def describe_difference(keys: list[str], forms: list[Any], traced_forms: list[Any]) -> str:
    """Return why a batch of some forms does not fit those of a trace."""
    for key, form, traced in zip(keys, forms, traced_forms, strict=True):
        if FORMS.matches(traced, form):
            continue
        if FORMS.matches(with_all_axes_dynamic(form), with_all_axes_dynamic(traced)):
            return f"'{key}' {_describe_shape(form, traced)}"
        return f"'{key}' {_describe_value(form, traced)}"
    return "the batch differs from the traced one"


def _describe_shape(form: Any, traced: Any) -> str:
    if isinstance(form, TensorSpec):
        return f"has the shape {_shape(form)}, where {_shape(traced)} was traced"
    return "holds tensors of other shapes than before"


def _describe_value(form: Any, traced: Any) -> str:
    if isinstance(form, TensorSpec) and isinstance(traced, TensorSpec):
        if form.type != traced.type:
            return f"is of type {_type(form)}, not {_type(traced)} as before"
        return _describe_shape(form, traced)
    if isinstance(form, WithAttributes) and isinstance(traced, WithAttributes):
        if FORMS.matches(with_all_axes_dynamic(traced.form), with_all_axes_dynamic(form.form)):
            return f"has other attributes than before{_CONSTANT}"
        form, traced = form.form, traced.form
    if _kind(form) != _kind(traced):
        return f"is {_kind(form)}, not {_kind(traced)} as before"
    if isinstance(form, _SHOWN):
        return f"is {_short(form)}, not {_short(traced)} as before{_CONSTANT}"
    if isinstance(form, MutableMapping) and form.keys() == traced.keys():
        order, traced_order = list(form), list(traced)
        if order != traced_order:
            return (
                f"has its keys in the order {_short(order)}, not {_short(traced_order)} as before"
            )
    return "has other contents than before"


def _map_shapes(form: Any, change_shape: Callable[[Shape], Shape]) -> Any:
    """Return a form with the shapes that a function returns for the present ones."""

    def change_spec(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.type, change_shape(spec.shape))

    def change(part: TensorSpec | CompositeSpec) -> TensorSpec | CompositeSpec:
        if isinstance(part, TensorSpec):
            return change_spec(part)
        if part.kind.shape is not None:
            return CompositeSpec(part.kind.with_shape(change_shape(part.kind.shape)), part.specs)
        return CompositeSpec(part.kind, [change_spec(spec) for spec in part.specs])

    return map_form(form, change, as_form=True)


def _type(spec: TensorSpec) -> str:
    return str(tf.dtypes.as_dtype(spec.type).name)


def _shape(spec: TensorSpec) -> str:
    if spec.shape is None:
        return "(?)"
    return f"({', '.join(map(_length, spec.shape))})"


def _length(length: int | None) -> str:
    return {None: "any", UNKNOWN: "?"}.get(length, str(length))


def _kind(form: Any) -> str:
    if isinstance(form, TensorSpec):
        return "a tensor"
    if isinstance(form, CompositeSpec):
        return f"a {form.kind.spec.value_type.__name__}"
    if isinstance(form, WithAttributes):
        form = form.form
    return f"a value of type {type(form).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
