"""An epoch of steps over a loader, with timing and an optional progress bar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from operator import length_hint
from time import perf_counter
from typing import Any

from fastnet.distributed import is_main
from fastnet.errors import MissingKeyError, nearest_name, shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.loaders import begin_loader, end_loader
from fastnet.network.step import DATA_WAIT_TITLE
from fastnet.network.validation import check_batches, check_request
from fastnet.op.checks import is_int
from fastnet.types import Mode
from fastnet.util import to_list


class Steps:
    """Run a network over the batches of a loader for one epoch, and time the loader and the steps.

    ``for batch, result in steps(...)`` enters the network, runs a step for each batch, and yields
    both. The rest, such as logging, saving and stopping, is left to the loop. The network is open
    until the loop ends or is left.

    The epoch ends when the loader does; pass `itertools.islice(loader, count)` for fewer steps. A
    loop that is left early, by `break` or by an exception, leaves the network as an exception does:
    accumulated gradients are carried over whatever `rest` is, and per-epoch schedules do not step.
    With `per_call`, the steps of a group have all been taken when the loop gets the first of them.

    Args:
        network: The network.
        loader: An iterable of batches, each a dict, such as a DataLoader or a `tf.data.Dataset`.
            Samplers with `set_epoch` are given the epoch. `on_epoch_begin` of a
            `keras.utils.PyDataset` is called, and `on_epoch_end` when all of its batches ran.
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none. None to run the ops of every id.
        desired_output_keys: The keys to return, beside those of the batch and in `show`; None or
            empty for all.
        progress: Whether to show a progress bar (with tqdm), in the main process only.
        show: The key or keys of numbers that the progress bar shows, such as a loss.
        per_call: How many batches to read and to run at once, by `run_steps`.

    Attributes:
        count: The number of steps so far.
        waited: The seconds spent waiting for the loader.
        ran: The seconds spent in `run_step`, without work that it leaves queued on a device.
        in_body: The seconds spent elsewhere: in the body of the loop, including waits for the
            device such as `.item()`, and in the progress bar.

    Raises:
        TypeError: If `loader` is a single dict, or `network` is not a network.
        ValueError: If `per_call` is not an int of at least 1.
        ModuleNotFoundError: If a bar is wanted and tqdm is not installed.
        KeyError: If a result lacks a key that the bar shows.

    >>> from fastnet.network import TorchNetwork
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    >>> epoch = steps(network, [{"x": 1}, {"x": 2}], "infer")
    >>> [result["y"] for batch, result in epoch]
    [2, 3]
    >>> epoch.count
    2
    """

    count = 0
    waited = 0.0
    ran = 0.0
    in_body = 0.0

    def __init__(
        self,
        network: BaseNetwork,
        loader: Iterable[Mapping[str, Any]],
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        desired_output_keys: Collection[str] | None = None,
        progress: bool = False,
        show: str | Collection[str] = (),
        per_call: int = 1,
    ) -> None:
        if not isinstance(network, BaseNetwork):
            raise TypeError(
                f"steps takes the network first, then the loader, but got {shorten(network)} of "
                f"type {type(network).__name__}: fastnet.steps(network, loader, mode, epoch)."
            )
        check_batches(loader, "steps")
        if not is_int(per_call) or per_call < 1:
            raise ValueError(f"per_call is an int of at least 1, not {shorten(per_call)}.")
        self._per_call = per_call
        _, desired = check_request(mode, epoch, ds_id, desired_output_keys, network._first_epoch)
        self._network = network
        self._loader: Any = loader
        self._progress = progress
        self._show = to_list(show)
        # Without desired keys all outputs are returned, or none if the network was made so.
        if desired or not network._returns_all:
            desired |= frozenset(self._show)
        self._request = mode, epoch, ds_id, desired

    @property
    def waiting_share(self) -> float:
        """The share of `waited` in `waited + ran`: near 1, the loader is slower than the steps."""
        total = self.waited + self.ran
        return self.waited / total if total else 0.0

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        network, (mode, *_) = self._network, self._request
        run_steps = network.run_steps
        self.count = 0
        self.waited = self.ran = self.in_body = 0.0
        with self._open_bar() as bar, network(*self._request):
            session = network._require_session()
            begin_loader(self._loader, session)
            batches = iter(self._loader)
            started = perf_counter()
            while group := list(islice(batches, self._per_call)):
                drawn = perf_counter()
                results = [network.run_step(group[0])] if len(group) == 1 else run_steps(group)
                done = perf_counter()
                self.waited += drawn - started
                self.ran += done - drawn
                # Read it in every step: profiling may start in the middle of an epoch.
                meter = network._meter
                if meter is not None:
                    meter.record(mode, DATA_WAIT_TITLE, drawn - started)
                for batch, result in zip(group, results, strict=True):
                    self.count += 1
                    # The bar decides when to refresh, so that values are not fetched in each step.
                    if bar is not None and bar.update():
                        shown = {key: f"{self._read(result, key):.4g}" for key in self._show}
                        bar.set_postfix(shown | {"waiting for data": f"{self.waiting_share:.0%}"})
                    try:
                        yield batch, result
                    except GeneratorExit:
                        # A loop that was left early cannot be distinguished from one that failed.
                        session.skip_exit_calls()
                        raise
                    finally:
                        started = perf_counter()
                        self.in_body += started - done
                        done = started
            end_loader(self._loader, self.count)

    def __repr__(self) -> str:
        mode, epoch, *_ = self._request
        return f"Steps(mode={mode!r}, epoch={epoch}, count={self.count})"

    def _read(self, result: Mapping[str, Any], key: str) -> float:
        """Return a number of a result that the bar shows."""
        if key not in result:
            near = nearest_name(key, result)
            advice = f" Did you mean '{near}'?" if near else ""
            raise MissingKeyError(f"`show` names '{key}', which is not in the result.{advice}")
        return float(result[key])

    def _open_bar(self) -> Any:
        """Return the progress bar, which is a context manager, or an empty one without a bar."""
        if not self._progress or not is_main():
            return nullcontext()
        from tqdm import tqdm

        mode, epoch, *_ = self._request
        # `len` of a DataLoader of an IterableDataset raises TypeError.
        total = length_hint(self._loader, -1)
        return tqdm(total=None if total < 0 else total, unit="step", desc=f"{mode} {epoch}")


steps = Steps
