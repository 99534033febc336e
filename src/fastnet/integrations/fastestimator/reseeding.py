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
    """Say whether networks in TensorFlow start their random numbers over when they are left.

    Args:
        on: Whether they do, from now on.
    """
    global _reseeds
    _reseeds = on


def _enter_models(network: Any, opening: Any) -> None:
    if _reseeds:
        # FastEstimator runs a single batch op by op, which draws other numbers than a graph does
        opening.transforms = False
    import_module("fastnet.network").TFNetwork._enter_models(network, opening)


def _exit_models(network: Any, opening: Any) -> None:
    import_module("fastnet.network").TFNetwork._exit_models(network, opening)
    if not _reseeds:
        return
    tf: Any = import_module("tensorflow")
    # as in FastEstimator, which cannot clear the graphs of several devices
    if not isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy):
        tf.keras.backend.clear_session()


MEMBERS = {"_enter_models": _enter_models, "_exit_models": _exit_models}
"""What the class that stands in for TFNetwork does besides."""
