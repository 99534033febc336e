"""Training steps as lists of ops over dict batches, for PyTorch and Keras."""

from typing import TYPE_CHECKING, Any

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet import backend, distributed, network, op, profiling, schedule, slicer, types, util
    from fastnet.network import BaseNetwork, Network, TFNetwork, TorchNetwork
    from fastnet.network.build import build
    from fastnet.network.checkpoint import load_checkpoint, save_checkpoint
    from fastnet.network.compile_options import CompileOptions
    from fastnet.network.epoch_loop import steps
    from fastnet.profiling import profile

    __version__: str
    __all__ = [
        "BaseNetwork",
        "CompileOptions",
        "Network",
        "TFNetwork",
        "TorchNetwork",
        "backend",
        "build",
        "distributed",
        "load_checkpoint",
        "network",
        "op",
        "profile",
        "profiling",
        "save_checkpoint",
        "schedule",
        "slicer",
        "steps",
        "types",
        "util",
    ]
else:
    _OF_NETWORK = ("BaseNetwork", "Network", "TFNetwork", "TorchNetwork", "build")

    _load, __dir__ = attach(
        __name__,
        {
            "CompileOptions": "network.compile_options",
            "load_checkpoint": "network.checkpoint",
            "profile": "profiling",
            "save_checkpoint": "network.checkpoint",
            "steps": "network.epoch_loop",
            **dict.fromkeys(_OF_NETWORK, "network"),
        },
        submodules=(
            "backend",
            "distributed",
            "network",
            "op",
            "profiling",
            "schedule",
            "slicer",
            "types",
            "util",
        ),
        needs={"TFNetwork": "tensorflow", "TorchNetwork": "torch"},
    )

    def __getattr__(name: str) -> Any:
        if name == "__all__":  # `import *` takes the names whose framework is installed.
            return __dir__()
        if name == "__version__":
            return _read_version()
        return _load(name)

    def _read_version() -> str:
        # Importing this takes longer than all other imports of this package together.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("fastnet-runtime")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
