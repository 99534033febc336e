"""The values that graphs accept and return, and how their signatures are compared."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from fastnet._nest import leaves_of
from fastnet._trace import Readings, TensorKind
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Values other than tensors that an op may write: constants, unless they come from the batch.
_ATOMS = (str, bytes, bool, int, float, complex, type(None))
BY_VALUE = (*_ATOMS, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


def _nothing(value: Any, tensors: Any = None) -> None:
    return None


# Tensors with other strides, or a negative bit, have another signature.
_type_of = Readings(
    attrgetter("layout"),
    torch.strided,
    attrgetter("dtype", "device", "requires_grad"),
    torch.Tensor.stride,
    torch.Tensor.is_neg,
)


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


KIND = TensorKind(torch.Tensor, _type_of, _shape_of, _nothing, _nothing, _nothing)
"""Reads the tensors of a batch."""


class _NoTensor:
    """A class without instances, so that no value is treated as a tensor."""


def _as_tensor(value: Any) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None


KIND_OF_FAKES = TensorKind(_NoTensor, _nothing, _nothing, _as_tensor, _nothing, _nothing)
"""Reads the outputs of ops during a trace, where tensors are fake."""


def require_plain(key: str, value: Any, device: torch.device, reader: int | None) -> None:
    """Refuse a value of the batch that a graph cannot take; `reader` is the index of its op."""
    for leaf in leaves_of(value, plain=True):
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
                raise Uncapturable(
                    f"the batch's '{key}' is a tensor of {leaf.dtype}, {leaf.layout}, on "
                    f"{leaf.device}" + (", that requires gradients" if leaf.requires_grad else ""),
                    reader,
                )
        elif kind not in _ATOMS:
            raise Uncapturable(
                f"the batch's '{key}' is, or holds, a value of type {kind.__name__}", reader
            )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """List the tensors among the leaves of a value."""
    return [leaf for leaf in leaves_of(value, plain=True) if isinstance(leaf, torch.Tensor)]
