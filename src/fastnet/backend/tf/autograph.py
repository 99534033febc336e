"""AutoGraph for the code of ops, and the errors of that code without AutoGraph's wrappers."""

from __future__ import annotations

import importlib.util
import linecache
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import source_of_error
from fastnet.errors import add_note
from fastnet.guards import is_user_file


def _folders_of(*packages: str) -> tuple[str, ...]:
    """Return the folders, with a separator at the end, of those packages that are installed."""
    specs = map(importlib.util.find_spec, packages)
    return tuple(
        os.path.join(os.path.dirname(spec.origin), "") for spec in specs if spec and spec.origin
    )


_FASTNET = _folders_of("fastnet")
_LIBRARIES = _FASTNET + _folders_of("tensorflow", "keras", "tf_keras")
# AutoGraph's own code, where TensorFlow has shortened the traceback.
_GENERATED = f"{os.sep}__autograph_generated_file"


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph convert the conditions and loops over tensors in a function, and what it calls.

    Layers of Keras 2 convert their own code while it runs.
    """
    return partial(_converted_call(), function)


@cache
def _converted_call() -> Any:
    # AutoGraph converts what `_call` calls, also where that is a method or a partial.
    return tf.autograph.to_graph(_call)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def with_source_errors(function: Callable[..., Any], convert: bool) -> Callable[..., Any]:
    """Return a function for tracing that raises the errors of its own code, not of AutoGraph.

    With `convert`, AutoGraph converts it.
    """
    traced = with_autograph(function) if convert else function

    def run(*args: Any) -> Any:
        try:
            return traced(*args)
        except Exception as error:
            source = _source_of_error(error)
            if source is error:
                raise
        # Outside, so that the error is not shown as one of AutoGraph's wrappers.
        raise source

    return run


def _source_of_error(error: Exception) -> Exception:
    """Find the error that AutoGraph has wrapped, with notes of where it was raised."""
    unwrapped = source_of_error(error)
    if unwrapped is None:
        return error
    source, stack, layers = unwrapped
    frame = _frame_of_user(stack)
    if frame is not None:
        add_note(source, _line(*frame))
    for layer in layers:
        add_note(source, layer)
    # A layer may have wrapped it before.
    return source if source is error else _source_of_error(source)


def source_of(graph: Any, node: str) -> str | None:
    """Find the line of a program that put a node into a graph."""
    operations = {operation.name: operation for operation in graph.get_operations()}
    while node and node not in operations:
        node = node.rpartition("/")[0]
    if not node:
        return None
    stack = []
    for frame in reversed(operations[node].traceback):
        if frame.filename.startswith(_FASTNET):
            break  # The caller of the network did not create the node.
        stack.append((frame.filename, frame.lineno, frame.name))
    user_frame = _frame_of_user(stack)
    return None if user_frame is None else _line(*user_frame)


_Frame = tuple[str, int, str]
"""The file, line and function of a frame."""


def _frame_of_user(stack: Sequence[_Frame]) -> _Frame | None:
    """Return the innermost frame of the user's program in a stack, which lists inner frames first.

    A library's frame is returned where there are no others: the program may be installed as well.
    """
    frames = [frame for frame in stack if not _is_library_file(frame[0])]
    for frame in frames:
        if is_user_file(frame[0]):
            return frame
    return frames[0] if frames else None


def _is_library_file(filename: str) -> bool:
    """Return whether a file belongs to fastnet or TensorFlow, or was generated."""
    return filename.startswith(_LIBRARIES) or _GENERATED in filename


def _line(filename: str, number: int, function: str) -> str:
    code = linecache.getline(filename, number).strip()
    return f'In the source: File "{filename}", line {number}, in {function or "<lambda>"}: {code}'
