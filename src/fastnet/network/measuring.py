"""Access to networks for profiling and `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastnet.network.step import Meter
from fastnet.network.trace_records import TraceRecord

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork


@contextmanager
def measured_by(network: BaseNetwork, meter: Meter) -> Iterator[None]:
    """Time a network with a meter in a block, even if it is open already.

    Raises:
        ValueError: If it is being timed already.
    """
    try:
        network._measure_with(meter)
        yield
    finally:
        # It may be timed by another meter.
        if network._meter is meter:
            network._measure_with(None)


def skip_exit_calls(network: BaseNetwork) -> None:
    """Run no exit calls when an open network is left."""
    network._require_session().skip_exit_calls()


def compiles_steps(network: BaseNetwork) -> bool:
    """Return whether a network was asked to compile its steps."""
    return network._compile_options is not None


def traces_of(network: BaseNetwork) -> tuple[TraceRecord, ...]:
    """Return the records of traces and fallbacks of a network."""
    return tuple(getattr(network, "traces", ()))
