"""What is said of a key that is missing because the ops that write it are not in force."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet._resolve import Spec
from fastnet.errors import describe_op
from fastnet.types import is_given, is_scheduler
from fastnet.util.formatting import format_ds_ids, format_modes

__all__ = ["WritersElsewhere"]


class WritersElsewhere:
    """Knows which ops of a network would write a key, but not in an opening.

    Args:
        items: The ops of the network, and schedulers of ops.
        running: Those that are in force.
        mode: The mode of the opening.
        ds_id: The id of its dataset, or None for any.
    """

    def __init__(
        self, items: Iterable[Any], running: Iterable[Any], mode: str, ds_id: str | None
    ) -> None:
        self._items = tuple(items)
        self._running = running
        self._mode = mode
        self._ds_id = ds_id

    def __call__(self, key: str) -> str | None:
        """Say which op would write a key, and why it does not run.

        Args:
            key: The key.

        Returns:
            A sentence, or None if there is no such op.
        """
        for item in self._items:
            values = item.get_all_values() if is_scheduler(item) else [item]
            for op in values:
                if not is_given(op) or any(op is one for one in self._running):
                    continue
                if key in (getattr(op, "outputs", None) or ()):
                    return f"{describe_op(op)} writes it, but {self._why_not(op, item)}."
        return None

    def _why_not(self, op: Any, item: Any) -> str:
        spec = Spec(op)
        if not spec.runs_in(self._mode, None):
            return f"{format_modes(op.mode)}, and this opening is in mode {self._mode!r}"
        if not spec.runs_in(self._mode, self._ds_id):
            return f"{format_ds_ids(op.ds_id)}, and this opening has {self._ds_id!r}"
        return f"is not what {type(item).__name__} gives in this epoch"
