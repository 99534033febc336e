"""Settings of ops, and whether they have changed since an op resolved them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastnet.op.op import Op, inner_ops_of

# Methods besides `forward` that plans bind or programs trace; replacing one on the class counts as
# a change.
_BOUND_METHODS = ("apply", "bind", "forward_batch", "make_run", "make_compute")


class _Resolved:
    """The settings that the state of an op was last derived from.

    The op keeps it, since several networks may share the op.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings


def resolve_settings(
    item: Any,
    is_outdated: Callable[[Any], bool] = lambda op: False,
    build: Callable[[Any], None] | None = None,
) -> None:
    """Resolve the settings of an op, and of the ops inside of it, that changed since the last time.

    `is_outdated` returns whether an op has changed in anything besides its settings. `build` builds
    an op again if it has settings.
    """
    for op in inner_ops_of(item):
        resolve_settings(op, is_outdated, build)
    if not isinstance(item, Op):
        if is_outdated(item) and hasattr(item, "resolve_settings"):  # a slicer
            item.resolve_settings()
        return
    is_new = last_resolved(item) is None
    names = changed_settings(item)
    if not (is_new or names or is_outdated(item)):
        return
    # If this raises, the next entry tries again.
    vars(item).pop("_last_resolved", None)
    if item.resolved_from or item.inner_ops() or not is_new:
        item.resolve_settings(names)
    if build is not None and item.resolved_from:
        build(item)
    vars(item)["_last_resolved"] = _Resolved(_current_settings(item))


def last_resolved(item: Any) -> _Resolved | None:
    """Return the settings that an op last resolved; None if it never has."""
    return getattr(item, "_last_resolved", None)


def is_unresolved(item: Any) -> bool:
    """Return whether an item is an op that has not resolved the settings that it has now."""
    return isinstance(item, Op) and (last_resolved(item) is None or bool(changed_settings(item)))


def changed_settings(item: Any) -> list[str]:
    """Return the names of the settings of an op that changed since they were resolved."""
    last = last_resolved(item)
    if last is None:
        return []
    current = _current_settings(item)
    return [name for name, now in current.items() if not _is_same(last.settings[name], now)]


def _current_settings(op: Op) -> dict[str, Any]:
    """Return what an op's derived state depends on: settings, bound methods and inner ops."""
    values = {name: _contents(getattr(op, name, None)) for name in op.resolved_from}
    methods = {name: getattr(type(op), name, None) for name in _BOUND_METHODS}
    inner_ops = op.inner_ops()
    return {**values, **methods, "ops": [*inner_ops, *map(last_resolved, inner_ops)]}


def _contents(value: Any) -> Any:
    """Return the items of a container, nested ones too, as a list; any other value as it is."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_contents(item) for item in value]
    return value


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_is_same, before, now))
    return before is now
