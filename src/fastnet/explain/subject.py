"""The data of a network that an explanation is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastnet._execute import Plan
from fastnet.types import Model

__all__ = ["Subject"]


@dataclass(frozen=True)
class Subject:
    """A network and the context to explain.

    `ops`, `postprocessing` and `slicers` are the network's lists, schedulers included. `read`
    returns the `OpSpec` or `SlicerSpec` of an item. `plan` is None where the kernel refuses the ops
    or the context cannot be entered, which `error` explains. Updates from the op `first_deferred`
    on run after the last op. `parallelism` says by model name how models are distributed.
    """

    network: str
    framework: str
    device: str
    mode: str
    epoch: int
    ds_id: str | None
    desired: frozenset[str]
    returns_all: bool
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    read: Callable[[Any], Any]
    plan: Plan | None
    first_deferred: int
    error: str | None
    parallelism: Mapping[str, str] = field(default_factory=dict)
    compiled: str = ""
