"""Runs batches of a loader through an open network, and splits their results."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from fastnet.backend import to_tensor
from fastnet.distributed import is_main
from fastnet.network.progress import bar_class
from fastnet.network.validation import not_data

__all__ = ["begin_loader", "iter_results", "split_result", "to_batch"]


def iter_results(
    network: Any, data: Any, request: tuple[Any, ...], progress: bool, device: Any
) -> Iterator[Any]:
    """Open a network and yield the results of batches."""
    mode, epoch, ds_id, _ = request
    opened = nullcontext(data)
    with network._on_device(device), network(*request):
        try:
            if callable(data) and not hasattr(data, "__iter__"):
                opened = data(mode=mode, epoch=epoch, ds_id=ds_id, shuffle=False)
            with opened as loader:
                begin_loader(network, loader)
                if progress and hasattr(loader, "__len__") and is_main():
                    loader = bar_class("transform")(loader, unit="batch", desc="transform")
                for batch in loader:
                    yield network._do_transform(network._to_batch(batch))
        except GeneratorExit:
            # A loop that was left cannot be told from one that has failed.
            network._skip_exit_calls()
            raise


def begin_loader(network: Any, loader: Any) -> None:
    """Prepare a loader for an epoch: compare its length on all ranks, set its samplers' epoch."""
    context: Any = network._context
    if context.runner.ranks is not None:
        context.runner.ranks.require_even(loader)
    inner = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), inner, getattr(inner, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(context.state["epoch"])


def to_batch(data: Any, framework: str) -> dict[str, Any]:
    """Return a copy of a batch whose arrays and numbers are tensors."""
    if not isinstance(data, Mapping):
        raise not_data(data)
    return {key: to_tensor(value, framework) for key, value in data.items()}


def split_result(network: Any, batch: Mapping[str, Any], result: dict[str, Any]) -> Any:
    """Split a result into what was written and what was read, unless the network has slicers."""
    plan = network._plan()
    if plan is None or plan.slicers:
        return result
    outputs = plan.kernel.resolution.outputs
    # Keys that neither the ops nor the batch have come from postprocessing.
    written = {key: value for key, value in result.items() if key in outputs or key not in batch}
    read = {
        key: batch[key] if key in written else value
        for key, value in result.items()
        if key in batch
    }
    return ChainMap(written, read)
