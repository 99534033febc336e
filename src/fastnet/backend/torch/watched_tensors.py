"""Detects changes of tensors that checkpoints do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch

from fastnet.backend.torch._internals import version_of

# Larger tensors, in bytes, are not kept alive to be compared with what has replaced them.
_MAX_BYTES = 2**20


class WatchedTensor(NamedTuple):
    """A tensor as it was at some time, to see later whether it has changed.

    Attributes:
        reference: Refers to the tensor.
        tensor: The tensor, kept alive unless it is large.
        version: How often it was written to.
        kind: Its shape, dtype, device and layout.
    """

    reference: ReferenceType[torch.Tensor]
    tensor: torch.Tensor | None
    version: int
    kind: tuple[Any, ...]


def tensors_in(values: Mapping[str, Any]) -> dict[str, WatchedTensor]:
    """Return the tensors among values as they are now.

    Results of differentiable operations are left out: no later step can differentiate through them.
    """
    return {
        path: WatchedTensor(
            ref(value),
            value if value.nbytes <= _MAX_BYTES else None,
            version_of(value),
            (value.shape, value.dtype, value.device, value.layout),
        )
        for path, value in values.items()
        if isinstance(value, torch.Tensor)
        and not value.is_inference()
        and not torch.nn.parameter.is_lazy(value)
        and value.grad_fn is None
    }


def changed_tensors(before: Mapping[str, WatchedTensor], values: Mapping[str, Any]) -> list[str]:
    """List the paths of tensors that were written to, or replaced by tensors of other values."""
    now = tensors_in(values)
    return [
        path
        for path, watched in before.items()
        if path in now and _differs(watched, values[path], now[path])
    ]


def _differs(watched: WatchedTensor, tensor: torch.Tensor, now: WatchedTensor) -> bool:
    before = watched.reference()
    if before is tensor:
        return watched.version != now.version
    # A tensor of another shape, dtype or device is more likely a cache that was made again.
    if watched.kind != now.kind or tensor.layout != torch.strided:
        return False
    return before is None or not torch.equal(before, tensor)
