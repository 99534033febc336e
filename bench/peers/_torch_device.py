"""Where tensors of PyTorch are moved to."""

from __future__ import annotations

import torch

# A move on the CPU changes nothing and costs only the call: what is left is the walk over the nest.
DEVICE = torch.device("cpu")
