"""Files of arrays and JSON in the layout of safetensors, with checksums.

Eight bytes give the length of a JSON header; the header names the arrays with their types, shapes
and offsets; their bytes follow. The metadata of the header holds the content and the checksums.
Nothing in such a file can be executed.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from fastnet.backend.files import reading, require_content

# The type names of safetensors. It has none for complex numbers, which are written as bytes.
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
"""The bytes that a number takes, by the name of its type."""

_LENGTH = struct.Struct("<Q")


class Block(NamedTuple):
    """An array in a file: the name of its type, its shape, and its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: Any


def write_archive(path: str, content: Any, blocks: Mapping[str, Block]) -> None:
    """Write arrays by name, and whatever JSON can hold, to a file."""
    if sys.byteorder != "little":
        raise ValueError("The file is little-endian, but this machine is big-endian.")
    arrays = {
        name: [block.dtype, list(block.shape), zlib.crc32(block.data)]
        for name, block in blocks.items()
    }
    header = _header(json.dumps({"content": content, "blocks": arrays}, allow_nan=False))
    with open(path, "wb") as file:
        file.write(_LENGTH.pack(len(header)))
        file.write(header)
        for block in blocks.values():
            file.write(block.data)


class Archive:
    """The content and the arrays of an open file; a damaged file raises many types of errors."""

    def __init__(self, file: IO[bytes]) -> None:
        size = os.fstat(file.fileno()).st_size
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        header = file.read(min(length, size))
        text = json.loads(header)["__metadata__"]["fastnet"]
        # This compares every byte, since the header contains the checksum of the text.
        if header != _header(text):
            raise ValueError("its header does not match its checksum")
        description = json.loads(text)
        self.content: Any = description["content"]
        self._file = file
        self._arrays: dict[str, Any] = {}
        offset = _LENGTH.size + length
        for name, (dtype, shape, checksum) in description["blocks"].items():
            self._arrays[name] = dtype, tuple(shape), checksum, offset
            offset += _byte_count(dtype, shape)
        if offset != size:
            raise ValueError(f"it should have {offset} bytes, but has {size}")

    def read(self, name: str) -> Block:
        """Read an array into new memory; raise a ValueError if its checksum differs."""
        dtype, shape, checksum, offset = self._arrays[name]
        data = bytearray(_byte_count(dtype, shape))
        self._file.seek(offset)
        self._file.readinto(data)  # type: ignore[attr-defined]
        if zlib.crc32(data) != checksum:
            raise ValueError(f"its '{name}' does not match its checksum")
        return Block(dtype, shape, data)


@contextmanager
def open_archive(path: str, source: str) -> Iterator[Archive]:
    """Open a file in this context; raise a ValueError if the file is damaged."""
    problem = "is damaged, or was not written by fastnet"
    with reading(source, problem, "Load another file, or save it again."):
        require_content(path)
        with open(path, "rb") as file:
            yield Archive(file)


def _header(text: str) -> bytes:
    """Return the header for a text in JSON, which names the arrays."""
    entries: dict[str, Any] = {
        "__metadata__": {"fastnet": text, "crc32": str(zlib.crc32(text.encode()))}
    }
    offset = 0
    for name, (dtype, shape, _) in json.loads(text)["blocks"].items():
        code, size = _CODES[dtype][0], _byte_count(dtype, shape)
        entry = {"dtype": code, "shape": shape} if code else {"dtype": "U8", "shape": [size]}
        entries[name] = {**entry, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries, allow_nan=False).encode()
    return header + b" " * (-len(header) % 8)


def _byte_count(dtype: str, shape: list[int]) -> int:
    return math.prod(shape) * SIZES[dtype]
