"""Ops over numpy arrays: what runs on the CPU after a network's tensor ops."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.numpyop import meta as meta
    from fastnet.op.numpyop import univariate as univariate
    from fastnet.op.numpyop.numpyop import (
        Batch,
        Delete,
        FilteredData,
        LambdaOp,
        NumpyOp,
        RemoveIf,
        forward_numpyop,
    )

__all__ = [
    "Batch",
    "Delete",
    "FilteredData",
    "LambdaOp",
    "NumpyOp",
    "RemoveIf",
    "forward_numpyop",
    "meta",
    "univariate",
]

_SUBMODULES = ("meta", "univariate")

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {name: "numpyop" for name in __all__ if name not in _SUBMODULES},
        submodules=_SUBMODULES,
    )
