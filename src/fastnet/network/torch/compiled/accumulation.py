"""Gradients that are added up over several steps: what captured steps take of them, and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from fastnet.backend.torch.update import Merged, TorchUpdate
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.updates import updates_in

__all__ = ["Accumulation", "Phase"]


class _Kind(NamedTuple):
    """The phase of gradient merging: how many steps an update averages, and which sums exist.

    A step that does not update averages 0. More than `merge_grad` are averaged if it was lowered.
    """

    averages: int
    sums: tuple[tuple[int, torch.dtype, torch.Size, tuple[int, ...]], ...]


class Accumulation:
    """The gradients that the updates of a plan accumulate."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self._ops = [op for op in updates_in(ops) if op.updater().is_merging]
        # The last accumulated gradients of each update, with their kind.
        self._known: list[tuple[Merged | None, _Kind | None]] = [(None, None)] * len(self._ops)

    @property
    def updates(self) -> list[TorchUpdate]:
        """The updates that accumulate, in order; changed settings of an op replace its update."""
        found: list[Any] = [op.updater() for op in self._ops]
        return found

    def phases(self) -> int:
        """Return the number of programs for one input signature."""
        count = 1
        for op in self._ops:
            # With `merge_grad` lowered to 1, the first step still has sums.
            count *= min(max(op.merge_grad, 2), 3)
        return count

    def now(self) -> list[Merged]:
        """Return the gradients accumulated so far."""
        return [one.merged_gradients for one in self.updates]

    def kinds(self) -> list[_Kind]:
        """Return the kind of the next step."""
        found = []
        for place, update in enumerate(self.updates):
            merged, kind = self._known[place]
            if kind is None or merged is not update.merged_gradients:
                merged = update.merged_gradients
                kind = _Kind(
                    _averaged(merged.times, update),
                    tuple(
                        (id(parameter), one.dtype, one.shape, one.stride())
                        for parameter, one in _in_order(merged)
                    ),
                )
                self._known[place] = merged, kind
            found.append(kind)
        return found

    def again(self) -> AbstractContextManager[None]:
        """Return what goes back, while it is entered, to what has been added up until now."""
        return self.as_before(self.now())

    @contextmanager
    def as_before(self, before: Sequence[Merged]) -> Iterator[None]:
        """Go back to what had been added up."""
        after = self.now()
        self._put(before)
        try:
            yield
        finally:
            self._put(after)

    def put(self, merged: Sequence[Merged], kinds: Sequence[_Kind]) -> None:
        """Go on from what a step has left."""
        self._put(merged)
        self._known = list(zip(merged, kinds, strict=True))

    def _put(self, merged: Sequence[Merged]) -> None:
        for update, one in zip(self.updates, merged, strict=True):
            update.merged_gradients = one


class Phase:
    """The accumulated gradients that one kind of step reads and leaves."""

    def __init__(self, merging: Accumulation, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._merging = merging
        self._kinds = merging.kinds()
        # by the ids that sums are ordered by
        self._parameters = {id(one): one for one in parameters}
        if any(one[0] not in self._parameters for kind in self._kinds for one in kind.sums):
            raise Uncapturable("gradients were added up of parameters that are gone")
        # of each update what a step leaves sums of, None where it leaves what there is
        self._left: list[list[int] | None] = []
        self._copied: list[int] | None = None
        self._sums_left: list[tuple[Any, ...]] = []

    def is_now(self) -> bool:
        """Return whether a step would be of this kind now."""
        return self._merging.kinds() == self._kinds

    def tensors(self) -> list[torch.Tensor]:
        """List the sums that a step takes now."""
        return [total for one in self._merging.now() for _, total in _in_order(one)]

    @contextmanager
    def traced(
        self, stands_for: Mapping[int, torch.Tensor], sums: Iterable[torch.Tensor]
    ) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Put other tensors into the places of the sums, while ops are traced."""
        waiting = iter(sums)
        inside: list[Merged] = []
        for merged, kind in zip(self._merging.now(), self._kinds, strict=True):
            fakes: dict[Any, torch.Tensor] = {
                stands_for[one[0]]: next(waiting) for one in kind.sums
            }
            inside.append(Merged(merged.times, fakes))
        real = {id(fake): one for one, fake in stands_for.items()}

        def left() -> list[torch.Tensor]:
            self._left = []
            found: list[torch.Tensor] = []
            for before, after in zip(inside, self._merging.now(), strict=True):
                if after is before:
                    self._left.append(None)
                    continue
                sums = {real[id(one)]: total for one, total in after.sums.items()}
                self._left.append(sorted(sums))
                found += [sums[one] for one in sorted(sums)]
            return found

        with self._merging.as_before(inside):
            yield left

    def settle(self, results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Let what a step has left count."""
        end = len(results) - sum(len(one) for one in self._left if one is not None)
        others, sums = results[:end], list(results[end:])
        if self._copied is None:
            # a compiler may give one tensor for two, of which ops hand the other one out
            given = {one.data_ptr() for one in others if one.numel()}
            self._copied = [at for at, one in enumerate(sums) if one.data_ptr() in given]
            self._sums_left = [(one.dtype, one.shape, one.stride()) for one in sums]
        for at in self._copied:
            sums[at] = sums[at].clone()
        place, merged, kinds = 0, [], []
        updates = zip(self._merging.updates, self._left, self._kinds, strict=True)
        for update, left, kind in updates:
            if left is None:
                merged.append(update.merged_gradients)
                kinds.append(kind)
                continue
            times = 0 if kind.averages else update.merged_gradients.times + 1
            found = dict(zip(map(self._parameters.__getitem__, left), sums[place:], strict=False))
            signatures = zip(left, self._sums_left[place:], strict=False)
            merged.append(Merged(times, found))
            kinds.append(
                _Kind(_averaged(times, update), tuple((one, *of) for one, of in signatures))
            )
            place += len(left)
        self._merging.put(merged, kinds)
        return others


def _averaged(times: int, update: TorchUpdate) -> int:
    return times + 1 if times + 1 >= update.merges else 0


def _in_order(merged: Merged) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """List the sums in the order of the ids of their parameters."""
    return sorted(merged.sums.items(), key=lambda one: id(one[0]))
