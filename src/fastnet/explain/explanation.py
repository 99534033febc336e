"""Explanations of networks, and their text and data forms."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from fastnet.explain.contents import Contents
from fastnet.explain.findings import find_unneeded, list_findings
from fastnet.explain.graph import draw, to_dot, to_mermaid
from fastnet.explain.items import find_items
from fastnet.explain.keys import find_keys
from fastnet.explain.schedules import current_optimizers, find_schedules, format_optimizer
from fastnet.explain.subject import Subject
from fastnet.explain.text import format_text

__all__ = ["Explanation", "explain_subject"]

VERSION = 2


class Explanation(Contents):
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
        returns_all: Whether all keys that ops write are returned, as none are asked for.
        error: The error that entering the network would raise, or None.
        ops: The active ops, in order.
        postprocessing: The active postprocessing ops, in order.
        slicers: The active slicers.
        inactive: The inactive items with their reasons, by list ("ops", "postprocessing",
            "slicers").
        models: The models of active ops, each with its optimizer in this epoch.
        keys: The keys of a step, with their lifetimes.
        outputs: The keys that the ops write, as `network.ctx_outputs` lists them.
        unneeded: The indices of the ops that the result does not need.
        unneeded_postprocessing: The indices of the postprocessing ops that the result does not
            need.
        schedules: The values of each scheduler.
        findings: Likely mistakes, and work whose result nothing uses.
        parallelism: How models are distributed over processes or devices, by name.
        compiled: Whether steps run as compiled programs, or why not; "" where that was not asked
            for.

    >>> import fastnet
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = fastnet.TorchNetwork([LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")])
    >>> explanation = network.explain("infer", desired_output_keys=["y"])
    >>> explanation.unneeded
    frozenset({1})
    """

    def __repr__(self) -> str:
        return (
            f"<Explanation of {self.network}: mode {self.mode!r}, epoch {self.epoch}, "
            f"{len(self.ops)} ops, {len(self.findings)} findings>"
        )

    def __str__(self) -> str:
        return format_text(self)

    def _repr_html_(self) -> str:
        """Show the text in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dict that `json.dumps` takes.

        Returns:
            The attributes and properties by name. "version" changes when their structure does.
        """
        sets = ("inputs", "device_inputs", "returned", "untouched")
        data = {**asdict(self), **{name: getattr(self, name) for name in sets}}
        return {"version": VERSION, **_to_plain(data)}

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart of ops and keys, which GitHub and many editors draw."""
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
        draw(self, Path(to_file))


def explain_subject(subject: Subject) -> Explanation:
    """Explain a context of a network."""
    parts = {part: find_items(subject, part) for part in ("ops", "postprocessing", "slicers")}
    ops, postprocessing, slicers = (active for active, _ in parts.values())
    keys = find_keys(subject, ops, postprocessing, slicers)
    unneeded = find_unneeded(subject, ops, postprocessing)
    inactive = [*parts["ops"][1], *parts["postprocessing"][1]]
    schedules = find_schedules(subject)
    active = {name for item in ops for name in item.models}
    optimizers = {
        name: found for name, found in current_optimizers(subject).items() if name in active
    }
    plan = subject.plan
    return Explanation(
        network=subject.network,
        framework=subject.framework,
        device=subject.device,
        mode=subject.mode,
        epoch=subject.epoch,
        ds_id=subject.ds_id,
        desired=tuple(sorted(subject.desired)),
        returns_all=subject.returns_all,
        error=subject.error,
        ops=tuple(ops),
        postprocessing=tuple(postprocessing),
        slicers=tuple(slicers),
        inactive={part: tuple(items) for part, (_, items) in parts.items()},
        models={name: format_optimizer(found) for name, (_, found) in optimizers.items()},
        keys=tuple(keys),
        outputs=() if plan is None else tuple(sorted(plan.resolution.outputs.names())),
        unneeded=unneeded[0],
        unneeded_postprocessing=unneeded[1],
        schedules=tuple(schedules),
        findings=tuple(
            list_findings(
                subject, ops, inactive, postprocessing, keys, unneeded, schedules, optimizers
            )
        ),
        parallelism={name: how for name, how in subject.parallelism.items() if name in active},
        compiled=subject.compiled,
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [_to_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
