"""Numpy ops that apply the same function to each of their inputs."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.numpyop.univariate.binarize import Binarize
    from fastnet.op.numpyop.univariate.channel_transpose import ChannelTranspose
    from fastnet.op.numpyop.univariate.expand_dims import ExpandDims
    from fastnet.op.numpyop.univariate.hadamard import Hadamard
    from fastnet.op.numpyop.univariate.minmax import Minmax
    from fastnet.op.numpyop.univariate.onehot import Onehot
    from fastnet.op.numpyop.univariate.reshape import Reshape
    from fastnet.op.numpyop.univariate.to_array import ToArray

__all__ = [
    "Binarize",
    "ChannelTranspose",
    "ExpandDims",
    "Hadamard",
    "Minmax",
    "Onehot",
    "Reshape",
    "ToArray",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "Binarize": "binarize",
            "ChannelTranspose": "channel_transpose",
            "ExpandDims": "expand_dims",
            "Hadamard": "hadamard",
            "Minmax": "minmax",
            "Onehot": "onehot",
            "Reshape": "reshape",
            "ToArray": "to_array",
        },
    )
