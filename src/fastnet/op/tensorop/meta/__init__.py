"""Ops that run other ops."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.meta.meta_ops import Fuse, OneOf, Repeat, Sometimes

__all__ = ["Fuse", "OneOf", "Repeat", "Sometimes"]

__getattr__, __dir__ = attach(__name__, dict.fromkeys(__all__, "meta_ops"))
