"""A validator of trace files: the trace-event format, as far as a profile uses it.

The format is described in Google's "Trace Event Format": a file is an object with `traceEvents`, an
array of objects whose `ph` says what else they have. Written from that description.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

# what an event of each phase must have beside its phase, and of which types
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "X": {
        "name": (str,),
        "cat": (str,),
        "ts": (int, float),
        "dur": (int, float),
        "pid": (int,),
        "tid": (int,),
        "args": (dict,),
    },
    "M": {"name": (str,), "pid": (int,), "tid": (int,), "args": (dict,)},
}
_METADATA: dict[str, tuple[str, type]] = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
_TOP = {"traceEvents", "displayTimeUnit", "otherData", "metadata"}


def validate(trace: Any) -> dict[str, list[dict[str, Any]]]:
    """Refuse what Perfetto would not open, or would show wrongly.

    Returns:
        The events of each track, by its name.
    """
    assert isinstance(trace, dict)
    assert trace.keys() <= _TOP
    assert trace.get("displayTimeUnit", "ms") in ("ms", "ns")
    names: dict[tuple[int, int], str] = {}
    tracks: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        fields = _FIELDS[event["ph"]]
        assert event.keys() == fields.keys() | {"ph"}, event
        for name, types in fields.items():
            assert isinstance(event[name], types), (name, event)
            assert not isinstance(event[name], bool)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            key, kind = _METADATA[event["name"]]
            assert isinstance(event["args"][key], kind)
            if event["name"] == "thread_name":
                assert track not in names, "a track has one name"
                names[track] = event["args"][key]
        else:
            assert math.isfinite(event["ts"])
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            tracks[track].append(event)
    assert set(tracks) <= set(names), "each track has a name"
    assert len(set(names.values())) == len(names)
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
