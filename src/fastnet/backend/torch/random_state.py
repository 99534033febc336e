"""The states of torch's default random number generators, on the CPU and on CUDA devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fastnet.types import Model


def random_state(models: Iterable[Model] = ()) -> dict[str, Any]:
    """Return the states of the generators of the CPU and of CUDA devices, but of no others.

    `models` is for TensorFlow, where generators belong to models.
    """
    # Reading the state of a device must not initialize it.
    is_initialized: Any = torch.cuda.is_initialized
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if is_initialized() else [],
    }


def load_random_state(models: Iterable[Model], state: dict[str, Any]) -> None:
    """Restore the result of `random_state`, for the devices that exist."""
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and torch.cuda.is_available():
        for index, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state, index)
