"""Schedulers: values, such as ops, slicers or optimizers, that depend on the epoch.

A scheduler is any object with two methods. ``get_current_value(epoch)`` returns the value for an
epoch, and ``get_all_values()`` returns the values of all epochs. Epochs are counted from 1. None
means that there is no value in an epoch. A network asks its schedulers each time it is entered.
"""

from fastnet.schedule.lr_schedule import cosine_decay
from fastnet.schedule.schedule import (
    EpochScheduler,
    RepeatScheduler,
    Scheduler,
    get_current_items,
    get_signature_epochs,
)

__all__ = [
    "EpochScheduler",
    "RepeatScheduler",
    "Scheduler",
    "cosine_decay",
    "get_current_items",
    "get_signature_epochs",
]
