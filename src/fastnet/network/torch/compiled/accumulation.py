"""Gradient accumulation in captured steps: the sums that a step reads and leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from fastnet.backend.torch.update import TorchUpdate, Window
from fastnet.network.torch.compiled.optimizers import require_dense
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.updates import update_ops_in


class _UpdatePhase(NamedTuple):
    """The phase of an update: how many steps it averages, and which sums exist.

    A step without an update averages 0. More than `merge_grad` are averaged if it was lowered.
    A sum is described by the id of its parameter, or `_WEIGHT`, and its layout.
    """

    averages: int
    sums: tuple[tuple[int, torch.dtype, torch.Size, tuple[int, ...]], ...]


# The id of the sum of the weights among those of parameters.
_WEIGHT = 0


class Accumulation:
    """The gradients that the updates of a plan accumulate."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self._ops = [op for op in update_ops_in(ops) if op.updater().is_merging]
        # The last accumulated gradients of each update, with their phase.
        self._known: list[tuple[Window | None, _UpdatePhase | None]] = [(None, None)] * len(
            self._ops
        )

    @property
    def updates(self) -> list[TorchUpdate]:
        """The updates that accumulate, in order; changed settings of an op replace its update."""
        found: list[Any] = [op.updater() for op in self._ops]
        return found

    def count_phases(self) -> int:
        """Return the number of programs for one input signature."""
        count = 1
        for op in self._ops:
            # If `merge_grad` was lowered to 1, the first step still has sums.
            count *= min(max(op.merge_grad, 2), 3)
        return count

    def now(self) -> list[Window]:
        """Return the gradients accumulated so far."""
        return [one.window for one in self.updates]

    def phases(self) -> list[_UpdatePhase]:
        """Return the phase of each update in the next step."""
        found = []
        for index, update in enumerate(self.updates):
            window, phase = self._known[index]
            if phase is None or window is not update.window:
                window = update.window
                phase = _UpdatePhase(
                    _averaged(window.steps, update),
                    tuple(
                        (key, one.dtype, one.shape, one.stride())
                        for key, one in _sums_of(window).items()
                    ),
                )
                self._known[index] = window, phase
            found.append(phase)
        return found

    def preserved(self) -> AbstractContextManager[None]:
        """Return a context manager, to be entered later, that restores the current gradients."""
        return self.replaced_by(self.now())

    @contextmanager
    def replaced_by(self, windows: Sequence[Window]) -> Iterator[None]:
        """Replace the accumulated gradients temporarily."""
        original = self.now()
        try:
            self._set(windows)
            yield
        finally:
            self._set(original)

    def store(self, windows: Sequence[Window], phases: Sequence[_UpdatePhase]) -> None:
        """Store the gradients that a step has left."""
        self._set(windows)
        self._known = list(zip(windows, phases, strict=True))

    def _set(self, windows: Sequence[Window]) -> None:
        for update, one in zip(self.updates, windows, strict=True):
            update.window = one


class Phase:
    """The accumulated gradients that a step reads and leaves in one phase of all updates."""

    def __init__(
        self, accumulation: Accumulation, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._accumulation = accumulation
        self._phases = accumulation.phases()
        # Sums are ordered by the ids of their parameters.
        self._parameters = {id(one): one for one in parameters}
        keys = {one[0] for phase in self._phases for one in phase.sums} - {_WEIGHT}
        if not keys <= self._parameters.keys():
            raise Uncapturable("gradients were accumulated for parameters that no longer exist")
        _require_dense_sums(self.tensors())
        # For each update, the ids of the parameters with new sums; None if it keeps its sums.
        self._left: list[list[int] | None] = []
        self._copied: list[int] | None = None
        self._sums_left: list[tuple[Any, ...]] = []

    def is_current(self) -> bool:
        """Return whether the next step is in this phase."""
        return self._accumulation.phases() == self._phases

    def tensors(self) -> list[torch.Tensor]:
        """List the sums that the next step reads."""
        return [total for one in self._accumulation.now() for total in _sums_of(one).values()]

    @contextmanager
    def with_fake_sums(
        self, fakes_by_id: Mapping[int, torch.Tensor], sums: Iterable[torch.Tensor]
    ) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Replace the sums with fake tensors during a trace; yield a function for the new sums."""
        fake_sums = iter(sums)
        replaced: list[Window] = []
        for window, phase in zip(self._accumulation.now(), self._phases, strict=True):
            fakes = {one[0]: next(fake_sums) for one in phase.sums}
            replaced.append(_window_of(window.steps, fakes, fakes_by_id))
        real = {id(fake): one for one, fake in fakes_by_id.items()} | {_WEIGHT: _WEIGHT}

        def left() -> list[torch.Tensor]:
            self._left = []
            found: list[torch.Tensor] = []
            for before, after in zip(replaced, self._accumulation.now(), strict=True):
                if after is before:
                    self._left.append(None)
                    continue
                sums = {real[key]: total for key, total in _sums_of(after).items()}
                self._left.append(sorted(sums))
                found += [sums[one] for one in sorted(sums)]
            _require_dense_sums(found)
            return found

        with self._accumulation.replaced_by(replaced):
            yield left

    def forget_layout(self) -> None:
        """Forget which results of a step share memory, because another function computes them."""
        self._copied = None

    def store_sums(self, results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Store the new sums among the results of a step; return the other results."""
        end = len(results) - sum(len(one) for one in self._left if one is not None)
        others, sums = results[:end], list(results[end:])
        if self._copied is None:
            # A compiler may return one tensor as both a sum and an output of the ops.
            outputs = {one.data_ptr() for one in others if one.numel()}
            self._copied = [at for at, one in enumerate(sums) if one.data_ptr() in outputs]
            self._sums_left = [(one.dtype, one.shape, one.stride()) for one in sums]
        for at in self._copied:
            sums[at] = sums[at].clone()
        index, windows, phases = 0, [], []
        updates = zip(self._accumulation.updates, self._left, self._phases, strict=True)
        for update, left, phase in updates:
            if left is None:
                windows.append(update.window)
                phases.append(phase)
                continue
            times = 0 if phase.averages else update.window.steps + 1
            found = dict(zip(left, sums[index:], strict=False))
            signatures = zip(left, self._sums_left[index:], strict=False)
            windows.append(_window_of(times, found, self._parameters))
            phases.append(
                _UpdatePhase(_averaged(times, update), tuple((one, *of) for one, of in signatures))
            )
            index += len(left)
        self._accumulation.store(windows, phases)
        return others


def _require_dense_sums(sums: Iterable[torch.Tensor]) -> None:
    for total in sums:
        require_dense("a merged gradient", total)


def _averaged(times: int, update: TorchUpdate) -> int:
    return times + 1 if times + 1 >= update.window_length else 0


def _sums_of(window: Window) -> dict[int, torch.Tensor]:
    """Return the sums by the ids of their parameters, in ascending order; that of weights first."""
    sums = {} if window.weight is None else {_WEIGHT: window.weight}
    by_id = {id(parameter): total for parameter, total in window.sums.items()}
    return sums | {key: by_id[key] for key in sorted(by_id)}


def _window_of(steps: int, sums: dict[int, torch.Tensor], parameters: Mapping[int, Any]) -> Window:
    """Return the window of merged gradients, given their sums as `_sums_of` returns them."""
    own = {parameters[key]: total for key, total in sums.items() if key != _WEIGHT}
    return Window(steps, own, sums.get(_WEIGHT))
