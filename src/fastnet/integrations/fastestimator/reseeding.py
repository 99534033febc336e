"""TensorFlow's random numbers drawn again from opening to opening, as FastEstimator has them.

FastEstimator clears the Keras session whenever a network in TensorFlow is left. With it go the
counters of the random ops, eager or in a graph, so that each opening draws what the one before has
drawn, and those by which Keras names layers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["MEMBERS", "reseed"]

_reseeds = False


def reseed(on: bool) -> None:
    """Return whether networks in TensorFlow start their random numbers over when they are left.

    Args:
        on: Whether they do, from now on.
    """
    global _reseeds
    _reseeds = on


def _make_runner(network: Any, opening: Any) -> Any:
    if not _reseeds:
        return import_module("fastnet.network").TFNetwork._make_runner(network, opening)
    runners = import_module("fastnet.integrations.fastestimator.reseeding_runner")
    return runners.ReseedingRunner(opening, network._programs, network._open_axes)


MEMBERS = {"_make_runner": _make_runner}
"""What the class that stands in for TFNetwork does besides."""
