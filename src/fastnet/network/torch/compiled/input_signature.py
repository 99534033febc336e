"""The values that graphs accept and return, and how their signatures are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from fastnet._nest import leaves_of
from fastnet._trace import GuardedReaders, Signature, TensorAdapter, TensorSpec
from fastnet.errors import shorten
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Values other than tensors that an op may write: constants, unless they come from the batch.
_ATOMS = (str, bytes, bool, int, float, complex, type(None))
BY_VALUE = (*_ATOMS, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


def _nothing(value: Any, tensors: Any = None) -> None:
    return None


# Tensors with other strides, or a negative bit, have another signature.
_type_of = GuardedReaders(
    attrgetter("layout"),
    torch.strided,
    attrgetter("dtype", "device", "requires_grad"),
    torch.Tensor.stride,
    torch.Tensor.is_neg,
)
# The names of what `_type_of` reads, for messages. The first three are in a tuple of their own.
_TYPE_PARTS = ("dtype", "device", "requires_grad", "the strides", "the negative bit")


class _AnyStrides:
    """Takes the place of strides in the type of a slot, and equals those of every tensor.

    The strides are compared by `has_other_strides` instead.
    """

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "those of a contiguous tensor"


_ANY_STRIDES = _AnyStrides()


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that torch gives a new tensor of a shape."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * max(length, 1))
    return tuple(reversed(strides)) if len(shape) else ()


def is_contiguous(slot: TensorSpec) -> bool:
    """Return whether the strides of a slot follow from its shape."""
    if len(slot.type) < 3:
        return False  # Tensors of other layouts have no strides.
    _, strides, _ = slot.type
    if strides is _ANY_STRIDES:
        return True
    # Only axis 0 may be open in a slot that has its strides: they do not depend on its length.
    shape = [length or 0 for length in slot.shape or ()]
    return bool(strides == contiguous_strides(shape))


def without_strides(slot: TensorSpec, shape: tuple[int | None, ...] | None) -> TensorSpec:
    """Return a slot with another shape that matches any strides."""
    members, _, is_negative = slot.type
    return TensorSpec((members, _ANY_STRIDES, is_negative), shape)


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


TENSOR_ADAPTER = TensorAdapter(torch.Tensor, _type_of, _shape_of, _nothing, _nothing, _nothing)
"""Reads the tensors of a batch."""


class _NoTensor:
    """A class without instances, so that no value is treated as a tensor."""


def _as_tensor(value: Any) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None


FAKE_TENSOR_ADAPTER = TensorAdapter(_NoTensor, _nothing, _nothing, _as_tensor, _nothing, _nothing)
"""Reads the outputs of ops during a trace, where tensors are fake."""


def require_plain(key: str, value: Any, device: torch.device, reader: int | None) -> None:
    """Refuse a value of the batch that a graph cannot take; `reader` is the index of its op."""
    for leaf in leaves_of(value, builtin_only=True):
        kind = type(leaf)
        if kind is torch.Tensor:
            if (
                leaf.requires_grad
                or leaf.layout is not torch.strided
                or leaf.is_quantized
                or leaf.is_complex()
                or leaf.is_neg()
                or leaf.device != device
            ):
                traits = {
                    ", that requires gradients": leaf.requires_grad,
                    ", with the negative bit": leaf.is_neg(),
                }
                raise Uncapturable(
                    f"the batch's '{key}' is a tensor of {leaf.dtype}, {leaf.layout}, on "
                    f"{leaf.device}{''.join(trait for trait, holds in traits.items() if holds)}",
                    reader,
                )
        elif kind not in _ATOMS:
            raise Uncapturable(
                f"the batch's '{key}' is, or holds, a value of type {kind.__name__}", reader
            )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """List the tensors among the leaves of a value."""
    return [leaf for leaf in leaves_of(value, builtin_only=True) if isinstance(leaf, torch.Tensor)]


def first_difference(signature: Signature, batch: Mapping[str, Any]) -> str:
    """Describe the first value of a batch that differs from a signature, or return ""."""
    for key, form in zip(signature.keys, signature.inputs, strict=True):
        batch_form = TENSOR_ADAPTER.form_of(batch[key])
        if isinstance(form, TensorSpec) and isinstance(batch_form, TensorSpec):
            if not _are_lengths_equal(form.shape, batch_form.shape):
                shape, expected_shape = _format(batch_form.shape), _format(form.shape)
                return f"'{key}' has the shape {shape}, not {expected_shape}"
            if len(batch_form.type) < len(form.type):  # Programs take strided tensors alone.
                return f"'{key}' has the layout {batch_form.type[0]}, not {torch.strided}"
            parts = zip(_TYPE_PARTS, _type_parts(batch_form), _type_parts(form), strict=True)
            for name, part, expected in parts:
                if expected != part:
                    return f"'{key}' has {name} {part}, not {expected}"
        elif not TENSOR_ADAPTER.matches(form, batch[key]):
            return f"'{key}' is, or holds, {shorten(batch[key])}"
    return ""


def _type_parts(slot: TensorSpec) -> list[Any]:
    """List the parts of a slot's type, in the order of `_TYPE_PARTS`."""
    members, strides, is_negative = slot.type
    return [*members, strides, is_negative]


def _are_lengths_equal(
    open_shape: tuple[int | None, ...] | None, shape: tuple[int | None, ...] | None
) -> bool:
    """Return whether two shapes are equal, except for lengths that are open in the first."""
    if open_shape is None or shape is None or len(open_shape) != len(shape):
        return open_shape == shape
    return all(
        expected in (None, length) for expected, length in zip(open_shape, shape, strict=True)
    )


def _format(shape: tuple[int | None, ...] | None) -> str:
    lengths = ["any" if length is None else str(length) for length in shape or ()]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
