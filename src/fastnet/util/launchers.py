"""What the launchers of several processes tell each of them in its environment."""

from __future__ import annotations

import json
import os

__all__ = ["TF_TASKS", "tf_workers", "torch_processes"]

TF_TASKS = ("chief", "worker")
"""The tasks of a `TF_CONFIG` that train together."""


def torch_processes() -> int:
    """Return how many processes torchrun, or what sets the same variable, has started; else 1."""
    told = os.environ.get("WORLD_SIZE", "")
    return int(told) if told.isdigit() else 1


def tf_workers() -> int:
    """Return how many workers `TF_CONFIG` tells this process that it is one of; 1 without any.

    Raises:
        ValueError: If it cannot be read.
    """
    told = os.environ.get("TF_CONFIG")
    if not told:
        return 1
    try:
        config = json.loads(told)
        jobs, task = config.get("cluster", {}), config.get("task", {}).get("type", "worker")
        count = sum(len(jobs.get(name, ())) for name in TF_TASKS)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"TF_CONFIG is in the environment, but cannot be read ({error!r}). It is JSON such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from error
    return count if task in TF_TASKS and count else 1
