"""Trace event files, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from fastnet.profiling.stamps import BEGIN, MEASURING, Timeline

_HOST, _DEVICE = 1, 2
# The format counts in microseconds; whole nanoseconds nest without rounding errors.
_NANOSECONDS_PER_SECOND = 1e9
_NANOSECONDS_PER_MICROSECOND = 1000


def trace_events(timelines: Sequence[Timeline], title: str) -> dict[str, Any]:
    """Return trace events: a track of the host and, where it was measured, one of the device."""
    starts = [float(timeline.stamps["at"][0]) for timeline in timelines if len(timeline.stamps)]
    starts += [span.start for timeline in timelines for span in timeline.device]
    start = min(starts, default=0.0)
    device = [event for timeline in timelines for event in _device_events(timeline, start)]
    events = [
        _metadata("process_name", _HOST, name=title),
        _metadata("thread_name", _HOST, name="host"),
    ]
    if device:
        events.append(_metadata("thread_name", _DEVICE, name="device"))
    for timeline in timelines:
        events += _host_events(timeline, start)
    return {"traceEvents": events + device, "displayTimeUnit": "ns"}


def _metadata(kind: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": args}


def _event(
    name: str, category: str, start: int, end: int, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start / _NANOSECONDS_PER_MICROSECOND,
        "dur": (end - start) / _NANOSECONDS_PER_MICROSECOND,
        "pid": 1,
        "tid": thread,
        "args": args,
    }


def _host_events(timeline: Timeline, start: float) -> Iterator[dict[str, Any]]:
    stamps = [
        (round((at - start) * _NANOSECONDS_PER_SECOND), row, minibatch)
        for at, row, minibatch in timeline.stamps.tolist()
    ]
    begins = [index for index, (_, row, _) in enumerate(stamps) if row == BEGIN]
    for number, (first, end) in enumerate(zip(begins, [*begins[1:], len(stamps)], strict=True)):
        step = stamps[first:end]
        args = {"section": timeline.section, "step": number}
        # A step lasts from the end of the measuring before it to the measuring after it.
        parts = [
            index
            for index, (_, row, _) in enumerate(step)
            if row != BEGIN and timeline.parts[row].kind != MEASURING
        ]
        if parts:
            step_start, step_end = step[parts[0] - 1][0], step[parts[-1]][0]
            yield _event("step", "step", step_start, step_end, _HOST, args)
        yield from _minibatches(step, args)
        for (part_start, _, _), (part_end, row, _) in pairwise(step):
            part = timeline.parts[row]
            part_args = {"section": timeline.section}
            yield _event(part.name, part.kind, part_start, part_end, _HOST, part_args)


def _minibatches(
    step: Iterable[tuple[int, int, int]], args: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    previous = 0
    for at, _, minibatch in step:
        if minibatch:
            # A minibatch starts at the last stamp before it.
            starts.setdefault(minibatch, previous)
            ends[minibatch] = at
        previous = at
    for minibatch, start in starts.items():
        name = f"minibatch {minibatch - 1}"
        yield _event(name, "minibatch", start, ends[minibatch], _HOST, args)


def _device_events(timeline: Timeline, start: float) -> Iterator[dict[str, Any]]:
    last = 0
    for span in sorted(timeline.device, key=lambda span: span.start):
        # Spans of a stream do not overlap, but rounding could make them.
        first = max(last, round((span.start - start) * _NANOSECONDS_PER_SECOND))
        last = first + round(span.seconds * _NANOSECONDS_PER_SECOND)
        args = {"section": timeline.section, "index": span.index}
        yield _event(timeline.ops[span.index], "op", first, last, _DEVICE, args)
