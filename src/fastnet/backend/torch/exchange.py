"""How a model in DistributedDataParallel is run, and who averages its gradients: engine or op."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.averaging import hand_out_buffers
from fastnet.backend.torch.engines import wrapper_of
from fastnet.backend.torch.spreading import known_to_engine

__all__ = ["EXCHANGES", "Exchange", "Exchanges"]

EXCHANGES = "exchanges"
"""Where a step's context has how gradients are communicated, if any are."""


class Exchange:
    """Whether the engine averages the gradients of a step, while the backward pass goes on.

    The engine hears of gradients by hooks, which a forward pass through its wrapper arms for the
    one backward pass that follows. Where a program takes gradients in another way, the model in
    the wrapper is run itself, and the update averages them.

    Args:
        model: The model, with the engine "ddp".
        by_engine: Whether all that takes gradients is one backward pass for one forward pass.

    Attributes:
        known: The parameters that the engine averages the gradients of.
    """

    def __init__(self, model: torch.nn.Module, by_engine: bool) -> None:
        wrapper = wrapper_of(model)
        if not isinstance(wrapper, DistributedDataParallel):
            raise TypeError(f"{type(wrapper).__name__} is no DistributedDataParallel.")
        self._whole = model
        self._wrapper = wrapper
        known = known_to_engine(wrapper)
        self._by_engine = by_engine and known is not None
        self.known = known or []
        self._is_armed = False
        # whether this process may have other buffers than the first one
        self._is_stale = True

    def model(self) -> torch.nn.Module:
        """Choose what a forward pass of training goes through.

        Returns:
            The wrapper, or the model in it with the buffers that the first process has.
        """
        self._is_armed = (
            self._by_engine
            # a program may have asked for no_sync
            and self._wrapper.require_backward_grad_sync
            and all(one.requires_grad for one in self.known)
        )
        if self._is_armed:
            return self._whole
        if self._is_stale:
            # once for each update: a second time would overwrite what a backward pass needs
            hand_out_buffers(self._wrapper)
            self._is_stale = False
        inner: torch.nn.Module = self._wrapper.module
        return inner

    def has_averaged(self) -> bool:
        """Return whether the engine has averaged the gradients of the backward pass that ended."""
        was_armed, self._is_armed = self._is_armed, False
        self._is_stale = True
        return was_armed

    def expect_buffers(self) -> None:
        """Let the first process hand its buffers out before the next forward pass."""
        self._is_stale = True


class Exchanges:
    """How the gradients of an opening's models are communicated.

    Args:
        of: What is known of each model with the engine "ddp", by its id.
        averaged: The ids of the updates whose given gradients are averages already.
    """

    def __init__(self, of: dict[int, Exchange], averaged: frozenset[int]) -> None:
        self.of = of
        self.averaged = averaged
