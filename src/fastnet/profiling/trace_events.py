"""Trace event files, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from fastnet.profiling.stamps import BEGIN, MEASURING, Timeline

_HOST, _DEVICE = 1, 2
# The format counts in microseconds; whole nanoseconds nest without rounding errors.
_NANOSECONDS = 1e9
_PER_MICROSECOND = 1000


def trace_events(timelines: Sequence[Timeline], title: str) -> dict[str, Any]:
    """Return trace events: a track of the host and, where it was measured, one of the device."""
    starts = [float(one.stamps["at"][0]) for one in timelines if len(one.stamps)]
    starts += [span.start for one in timelines for span in one.device]
    start = min(starts, default=0.0)
    device = [event for one in timelines for event in _device_events(one, start)]
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
    name: str, category: str, first: int, last: int, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": first / _PER_MICROSECOND,
        "dur": (last - first) / _PER_MICROSECOND,
        "pid": 1,
        "tid": thread,
        "args": args,
    }


def _host_events(timeline: Timeline, start: float) -> Iterator[dict[str, Any]]:
    stamps = [
        (round((at - start) * _NANOSECONDS), row, minibatch)
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
            since, until = step[parts[0] - 1][0], step[parts[-1]][0]
            yield _event("step", "step", since, until, _HOST, args)
        yield from _minibatches(step, args)
        for (since, _, _), (until, row, _) in pairwise(step):
            part = timeline.parts[row]
            yield _event(part.name, part.kind, since, until, _HOST, {"section": timeline.section})


def _minibatches(
    step: Iterable[tuple[int, int, int]], args: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    bounds: dict[int, tuple[int, int]] = {}
    before = 0
    for at, _, minibatch in step:
        if minibatch:
            bounds[minibatch] = bounds.get(minibatch, (before, 0))[0], at
        before = at
    for minibatch, (first, last) in bounds.items():
        yield _event(f"minibatch {minibatch - 1}", "minibatch", first, last, _HOST, args)


def _device_events(timeline: Timeline, start: float) -> Iterator[dict[str, Any]]:
    last = 0
    for span in sorted(timeline.device, key=lambda span: span.start):
        # Spans of a stream do not overlap, but rounding could make them.
        first = max(last, round((span.start - start) * _NANOSECONDS))
        last = first + round(span.seconds * _NANOSECONDS)
        args = {"section": timeline.section, "index": span.index}
        yield _event(timeline.ops[span.index], "op", first, last, _DEVICE, args)
