"""The contents of an explanation."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastnet.explain.findings import Finding
from fastnet.explain.items import Item
from fastnet.explain.keys import Key
from fastnet.explain.schedules import Schedule

__all__ = ["Contents"]


@dataclass(frozen=True, repr=False)
class Contents:
    """The data of an explanation; see `Explanation` for its attributes."""

    network: str
    framework: str
    device: str
    mode: str
    epoch: int
    ds_id: str | None
    desired: tuple[str, ...]
    returns_all: bool
    error: str | None
    ops: tuple[Item, ...]
    postprocessing: tuple[Item, ...]
    slicers: tuple[Item, ...]
    inactive: dict[str, tuple[Item, ...]]
    models: dict[str, str]
    keys: tuple[Key, ...]
    outputs: tuple[str, ...]
    unneeded: frozenset[int]
    unneeded_postprocessing: frozenset[int]
    schedules: tuple[Schedule, ...]
    findings: tuple[Finding, ...]
    parallelism: dict[str, str] = field(default_factory=dict)
    compiled: str = ""

    @property
    def inputs(self) -> set[str]:
        """The keys that the batch must have."""
        return {key.name for key in self.keys if key.required}

    @property
    def device_inputs(self) -> set[str]:
        """The keys of the batch that are moved to the device."""
        return {key.name for key in self.keys if key.to_device}

    @property
    def returned(self) -> set[str]:
        """The keys that the ops return, to postprocessing or to the caller."""
        return {key.name for key in self.keys if key.returned}

    @property
    def untouched(self) -> set[str]:
        """The required keys of the batch that are returned unchanged."""
        return {key.name for key in self.keys if key.result == "batch" and not key.unsliced_by}
