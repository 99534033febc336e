"""Nested values as JSON and arrays, and back with their types."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastnet.backend.archive import SIZES, Block

__all__ = ["array_from", "decode", "encode"]

_MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set}
_TENSOR, _ARRAY, _SCALAR, _FLOAT = "tensor", "array", "scalar", "float"

Give = Callable[[Any], "Block | None"]
Make = Callable[[Block], Any]


def encode(value: Any, path: str, blocks: dict[str, Block], give: Give) -> Any:
    """Take a nest of plain values and arrays apart.

    Args:
        value: The nest: of None, bools, numbers, strings, lists, tuples, sets, dicts, arrays of
            numpy and tensors.
        path: What it is called; the names of its arrays begin with it.
        blocks: Where the arrays are put, by name.
        give: Gives a tensor of the framework as a block, and None for anything else.

    Returns:
        What JSON can tell, each of its objects a mark for what JSON cannot.

    Raises:
        TypeError: If something else is in it.
        ValueError: If it is nested too deep.

    >>> blocks = {}
    >>> encode({"a": (1, np.ones(2))}, "x", blocks, lambda value: None)
    {'dict': [['a', {'tuple': [1, {'array': 'x/a/1'}]}]]}
    >>> blocks["x/a/1"].shape
    (2,)
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if kind is list:
        return [encode(one, f"{path}/{place}", blocks, give) for place, one in enumerate(value)]
    for mark, cls in _MAPPINGS.items():
        if kind is cls:
            return {
                mark: [
                    [
                        encode(key, f"{path}/key", blocks, give),
                        encode(one, f"{path}/{key}", blocks, give),
                    ]
                    for key, one in value.items()
                ]
            }
    for mark, cls in _SEQUENCES.items():
        # a shape of torch is a tuple too
        if kind is cls or (cls is tuple and kind.__module__ == "torch" and kind.__name__ == "Size"):
            return {mark: encode(list(value), path, blocks, give)}
    mark, block = _TENSOR, give(value)
    if isinstance(value, (np.ndarray, np.generic)):
        mark, block = _ARRAY if isinstance(value, np.ndarray) else _SCALAR, _block_of(value)
    if block is None or block.dtype not in SIZES:
        what = kind.__name__ if block is None else f"{kind.__name__} of {block.dtype}"
        raise TypeError(
            f"'{path}' is of the type {what}, which a checkpoint does not hold. It holds None, "
            "bools, numbers, strings, lists, tuples, sets, dicts, arrays and tensors of numbers."
        )
    name = path
    while name in blocks:
        name += "'"
    blocks[name] = block
    return {mark: name}


def decode(told: Any, make: Mapping[str, Callable[[str], Any]]) -> Any:
    """Put a nest together again.

    Args:
        told: What `encode` returned.
        make: Under "tensor" and "array" what makes them, from the name of a block.

    Returns:
        The nest.

    Raises:
        Exception: If it is not what `encode` returns, which shows in several ways.
    """
    if isinstance(told, list):
        return [decode(one, make) for one in told]
    if not isinstance(told, dict):
        return told
    ((mark, held),) = told.items()
    if mark == _FLOAT:
        return float(held)
    if mark in _MAPPINGS:
        pairs = [(decode(key, make), decode(one, make)) for key, one in held]
        return _MAPPINGS[mark](dict(pairs) if mark == "counter" else pairs)
    if mark in _SEQUENCES:
        return _SEQUENCES[mark](decode(held, make))
    if mark == _SCALAR:
        return make[_ARRAY](held)[()]
    return make[mark](held)


def array_from(block: Block) -> np.ndarray[Any, Any]:
    """Make an array of numpy.

    Args:
        block: What a file has of it; without bytes for one of zeros that takes no memory.

    Returns:
        The array.
    """
    dtype = np.dtype(block.dtype)
    if block.data is None:
        return np.broadcast_to(np.zeros((), dtype), block.shape)
    return np.frombuffer(block.data, dtype).reshape(block.shape)


def _block_of(value: Any) -> Block:
    dtype = value.dtype
    if dtype.name not in SIZES:
        return Block(str(dtype), value.shape, b"")
    array = np.ascontiguousarray(value, dtype if dtype.isnative else dtype.newbyteorder("="))
    return Block(dtype.name, value.shape, array.reshape(-1).view(np.uint8))
