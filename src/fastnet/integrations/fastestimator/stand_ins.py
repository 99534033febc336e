"""Classes of fastnet made fit for FastEstimator, which reads more on an object than a Network does.

A stand-in is fastnet's class, and after it, for all that fastnet's has not, FastEstimator's own. So
what it makes is an instance of both wherever a program asks; it tells how it was made, which
reports print, and what of it is worth saving. The other way round, objects of either library that
were not made by a stand-in count as its instances too.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

from fastnet.op.copies import shallow_copy

__all__ = ["ROOT", "original_class", "stand_in"]

ROOT = "fastestimator"

_T = TypeVar("_T")

_made: dict[type, type] = {}


def stand_in(own: type, theirs: type, members: Mapping[str, Any] | None = None) -> type:
    """Make the class that stands in for one of FastEstimator's, or give the one that was made.

    Args:
        own: fastnet's class.
        theirs: FastEstimator's class.
        members: What it has besides.

    Returns:
        The class, the same one each time.
    """
    made = _made.get(theirs)
    if made is None:
        tracing = import_module(f"{ROOT}.util.traceability_util")
        namespace: dict[str, Any] = {
            "__module__": theirs.__module__,
            "__qualname__": theirs.__qualname__,
            "__doc__": own.__doc__,
            "__copy__": _copy,
            "__subclasshook__": classmethod(_is_either),
            "_stands_for": (own, theirs),
        }
        # RestoreWizard saves and restores by these, which fastnet's class has for copies of itself
        for name in ("__getstate__", "__setstate__"):
            given = getattr(theirs, name, None)
            # FastEstimator leaves them to itself only where Python has none for all, as 3.11 has
            is_default = given is getattr(object, name, None)
            namespace[name] = getattr(tracing, name) if is_default else given
        for base in theirs.__mro__:
            for name, value in vars(base).items():
                if isinstance(value, property) and not hasattr(own, name):
                    # an attribute with fastnet, which could not be assigned to
                    namespace.setdefault(name, None)
        namespace.update(members or {})
        bases: tuple[Any, ...] = (own, theirs)
        if getattr(theirs, "__parameters__", ()):
            bases = tuple(one[_T] for one in bases)  # so that it can be subscripted, too
        made = types.new_class(
            theirs.__name__, bases, {"metaclass": abc.ABCMeta}, lambda body: body.update(namespace)
        )
        _made[theirs] = tracing.traceable()(made)
    return _made[theirs]


def _is_either(cls: Any, other: type) -> Any:
    kinds = vars(cls).get("_stands_for")
    if kinds is None:  # a program's own class, derived from a stand-in
        return NotImplemented
    return any(kind in other.__mro__ for kind in kinds) or NotImplemented


def _copy(self: Any) -> Any:
    """Copy all of it: what FastEstimator says is worth saving is not enough to run."""
    made = shallow_copy(self)
    tables = dict(getattr(self, "_fe_traceability_summary", {}))
    identify = import_module(f"{ROOT}.util.base_util").FEID
    own = tables.pop(identify(id(self)), None)
    if own is not None:
        # its description, which goes by its id
        table = shallow_copy(own)
        table.fe_id = identify(id(made))
        made._fe_traceability_summary = {table.fe_id: table, **tables}
    return made


def original_class(module: str, name: str) -> type:
    """Find the class that FastEstimator itself has under a name, swapped or not.

    Args:
        module: The module, without the package's name.
        name: The name in it.

    Returns:
        Its class.
    """
    found: type = getattr(import_module(f"{ROOT}.{module}"), name)
    kinds = vars(found).get("_stands_for")
    return kinds[1] if kinds else found
