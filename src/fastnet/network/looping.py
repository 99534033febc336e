"""An epoch of steps over a loader, with the times of both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

from fastnet.distributed import is_main
from fastnet.errors import nearest_name, shown
from fastnet.network.base import BaseNetwork
from fastnet.network.progress_bar import bar_class
from fastnet.network.updates import forget_endings
from fastnet.network.validation import desired_keys
from fastnet.types import Mode
from fastnet.util import to_list

__all__ = ["Steps", "steps"]

_OVER: Any = object()


class Steps:
    """An epoch of a loader through a network: made by `steps`, gone through with `for`.

    Attributes:
        count: How many steps there were so far.
        waited: How long the loader was waited for, in seconds.
        ran: How long the steps took, in seconds. What a device is still at when `run_step` returns
            is not in it: where outputs stay on the device (`returns`), that may be most of a step.
        in_body: How long everything else took, in seconds: what the body of the loop does with a
            batch and its result, waiting for the device by `.item()` among it, and the bar.
    """

    def __init__(
        self,
        network: BaseNetwork,
        loader: Iterable[Mapping[str, Any]],
        opening: tuple[Mode, int, str | None, frozenset[str]],
        progress: bool,
        show: list[str],
    ) -> None:
        self.count = 0
        self.waited = 0.0
        self.ran = 0.0
        self.in_body = 0.0
        self._network = network
        self._loader = loader
        self._opening = opening
        self._progress = progress
        self._show = show

    def __repr__(self) -> str:
        return (
            f"Steps({self.count} run, {self.waited:.3g} s waiting for data, {self.ran:.3g} s in "
            f"steps, {self.in_body:.3g} s in the loop's body)"
        )

    def __len__(self) -> int:
        """Return the number of the loader's batches.

        Raises:
            TypeError: If the loader has no length.
        """
        loader: Any = self._loader
        if not hasattr(loader, "__len__"):
            raise TypeError(
                f"These steps have no length, as their loader is {type(loader).__name__}, which "
                "has none. Their `count` says how many there were so far."
            )
        return len(loader)

    def __bool__(self) -> bool:
        # of a loader without a length, and of an empty one
        return True

    @property
    def waiting_share(self) -> float:
        """The part of `waited` and `ran` that was waited: near 1, steps are faster than the loader.

        The loop's own body is not in it: see `in_body`.
        """
        both = self.waited + self.ran
        return self.waited / both if both else 0.0

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        network, (mode, epoch, ds_id, desired) = self._network, self._opening
        self.count, self.waited, self.ran, self.in_body = 0, 0.0, 0.0, 0.0
        bar = self._bar() if self._progress and is_main() else None
        try:
            with network(mode=mode, epoch=epoch, ds_id=ds_id, desired_output_keys=desired):
                network._begin_loader(self._loader)
                try:
                    yield from self._run(iter(self._loader), mode, bar)
                except GeneratorExit:
                    # nobody can tell a loop that was left from one that has failed
                    forget_endings(network._opening)
                    raise
        finally:
            if bar is not None:
                bar.close()

    def _run(
        self, batches: Iterator[Mapping[str, Any]], mode: str, bar: Any
    ) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        network = self._network
        started = perf_counter()
        while True:
            batch = next(batches, _OVER)
            if batch is _OVER:
                return
            drawn = perf_counter()
            result = network.run_step(batch)
            done = perf_counter()
            self.count += 1
            self.waited += drawn - started
            self.ran += done - drawn
            # whoever measures the network may have come in the middle
            meter = network._meter
            if meter is not None:
                meter.waited(mode, drawn - started)
            if self.count == 1:
                self._numbers(result)
            # the bar says when it is time, so that a value is not fetched in each step
            if bar is not None and bar.update():
                bar.set_postfix(self._postfix(result))
            try:
                yield batch, result
            finally:  # the loop may be left
                started = perf_counter()
                self.in_body += started - done

    def _bar(self) -> Any:
        loader: Any = self._loader
        count = len(loader) if hasattr(loader, "__len__") else None
        mode, epoch = self._opening[:2]
        return bar_class("steps")(total=count, unit="step", desc=f"{mode} {epoch}")

    def _postfix(self, result: Mapping[str, Any]) -> dict[str, str]:
        numbers = {key: f"{number:.4g}" for key, number in self._numbers(result).items()}
        return {**numbers, "waiting for data": f"{self.waiting_share:.0%}"}

    def _numbers(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Read what is to be shown of a step.

        Raises:
            KeyError: If the step gives no value of a key.
            TypeError: If a value is no number.
        """
        numbers = {}
        for key in self._show:
            if key not in result:
                near = nearest_name(key, result)
                hint = "" if near is None else f" Did you mean '{near}'?"
                raise KeyError(f"steps is to show '{key}', but a step gives {list(result)}.{hint}")
            try:
                numbers[key] = float(result[key])
            except (TypeError, ValueError, RuntimeError) as error:
                raise TypeError(
                    f"steps is to show '{key}', which is {shown(result[key])} and no number."
                ) from error
        return numbers


def steps(
    network: BaseNetwork,
    loader: Iterable[Mapping[str, Any]],
    mode: Mode,
    epoch: int = 1,
    ds_id: str | None = "",
    desired_output_keys: Collection[str] | None = None,
    progress: bool = False,
    show: str | Collection[str] = (),
) -> Steps:
    """Run an epoch of batches, one after another, and take the times of the loader and of steps.

    It is a loop's help and no more: `for batch, result in steps(...)` opens the network, draws
    each batch, runs its step and hands out both. What is done with them, when to save and when to
    stop is the loop's. The network is open until the loop is over, or left.

    The epoch ends where the loader does. A loop that is left before, by `break` or by an error,
    leaves the opening as an error does: what `merge_grad` has added up is carried whatever `rest`
    is, and schedules that step per epoch do not. For an epoch of fewer steps pass
    `itertools.islice(loader, count)`.

    Args:
        network: The network.
        loader: Gives batches. Its sampler is told the epoch, where it is made to be told.
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none. None to run the ops of every id.
        desired_output_keys: The keys wanted back, beside those of `show`. None or empty for all
            that ops write.
        progress: Whether to show a bar (with tqdm); of several processes the first one does.
        show: The key or keys of numbers that the bar shows, such as the loss's.

    Returns:
        What to go through. Its `count`, `waited`, `ran`, `in_body` and `waiting_share` tell of the
        epoch, during it and after it; `len` of it is the number of the loader's batches.

    Raises:
        ModuleNotFoundError: When the loop begins, if it is to show a bar without tqdm.
        KeyError: In the first step, if it gives no value of a key to show.
        TypeError: In the first step, if such a value is no number.

    >>> from fastnet.network import TorchNetwork
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    >>> epoch = steps(network, [{"x": 1}, {"x": 2}], "infer")
    >>> [result["y"] for batch, result in epoch]
    [2, 3]
    >>> epoch.count
    2
    """
    keys = to_list(show)
    desired = desired_keys(desired_output_keys)
    if desired:
        desired |= frozenset(keys)
    return Steps(network, loader, (mode, epoch, ds_id, desired), progress, keys)
