"""Reads the tables of docs/migration.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "migration.md"


@dataclass
class Section:
    """What the page says of one module of FastEstimator's.

    Attributes:
        covered: Names that fastnet has at the same place.
        added: Names that only fastnet has.
        missing: Names that only FastEstimator has.
        packages: Packages that have sections of their own.
    """

    covered: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


_COLUMNS = {"covered": "covered", "only in fastnet": "added", "not covered": "missing"}


def read_page(text: str) -> dict[str, Section]:
    """Read the sections whose headings are modules of FastEstimator's."""
    found: dict[str, Section] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        module = re.fullmatch(r"fastestimator((?:\.\w+)*)", heading.strip())
        if module is not None:
            found[module[1].lstrip(".")] = _read_section(body)
    return found


def _read_section(body: str) -> Section:
    section = Section()
    column: str | None = None
    for line in body.splitlines():
        if line.startswith("Packages"):
            section.packages += re.findall(r"`(\w+)`", line)
        if not line.startswith("|"):
            column = None
            continue
        first = line.split("|")[1].strip()
        if column is None:
            column = _COLUMNS.get(first, "")
        elif column and first.startswith("`"):
            getattr(section, column).extend(re.findall(r"`(\w+)`", first))
    return section
