"""Exponential moving averages of the weights of torch models."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fastnet.backend.ema import Decay, decay_after
from fastnet.backend.model_metadata import (
    every_optimizer_of,
    get_metadata,
    name_of,
    reserve,
    set_metadata,
)
from fastnet.backend.torch.weights import match_names
from fastnet.backend.torch.wrappers import parallel_type, unwrap
from fastnet.errors import shorten


def copy_for_average(model: Module, name: str) -> Module:
    """Copy a model, unwrapped and without its optimizer, to hold an average of its weights."""
    if parallel_type(model) == "fsdp":
        raise ValueError(
            f"EMA cannot average model '{name_of(model)}', which is sharded (parallel='fsdp'). "
            "Build it with parallel='ddp'."
        )
    inner = unwrap(model)
    # Optimizers refer to the model, and must not be copied with it.
    sources = [get_metadata(model, "optimizer"), *every_optimizer_of(model)]
    memo: dict[int, Any] = {id(source): None for source in sources if source is not None}
    averaged = copy.deepcopy(inner, memo)
    # ModelOp runs the copy in evaluation mode; setting it here avoids a change in the first step.
    averaged.eval()
    for parameter in averaged.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    reserve(averaged)
    copied_metadata = {key: get_metadata(model, key) for key in ("fe_device", "mixed_precision")}
    unset = dict.fromkeys(("optimizer", "current_optimizer", "loss_name"))
    metadata = {**copied_metadata, **unset, "model_name": name, "fe_compiled": True}
    for key, value in metadata.items():
        set_metadata(averaged, key, value)
    return averaged


class WeightAverager:
    """Updates averages of a model's weights, which a copy of it holds.

    Buffers are averaged if `use_buffers`, else copied.
    """

    def __init__(self, model: Module, averaged: Module, decay: Decay, use_buffers: bool) -> None:
        self._model = model
        self._averaged = averaged
        self._updates = 0
        # The next update depends on this. A compiled step compares it, and takes a decay that
        # changes as an input.
        self.state: dict[str, Any] = {}
        self.configure(decay, use_buffers)

    def configure(self, decay: Decay, use_buffers: bool) -> None:
        """Apply settings."""
        self._decay = decay
        self._use_buffers = use_buffers
        self.updates = self._updates

    @property
    def updates(self) -> int:
        """The number of updates."""
        return self._updates

    @updates.setter
    def updates(self, updates: int) -> None:
        decay = self._decay
        # The first update copies the weights, so the decay after 0 updates is never used.
        rate = decay_after(decay, max(updates, 1), self._model) if callable(decay) else decay
        self._updates = updates
        self.state.update(has_begun=updates > 0, decay=rate)

    def advance(self) -> None:
        """Count an update."""
        if callable(self._decay) or not self._updates:
            self.updates += 1
        else:
            self._updates += 1

    @torch.no_grad()
    def move(self, stepped: bool = True) -> None:
        """Update the averages; the first time, copy the weights. `stepped` is for TensorFlow."""
        averaged, copied = self._paired("named_parameters"), self._paired("named_buffers")
        if self._use_buffers:
            averaged, copied = averaged + copied, []
        if not self.state["has_begun"]:
            averaged, copied = [], averaged + copied
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for mean, value in averaged:
            means, values = groups.setdefault((mean.device, mean.dtype), ([], []))
            means.append(mean)
            values.append(value.detach().to(mean.device))
        decay = self.state["decay"]
        average: Any = partial(_average_by, decay)
        if isinstance(decay, float):
            average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        for group in groups.values():
            average(*group, None)
        for mean, value in copied:
            mean.copy_(value)

    def _paired(self, method: str) -> list[tuple[Tensor, Tensor]]:
        """Pair the parameters or buffers of the average with the model's of the same names."""
        # The copy may list a shared tensor under another name first, so take all names.
        means, values = (
            dict(getattr(module, method)(remove_duplicate=False))
            for module in (self._averaged, unwrap(self._model))
        )
        names = match_names(means, values)
        if names is None:
            changed = sorted(means.keys() ^ values.keys())
            raise ValueError(
                f"EMA of '{name_of(self._model)}' was made before {shorten(changed)} of the model "
                "was added, removed or renamed. Make a new EMA."
            )
        pairs = {id(mean): (mean, values[names[name]]) for name, mean in means.items()}
        return list(pairs.values())


def _average_by(decay: Any, means: list[Tensor], values: list[Tensor], count: None) -> None:
    """Average by a decay that is an input of a compiled step, which `lerp` does not take."""
    for mean, value in zip(means, values, strict=True):
        if not mean.is_floating_point():
            mean.copy_(mean * decay + value * (1 - decay))
            continue
        wide = torch.promote_types(mean.dtype, torch.float32)
        before = mean.to(wide)
        mean.copy_(before + (value.to(wide) - before) * (1 - decay))
