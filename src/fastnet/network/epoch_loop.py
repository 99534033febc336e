"""An epoch of steps over a loader, with timing and an optional progress bar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

from fastnet.distributed import is_main
from fastnet.errors import nearest_name, shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.context import check_request
from fastnet.network.metering import WAIT
from fastnet.network.progress import bar_class
from fastnet.network.transform import begin_loader
from fastnet.network.validation import not_batches
from fastnet.types import Mode
from fastnet.util import to_list

__all__ = ["Steps", "steps"]

_END: Any = object()


class Steps:
    """An epoch of a loader through a network, returned by `steps` and iterated with `for`.

    Attributes:
        count: The number of steps so far.
        waited: The seconds spent waiting for the loader.
        ran: The seconds spent in `run_step`. Work that a device still has to do when `run_step`
            returns is not included; with outputs left on the device (`returns`) that may be most
            of a step.
        in_body: The seconds spent elsewhere: in the body of the loop, including waits for the
            device such as `.item()`, and in the progress bar.
    """

    def __init__(
        self,
        network: BaseNetwork,
        loader: Iterable[Mapping[str, Any]],
        context: tuple[Mode, int, str | None, frozenset[str]],
        progress: bool,
        show: list[str],
    ) -> None:
        self._network = network
        self._loader = loader
        self._context = context
        self._progress = progress
        self._show = show
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.waited = 0.0
        self.ran = 0.0
        self.in_body = 0.0

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
        return len(loader)

    def __bool__(self) -> bool:
        # Loaders that are empty or have no length count as true, too.
        return True

    @property
    def waiting_share(self) -> float:
        """The share of `waited` in `waited + ran`: near 1, the loader is slower than the steps."""
        both = self.waited + self.ran
        return self.waited / both if both else 0.0

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        network, (mode, epoch, ds_id, desired) = self._network, self._context
        self._reset()
        bar = self._make_bar() if self._progress and is_main() else None
        try:
            with network(mode=mode, epoch=epoch, ds_id=ds_id, desired_output_keys=desired):
                begin_loader(network, self._loader)
                try:
                    yield from self._run(iter(self._loader), mode, bar)
                except GeneratorExit:
                    # A loop that was left early cannot be told from one that failed.
                    network._skip_exit_calls()
                    raise
        finally:
            if bar is not None:
                bar.close()

    def _run(
        self, batches: Iterator[Mapping[str, Any]], mode: str, bar: Any
    ) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        network = self._network
        started = perf_counter()
        while (batch := next(batches, _END)) is not _END:
            drawn = perf_counter()
            result = network.run_step(batch)
            done = perf_counter()
            self.count += 1
            self.waited += drawn - started
            self.ran += done - drawn
            # Read it in every step: profiling may start in the middle of an epoch.
            meter = network._meter
            if meter is not None:
                meter.record(mode, WAIT, drawn - started)
            if self.count == 1:
                self._read_numbers(result)
            # The bar decides when to refresh, so that values are not fetched in each step.
            if bar is not None and bar.update():
                numbers = self._read_numbers(result)
                shares = {"waiting for data": f"{self.waiting_share:.0%}"}
                bar.set_postfix({key: f"{one:.4g}" for key, one in numbers.items()} | shares)
            try:
                yield batch, result
            finally:
                started = perf_counter()
                self.in_body += started - done

    def _make_bar(self) -> Any:
        loader: Any = self._loader
        count = len(loader) if hasattr(loader, "__len__") else None
        mode, epoch = self._context[:2]
        return bar_class("steps")(total=count, unit="step", desc=f"{mode} {epoch}")

    def _read_numbers(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of the keys in `show` as floats, or raise if they are not numbers."""
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
                    f"steps is to show '{key}', which is {shorten(result[key])} and not a number."
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
    """Run a network over the batches of a loader for one epoch, and time the loader and the steps.

    ``for batch, result in steps(...)`` opens the network, runs a step for each batch, and yields
    both. The rest, such as logging, saving and stopping, is left to the loop. The network is open
    until the loop ends or is left.

    The epoch ends when the loader does. A loop that is left early, by `break` or by an exception,
    leaves the network as an exception does: gradients that `merge_grad` has accumulated are carried
    over whatever `rest` is, and per-epoch schedules do not step. For an epoch with fewer steps pass
    `itertools.islice(loader, count)`.

    Args:
        network: The network.
        loader: An iterable of batches, each a dict of values by key, such as a DataLoader, a
            `tf.data.Dataset` of dicts or a list. Samplers with `set_epoch` are given the epoch.
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none. None to run the ops of every id.
        desired_output_keys: The keys to return, beside those in `show`. None or empty for all
            outputs of ops.
        progress: Whether to show a progress bar (with tqdm), in the main process only.
        show: The key or keys of numbers that the progress bar shows, such as a loss.

    Returns:
        An iterable of pairs of a batch and its result. Its `count`, `waited`, `ran`, `in_body` and
        `waiting_share` describe the epoch while it runs and afterwards; its `len` is the loader's.

    Raises:
        TypeError: If `loader` is a single dict; in the first step, if a value to show is not a
            number.
        ModuleNotFoundError: When the loop starts, if a bar is wanted and tqdm is not installed.
        KeyError: In the first step, if its result lacks a key to show.

    >>> from fastnet.network import TorchNetwork
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    >>> epoch = steps(network, [{"x": 1}, {"x": 2}], "infer")
    >>> [result["y"] for batch, result in epoch]
    [2, 3]
    >>> epoch.count
    2
    """
    if isinstance(loader, Mapping):
        raise not_batches(loader, "steps")
    keys = to_list(show)
    _, desired = check_request(mode, epoch, ds_id, desired_output_keys, network._first_epoch)
    if desired:
        desired |= frozenset(keys)
    return Steps(network, loader, (mode, epoch, ds_id, desired), progress, keys)
