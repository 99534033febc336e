"""Tensors of other frameworks, and arrays, as torch's."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.foreign import NUMPY, adopter, array_of

__all__ = ["ARRAYS", "FOREIGN"]


def _adopt(value: Any) -> torch.Tensor | None:
    array = array_of(value)
    try:
        if array is None:
            # a copy: the other framework may write to the memory that it has handed out
            return torch.from_dlpack(value).clone()  # type: ignore[attr-defined]
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
        return torch.from_numpy(array)
    except Exception:  # an array of strings, of objects
        return None


FOREIGN = adopter((torch.Tensor, *NUMPY), _adopt)
"""Makes tensors of those of other frameworks."""

ARRAYS = adopter((torch.Tensor,), _adopt)
"""Makes tensors of those of other frameworks, and of numpy's arrays."""
