"""What the processes that train together watch over: that they run the same, and as often."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch
import torch.distributed as dist

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch.engines import bare, engine_of, groups_of, process_count
from fastnet.backend.torch.processes import differences, exchange, meet, the_watch
from fastnet.distributed import compares_ranks
from fastnet.errors import RankError, describe_op, shorten
from fastnet.network.context import NetworkContext
from fastnet.types import Model, RunStep

__all__ = ["Ranks", "ranks_of"]

# counted alike in each process, since all of them open together
_openings = itertools.count()

_ADVICE = (
    "Give each rank as many batches: a DistributedSampler does, and drop_last=True leaves out what "
    "is left over."
)


def ranks_of(context: NetworkContext) -> Ranks | None:
    """Begin to watch over an opening in one of several processes.

    Args:
        context: The context.

    Returns:
        What watches over it; None where nothing is communicated, or not among all processes.

    Raises:
        ValueError: If the processes are to run different ops.
    """
    plan = context.plan
    if not plan.takes_gradients or context.state["warmup"]:
        return None
    spread = [one for one in plan.models if engine_of(one) in ("ddp", "fsdp")]
    groups = [group for model in spread for group in groups_of(model)]
    if not groups or any(dist.get_world_size(group) != process_count() for group in groups):
        return None
    if compares_ranks():
        _compare(context, spread)
    return Ranks(context)


class Ranks:
    """Watches over the steps of one opening in which processes communicate.

    Args:
        context: The context.
    """

    def __init__(self, context: NetworkContext) -> None:
        self._inputs = sorted(context.plan.kernel.resolution.inputs.names())
        self._started = 0
        self._name = f"steps of {next(_openings)}"
        self._watch = the_watch()
        self._ends: list[Callable[[], None]] = []
        if self._watch is not None:
            self._ends = [
                self._watch.check_also(self._outrun),
                self._watch.meetings.count_also(lambda: self._started),
            ]

    def counted(self, run: RunStep) -> RunStep:
        """Return a step that is counted, and that refuses a batch without samples.

        Args:
            run: The step.
        """
        inputs = self._inputs

        def step(batch: Mapping[str, Any]) -> dict[str, Any]:
            if hasattr(batch, "get"):
                for key in inputs:
                    shape = getattr(batch.get(key), "shape", None)
                    if shape and not shape[0]:
                        raise _no_samples(key, shape)
            self._started += 1
            return run(batch)

        return step

    def require_even(self, batches: Any) -> None:
        """Refuse loaders of different lengths, before the first step. All processes call this.

        Args:
            batches: This process's loader.

        Raises:
            ValueError: If the processes have different numbers of batches.
        """
        meet("transform")
        counts = exchange(len(batches) if isinstance(batches, Sized) else None)
        if len(set(counts)) > 1:
            raise ValueError(
                f"The loaders of the ranks have {counts} batches, but in training each step waits "
                f"for all ranks. {_ADVICE}"
            )

    def end(self) -> None:
        """End it with the context, whatever that came to.

        Raises:
            RankError: If another process has run more steps of it, or fewer.
        """
        if not self._ends or self._watch is None:
            return
        for end in self._ends:
            end()
        self._ends = []
        if sys.exc_info()[0] is not None or self._watch.is_over:
            return  # an error is told of by itself
        own = f"{dist.get_rank()} {self._started}"
        told = self._watch.store.compare_set(self._name, "", own).decode()
        rank, steps = map(int, told.split())
        if steps != self._started:
            raise RankError(self._watch.fail(_uneven(rank, steps, self._started)))

    def _outrun(self, store: Any) -> str | None:
        """Say, from the watch's thread, if this process goes on where another one does not.

        It has left its training, or waits for this one at a place of the program where all meet.
        """
        if self._watch is None:
            return None
        if not store.check([self._name]):
            here = f"in step {self._started} of its training"
            return self._watch.meetings.passed_by(store, here)
        rank, steps = map(int, store.get(self._name).decode().split())
        started = self._started
        return _uneven(rank, steps, started) if started > steps else None


def _uneven(rank: int, steps: int, started: int) -> str:
    here = f"has begun step {started}" if started > steps else f"leaves it after {started}"
    return (
        f"Rank {rank} has left its training after {steps} steps, but rank {dist.get_rank()} "
        f"{here}. In training each step waits for all ranks. {_ADVICE}"
    )


def _no_samples(key: str, shape: Any) -> ValueError:
    return ValueError(
        f"The batch of rank {dist.get_rank()} has no samples: '{key}' is of the shape "
        f"{tuple(shape)}. The mean of a loss over nothing is NaN, which all ranks would be updated "
        "by. Give each rank samples, or leave the batch out on all of them (drop_last=True)."
    )


def _compare(context: NetworkContext, spread: list[Model]) -> None:
    """Compare what the processes are to run."""
    place = "at the opening of a network for training"
    texts = differences(place, list(_told(context, spread)))
    if texts is None:
        return
    first = texts[0]
    different = next(rank for rank, one in enumerate(texts) if one != first)
    pairs = itertools.zip_longest(first, texts[different], fillvalue="nothing more")
    here, there = next(pair for pair in pairs if pair[0] != pair[1])
    raise ValueError(
        f"The ranks are to train by different ops: rank 0 has {here}, but rank {different} has "
        f"{there}. Make the network by the same code on each rank, and open it alike; "
        "fastnet.distributed.init(compare_ranks=False) turns this check off."
    )


def _told(context: NetworkContext, spread: list[Model]) -> Iterator[str]:
    """Tell of an opening what the processes must have alike, a line each."""
    state, plan = context.state, context.plan
    yield f"mode '{state['mode']}', epoch {state['epoch']}"
    for place, op in enumerate(plan.ops):
        yield from _told_of_op(op, describe_op(op, place))
    for slicer in plan.slicers:
        keys = [list(getattr(slicer, one, ())) for one in ("slice_inputs", "unslice_inputs")]
        yield f"{type(slicer).__name__} (slices {keys[0]}, un-slices {keys[1]})"
    for model in sorted(plan.models, key=name_of):
        name, engine = name_of(model), engine_of(model)
        by = "spread by nothing" if engine is None else f"spread by '{engine}'"
        yield f"model '{name}', {type(bare(model)).__name__}, {by}"
        if model not in spread:
            continue
        for parameter, one in bare(model).named_parameters():
            how = "trained" if one.requires_grad else "frozen"
            yield f"'{parameter}' of model '{name}', {tuple(one.shape)}, {one.dtype}, {how}"
        yield from _told_of_optimizer(get_metadata(model, "current_optimizer"), name)


def _told_of_op(op: Any, title: str) -> Iterator[str]:
    models = [name_of(one) for one in op.get_fe_models()] if hasattr(op, "get_fe_models") else []
    alike = getattr(op, "alike_on_ranks", ())
    settings = [f"{name} {shorten(getattr(op, name))}" for name in alike]
    yield ", ".join([title, *(f"model '{name}'" for name in sorted(models)), *settings])
    for inner in op.inner_ops() if hasattr(op, "inner_ops") else ():
        yield from _told_of_op(inner, f"{describe_op(inner)} inside of {title}")


def _told_of_optimizer(optimizer: Any, name: str) -> Iterator[str]:
    if optimizer is None:
        return
    for place, group in enumerate(optimizer.param_groups):
        settings = {
            key: float(value) if isinstance(value, torch.Tensor) else value
            for key, value in sorted(group.items())
            if key not in ("params", "param_names")
        }
        yield f"{type(optimizer).__name__} of model '{name}', group {place}, {settings}"
