"""Classes that replace FastEstimator's.

A stand-in derives from fastnet's class and then from FastEstimator's, so its objects are instances
of both. Like FastEstimator's, they record how they were created, for reports, and restrict which
attributes RestoreWizard saves. In the other direction, objects of either library are instances of
the stand-in too.
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

_stand_ins: dict[type, type] = {}  # by FastEstimator's class


def stand_in(fastnet_class: type, fe_class: type, members: Mapping[str, Any] | None = None) -> type:
    """Return the class that replaces one of FastEstimator's, which is created once.

    Args:
        fastnet_class: fastnet's class.
        fe_class: FastEstimator's class.
        members: Additional attributes of the class.
    """
    if fe_class not in _stand_ins:
        traceability = import_module(f"{ROOT}.util.traceability_util")
        namespace: dict[str, Any] = {
            "__module__": fe_class.__module__,
            "__qualname__": fe_class.__qualname__,
            "__doc__": fastnet_class.__doc__,
            "__copy__": _copy,
            "__subclasshook__": classmethod(_is_either),
            "_stands_for": (fastnet_class, fe_class),
        }
        # RestoreWizard uses these methods; fastnet's class has others, for copies and pickles.
        for name in ("__getstate__", "__setstate__"):
            method = getattr(fe_class, name, None)
            # From Python 3.11 on every object has a __getstate__, so FastEstimator adds none.
            is_default = method is getattr(object, name, None)
            namespace[name] = getattr(traceability, name) if is_default else method
        namespace.update(members or {})
        bases: tuple[Any, ...] = (fastnet_class, fe_class)
        if getattr(fe_class, "__parameters__", ()):
            bases = tuple(base[_T] for base in bases)  # FastEstimator subscripts schedulers.
        created = types.new_class(
            fe_class.__name__,
            bases,
            {"metaclass": abc.ABCMeta},
            lambda body: body.update(namespace),
        )
        _stand_ins[fe_class] = traceability.traceable()(created)
    return _stand_ins[fe_class]


def _is_either(cls: Any, other: type) -> Any:
    classes = vars(cls).get("_stands_for")
    if classes is None:  # The program derived a class from a stand-in.
        return NotImplemented
    return any(base in classes for base in other.__mro__) or NotImplemented


def _copy(self: Any) -> Any:
    """Copy all attributes, also those that `__getstate__` leaves out."""
    copied = shallow_copy(self)
    tables = dict(getattr(self, "_fe_traceability_summary", {}))
    FEID = import_module(f"{ROOT}.util.base_util").FEID
    table = tables.pop(FEID(id(self)), None)
    if table is not None:
        # Reports find the table of an object by its id.
        copied_table = shallow_copy(table)
        copied_table.fe_id = FEID(id(copied))
        copied._fe_traceability_summary = {copied_table.fe_id: copied_table, **tables}
    return copied


def original_class(module: str, name: str) -> type:
    """Return FastEstimator's class of a name, whether or not it is replaced.

    Args:
        module: The module, without the package's name.
        name: The name of the class.
    """
    cls: type = getattr(import_module(f"{ROOT}.{module}"), name)
    classes = vars(cls).get("_stands_for")
    return classes[1] if classes else cls
