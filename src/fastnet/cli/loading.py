"""Loads the networks and batches that the command line names."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from inspect import signature
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from fastnet._nest import map_leaves
from fastnet.backend import to_tensor
from fastnet.cli.arguments import UsageError
from fastnet.errors import nearest_name, shorten
from fastnet.network import BaseNetwork

Batch = Mapping[str, Any]

_DTYPE = "bool|float(16|32|64)|u?int(8|16|32|64)"
_NUMBER = "[1-9][0-9]{0,11}"
_RANDOM = re.compile(
    f"(?P<key>[^:,]+):(?P<dtype>{_DTYPE}):(?P<shape>{_NUMBER}(x{_NUMBER}){{0,31}})"
    f"(:(?P<high>{_NUMBER}))?"
)
_EXAMPLE = "image:float32:32x1x8x8,label:int64:32:10"


def load_network(place: str) -> BaseNetwork:
    """Return the network that "MODULE:NETWORK" names, or that a function of that name returns."""
    value = _call(_find(place, "NETWORK"), BaseNetwork)
    if not isinstance(value, BaseNetwork):
        raise UsageError(
            f"{place!r} is of type {type(value).__name__}. It must be a fastnet Network, or a "
            "function without arguments that returns one."
        )
    return value


def load_batches(source: str, target_type: str, limit: int) -> list[Batch]:
    """Return up to `limit` batches of a framework's tensors.

    `source` is "MODULE:NAME", a file of numpy arrays, or a description of random data.
    """
    try:
        if source.endswith(".npz"):
            batches = [_read_file(source)]
        elif re.fullmatch(rf"{_RANDOM.pattern}.*", source) or source.count(":") > 1:
            batches = [_draw(source)]
        else:
            batches = _load_named_batches(source, limit)
    except UsageError as error:
        raise UsageError(f"--batch: {error}") from None

    def convert(value: Any) -> Any:
        # Other values stay as they are: in TensorFlow a Python number is a constant of the graph.
        is_array = isinstance(value, (np.ndarray, np.generic))
        return to_tensor(value, target_type) if is_array else value

    return [map_leaves(dict(batch), convert) for batch in batches]


def _read_file(path: str) -> Batch:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # A damaged file raises many types of exceptions.
        raise UsageError(f"{path!r} cannot be read as an .npz file of arrays: {error}") from error


def _draw(description: str) -> Batch:
    generator = np.random.default_rng(0)
    batch: dict[str, Any] = {}
    for entry in description.split(","):
        match = _RANDOM.fullmatch(entry.strip())
        if match is None:
            raise UsageError(
                f"{shorten(entry)} is not KEY:DTYPE:SHAPE or KEY:DTYPE:SHAPE:HIGH. Write for "
                f"example {_EXAMPLE}. A dtype is float32, int64, bool and so on."
            )
        dtype, shape = match["dtype"], tuple(map(int, match["shape"].split("x")))
        try:
            if dtype.startswith("float"):
                values: Any = generator.standard_normal(shape).astype(dtype)
            else:
                values = generator.integers(0, int(match["high"] or 2), shape, dtype=dtype)
        except (MemoryError, ValueError) as error:
            raise UsageError(f"{shorten(entry)} cannot be drawn: {error}.") from None
        batch[match["key"]] = values
    return batch


def _load_named_batches(place: str, limit: int) -> list[Batch]:
    value = _call(_find(place, "NAME"), (Mapping, Iterable))
    if isinstance(value, Mapping):
        return [value]
    batches = list(islice(value, limit)) if isinstance(value, Iterable) else []
    if not batches or not all(isinstance(batch, Mapping) for batch in batches):
        raise UsageError(
            f"{place!r} is {shorten(batches or value)}. It must be a batch (a dict), an iterable "
            "of batches, or a function without arguments that returns either."
        )
    return batches


def _find(place: str, kind: str) -> Any:
    """Return the value that "MODULE:NAME" names; MODULE is a module's name or a file."""
    where, _, name = place.rpartition(":")
    if not where or not name or (where.startswith(".") and not where.endswith(".py")):
        raise UsageError(
            f"{place!r} is not MODULE:{kind}: the name of a module or a file, a colon, and a name "
            "in it, such as networks.py:make_network."
        )
    module = _import_file(where) if where.endswith(".py") else _import(where)
    if hasattr(module, name):
        return getattr(module, name)
    # A module such as `np`, or a class, is neither a network nor batches.
    names = [
        candidate
        for candidate, value in vars(module).items()
        if not candidate.startswith("_") and not isinstance(value, (ModuleType, type))
    ]
    near = nearest_name(name, names)
    hint = "" if near is None else f" Did you mean {where}:{near}?"
    raise UsageError(f"{where} has no {name!r}.{hint}")


def _call(value: Any, types: Any) -> Any:
    """Return a value of one of the types, or the result of a function without arguments."""
    if isinstance(value, types) or not callable(value):
        return value
    try:
        signature(value).bind()
    except TypeError as error:
        name = getattr(value, "__name__", type(value).__name__)
        raise UsageError(f"{name} is called without arguments: {error}.") from None
    return value()


def _import(name: str) -> ModuleType:
    _add_path(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that the named one imports may be missing, which is an error of the program.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {name!r} in {os.getcwd()} or among the installed ones. Run this "
            "from the folder that the module is in, or name its file."
        ) from None


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path!r}.")
    folder, name = os.path.split(os.path.realpath(path))
    _add_path(folder)
    # Pickle and AutoGraph look modules up by name.
    module = importlib.import_module(os.path.splitext(name)[0])
    if os.path.realpath(getattr(module, "__file__", None) or "") != os.path.realpath(path):
        raise UsageError(f"{path!r} has the name of another module, {module!r}. Rename it.")
    return module


def _add_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
