"""The memory that a step takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def most_memory(step: Callable[[], Any]) -> int:
    """Return the bytes that a step has taken when it had taken the most."""
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiled:
        step()
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
