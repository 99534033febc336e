"""Reads the number of processes from the environment variables of a launcher."""

from __future__ import annotations

import json
import os

TF_TASKS = ("chief", "worker")
"""The task types in `TF_CONFIG` that take part in training."""


def torch_processes() -> int:
    """Return the `WORLD_SIZE` that torchrun sets, or 1."""
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isdigit() else 1


def tf_workers() -> int:
    """Return the number of workers in `TF_CONFIG` if this process is one of them, or 1."""
    value = os.environ.get("TF_CONFIG")
    if not value:
        return 1
    try:
        config = json.loads(value)
        cluster = config.get("cluster", {})
        task_type = config.get("task", {}).get("type", "worker")
        count = sum(len(cluster.get(name, ())) for name in TF_TASKS)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"TF_CONFIG is in the environment, but cannot be parsed ({error!r}). Use JSON like "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from error
    return count if task_type in TF_TASKS and count else 1
