"""The frameworks that ops and networks run in: what each is known by, and where its parts are.

PyTorch and TensorFlow are entries of one table, as any other framework is that a program registers:
nothing else in fastnet lists them. What an entry leads to is imported when it is needed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastnet.errors import nearest_name
from fastnet.util.lazy import import_module

__all__ = ["FRAMEWORKS", "Framework", "MissingPart", "framework_named", "part_of", "register"]


@dataclass(frozen=True)
class Framework:
    """A framework. A place is written "module:name", or "module:name.name".

    Args:
        name: What ops are built for, and what networks and `to_tensor` call it, such as "torch".
        library: The module that its tensors come from. One that nobody has imported is not asked.
        tensors: The names of their classes in it.
        package: The package that holds its tensor functions, and modules with what ops need besides
            (`losses`, `gradients`, `control`, ...). A function that is not in the package itself is
            looked for by "module.name".
        stand_in: A method by which other classes say that they stand for one of its tensors.
        models: The places of the classes of its models.
        network: The place of its network's class; none for what only has arrays.
        model_pass: The place of what a `ModelOp` runs its models by.
        update: The place of what an `UpdateOp` updates them by.
    """

    name: str
    library: str
    tensors: tuple[str, ...]
    package: str
    stand_in: str | None = None
    models: tuple[str, ...] = ()
    network: str | None = None
    model_pass: str | None = None
    update: str | None = None

    def has_tensor(self, value: object) -> bool:
        """Return whether a value is a tensor of this framework.

        Args:
            value: Anything.

        Returns:
            True if it is, or stands for one.
        """
        library = sys.modules.get(self.library)
        if library is None:  # what was never imported cannot have made the value
            return False
        if self.stand_in is not None and hasattr(type(value), self.stand_in):
            return True
        return isinstance(value, tuple(getattr(library, name) for name in self.tensors))

    def has_model(self, value: object) -> bool:
        """Return whether a value is a model of this framework.

        Args:
            value: Anything.

        Returns:
            True if it is.
        """
        for place in self.models:
            name, _, names = place.partition(":")
            module = sys.modules.get(name)
            # a model exists only if its class has been imported
            if module is not None and isinstance(value, _find(module, names)):
                return True
        return False

    def load(self, what: str) -> Any:
        """Import what a place leads to.

        Args:
            what: The attribute that has the place: "network", "model_pass" or "update".

        Returns:
            The class; for the last two it may be a function that makes what the class would.

        Raises:
            MissingPart: If the framework has none.
        """
        place: str | None = getattr(self, what)
        if place is None:
            raise MissingPart(f"The framework '{self.name}' has no {what}. {_ADVICE}")
        module, _, names = place.partition(":")
        return _find(import_module(module), names)


class MissingPart(NotImplementedError):
    """A framework lacks something that an op or a network needs of it."""


_ADVICE = "CONTRIBUTING.md, 'Add a framework', lists what one has to bring."

FRAMEWORKS: dict[str, Framework] = {}
"""The frameworks by their names. Of those that claim a value the one registered last gets it."""


def register(framework: Framework) -> None:
    """Let ops and networks run in a framework.

    Args:
        framework: The framework.

    Raises:
        ValueError: If there is another one of its name.
    """
    if FRAMEWORKS.setdefault(framework.name, framework) != framework:
        raise ValueError(
            f"There is a framework '{framework.name}' already, whose functions are in "
            f"{FRAMEWORKS[framework.name].package}. Register this one by another name."
        )


def framework_named(name: str) -> Framework:
    """Look up a framework.

    Args:
        name: Its name.

    Returns:
        The framework.

    Raises:
        ValueError: If there is none of this name.

    >>> framework_named("tf").library
    'tensorflow'
    """
    found = FRAMEWORKS.get(name)
    if found is None:
        near = nearest_name(name, FRAMEWORKS)
        raise ValueError(
            f"There is no framework {name!r}.{f' Did you mean {near!r}?' if near else ''} Those "
            f"that ops and networks can run in are {', '.join(map(repr, FRAMEWORKS))}."
        )
    return found


def part_of(framework: str, part: str = "", asker: str = "fastnet") -> Any:
    """Find something in the package of a framework.

    Args:
        framework: The framework's name.
        part: What to find: "" for the package itself, the name of a function of it or of a module
            in it, or "module.name".
        asker: What needs it, for error texts.

    Returns:
        The package, the module or what is in it.

    Raises:
        ValueError: If there is no framework of this name.
        MissingPart: If the framework has no such part.

    >>> part_of("np", "reduce_max").__module__, part_of("np", "losses.hinge").__name__
    ('fastnet.backend.numpy.reductions', 'hinge')
    """
    package = framework_named(framework).package
    return part_in(package, part, f"framework '{framework}'", asker)


def part_if_any(framework: str, part: str) -> Any:
    """Find something that a framework may have in its package.

    Args:
        framework: The framework's name.
        part: What to find, as for `part_of`.

    Returns:
        What was found, or None.

    Raises:
        ValueError: If there is no framework of this name.

    >>> part_if_any("np", "spread_taking.taker_of") is None
    True
    """
    try:
        return part_of(framework, part)
    except MissingPart:
        return None


def part_in(package: str, part: str, owner: str, asker: str) -> Any:
    """Find something in the package of a framework, by the package's name.

    Args:
        package: The package's name.
        part: As for `part_of`.
        owner: Whose package it is, for error texts.
        asker: What needs it, for error texts.

    Returns:
        The package, the module or what is in it.

    Raises:
        MissingPart: If there is no such part.
    """
    home = import_module(package)
    if not part:
        return home
    *modules, name = _names_in(part)
    module = ".".join(modules)
    inner = _import_if_there(f"{package}.{module}") if module else home
    found = getattr(inner, name, _NOTHING)
    if found is _NOTHING and not module:
        found = _import_if_there(f"{package}.{name}")
    if found is _NOTHING:
        raise MissingPart(
            f"{asker} needs '{part}' of the {owner}, but {package} has none. {_ADVICE}"
        )
    return found


_NOTHING = object()


def _import_if_there(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, and imports what is not
            raise
        return _NOTHING


def _find(found: Any, names: str) -> Any:
    for name in _names_in(names):
        found = getattr(found, name)
    return found


@cache
def _names_in(place: str) -> tuple[str, ...]:
    # the same strings each time: Python keeps some of those that attributes were looked up by
    return tuple(place.split("."))


register(
    Framework(
        "torch",
        library="torch",
        tensors=("Tensor",),
        package="fastnet.backend.torch",
        models=("torch:nn.Module",),
        network="fastnet.network.torch:TorchNetwork",
        model_pass="fastnet.op.tensorop.model.torch_spread:make_pass",
        update="fastnet.op.tensorop.model.torch_spread:make_update",
    )
)
# after torch: a model of Keras may be a module of torch too, if Keras computes with that
register(
    Framework(
        "tf",
        library="tensorflow",
        tensors=("Tensor", "Variable"),
        package="fastnet.backend.tf",
        # Keras 3's variables are of no class of TensorFlow's
        stand_in="__tf_tensor__",
        models=("keras:Model", "tf_keras:Model"),
        network="fastnet.network.tf:TFNetwork",
        model_pass="fastnet.backend.tf.models:TFPass",
        update="fastnet.backend.tf.update:TFUpdate",
    )
)
register(
    Framework(
        "np",
        library="numpy",
        tensors=("ndarray", "generic"),
        package="fastnet.backend.numpy",
    )
)
