"""An explanation as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from fastnet.explain.items import Item
from fastnet.explain.keys import Key

_WIDTH = 96
_MAX_COLUMN = 30
_MIN_LAST_COLUMN = 20


def format_text(explanation: Any) -> str:
    """Return an explanation as lines of at most 96 characters, as far as keys and names allow."""
    lines = [*_format_header(explanation)]
    for part in ("ops", "postprocessing", "slicers"):
        lines += _format_items(explanation, part)
    lines += ["", "Keys", *_format_keys(explanation)]
    if explanation.schedules:
        lines += ["", "Schedules"]
    for schedule in explanation.schedules:
        values = "; ".join(f"from epoch {epoch} {value}" for epoch, value in schedule.values)
        values += "" if schedule.cycle is None else f"; repeats every {schedule.cycle} epochs"
        lines += _wrap(f"{schedule.where}, {schedule.name}: {values}", "  ", "    ")
    lines += ["", f"Findings ({len(explanation.findings) or 'none'})"]
    for finding in explanation.findings:
        lines += _wrap(finding.text, "  * ", "    ")
    return "\n".join(lines)


def _wrap(text: str, first: str = "", rest: str = "  ") -> list[str]:
    width = max(_WIDTH, len(first) + _MIN_LAST_COLUMN)
    lines = wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return lines or [first.rstrip()]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns, and wrap the last column."""
    widths = [min(max(map(len, column)), _MAX_COLUMN) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        start = "  " + "".join(f"{cell}  " for cell in cells)
        yield from _wrap(row[-1], start, " " * (sum(widths[:-1]) + 2 * len(widths)))


def _format_header(explanation: Any) -> Iterator[str]:
    ds_id = f", ds_id {explanation.ds_id!r}" if explanation.ds_id else ""
    device = f", on {explanation.device}" if explanation.device else ""
    yield (
        f"{explanation.network} in mode {explanation.mode!r}, epoch {explanation.epoch}"
        f"{ds_id}{device}"
    )
    if explanation.error is not None:
        yield from _wrap(f"Entering the network would fail with {explanation.error}")
    for name, optimizer in explanation.models.items():
        how = explanation.parallelism.get(name)
        yield from _wrap(f"model '{name}' with {optimizer}" + (f", {how}" if how else ""))
    if explanation.compiled:
        yield from _wrap(f"steps {explanation.compiled}")


def _format_items(explanation: Any, part: str) -> Iterator[str]:
    items: Sequence[Item] = getattr(explanation, part)
    inactive = explanation.inactive[part]
    if not items and not inactive and part != "ops":
        return
    count = f"{len(items)} active" + (f", {len(inactive)} inactive" if inactive else "")
    yield from ("", f"{part.capitalize()} ({count})")
    rows = [row for item in items for row in _item_rows(item)]
    rows += [("-", item.name, item.format_keys(), f"inactive: {item.reason}") for item in inactive]
    yield from _table(rows)


def _item_rows(item: Item, depth: int = 0) -> Iterator[tuple[str, str, str, str]]:
    own_models = () if item.ops else item.models  # The rows of inner ops have theirs.
    notes = []
    if item.unneeded:
        notes.append("not needed")
    if item.setting:
        notes.append(item.setting)
    if own_models:
        notes.append(f"model {', '.join(map(repr, own_models))}")
    if item.takes_gradients and not item.ops:
        notes.append("computes gradients")
    if item.deferred:
        notes.append("deferred")
    if item.scheduler is not None:
        notes.append(f"from {item.scheduler}")
    index = "" if depth else str(item.index)
    yield index, f"{'  ' * depth}{item.name}", item.format_keys(), "; ".join(notes)
    for inner in item.ops:
        yield from _item_rows(inner, depth + 1)


def _format_keys(explanation: Any) -> Iterator[str]:
    rows = [row for key in explanation.keys for row in _key_rows(key)]
    yield from _table([("key", "from", "read by", "end", "in the result"), *rows])
    if explanation.returns_all and explanation.returned:
        yield "  All keys that ops write are returned; desired_output_keys limits them."
    yield "  Other keys of the batch are returned unchanged."


def _key_rows(key: Key) -> Iterator[tuple[str, str, str, str, str]]:
    result = "-" if key.result is None else f"from {key.result}"
    if key.result is not None and key.unsliced_by is not None:
        result += f", unsliced by {key.unsliced_by}"
    post_readers = ", ".join(f"post {index}" for index in key.postprocessing_readers)
    if not key.lifetimes:
        writers = ", ".join(f"post {index}" for index in key.postprocessing_writers)
        yield key.name, "batch" if key.required else writers or "nowhere", post_readers, "", result
        return
    for life in key.lifetimes:
        is_last = life is key.lifetimes[-1]
        readers = [f"op {index}" for index in life.readers]
        if is_last and post_readers:
            readers.append(post_readers)
        yield (
            key.name if life is key.lifetimes[0] else "",
            "batch" if life.writer is None else f"op {life.writer}",
            ", ".join(readers) or "nothing",
            life.end if life.last_op is None else f"{life.end} at op {life.last_op}",
            result if is_last else "",
        )
