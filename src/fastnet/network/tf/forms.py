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
# A key, and an axis of its tensors.
Axis = tuple[str, int]

# Values of these types are shown in reasons.
_SHOWN = (str, bytes, bool, int, float, complex)
_CONSTANT = "; a value that is not a tensor is a constant"


def specs_of(form: Any) -> list[TensorSpec]:
    """List the specs of the tensors of a form, in order."""
    specs: list[TensorSpec] = []

    def note(spec: TensorSpec) -> Shape:
        specs.append(spec)
        return spec.shape

    _map_shapes(form, note)
    return specs


def select_axes(keys: list[str], forms: list[Any], axes_of: AxesOf) -> set[Axis]:
    """Return the axes that `axes_of` selects by the key and the rank of each tensor."""
    return {
        (key, axis)
        for key, form in zip(keys, forms, strict=True)
        for spec in specs_of(form)
        if spec.shape is not None
        for axis in axes_of(key, len(spec.shape))
    }


def with_dynamic_axes(keys: list[str], forms: list[Any], axes: Collection[Axis]) -> list[Any]:
    """Return forms in which some axes are dynamic."""

    def shape_of(key: str, spec: TensorSpec) -> Shape:
        if spec.shape is None:
            return None
        return tuple(
            None if (key, axis) in axes else length for axis, length in enumerate(spec.shape)
        )

    return [
        _map_shapes(form, partial(shape_of, key)) for key, form in zip(keys, forms, strict=True)
    ]


def with_all_axes_dynamic(form: Any) -> Any:
    """Return a form in which every axis of each tensor is dynamic."""
    return _map_shapes(form, lambda spec: None if spec.shape is None else (None,) * len(spec.shape))


def with_dynamic_rows(form: Any) -> Any:
    """Return a form in which sparse, ragged and similar values have any number of rows."""

    def change(part: TensorSpec | CompositeSpec) -> TensorSpec | CompositeSpec:
        if isinstance(part, TensorSpec) or part.kind.distributed:
            return part
        return CompositeSpec(
            part.kind,
            [TensorSpec(spec.type, spec.shape and (None, *spec.shape[1:])) for spec in part.specs],
        )

    return map_form(form, change, as_form=True)


def changed_axes(keys: list[str], forms: list[Any], others: list[Any]) -> set[Axis]:
    """Return the axes whose lengths differ between two lists of forms."""
    return {
        (key, axis)
        for key, form, other in zip(keys, forms, others, strict=True)
        for spec, other_spec in zip(specs_of(form), specs_of(other), strict=True)
        for axis, (length, other_length) in enumerate(
            zip(spec.shape or (), other_spec.shape or (), strict=True)
        )
        if length != other_length
    }


def has_unknown_lengths(forms: list[Any]) -> bool:
    """Return whether a length is unknown, in a graph around the step."""
    specs = (spec for form in forms for spec in specs_of(form))
    return any(spec.shape is None or UNKNOWN in spec.shape for spec in specs)


def describe_difference(keys: list[str], forms: list[Any], traced_forms: list[Any]) -> str:
    """Return why a batch of some forms does not fit those of a trace."""
    for key, form, traced in zip(keys, forms, traced_forms, strict=True):
        if FORMS.matches(traced, form):
            continue
        if FORMS.matches(with_all_axes_dynamic(form), with_all_axes_dynamic(traced)):
            return f"'{key}' {_describe_shape(form, traced)}"
        return f"'{key}' {_describe_value(form, traced)}"
    return "something in the batch is not as before"


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
    return "holds something else than before"


def _map_shapes(form: Any, shape_of: Callable[[TensorSpec], Shape]) -> Any:
    """Return a form with the shapes that a function returns for its specs."""

    def change_spec(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.type, shape_of(spec))

    def change(part: TensorSpec | CompositeSpec) -> TensorSpec | CompositeSpec:
        if isinstance(part, TensorSpec):
            return change_spec(part)
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
