"""The batches that `--batch` asks for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from fastnet._nest import map_leaves
from fastnet.backend import to_tensor
from fastnet.cli.loading import call_without_arguments, find, needs_no_arguments
from fastnet.cli.usage import UsageError
from fastnet.errors import nearest_name, shorten

__all__ = ["load_batches"]

Batch = Mapping[str, Any]

_KINDS = (
    "float16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool",
)  # fmt: skip
_SEED = 0
_DRAWN_BYTES = 8  # of each number while it is drawn
# Python itself reads no more than 4,300 digits
_WHOLE = r"[1-9][0-9]{0,99}"
_ARRAYS = (np.ndarray, np.generic)


def load_batches(asked: str, target_type: str, most: int) -> list[Batch]:
    """Return batches of a framework's tensors.

    Args:
        asked: What the user has said: "MODULE:NAME", a file of numpy arrays, or random data.
        target_type: The framework, "torch" or "tf".
        most: How many batches are of use.

    Returns:
        At least one of them.

    Raises:
        UsageError: If `asked` is none of the three, or gives no batches.
    """
    if asked.endswith(".npz"):
        given = [_read_file(asked)]
    elif _is_drawn(asked):
        given = [_draw(asked)]
    else:
        given = _take(asked, most)

    def tensor(value: Any) -> Any:
        # whatever else is in a batch stays what it is, and costs what it costs: a number that is no
        # tensor is a constant of TensorFlow's graph, say
        return to_tensor(value, target_type) if isinstance(value, _ARRAYS) else value

    return [map_leaves(dict(batch), tensor) for batch in given]


def _read_file(path: str) -> Batch:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            batch = dict(arrays)
    except FileNotFoundError:
        raise UsageError(f"--batch: there is no file {path!r}.") from None
    except Exception as error:  # a damaged file raises whatever it leads to
        raise UsageError(
            f"--batch: {path!r} cannot be read as an .npz file of arrays: {error}"
        ) from error
    if not batch:
        raise UsageError(f"--batch: {path!r} has no arrays in it.")
    return batch


def _take(place: str, most: int) -> list[Batch]:
    """Take batches from a module: one, an iterable of them, or what a function gives."""
    try:
        value = find(place, "NAME", _may_give_batches)
        if not isinstance(value, (Mapping, Iterable)) and callable(value):
            value = call_without_arguments(value, place)
    except UsageError as error:
        raise UsageError(
            f"--batch: {error} (Random data are written KEY:TYPE:SHAPE, such as "
            "image:float32:32x1x8x8.)"
        ) from None
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(
            f"--batch: {place!r} is of type {type(value).__name__}. It must be a batch (a dict), "
            "an iterable of batches, or a function without arguments that gives either."
        )
    batches = list(islice(value, most))
    if not batches:
        raise UsageError(f"--batch: {place!r} gives no batches.")
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            raise UsageError(
                f"--batch: item {number} of {place!r} is of type {type(batch).__name__}. A batch "
                "is a dict with a value for each key."
            )
    return batches


def _may_give_batches(value: Any) -> bool:
    if isinstance(value, (type, str)):
        return False
    return isinstance(value, (Mapping, Iterable)) or needs_no_arguments(value)


def _is_drawn(asked: str) -> bool:
    """Return whether random data are asked for: a module has no second colon or type's name."""
    parts = asked.partition(",")[0].split(":")
    return len(parts) > 2 or (len(parts) == 2 and parts[1] in _KINDS)


def _draw(asked: str) -> Batch:
    drawn = np.random.default_rng(_SEED)
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for entry in asked.split(","):
        key, kind, shape, below = _parts(entry.strip())
        if key in batch:
            raise UsageError(f"--batch: the key {shorten(key)} stands there twice.")
        if below is not None and below - 1 > np.iinfo(kind).max:
            raise UsageError(
                f"--batch: {kind} cannot hold all numbers below {shorten(below)}, which "
                f"{shorten(entry)} asks for."
            )
        if math.prod(shape) * _DRAWN_BYTES > _memory():
            raise UsageError(
                f"--batch: {shorten(entry)} asks for more numbers than there is memory for. Ask "
                "for a smaller shape."
            )
        try:
            if kind.startswith("float"):
                batch[key] = drawn.standard_normal(shape).astype(kind)
            else:
                batch[key] = drawn.integers(0, below or 2, shape, dtype=kind)
        except (MemoryError, ValueError) as error:
            raise UsageError(f"--batch: {shorten(entry)} cannot be drawn: {error}.") from None
    return batch


def _memory() -> int:
    """Count the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _parts(entry: str) -> tuple[str, str, tuple[int, ...], int | None]:
    """Read one KEY:TYPE:SHAPE, or KEY:TYPE:SHAPE:BELOW."""
    words = entry.split(":")
    if len(words) not in (3, 4) or not words[0]:
        raise UsageError(
            f"--batch: {shorten(entry)} is not KEY:TYPE:SHAPE, nor KEY:TYPE:SHAPE:BELOW. Write for "
            "example image:float32:32x1x8x8,label:int64:32:10."
        )
    key, kind, size = words[:3]
    if kind not in _KINDS:
        near = nearest_name(kind, _KINDS)
        meant = "" if near is None else f" Did you mean {near!r}?"
        raise UsageError(
            f"--batch: {shorten(kind)}, in {shorten(entry)}, is no type.{meant} It is one of: "
            f"{', '.join(_KINDS)}."
        )
    if not re.fullmatch(f"{_WHOLE}(x{_WHOLE})*", size):
        raise UsageError(
            f"--batch: {shorten(size)}, in {shorten(entry)}, is no shape. Write whole numbers from "
            "1 up with an x between them, such as 32x1x8x8."
        )
    shape = tuple(map(int, size.split("x")))
    return key, kind, shape, _below(words[3], kind, entry) if len(words) == 4 else None


def _below(word: str, kind: str, entry: str) -> int:
    if not kind.startswith(("int", "uint")):
        raise UsageError(
            f"--batch: {shorten(entry)} has a BELOW, which only whole numbers have, not {kind}."
        )
    if not re.fullmatch(_WHOLE, word):
        raise UsageError(
            f"--batch: {shorten(word)}, in {shorten(entry)}, is no whole number from 1 up. Numbers "
            "from 0 to below it are drawn."
        )
    return int(word)
