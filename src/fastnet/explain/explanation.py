"""An explanation: what it holds, and the forms that it shows itself in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastnet.backend.model_metadata import get_metadata
from fastnet.explain.findings import Finding, find_unneeded, list_findings
from fastnet.explain.items import Item, find_items, model_names
from fastnet.explain.keys import Key, find_keys
from fastnet.explain.schedules import Schedules, describe_optimizer, find_schedules
from fastnet.explain.subject import Subject
from fastnet.types import is_scheduler

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Explanation", "explain_subject"]

VERSION = 1


@dataclass(frozen=True, repr=False)
class Explanation:
    """What an opening of a network would run, and why.

    `str` of it is text for a terminal; a notebook shows it as a picture with its findings below.

    Attributes:
        network: The name of the network's class.
        framework: "torch" or "tf".
        device: The device that ops run on; "" where TensorFlow chooses.
        mode: The mode.
        epoch: The epoch.
        ds_id: The id of the dataset.
        desired: The keys wanted back; none for all.
        error: What the opening would raise, or None.
        ops: The ops in force, in order.
        postprocessing: The postprocessing ops in force, in order.
        slicers: The slicers in force.
        left_out: What is not in force, by the list that it is in ("ops", "postprocessing",
            "slicers"), with the reasons.
        models: The models in force, each with its optimizer in this epoch.
        keys: What becomes of each key.
        outputs: The keys that the opening would list as its outputs.
        unneeded: The places of the ops that nothing needs.
        unneeded_postprocessing: The places of the postprocessing ops that nothing needs.
        schedules: What changes with the epoch.
        findings: What is worth a look.
        spread: How models are spread over processes or devices, where something does that.
        compiled: Whether steps run as compiled programs, and why not, in words; "" where that was
            not asked for.
    """

    network: str
    framework: str
    device: str
    mode: str
    epoch: int
    ds_id: str | None
    desired: tuple[str, ...]
    error: str | None
    ops: tuple[Item, ...]
    postprocessing: tuple[Item, ...]
    slicers: tuple[Item, ...]
    left_out: dict[str, tuple[Item, ...]]
    models: dict[str, str]
    keys: tuple[Key, ...]
    outputs: tuple[str, ...]
    unneeded: frozenset[int]
    unneeded_postprocessing: frozenset[int]
    schedules: Schedules
    findings: tuple[Finding, ...]
    spread: dict[str, str] = field(default_factory=dict)
    compiled: str = ""

    @property
    def inputs(self) -> set[str]:
        """The keys that the batch must have."""
        return {key.name for key in self.keys if key.taken}

    @property
    def device_inputs(self) -> set[str]:
        """Those of them that go to the device."""
        return {key.name for key in self.keys if key.to_device}

    @property
    def returned(self) -> set[str]:
        """The keys that the ops hand over, to postprocessing or to the caller."""
        return {key.name for key in self.keys if key.returned}

    @property
    def untouched(self) -> set[str]:
        """The keys of the batch that come back as they were, of those that it must have."""
        return {key.name for key in self.keys if key.result == "batch" and key.joined_by is None}

    @property
    def shared(self) -> set[str]:
        """The keys that ops take whole in each minibatch, as no slicer cuts them."""
        if not any(item.inputs for item in self.slicers):
            return set()
        return {key.name for key in self.keys if key.to_device and key.cut_by is None}

    def __repr__(self) -> str:
        return (
            f"<Explanation of {self.network}: mode {self.mode!r}, epoch {self.epoch}, "
            f"{len(self.ops)} ops, {len(self.findings)} findings>"
        )

    def __str__(self) -> str:
        return "\n".join(line for line, _ in import_module("fastnet.explain.text").lines(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the text with colours, where rich prints it."""
        rendered: RenderResult = import_module("fastnet.explain.text").render(
            self, console, options
        )
        return rendered

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as data that JSON takes.

        Returns:
            A dict. "version" says how it is made up; it grows when that changes.
        """
        data = _plain(asdict(self))
        return {
            "version": VERSION,
            **data,
            "inputs": sorted(self.inputs),
            "device_inputs": sorted(self.device_inputs),
            "returned": sorted(self.returned),
            "untouched": sorted(self.untouched),
            "shared": sorted(self.shared),
        }

    def to_mermaid(self) -> str:
        """Draw ops and keys as a flowchart in Mermaid's language.

        Returns:
            The flowchart.
        """
        chart: str = import_module("fastnet.explain.mermaid").draw(self)
        return chart

    def to_dot(self) -> str:
        """Draw ops and keys as a graph in Graphviz's language.

        Returns:
            The graph.
        """
        graph: str = import_module("fastnet.explain.dot").draw(self)
        return graph

    def _repr_svg_(self) -> str:
        """Draw the life of each key beside the ops, for a notebook."""
        picture: str = import_module("fastnet.explain.svg").draw(self)
        return picture

    def _repr_html_(self) -> str:
        """Show the picture and the findings, for a notebook."""
        page: str = import_module("fastnet.explain.html").show(self)
        return page


def explain_subject(subject: Subject) -> Explanation:
    """Explain an opening of a network.

    Args:
        subject: What the network hands over.

    Returns:
        The explanation.
    """
    ops, idle_ops = find_items(subject, "ops")
    postprocessing, idle_postprocessing = find_items(subject, "postprocessing")
    slicers, idle_slicers = find_items(subject, "slicers")
    keys = find_keys(subject, ops, postprocessing, slicers)
    unneeded, unneeded_postprocessing = find_unneeded(subject, ops, postprocessing)
    idle = [*idle_ops, *idle_postprocessing]
    schedules = find_schedules(subject)
    plan = subject.plan
    models = _models(subject, ops)
    return Explanation(
        network=subject.network,
        framework=subject.framework,
        device=subject.device,
        mode=subject.mode,
        epoch=subject.epoch,
        ds_id=subject.ds_id,
        desired=tuple(sorted(subject.desired)),
        error=subject.error,
        ops=tuple(ops),
        postprocessing=tuple(postprocessing),
        slicers=tuple(slicers),
        left_out={
            "ops": tuple(idle_ops),
            "postprocessing": tuple(idle_postprocessing),
            "slicers": tuple(idle_slicers),
        },
        models=models,
        keys=tuple(keys),
        outputs=() if plan is None else tuple(sorted(plan.resolution.outputs.names())),
        unneeded=unneeded,
        unneeded_postprocessing=unneeded_postprocessing,
        schedules=schedules,
        findings=tuple(
            list_findings(
                subject,
                ops,
                idle,
                postprocessing,
                keys,
                (unneeded, unneeded_postprocessing),
                schedules,
            )
        ),
        spread={name: how for name, how in subject.spread.items() if name in models},
        compiled=subject.compiled,
    )


def _models(subject: Subject, ops: list[Item]) -> dict[str, str]:
    """Name the optimizer of each model in force."""
    in_force = {name for item in ops for name in item.models}
    models = {}
    for name, model in zip(model_names(subject.models), subject.models, strict=True):
        if name in in_force:
            optimizer: Any = get_metadata(model, "optimizer")
            try:
                if is_scheduler(optimizer):
                    optimizer = optimizer.get_current_value(subject.epoch)
                models[name] = describe_optimizer(optimizer)
            except Exception as error:
                models[name] = f"{type(error).__name__}: {error}"
    return models


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
