"""The state of a step as ops of a program's own see it while they are traced."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from fastnet.backend.torch.update import TRAINED
from fastnet.network.torch.captured.observing import is_library_file

__all__ = ["changing", "known"]

# what is the same in all steps of a layout, or each step makes use of itself
_SAME = frozenset({"mode", "warmup", "req_grad", "eager", "deferred", "tape", TRAINED})


def known(state: dict[str, Any], read: set[str]) -> dict[str, Any]:
    """Return a state that sees which of its entries a program's own code reads.

    Args:
        state: The state; what is written goes there.
        read: Where names of entries are put.
    """
    return _Known(state, read)


class _Known(dict[str, Any]):
    def __init__(self, state: dict[str, Any], read: set[str]) -> None:
        super().__init__(state)
        self._state = state
        self._read = read

    def _note(self, names: Iterable[str]) -> None:
        # what the library reads of it is none of the ops' doing
        if not is_library_file(sys._getframe(2).f_code.co_filename):
            self._read.update(names)

    def __getitem__(self, key: str) -> Any:
        self._note((key,))
        return self._state[key]

    def get(self, key: str, default: Any = None) -> Any:
        self._note((key,))
        return self._state.get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note((str(key),))
        return key in self._state

    def __iter__(self) -> Iterator[str]:
        self._note(self._state)
        return iter(self._state)

    def __len__(self) -> int:
        self._note(self._state)
        return len(self._state)

    def __or__(self, other: Any) -> Any:
        self._note(self._state)
        return self._state | other

    def __ror__(self, other: Any) -> Any:
        self._note(self._state)
        return other | self._state

    def keys(self) -> Any:
        self._note(self._state)
        return self._state.keys()

    def values(self) -> Any:
        self._note(self._state)
        return self._state.values()

    def items(self) -> Any:
        self._note(self._state)
        return self._state.items()

    def copy(self) -> dict[str, Any]:
        self._note(self._state)
        return self._state.copy()

    def __setitem__(self, key: str, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: str) -> None:
        del self._state[key]

    def __ior__(self, other: Any) -> Any:
        self._state |= other
        return self

    def update(self, *args: Any, **named: Any) -> None:
        self._state.update(*args, **named)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._note((key,))
        return self._state.setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        self._note(self._state)
        return self._state.pop(*args)

    def popitem(self) -> tuple[str, Any]:
        self._note(self._state)
        return self._state.popitem()

    def clear(self) -> None:
        self._state.clear()


def changing(read: Iterable[str]) -> list[str]:
    """List what may be another one in another step, of what was read of the state.

    Args:
        read: The names that were read.
    """
    return sorted(set(read) - _SAME)
