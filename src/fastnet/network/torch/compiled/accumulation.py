"""Merged gradients in compiled steps: the sums that a step reads, and those that it leaves.

An update with `merge_grad` runs differently from step to step: the first step of a window makes its
sums, later ones add to them, and the last one averages them and lets the optimizer step. Each of
these phases needs a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fastnet.backend.torch.update import TorchUpdate, Window
from fastnet.errors import describe_op
from fastnet.network.torch.compiled.optimizers import require_dense
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.network.update_binding import update_ops_in

# The key of a sum: the id of its parameter, or `_WEIGHT` for the sum of the weights.
_Key = int
_WEIGHT: _Key = 0
_Layout = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


class _UpdatePhase(NamedTuple):
    """The phase of one update in its next step.

    Attributes:
        averaged_steps: How many merged steps the update averages, this one included; 0 if it only
            merges. More than `merge_grad` if that was lowered.
        sums: The keys and layouts of the sums that the step reads.
    """

    averaged_steps: int
    sums: tuple[tuple[_Key, _Layout], ...]


class Accumulation:
    """The windows of merged gradients of a plan's updates, and the phases that these are in."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self._ops = [op for op in update_ops_in(ops) if op.updater().is_merging]
        # The phase of each update, with the window that it was computed from.
        self._cache: list[tuple[Window | None, _UpdatePhase | None]] = [(None, None)] * len(
            self._ops
        )

    @property
    def updates(self) -> list[TorchUpdate]:
        """The updates that merge, in order; changed settings of an op replace its update."""
        updates: list[Any] = [op.updater() for op in self._ops]
        return updates

    def count_phases(self) -> int:
        """Return the largest number of phases, each of which needs a program."""
        count = 1
        for op in self._ops:
            # A window has a first step, middle ones and a last one. If `merge_grad` was lowered to
            # 1, only the step after that still has sums, so there are two phases.
            count *= min(max(op.merge_grad, 2), 3)
        return count

    def windows(self) -> list[Window]:
        """Return the window of each update, as it is now."""
        return [update.window for update in self.updates]

    def phases(self) -> list[_UpdatePhase]:
        """Return the phase of each update in the next step."""
        phases = []
        for index, update in enumerate(self.updates):
            window, phase = self._cache[index]
            if phase is None or window is not update.window:
                window = update.window
                sums = _sums_by_key(window).items()
                phase = _UpdatePhase(
                    _averaged_steps(window.steps, update),
                    tuple((key, _layout_of(total)) for key, total in sums),
                )
                self._cache[index] = window, phase
            phases.append(phase)
        return phases

    @contextmanager
    def with_windows(self, windows: Sequence[Window]) -> Iterator[None]:
        """Replace the windows temporarily."""
        original = self.windows()
        try:
            self._set(windows)
            yield
        finally:
            self._set(original)

    @contextmanager
    def merged_at_most_once(self) -> Iterator[None]:
        """Refuse a step in which an update merges several times, for which there is no phase."""
        counts = [update.merge_count for update in self.updates]
        yield
        for op, update, count in zip(self._ops, self.updates, counts, strict=True):
            if update.merge_count > count + 1:
                raise Uncapturable(f"{describe_op(op)} merges gradients more than once a step")

    def store(self, windows: Sequence[Window], phases: Sequence[_UpdatePhase]) -> None:
        """Store the windows that a step has left, and the phases that the updates are in now."""
        self._set(windows)
        self._cache = list(zip(windows, phases, strict=True))

    def _set(self, windows: Sequence[Window]) -> None:
        for update, window in zip(self.updates, windows, strict=True):
            update.window = window


