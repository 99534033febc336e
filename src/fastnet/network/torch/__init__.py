"""Networks of torch models, and how their steps are run."""

from fastnet.network.torch.network import TorchNetwork

__all__ = ["TorchNetwork"]
