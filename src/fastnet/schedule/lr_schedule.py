"""Learning rates as functions of the step or the epoch."""

from __future__ import annotations

import math

__all__ = ["cosine_decay"]


def cosine_decay(
    time: int,
    cycle_length: int,
    init_lr: float,
    min_lr: float = 1e-6,
    start: int = 1,
    cycle_multiplier: int = 1,
    warmup: bool = False,
) -> float:
    """Let a learning rate fall along half a cosine, again and again (SGDR).

    Args:
        time: The step or epoch, counted from 1.
        cycle_length: How long the first fall takes, from `init_lr` to `min_lr`.
        init_lr: The rate that each cycle starts from.
        min_lr: The rate that each cycle ends at.
        start: The step or epoch at which the first cycle begins.
        cycle_multiplier: How many times as long as the one before each cycle is.
        warmup: Whether the rate rises along a line before `start`; otherwise it is `init_lr`.

    Returns:
        The learning rate at `time`.

    Raises:
        ValueError: If `cycle_multiplier` is less than 1.

    >>> [round(cosine_decay(time, cycle_length=4, init_lr=1.0, min_lr=0.0), 3) for time in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.854]
    """
    if cycle_multiplier < 1:
        raise ValueError(
            f"cycle_multiplier must be at least 1, but got {cycle_multiplier}. Use 1 for cycles of "
            "equal length."
        )
    if time < start:
        return init_lr * time / start if warmup else init_lr

    steps = time - start + 1  # into the schedule, counted from 1
    if cycle_multiplier == 1:
        cycle = math.ceil(steps / cycle_length) - 1
        before: float = cycle * cycle_length
    else:
        # the cycles before this one are a geometric series
        growth = steps * (cycle_multiplier - 1) / cycle_length + 1
        cycle = math.ceil(math.log(growth) / math.log(cycle_multiplier)) - 1
        before = cycle_length * (cycle_multiplier**cycle - 1) / (cycle_multiplier - 1)
    progress = (steps - before) / (cycle_length * cycle_multiplier**cycle)
    return (init_lr - min_lr) / 2 * math.cos(progress * math.pi) + (init_lr + min_lr) / 2
