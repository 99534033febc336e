"""Calls to data loaders at the beginning and the end of an epoch."""

from __future__ import annotations

from typing import Any

from fastnet.network.session import Session
from fastnet.util.warnings import warn


def begin_loader(loader: Any, session: Session) -> None:
    """Prepare a loader for an epoch.

    The session checks it, its samplers get the epoch, and `on_epoch_begin` of a Keras dataset is
    called.
    """
    session.check_loader(loader)
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = [
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    ]
    # A DataLoader has the sampler that its batch sampler draws from, too.
    for sampler in {id(sampler): sampler for sampler in samplers}.values():
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(session.epoch)
    _notify_keras_dataset(loader, "on_epoch_begin")


def end_loader(loader: Any, count: int) -> None:
    """Call `on_epoch_end` of a Keras dataset; warn if a loader is an iterator without batches."""
    _notify_keras_dataset(loader, "on_epoch_end")
    if not count and hasattr(loader, "__next__"):
        warn(
            f"The epoch had no step, because the loader, {type(loader).__name__}, is exhausted: "
            "an iterator gives its batches once. Make a new one for each epoch, or pass an "
            "object that can be iterated again, such as a list, a DataLoader or a tf.data.Dataset."
        )


def _notify_keras_dataset(loader: Any, name: str) -> None:
    """Call a method of a `keras.utils.PyDataset`, which is named Sequence in Keras 2."""
    for base in type(loader).__mro__:
        is_keras = base.__module__.partition(".")[0] in ("keras", "tf_keras")
        # A Sequence has no `on_epoch_begin`.
        if is_keras and base.__name__ in ("PyDataset", "Sequence") and hasattr(base, name):
            getattr(loader, name)()
            return
