"""A list and a set that leave a mark when they are changed, as attributes of ops do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from fastnet._watch import touch

__all__ = ["NoticedList", "NoticedSet"]

T = TypeVar("T")


class NoticedList(list[T]):
    """A list that an op holds, such as that of its inputs."""

    __slots__ = ()


class NoticedSet(set[T]):
    """A set that an op holds, such as that of its modes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(set(self))


def _noticed(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def change(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            touch()

    return change


for _cls, _names in (
    (
        NoticedList,
        "append clear extend insert pop remove reverse sort __delitem__ __iadd__ __imul__ "
        "__setitem__",
    ),
    (
        NoticedSet,
        "add clear difference_update discard intersection_update pop remove "
        "symmetric_difference_update update __iand__ __ior__ __isub__ __ixor__",
    ),
):
    for _name in _names.split():
        setattr(_cls, _name, _noticed(getattr(_cls, _name)))
