"""A pure-Python reference of the kernel, with the same classes and functions over dicts and sets.

Each module is the reference of the compiled one of the same name (`resolve` of `fastnet._resolve`).
It shares only the functions that create error messages with the compiled code.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

MODULES = {
    "resolve": (
        "KeySet",
        "KeyTable",
        "OpSpec",
        "Resolution",
        "SlicerSpec",
        "Spec",
        "gather",
        "resolve",
        "same_entries",
        "same_items",
        "select",
    ),
    "execute": (
        "KernelPlan",
        "BoundPlan",
        "get_inputs_by_op",
        "split_outputs",
        "write_outputs_by_op",
    ),
    "slice": ("check_slicers", "forward_slicers", "reverse_slicers"),
    "nest": ("NestMap", "leaves_of", "map_leaves", "unless"),
    "stamps": ("StampLog",),
    "trace": (
        "FORMS",
        "CompositeSpec",
        "Signature",
        "TensorSpec",
        "TensorAdapter",
        "WithAttributes",
        "map_form",
    ),
}


@dataclass(frozen=True, repr=False)
class Kernel:
    """One implementation of the kernel's modules."""

    variant: str
    KeySet: Any
    KeyTable: Any
    OpSpec: Any
    Resolution: Any
    SlicerSpec: Any
    Spec: Any
    gather: Any
    resolve: Any
    same_entries: Any
    same_items: Any
    select: Any
    KernelPlan: Any
    BoundPlan: Any
    get_inputs_by_op: Any
    split_outputs: Any
    write_outputs_by_op: Any
    check_slicers: Any
    forward_slicers: Any
    reverse_slicers: Any
    NestMap: Any
    leaves_of: Any
    map_leaves: Any
    unless: Any
    StampLog: Any
    FORMS: Any
    CompositeSpec: Any
    Signature: Any
    TensorSpec: Any
    TensorAdapter: Any
    WithAttributes: Any
    map_form: Any

    def __repr__(self) -> str:
        return f"the {self.variant} kernel"

    @property
    def compiled(self) -> bool:
        return self.variant == "compiled"


def load(variant: str) -> Kernel:
    """Return the "compiled" or the "reference" kernel."""
    pattern = {"compiled": "fastnet._{}", "reference": "tests.reference.{}"}[variant]
    parts = {
        name: getattr(importlib.import_module(pattern.format(module)), name)
        for module, names in MODULES.items()
        for name in names
    }
    return Kernel(variant, **parts)
