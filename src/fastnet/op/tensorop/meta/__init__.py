"""Ops that run other ops."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.meta.fuse import Fuse
    from fastnet.op.tensorop.meta.one_of import OneOf
    from fastnet.op.tensorop.meta.repeat import Repeat
    from fastnet.op.tensorop.meta.sometimes import Sometimes

__all__ = ["Fuse", "OneOf", "Repeat", "Sometimes"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {"Fuse": "fuse", "OneOf": "one_of", "Repeat": "repeat", "Sometimes": "sometimes"},
    )
