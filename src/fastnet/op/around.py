"""Ops around other ops, be it of tensors or of arrays: what they do when these change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.op.op import Op

__all__ = ["AroundOne", "AroundOps"]

# what follows from the settings
_DERIVED = ("extra_inputs", "repeat_inputs")
# what comes from the network, and not from the settings
_KEPT = ("_control", "_retain_graph")


class AroundOps(Op):
    """An op around other ops, whose keys and limits follow from theirs."""

    ops: list[Any]

    def hold(self, ops: Iterable[Any]) -> None:
        """Take the ops, after the keys that follow from them.

        Args:
            ops: The ops.
        """
        self.ops = list(ops)
        # what somebody has set instead stays until the ops themselves say something else
        self._derived = self._limits()

    def inner_ops(self) -> list[Any]:
        """List the ops.

        Returns:
            A new list.
        """
        return list(self.ops)

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, or to those in it, and run them as they are now.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            TypeError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        own = self.library_class()
        if own._anew is Op._anew:
            # a class of somebody's own, of which only it knows what it works out
            vars(self).update(_runs={})
            return
        made: Any = self._anew(own)
        if made._limits() != self._derived:
            self._put_names(*made._limits())
            self.in_list, self.out_list = made.in_list, made.out_list
        kept = {name: vars(self)[name] for name in _KEPT if name in vars(self)}
        self._take_over(made, (*own.resolved_from, *_DERIVED, "ops"))
        vars(self).update(kept)

    def _limits(self) -> tuple[list[str], list[str], set[str], set[str]]:
        return list(self.inputs), list(self.outputs), set(self.mode), set(self.ds_id)


class AroundOne(AroundOps):
    """An op around one other op."""

    @property
    def op(self) -> Any:
        """The op inside."""
        return self.ops[0]

    @op.setter
    def op(self, op: Any) -> None:
        self.ops = [op]
