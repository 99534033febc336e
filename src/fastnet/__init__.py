"""fastnet: graphs of ops over dict batches, compiled, with FastEstimator's API."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet import backend, network, op, schedule, slicer, types, util
    from fastnet.network import BaseNetwork, Network, TorchNetwork, build

__all__ = [
    "BaseNetwork",
    "Network",
    "TorchNetwork",
    "backend",
    "build",
    "network",
    "op",
    "schedule",
    "slicer",
    "types",
    "util",
]

try:
    __version__ = version("fastnet")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__getattr__, __dir__ = attach(
    __name__,
    dict.fromkeys(("BaseNetwork", "Network", "TorchNetwork", "build"), "network"),
    submodules=("backend", "network", "op", "schedule", "slicer", "types", "util"),
)
