"""What a network hands over to be explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastnet._execute import Plan
from fastnet.types import Model

__all__ = ["Subject"]


@dataclass(frozen=True)
class Subject:
    """A network, and an opening of it, as far as the network itself has worked that out.

    Attributes:
        network: The name of the network's class.
        framework: "torch" or "tf".
        device: The device that ops run on; "" where TensorFlow chooses.
        mode: The mode.
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset.
        desired: The keys wanted back by name.
        wants_all: Whether all that ops write is, no key being named.
        ops: The network's ops, schedulers among them.
        postprocessing: Its postprocessing ops, schedulers among them.
        slicers: Its slicers, schedulers among them.
        models: Its models.
        read: Gives what the network goes by for an item: its `OpSpec` or `SlicerSpec`.
        plan: The ops as the kernel would run them, or None if it would refuse them.
        first_deferred: The place from which on updates wait until after the last op.
        error: What an opening would raise, or None.
        spread: By the names of models how they are spread over processes and devices.
        compiled: Whether steps run as compiled programs, and why not, in words; "" where that was
            not asked for.
    """

    network: str
    framework: str
    device: str
    mode: str
    epoch: int
    ds_id: str | None
    desired: frozenset[str]
    wants_all: bool
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    read: Callable[[Any], Any]
    plan: Plan | None
    first_deferred: int
    error: str | None
    spread: Mapping[str, str] = field(default_factory=dict)
    compiled: str = ""
