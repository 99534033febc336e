"""Convert nested values to JSON and arrays, and back with their types."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fastnet.backend.archive import SIZES, Block

_MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set}


def encode(
    value: Any,
    path: str,
    blocks: dict[str, Block],
    to_block: Callable[[Any], Block | list[Any] | None],
) -> Any:
    """Convert a nest to JSON, in which each dict marks a type that JSON lacks, and to `blocks`.

    `to_block` converts a tensor of the framework, a sparse one to a list of its parts, and returns
    None for anything else.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    part = partial(encode, blocks=blocks, to_block=to_block)
    if kind is list:
        return [part(item, f"{path}/{index}") for index, item in enumerate(value)]
    for mark, cls in _MAPPINGS.items():
        if kind is cls:
            return {
                mark: [
                    [part(key, f"{path}/{key}/key"), part(item, f"{path}/{key}")]
                    for key, item in value.items()
                ]
            }
    for mark, cls in _SEQUENCES.items():
        # torch.Size is a tuple too.
        if kind is cls or (cls is tuple and kind.__module__ == "torch" and kind.__name__ == "Size"):
            return {mark: part(list(value), path)}
    mark, block = "tensor", to_block(value)
    if isinstance(block, list):
        return {"sparse": part(block, path)}
    if isinstance(value, (np.ndarray, np.generic)):
        mark = "array" if isinstance(value, np.ndarray) else "scalar"
        block = _array_to_block(value)
    if block is None or block.dtype not in SIZES:
        described = kind.__name__ if block is None else f"{kind.__name__} of {block.dtype}"
        raise TypeError(
            f"'{path}' is of the type {described}, which a checkpoint does not hold. It holds "
            "None, bools, real numbers, strings, lists, tuples, sets, dicts, numeric arrays and "
            "tensors."
        )
    name = path
    while name in blocks:
        name += "'"
    blocks[name] = block
    return {mark: name}


def decode(encoded: Any, make: Mapping[str, Callable[..., Any]]) -> Any:
    """Convert the result of `encode` back.

    `make["tensor"]` and `make["array"]` read arrays; `make["sparse"]` makes a sparse tensor.
    """
    if isinstance(encoded, list):
        return [decode(item, make) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((mark, content),) = encoded.items()
    if mark == "float":
        return float(content)
    if mark in _MAPPINGS:
        pairs = [(decode(key, make), decode(item, make)) for key, item in content]
        # Counter counts the elements of a list.
        return _MAPPINGS[mark](dict(pairs) if mark == "counter" else pairs)
    if mark in _SEQUENCES:
        return _SEQUENCES[mark](decode(content, make))
    if mark == "sparse":
        return make["sparse"](*decode(content, make))
    if mark == "scalar":
        return make["array"](content)[()]
    return make[mark](content)


def block_to_array(block: Block) -> np.ndarray[Any, Any]:
    """Make an array of numpy that shares the memory of a block."""
    return np.frombuffer(block.data, np.dtype(block.dtype)).reshape(block.shape)


def _array_to_block(value: Any) -> Block:
    dtype = value.dtype
    if dtype.name not in SIZES:
        return Block(str(dtype), value.shape, b"")
    array = np.ascontiguousarray(value, dtype if dtype.isnative else dtype.newbyteorder("="))
    return Block(dtype.name, value.shape, array.reshape(-1).view(np.uint8))
