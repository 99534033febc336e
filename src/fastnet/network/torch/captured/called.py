"""What captured steps read of classes of libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from fastnet.backend.readers import ABSENT

__all__ = ["Called", "methods_run"]


class Called:
    """What is read of classes of libraries, which a program may put its own in the place of.

    Args:
        classes: The classes of modules.
        attributes: The names of attributes that are read, perhaps of something else.

    Attributes:
        classes: These classes, and that of tensors.
        attributes: The names of those that one of the classes has.
        names: How each of them is told of, for each of the classes.
    """

    def __init__(self, classes: Iterable[Any], attributes: Iterable[str]) -> None:
        self.classes = sorted(classes, key=lambda cls: str(cls.__qualname__))
        self.classes.append(torch.Tensor)
        there = {name for cls in self.classes for base in cls.__mro__ for name in vars(base)}
        self.attributes = "forward", "__call__", *sorted(there.intersection(attributes))
        self.names = [f"{cls.__name__}.{one}" for cls in self.classes for one in self.attributes]

    def read(self) -> list[Any]:
        """List it."""
        return [_read_of(cls, name) for cls in self.classes for name in self.attributes]


def _read_of(cls: type, name: str) -> Any:
    """Return what a class has by a name, and is not bound to it."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), ABSENT)


def methods_run(classes: Iterable[type], has_run: Callable[[CodeType], bool]) -> Iterator[str]:
    """Go through the names of methods of modules that have run, and that not all modules have.

    Args:
        classes: The classes of the modules.
        has_run: Tells of code whether it has run.

    Yields:
        The names.
    """
    for base in {base for cls in classes for base in cls.__mro__} - {*torch.nn.Module.__mro__}:
        for name, part in vars(base).items():
            if isinstance(part, FunctionType) and has_run(part.__code__):
                yield name