class Phase:
    """A phase of all updates, and the sums that a step in this phase reads and leaves.

    Args:
        accumulation: The updates, which are in this phase now.
        parameters: The parameters of the step.
    """

    def __init__(
        self, accumulation: Accumulation, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._accumulation = accumulation
        self._phases = accumulation.phases()
        self._parameters = {id(parameter): parameter for parameter in parameters}
        keys = {key for phase in self._phases for key, _ in phase.sums} - {_WEIGHT}
        if not keys <= self._parameters.keys():
            raise Uncapturable("gradients were accumulated for parameters that no longer exist")
        _require_dense_sums(self.sums())
        # For each update, the keys of the sums that a step leaves; None if the window stays.
        self._new_keys: list[list[_Key] | None] = []
        # Noted in the first step of the program: the layouts of the new sums, and the indices of
        # the sums that share memory with an output.
        self._new_sums: tuple[list[_Layout], list[int]] | None = None

    def is_current(self) -> bool:
        """Return whether the next step is in this phase."""
        return self._accumulation.phases() == self._phases

    def sums(self) -> list[torch.Tensor]:
        """List the sums that the next step reads."""
        windows = self._accumulation.windows()
        return [total for window in windows for total in _sums_by_key(window).values()]

    @contextmanager
    def with_fake_sums(
        self, fake_parameters: Mapping[int, torch.Tensor], fake_sums: Iterable[torch.Tensor]
    ) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Replace the sums by fake tensors during a trace.

        Args:
            fake_parameters: The fake tensor for each parameter, by the id of the latter.
            fake_sums: A fake tensor for each of `sums`.

        Yields:
            A function that returns the sums that the traced step leaves.
        """
        remaining = iter(fake_sums)
        fake_windows: list[Window] = []
        for window, phase in zip(self._accumulation.windows(), self._phases, strict=True):
            by_key = {key: next(remaining) for key, _ in phase.sums}
            fake_windows.append(_window_of(window.steps, by_key, fake_parameters))
        # The keys of sums in the trace are ids of fake parameters.
        real_keys = {id(fake): key for key, fake in fake_parameters.items()} | {_WEIGHT: _WEIGHT}

        def new_sums() -> list[torch.Tensor]:
            self._new_keys = []
            sums: list[torch.Tensor] = []
            for before, after in zip(fake_windows, self._accumulation.windows(), strict=True):
                if after is before:
                    self._new_keys.append(None)
                    continue
                by_key = {real_keys[key]: total for key, total in _sums_by_key(after).items()}
                self._new_keys.append(sorted(by_key))
                sums += [by_key[key] for key in sorted(by_key)]
            _require_dense_sums(sums)
            return sums

        with (
            self._accumulation.with_windows(fake_windows),
            self._accumulation.merged_at_most_once(),
        ):
            yield new_sums

    def store_sums(
        self, results: Sequence[torch.Tensor], by_program: bool
    ) -> Sequence[torch.Tensor]:
        """Store the new sums, which end the results of a step; return the other results.

        Args:
            results: The results.
            by_program: Whether the compiled program has computed them, or else its graph.
        """
        end = len(results) - sum(len(keys) for keys in self._new_keys if keys is not None)
        outputs, sums = results[:end], list(results[end:])
        if by_program and self._new_sums is not None:
            layouts, shared = self._new_sums
        else:
            layouts = list(map(_layout_of, sums))
            # A compiler may return one tensor as both a sum and an output of the ops.
            memory = {output.data_ptr() for output in outputs if output.numel()}
            shared = [index for index, total in enumerate(sums) if total.data_ptr() in memory]
            if by_program:
                self._new_sums = layouts, shared
        for index in shared:
            sums[index] = sums[index].clone()

        windows, phases = [], []
        new_sums = iter(zip(sums, layouts, strict=True))
        for update, keys, phase in zip(
            self._accumulation.updates, self._new_keys, self._phases, strict=True
        ):
            if keys is None:
                windows.append(update.window)
                phases.append(phase)
                continue
            steps = 0 if phase.averaged_steps else update.window.steps + 1
            sums_by_key, layouts_by_key = {}, {}
            for key in keys:
                sums_by_key[key], layouts_by_key[key] = next(new_sums)
            windows.append(_window_of(steps, sums_by_key, self._parameters))
            phases.append(
                _UpdatePhase(_averaged_steps(steps, update), tuple(layouts_by_key.items()))
            )
        self._accumulation.store(windows, phases)
        return outputs


def _require_dense_sums(sums: Iterable[torch.Tensor]) -> None:
    for total in sums:
        require_dense("a merged gradient", total)


def _layout_of(total: torch.Tensor) -> _Layout:
    return total.dtype, total.device, total.shape, total.stride()


def _averaged_steps(merged_steps: int, update: TorchUpdate) -> int:
    """Return how many steps the next step of an update averages; 0 if it only merges."""
    return merged_steps + 1 if merged_steps + 1 >= update.window_length else 0


def _sums_by_key(window: Window) -> dict[_Key, torch.Tensor]:
    """Return the sums of a window, in the order of their keys."""
    sums = {} if window.weight is None else {_WEIGHT: window.weight}
    by_id = {id(parameter): total for parameter, total in window.sums.items()}
    return sums | {key: by_id[key] for key in sorted(by_id)}


def _window_of(
    steps: int, sums: Mapping[_Key, torch.Tensor], parameters: Mapping[_Key, Any]
) -> Window:
    """Return a window, given its sums by key."""
    by_parameter = {parameters[key]: total for key, total in sums.items() if key != _WEIGHT}
    return Window(steps, by_parameter, sums.get(_WEIGHT))
