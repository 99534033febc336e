"""Networks, and the models they run."""

from typing import TYPE_CHECKING, Any

from fastnet.network.base import BaseNetwork
from fastnet.network.build import build
from fastnet.network.factory import Network
from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.network.checkpoint import load_checkpoint, save_checkpoint
    from fastnet.network.epoch_loop import steps
    from fastnet.network.tf import TFNetwork
    from fastnet.network.torch import TorchNetwork

    __all__ = [
        "BaseNetwork",
        "Network",
        "TFNetwork",
        "TorchNetwork",
        "build",
        "load_checkpoint",
        "save_checkpoint",
        "steps",
    ]
else:
    _load, _list_late = attach(
        __name__,
        {
            "TFNetwork": "tf",
            "TorchNetwork": "torch",
            "load_checkpoint": "checkpoint",
            "save_checkpoint": "checkpoint",
            "steps": "epoch_loop",
        },
        needs={"TFNetwork": "tensorflow", "TorchNetwork": "torch"},
    )

    def __getattr__(name: str) -> Any:
        # `import *` takes the names whose framework is installed.
        return (
            ["BaseNetwork", "Network", "build", *_list_late()] if name == "__all__" else _load(name)
        )

    def __dir__() -> list[str]:
        return sorted({*globals(), *_list_late()})
