"""What a network hands over to be explained."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Protocol

from fastnet.backend.facts import fact, name_of
from fastnet.explain import Explanation, Subject, explain_subject
from fastnet.frameworks import MissingPart, part_of
from fastnet.network.layout import Layout, LayoutCache
from fastnet.network.validation import check_dataset, check_epoch, check_mode, desired_keys
from fastnet.types import Model, is_scheduler
from fastnet.util import to_list

__all__ = ["explain"]


class Explained(Protocol):
    """What is read of a network to explain it."""

    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    target_type: str
    device: Any
    _first_epoch: int
    _wanted: frozenset[str]

    @property
    def _layouts(self) -> LayoutCache: ...

    def _check_ops(self, layout: Layout) -> None:
        """Refuse ops that cannot be run as they are."""

    def _first_deferred(self, ops: list[Any]) -> int:
        """Return the place of the first op of those whose updates are put off."""


def explain(
    network: Explained,
    mode: str,
    epoch: int,
    ds_id: str | None,
    desired_output_keys: Collection[str] | None,
) -> Explanation:
    """Explain what an opening of a network would run, and why.

    Args:
        network: The network; it is neither opened nor changed.
        mode: The mode.
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none.
        desired_output_keys: The keys wanted back. None or empty for all that ops write.

    Returns:
        The explanation.
    """
    layouts = network._layouts
    layout: Layout | None = None
    error: str | None = None
    try:
        check_mode(mode)
        epoch = check_epoch(epoch, network._first_epoch)
        check_dataset(ds_id)
        desired = desired_keys(desired_output_keys)
        layout = layouts.draft(mode, epoch, ds_id, desired or network._wanted)
        _choose_optimizers(layout, epoch)
        network._check_ops(layout)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        given = to_list(desired_output_keys)
        desired = frozenset(key for key in given if isinstance(key, str))
    if layout is None:
        # what made the opening fail may be the slicers alone
        with contextlib.suppress(Exception):
            layout = layouts.draft(mode, epoch, ds_id, desired or network._wanted, sliced=False)
    first_deferred = len(network.ops)
    if layout is not None:
        first_deferred = network._first_deferred(layout.ops)
    return explain_subject(
        Subject(
            network=type(network).__name__,
            framework=network.target_type,
            device="" if network.device is None else str(network.device),
            mode=mode,
            epoch=epoch,
            ds_id=ds_id,
            desired=desired,
            wants_all=not desired and not network._wanted,
            ops=network.ops,
            postprocessing=network.postprocessing,
            slicers=network.slicers,
            models=network.models,
            read=layouts.read,
            plan=None if layout is None else layout.plan,
            first_deferred=first_deferred,
            error=error,
            spread=_spread(network),
            compiled=_compiled(network, mode),
        )
    )


def _spread(network: Explained) -> dict[str, str]:
    """Say how models are spread, where the framework can tell."""
    with contextlib.suppress(MissingPart):
        tell = getattr(part_of(network.target_type, "processes"), "told_spread", None)
        if tell is not None:
            told = {name_of(model): tell(model) for model in network.models}
            return {name: how for name, how in told.items() if how is not None}
    return {}


def _compiled(network: Explained, mode: str) -> str:
    """Say whether steps run as compiled programs, as far as the steps up to now have told."""
    if getattr(network, "_options", None) is None:
        return ""
    told = [trace for trace in getattr(network, "traces", ()) if trace.mode == mode]
    if not told:
        return "are compiled when the first one has come"
    whole = [trace for trace in told if trace.part is None] or told
    why = whole[-1].fallback
    if any(trace.part is not None and trace.fallback is None for trace in told):
        return f"are compiled in parts, because {why}"
    if why is None:
        return f"are compiled, which took {sum(one.compile_seconds for one in told):.1f} s"
    if any(one.fallback is None for one in told):
        return f"are compiled, but not all: {why}"
    return f"are not compiled: {why}"


def _choose_optimizers(layout: Layout, epoch: int) -> None:
    """Ask for the optimizers that an opening would choose, and choose none."""
    for model in layout.models:
        optimizer: Any = fact(model, "optimizer")
        if is_scheduler(optimizer):
            optimizer.get_current_value(epoch)
