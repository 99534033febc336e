"""Learning rate schedules as functions of the step or the epoch."""

from __future__ import annotations

import math


def cosine_decay(
    time: int,
    cycle_length: int,
    init_lr: float,
    min_lr: float = 1e-6,
    start: int = 1,
    cycle_multiplier: int = 1,
    warmup: bool = False,
) -> float:
    """Cosine decay of a learning rate with warm restarts (SGDR).

    Args:
        time: The step or epoch, counted from 1.
        cycle_length: The length of the first cycle, in steps or epochs.
        init_lr: The learning rate just before the first step of each cycle.
        min_lr: The learning rate at the last step of each cycle.
        start: The step or epoch at which the first cycle begins.
        cycle_multiplier: The factor by which each cycle is longer than the one before.
        warmup: Whether the rate rises linearly before `start`. Otherwise it is `init_lr` there.

    Returns:
        The learning rate at `time`.

    Raises:
        ValueError: If `cycle_length` is not positive, or `cycle_multiplier` is less than 1.

    >>> [round(cosine_decay(time, cycle_length=4, init_lr=1.0, min_lr=0.0), 3) for time in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.854]
    """
    if not cycle_length > 0:
        raise ValueError(f"cycle_length must be positive, but got {cycle_length}.")
    if cycle_multiplier < 1:
        raise ValueError(
            f"cycle_multiplier must be at least 1, but got {cycle_multiplier}. Use 1 for cycles of "
            "equal length."
        )
    if time < start:
        return init_lr * time / start if warmup else init_lr

    step: float = time - start + 1
    length = cycle_length
    if cycle_multiplier == 1:
        # Skip all cycles before the current one at once, because there may be many.
        step -= (math.ceil(step / length) - 1) * length
    while step > length:
        step -= length
        length *= cycle_multiplier
    return (init_lr - min_lr) / 2 * math.cos(step / length * math.pi) + (init_lr + min_lr) / 2
