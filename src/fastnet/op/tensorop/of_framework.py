"""What an op has of the framework that it runs in: said in its class, put in its place by `build`.

A step asks nobody which framework it is in. An op that no network has built, as one that a program
calls by hand, finds the framework by the first value that it calls such a function with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from fastnet.backend.dispatch import implementation_of
from fastnet.frameworks import part_of

__all__ = ["OfFramework", "WithFramework", "bind", "names_of"]


class OfFramework:
    """A function of the framework, as an attribute of an op's class.

    Args:
        part: What it is called in the framework's package, such as "reduce_mean", or
            "losses.hinge" for one of a module of it.
    """

    def __init__(self, part: str) -> None:
        self.part = part

    def __get__(self, op: Any, cls: type | None = None) -> Any:
        # only asked while the op has no attribute of this name of its own
        return self if op is None else partial(self._call, op)

    def of(self, framework: str, asker: str) -> Any:
        """Find the function of a framework.

        Args:
            framework: The framework's name.
            asker: The op that needs it, for error texts.

        Returns:
            The function.

        Raises:
            MissingPart: If the framework has none.
        """
        return part_of(framework, self.part, asker)

    def _call(self, op: Any, value: Any, *rest: Any, **named: Any) -> Any:
        return implementation_of(op, value, self.part)(value, *rest, **named)


class WithFramework(OfFramework):
    """A function that is the same in all frameworks, but for the functions that it calls.

    Args:
        function: Takes the framework's package, and then what the op calls it with.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__("")
        self.function = function

    def of(self, framework: str, asker: str) -> Any:
        """Return the function with the package of a framework.

        Args:
            framework: The framework's name.
            asker: The op that needs it, for error texts.

        Returns:
            What takes the rest.
        """
        return partial(self.function, super().of(framework, asker))

    def _call(self, op: Any, value: Any, *rest: Any, **named: Any) -> Any:
        return self.function(implementation_of(op, value, ""), value, *rest, **named)


def bind(op: Any, framework: str) -> None:
    """Put the framework's functions into the places that an op's class has for them.

    Args:
        op: The op.
        framework: The framework's name.

    Raises:
        ValueError: If there is no framework of this name.
        MissingPart: If it has no such function.
    """
    cls: Any = type(op)
    found = {name: part.of(framework, cls.__name__) for name, part in _parts_of(cls).items()}
    # past the mark of what a program writes to an op
    vars(op).update(found)


def names_of(cls: type) -> frozenset[str]:
    """List the attributes that `bind` gives to the ops of a class.

    Args:
        cls: The class.

    Returns:
        Their names.
    """
    return frozenset(_parts_of(cls))


@lru_cache(maxsize=256)
def _parts_of(cls: Any) -> dict[str, OfFramework]:
    found: dict[str, OfFramework] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, OfFramework):
                found[name] = value
            else:  # a derived class may have something else in its place
                found.pop(name, None)
    return found
