"""Files of arrays and of a text about them, in the layout of safetensors.

A number of 8 bytes says how long a header in JSON is; the header names the arrays, with their
types, shapes and places, and their bytes follow. Nothing in such a file can be executed. All of it
has checksums.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

__all__ = ["SIZES", "Archive", "Block", "write_archive"]

# the types, with how safetensors calls them; of others it is given the bare bytes
_CODES: dict[str, tuple[str | None, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "complex64": (None, 8),
    "complex128": (None, 16),
}
SIZES: dict[str, int] = {name: size for name, (_, size) in _CODES.items()}
"""The types of arrays that a file can hold, by their names, and the bytes that a number takes."""

_LENGTH = struct.Struct("<Q")
# that of safetensors; a file that claims a longer one is none
_LONGEST_HEADER = 100_000_000
_ABOUT, _TEXT, _SUM = "__metadata__", "fastnet", "crc32"


class Block(NamedTuple):
    """An array as it is in a file: the name of its type, its shape, and its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: Any


def write_archive(path: str, content: Any, blocks: Mapping[str, Block]) -> None:
    """Write a file.

    Args:
        path: Where to.
        content: What JSON can tell.
        blocks: The arrays by name.

    Raises:
        ValueError: If there is more to tell than a header can hold, or the machine has its bytes
            in the other order.
        OSError: If it cannot be written.
    """
    if sys.byteorder != "little":
        raise ValueError("The file is little-endian, but this machine is big-endian.")
    facts = {
        name: [block.dtype, list(block.shape), zlib.crc32(block.data)]
        for name, block in blocks.items()
    }
    text = json.dumps({"content": content, "blocks": facts}, allow_nan=False)
    about = {_TEXT: text, _SUM: str(zlib.crc32(text.encode()))}
    header = json.dumps({_ABOUT: about, **_entries(facts)}, allow_nan=False).encode()
    # the bytes behind it begin at a multiple of 8
    header += b" " * (-len(header) % 8)
    if len(header) > _LONGEST_HEADER:
        raise ValueError(
            f"The header would take {len(header)} bytes, but at most {_LONGEST_HEADER} are "
            "allowed. Store large values as arrays."
        )
    with open(path, "wb") as file:
        file.write(_LENGTH.pack(len(header)))
        file.write(header)
        for block in blocks.values():
            file.write(block.data)


class Archive:
    """A file that `write_archive` has written, opened to be read.

    All that it says of its sizes is compared with what it has, before anything else is read.

    Args:
        file: The file, opened for bytes.

    Attributes:
        content: What it tells besides arrays.
        shapes: The type and the shape of each array, by its name.

    Raises:
        ValueError: If it is none, or damaged.
    """

    def __init__(self, file: IO[bytes]) -> None:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise ValueError(f"it has {size} bytes, which is too few")
        (length,) = _LENGTH.unpack(start)
        if length > min(size - _LENGTH.size, _LONGEST_HEADER):
            raise ValueError(f"its header claims {length} bytes, but the file has {size}")
        header = json.loads(file.read(length))
        about = header.pop(_ABOUT)
        text = about[_TEXT]
        if str(zlib.crc32(text.encode())) != about[_SUM]:
            raise ValueError("the checksum of its header is another one")
        told = json.loads(text)
        facts = told["blocks"]
        for name, (dtype, shape, _) in facts.items():
            if dtype not in SIZES or not all(type(one) is int and one >= 0 for one in shape):
                raise ValueError(f"its '{name}' is of the type {dtype!r} and the shape {shape!r}")
        if header != _entries(facts):
            raise ValueError("its header contradicts itself")
        begin = _LENGTH.size + length
        claimed = sum(map(_bytes_of, facts.values()))
        if begin + claimed != size:
            raise ValueError(f"it claims {begin + claimed} bytes, but has {size}")
        self.content: Any = told["content"]
        self.shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape, _) in facts.items()}
        self._file = file
        self._sums = {name: fact[2] for name, fact in facts.items()}
        self._places = {
            name: (begin + first, last - first)
            for name, (first, last) in (
                (name, entry["data_offsets"]) for name, entry in header.items()
            )
        }

    def read(self, name: str) -> Block:
        """Read an array.

        Args:
            name: Its name.

        Returns:
            The array, in memory of its own.

        Raises:
            ValueError: If it is damaged.
        """
        place, length = self._places[name]
        self._file.seek(place)
        data = bytearray(length)
        if self._file.readinto(data) != length or zlib.crc32(data) != self._sums[name]:  # type: ignore[attr-defined]
            raise ValueError(f"the checksum of its '{name}' is another one")
        return Block(*self.shapes[name], data)


def _entries(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what safetensors has in a header of each array."""
    entries, place = {}, 0
    for name, (dtype, shape, _) in facts.items():
        size = _bytes_of((dtype, shape, None))
        code, _ = _CODES[dtype]
        known = {"dtype": code, "shape": shape} if code else {"dtype": "U8", "shape": [size]}
        entries[name] = {**known, "data_offsets": [place, place + size]}
        place += size
    return entries


def _bytes_of(fact: Any) -> int:
    dtype, shape, _ = fact
    return int(math.prod(shape)) * SIZES[dtype]
