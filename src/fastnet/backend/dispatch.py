"""Which framework's functions a value needs, found by its type."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from types import FunctionType
from typing import Any, TypeVar

from fastnet.frameworks import FRAMEWORKS, MissingPart, framework_named, part_in
from fastnet.util.lazy import import_module

__all__ = [
    "BY_VALUE",
    "dispatched",
    "dispatched_to",
    "get_backend",
    "implementation",
    "implementation_of",
]

F = TypeVar("F", bound=Callable[..., Any])

_by_type: dict[type, Any] = {}
# what each of the functions below has found, by the types of what they were called with
_found: list[dict[type, Any]] = []


def implementation(value: object) -> Any:
    """Find the functions for a tensor.

    Args:
        value: A tensor or an array.

    Returns:
        The package of `fastnet.backend` that speaks the value's framework.

    Raises:
        ValueError: If the value is of no framework that fastnet knows.

    >>> import numpy as np
    >>> implementation(np.ones(2)).__name__
    'fastnet.backend.numpy'
    """
    try:
        return _by_type[type(value)]
    except KeyError:
        return _find(value)


def get_backend(framework: str) -> Any:
    """Return the package of `fastnet.backend` for a framework: "torch", "tf" or "np".

    >>> get_backend("np").__name__
    'fastnet.backend.numpy'
    """
    return import_module(framework_named(framework).package)


class _ByValue:
    """The backend of an op that was not built: the first argument decides which package runs."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(value: Any, *rest: Any, **named: Any) -> Any:
            package = implementation(value)
            function = getattr(package, name, None)
            if function is None:
                raise TypeError(
                    f"{name} runs on tensors of torch or TensorFlow, but got an array of type "
                    f"{type(value).__name__}. Convert it to a tensor first."
                )
            return function(value, *rest, **named)

        return call


BY_VALUE: Any = _ByValue()


def dispatched(function: F) -> F:
    """Make a function of the tensors of any framework of its signature and docstring.

    What it does stands in the packages of the frameworks: in each a function of its name with its
    parameters, which has their defaults from here.

    Args:
        function: The signature and docstring; the framework is that of the first argument.

    Returns:
        The function.
    """
    made: F = _dispatch(function, function.__name__, next(iter(signature(function).parameters)))
    return made


def dispatched_to(module: str, by: str) -> Callable[[F], F]:
    """Do as `dispatched` does, for functions whose bodies are in a module of the packages.

    Args:
        module: The module's name.
        by: The parameter whose framework it is.

    Returns:
        The decorator.
    """

    def decorate(function: F) -> F:
        made: F = _dispatch(function, f"{module}.{function.__name__}", by)
        return made

    return decorate


_CALL = """\
def {name}({parameters}):
    try:
        body = bodies[type({by})]
    except KeyError:
        body = find({by})
    return body({parameters})
"""


def _dispatch(function: Any, part: str, by: str) -> Any:
    bodies: dict[type, Any] = {}
    _found.append(bodies)

    def find(value: object) -> Any:
        package = implementation(value).__name__
        body = part_in(package, part, "framework", f"fastnet.backend.{function.__name__}")
        bodies[type(value)] = body = _with_defaults(body, function)
        return body

    # written out: to hand any arguments on would take longer than to find what they are for
    source = _CALL.format(
        name=function.__name__, parameters=", ".join(signature(function).parameters), by=by
    )
    file = f"<fastnet.backend.{part}>"
    # where AutoGraph and tracebacks read it
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    made: dict[str, Any] = {"bodies": bodies, "find": find}
    exec(compile(source, file, "exec"), made)
    call = made[function.__name__]
    call.__defaults__ = function.__defaults__
    return update_wrapper(call, function)


def _with_defaults(body: Any, function: Any) -> Any:
    """Return a function with the defaults of another one, which has the same first parameters."""
    defaults = function.__defaults__
    if defaults is None or not isinstance(body, FunctionType):
        return body
    more = body.__code__.co_argcount - function.__code__.co_argcount
    own = body.__defaults__ or ()
    made = FunctionType(
        body.__code__,
        body.__globals__,
        body.__name__,
        (*defaults, *own[len(own) - more :]),
        body.__closure__,
    )
    made.__kwdefaults__ = body.__kwdefaults__
    return made


def implementation_of(op: object, value: object, part: str) -> Any:
    """Find something that the framework of a tensor has, and numpy need not have.

    Args:
        op: The op that asks, for error texts.
        value: A tensor.
        part: What to find in the framework's package, as for `part_of`.

    Returns:
        The module, or what is in it.

    Raises:
        TypeError: If the value is an array, and numpy has no such part.
        MissingPart: If its framework has none.
        ValueError: If it is of no framework that fastnet knows.
    """
    name = type(op).__name__
    package = implementation(value).__name__
    try:
        return part_in(package, part, "framework", name)
    except MissingPart:
        if package != framework_named("np").package:
            raise
        raise TypeError(
            f"{name} runs on tensors of torch or TensorFlow, but got an array of type "
            f"{type(value).__name__}. Make a tensor of it first."
        ) from None


def _find(value: object) -> Any:
    for framework in reversed(FRAMEWORKS.values()):
        if framework.has_tensor(value):
            found = import_module(framework.package)
            _by_type[type(value)] = found
            return found
    libraries = [framework.library for framework in FRAMEWORKS.values()]
    raise ValueError(
        f"Unrecognized tensor type {type(value).__name__}: expected a tensor of "
        f"{', '.join(libraries[:-1])} or {libraries[-1]}, but got {_shorten(value)}."
    )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
