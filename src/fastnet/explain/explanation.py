"""Explanations of networks, and their text and data forms."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from fastnet._execute import KernelPlan
from fastnet._resolve import Spec
from fastnet.explain.findings import Finding, list_findings, mark_unneeded
from fastnet.explain.graph import to_dot, to_mermaid
from fastnet.explain.items import Item, find_items
from fastnet.explain.keys import Key, find_keys
from fastnet.explain.schedules import Schedule, current_optimizers, find_schedules, format_optimizer
from fastnet.explain.text import format_text
from fastnet.types import Model


@dataclass(frozen=True, repr=False)
class Explanation:
    """An explanation of what a step would run, and why: the result of `network.explain`.

    `print` shows it as text.

    Attributes:
        network: The name of the network's class.
        framework: "torch" or "tf".
        device: The device that ops run on; "" where TensorFlow chooses.
        mode: The mode.
        epoch: The epoch.
        ds_id: The id of the dataset.
        desired: The keys to return; empty for all.
        returns_all: Whether all keys that ops write are returned, because none were requested.
        error: The error that entering the network would raise, or None.
        ops: The active ops, in order.
        postprocessing: The active postprocessing ops, in order.
        slicers: The active slicers.
        inactive: The inactive items with their reasons, by list ("ops", "postprocessing",
            "slicers").
        models: The models of active ops, each with its optimizer in this epoch.
        keys: The keys of a step, with their lifetimes.
        outputs: The keys that the ops write, as `network.ctx_outputs` lists them.
        schedules: The values of each scheduler.
        findings: Likely mistakes, and ops whose results are not used; see `Finding`.
        parallelism: How models are distributed over processes or devices, by name.
        compiled: Whether steps run as compiled programs, or why not; "" if it was not requested.

    >>> import fastnet
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = fastnet.TorchNetwork([LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")])
    >>> explanation = network.explain("infer", desired_output_keys=["y"])
    >>> explanation.unneeded
    {1}
    """

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
    schedules: tuple[Schedule, ...]
    findings: tuple[Finding, ...]
    parallelism: dict[str, str]
    compiled: str

    @property
    def unneeded(self) -> set[int]:
        """The indices of the ops that the result does not need."""
        return {index for index, item in enumerate(self.ops) if item.unneeded}

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

    def __repr__(self) -> str:
        return f"<Explanation of {self.network}, mode {self.mode!r}: {len(self.ops)} ops>"

    def __str__(self) -> str:
        return format_text(self)

    def _repr_html_(self) -> str:
        """Show the text in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dict that `json.dumps` accepts.

        Returns:
            The attributes and properties by name. "version" changes when their structure does.
        """
        sets = ("unneeded", "inputs", "device_inputs", "returned", "untouched")
        data = {"version": 4, **asdict(self), **{name: getattr(self, name) for name in sets}}
        return dict(json.loads(json.dumps(data, default=sorted)))

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart of ops and keys, which GitHub and many editors render."""
        return to_mermaid(self)

    def to_dot(self) -> str:
        """Return a Graphviz graph of ops and keys."""
        return to_dot(self)

    def plot(self, to_file: str | Path) -> None:
        """Draw the graph of `to_dot` with Graphviz.

        Args:
            to_file: The file to write. Its suffix is the format: .svg, .png or .pdf.

        Raises:
            RuntimeError: If Graphviz's program `dot` is not installed, or fails.
        """
        path = Path(to_file)
        program = shutil.which("dot")
        if program is None:
            raise RuntimeError(
                "A picture needs Graphviz, whose program 'dot' was not found: install it from "
                "https://graphviz.org/download, or use to_mermaid() or --format mermaid."
            )
        command = [program, f"-T{path.suffix[1:] or path.name}", "-o", str(path)]
        result = subprocess.run(command, input=self.to_dot().encode(), capture_output=True)
        if result.returncode:
            raise RuntimeError(f"Graphviz cannot write {path}: {result.stderr.decode().strip()}")


def make_explanation(
    plan: KernelPlan | None,
    *,
    network: str,
    framework: str,
    device: str,
    lists: Mapping[str, Sequence[Any]],
    models: Sequence[Model],
    mode: str,
    epoch: int,
    ds_id: str | None,
    desired: frozenset[str],
    returns_all: bool,
    read: Callable[[Any], Spec],
    error: str | None,
    first_deferred: int,
    parallelism: Mapping[str, str],
    compiled: str,
    untrained: Iterable[str],
) -> Explanation:
    """Explain a plan of a network; it is None if the network cannot be entered, due to `error`.

    `lists` has the network's items, by "ops", "postprocessing" and "slicers". `read` returns the
    spec of an item.
    """
    # Only the plan knows the keys that the network has resolved.
    flows = {} if plan is None else {"ops": plan.flow}
    active_items, inactive = {}, {}
    for list_name, entries in lists.items():
        flow = flows.get(list_name, ())
        active, absent = find_items(entries, read, mode, epoch, ds_id, flow)
        active_items[list_name], inactive[list_name] = active, tuple(absent)
    ops, postprocessing, slicers = active_items.values()
    ops[first_deferred:] = [
        replace(item, deferred=item.takes_gradients) for item in ops[first_deferred:]
    ]
    mark_unneeded(None if returns_all else desired, ops, postprocessing)
    keys = find_keys(plan, ops, postprocessing, slicers)
    active_models = {name for item in ops for name in item.models}
    optimizers = current_optimizers(models, active_models, epoch)
    findings = list_findings(
        mode, desired, ops, postprocessing, inactive, keys, optimizers, untrained
    )
    return Explanation(
        network=network,
        framework=framework,
        device=device,
        mode=mode,
        epoch=epoch,
        ds_id=ds_id,
        desired=tuple(sorted(desired)),
        returns_all=returns_all,
        error=error,
        ops=tuple(ops),
        postprocessing=tuple(postprocessing),
        slicers=tuple(slicers),
        inactive=inactive,
        models={name: format_optimizer(optimizer) for name, (_, optimizer) in optimizers.items()},
        keys=tuple(keys),
        outputs=() if plan is None else tuple(sorted(plan.resolution.outputs.names())),
        schedules=tuple(find_schedules(lists, models if mode == "train" else ())),
        findings=tuple(findings),
        parallelism={name: how for name, how in parallelism.items() if name in active_models},
        compiled=compiled,
    )
