"""An explanation as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from fastnet.explain.contents import Contents
from fastnet.explain.items import Item
from fastnet.explain.keys import Key, Lifetime

__all__ = ["format_text"]

_WIDTH = 96
_MAX_COLUMN = 30
_MIN_LAST_COLUMN = 20


def format_text(explanation: Contents) -> str:
    """Return an explanation as lines of at most 96 characters, as far as keys and names allow."""
    lines = [*_format_header(explanation)]
    for part, heading in (
        ("ops", "Ops"),
        ("postprocessing", "Postprocessing"),
        ("slicers", "Slicers"),
    ):
        lines += _format_items(explanation, part, heading)
    lines += ["", *_format_keys(explanation)]
    lines += _format_schedules(explanation)
    lines += ["", f"Findings ({len(explanation.findings) or 'none'})"]
    for finding in explanation.findings:
        lines += _paragraph(finding.text, "  * ", "    ")
    return "\n".join(lines)


def _paragraph(text: str, first: str = "", rest: str = "  ") -> list[str]:
    return wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [""]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns; a cell too long for its column is wrapped."""
    if not rows:
        return
    widths = [min(max(map(len, column)), _MAX_COLUMN) for column in zip(*rows, strict=True)]
    widths[-1] = max(_WIDTH - 2 * len(widths) - sum(widths[:-1]), _MIN_LAST_COLUMN)
    for row in rows:
        cells = [_wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            yield f"  {'  '.join(padded)}".rstrip()


def _wrap_cell(text: str, width: int) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip(" ")))
    lines = wrap(
        text.lstrip(" "),
        max(width, len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return lines or [""]


def _format_header(explanation: Contents) -> Iterator[str]:
    ds_id = f", ds_id {explanation.ds_id!r}" if explanation.ds_id else ""
    device = f", on {explanation.device}" if explanation.device else ""
    yield (
        f"{explanation.network} in mode {explanation.mode!r}, epoch {explanation.epoch}"
        f"{ds_id}{device}"
    )
    if explanation.error is not None:
        yield from _paragraph(f"Entering the network would fail with {explanation.error}")
    for name, optimizer in explanation.models.items():
        how = explanation.parallelism.get(name)
        yield from _paragraph(f"model '{name}' with {optimizer}" + (f", {how}" if how else ""))
    if explanation.compiled:
        yield from _paragraph(f"steps {explanation.compiled}")


def _format_items(explanation: Contents, part: str, heading: str) -> Iterator[str]:
    items: Sequence[Item] = getattr(explanation, part)
    inactive = explanation.inactive[part]
    if not items and not inactive and part != "ops":
        return
    unneeded = frozenset[int]()
    if part != "slicers":
        unneeded = getattr(explanation, "unneeded" if part == "ops" else f"unneeded_{part}")
    yield ""
    yield f"{heading} ({len(items)} active" + (f", {len(inactive)} inactive)" if inactive else ")")
    rows = [row for item in items for row in _item_rows(item, unneeded)]
    rows += [("-", item.name, item.format_keys(), f"inactive: {item.reason}") for item in inactive]
    yield from _table(rows)


def _item_rows(
    item: Item, unneeded: frozenset[int], depth: int = 0
) -> Iterator[tuple[str, str, str, str]]:
    notes = []
    if depth == 0 and item.index in unneeded:
        notes.append("NOT NEEDED")
    if item.setting:
        notes.append(item.setting)
    if item.models and not item.ops:
        notes.append(f"model {', '.join(map(repr, item.models))}")
    if item.takes_gradients and not item.ops:
        notes.append("computes gradients")
    if item.deferred:
        notes.append("deferred")
    if item.scheduler is not None:
        notes.append(f"from {item.scheduler}")
    index = "" if depth else str(item.index)
    yield index, f"{'  ' * depth}{item.name}", item.format_keys(), "; ".join(notes)
    for inner in item.ops:
        yield from _item_rows(inner, unneeded, depth + 1)


def _format_keys(explanation: Contents) -> Iterator[str]:
    yield "Keys"
    rows = [("key", "from", "read by", "until", "in the result")]
    rows += [row for key in explanation.keys for row in _key_rows(key)]
    yield from _table(rows)
    yield ""
    copies = explanation.framework == "torch" and explanation.device != "cpu"
    sliced = {key.name for key in explanation.keys if key.sliced_by}
    facts = {
        "required of the batch": explanation.inputs,
        f"moved to {explanation.device}" if copies else "read by ops": explanation.device_inputs,
        "returned by ops": explanation.returned,
        "returned unchanged": explanation.untouched,
        "sliced": sliced,
        "not sliced": explanation.device_inputs - sliced if sliced else set(),
        "un-sliced": {key.name for key in explanation.keys if key.unsliced_by},
    }
    yield from _table(
        [
            (label, ", ".join(sorted(names)) or "none")
            for index, (label, names) in enumerate(facts.items())
            if names or index < 4
        ]
    )
    if explanation.returns_all and explanation.returned:
        yield from _paragraph(
            "All keys that ops write are returned; with desired_output_keys, the others would be "
            "dropped after their last reader.",
            "  ",
        )
    yield "  Other keys of the batch are returned unchanged."


def _key_rows(key: Key) -> Iterator[tuple[str, str, str, str, str]]:
    result = {
        None: "-",
        "ops": "yes",
        "batch": "the batch's own",
        "postprocessing": "from postprocessing",
    }[key.result]
    if key.result is not None and key.unsliced_by is not None:
        result += f", un-sliced by {key.unsliced_by}"
    after = ", ".join(f"post {index}" for index in key.postprocessing_readers)
    if not key.lifetimes:
        writers = ", ".join(f"post {index}" for index in key.postprocessing_writers)
        yield key.name, "batch" if key.required else writers or "nowhere", after, "", result
        return
    last = len(key.lifetimes) - 1
    for number, life in enumerate(key.lifetimes):
        readers = [f"op {index}" for index in life.readers]
        if number == last and after:
            readers.append(after)
        yield (
            key.name if number == 0 else "",
            "batch" if life.writer is None else f"op {life.writer}",
            ", ".join(readers) or "nothing",
            _format_end(life),
            result if number == last else "",
        )


def _format_end(life: Lifetime) -> str:
    if life.end in ("overwritten", "deleted"):
        return f"{life.end} by op {life.last_op}"
    if life.end == "dropped":
        return f"op {life.last_op}"
    return "?" if life.end == "unknown" else ""


def _format_schedules(explanation: Contents) -> Iterator[str]:
    if explanation.schedules:
        yield ""
        yield "Schedules"
    for schedule in explanation.schedules:
        values = "; ".join(f"from epoch {epoch} {value}" for epoch, value in schedule.values)
        if schedule.cycle is not None:
            values += f"; repeats every {schedule.cycle} epochs"
        yield from _paragraph(f"{schedule.where}, {schedule.name}: {values}", "  ", "    ")
