"""A dict that reports which of its entries are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["RecordingDict"]

_OF_ONE_KEY = ("__contains__", "__delitem__", "__getitem__", "__setitem__", "get", "pop")
_OF_ALL = (
    *("__eq__", "__ior__", "__iter__", "__len__", "__or__", "__ror__", "clear", "copy", "items"),
    *("keys", "popitem", "update", "values"),
)


class RecordingDict(dict[Any, Any]):
    """A dict that calls `note` with each key that is used, or None for all of them."""

    def __init__(self, entries: dict[Any, Any], note: Callable[[Any], None]) -> None:
        super().__init__(entries)
        self._note = note

    def base(self) -> dict[Any, Any]:
        """Return a plain dict of the entries."""
        return dict(dict.items(self))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Record the key, then as `dict.setdefault`."""
        self._note(key)
        return super().setdefault(key, default)


def _recorded(name: str, has_key: bool) -> Callable[..., Any]:
    method = getattr(dict, name)

    def use(self: Any, *args: Any, **named: Any) -> Any:
        self._note(args[0] if has_key else None)
        return method(self, *args, **named)

    return use


for _name in (*_OF_ONE_KEY, *_OF_ALL):
    setattr(RecordingDict, _name, _recorded(_name, _name in _OF_ONE_KEY))
