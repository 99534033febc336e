"""A validator of trace files: the trace-event format, as far as a profile uses it.

The format is described in Google's "Trace Event Format": a file is an object with `traceEvents`, an
array of objects whose `ph` says what else they have. Written from that description.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

_FIELDS = {
    "X": {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"},
    "M": {"ph", "name", "pid", "tid", "args"},
}


def validate(trace: Any) -> dict[str, list[dict[str, Any]]]:
    """Check that Perfetto can open a trace, and return the events of each track by its name."""
    assert trace.keys() == {"traceEvents", "displayTimeUnit"}
    names: dict[tuple[int, int], str] = {}
    tracks: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert event.keys() == _FIELDS[event["ph"]], event
        track = event["pid"], event["tid"]
        if event["ph"] == "X":
            assert math.isfinite(event["ts"])
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            tracks[track].append(event)
        elif event["name"] == "thread_name":
            names[track] = event["args"]["name"]
    assert set(tracks) <= set(names), "each track has a name"
    for events in tracks.values():
        _check_nesting(events)
    return {names[track]: events for track, events in tracks.items()}


def bounds(event: dict[str, Any]) -> tuple[int, int]:
    """Return an event's begin and end in nanoseconds."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _check_nesting(events: list[dict[str, Any]]) -> None:
    """Two events of a track are apart from each other, or one is within the other."""
    around: list[int] = []
    for start, end in sorted(map(bounds, events), key=lambda each: (each[0], -each[1])):
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], "events of a track overlap"
        around.append(end)
