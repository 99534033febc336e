"""Values that change with the epoch."""

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
