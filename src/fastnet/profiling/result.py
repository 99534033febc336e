"""A profile: what was measured, and the forms it takes."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Collection
from dataclasses import fields, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from fastnet.network import BaseNetwork
from fastnet.network.metering import WAIT
from fastnet.profiling.comparison import LEAST, Comparison
from fastnet.profiling.optional import require
from fastnet.profiling.plot import draw_profile
from fastnet.profiling.recording import Recorder, SectionRecorder
from fastnet.profiling.rows import Row, Section
from fastnet.profiling.sums import Timeline
from fastnet.profiling.table import Table, profile_tables, to_plain, to_rich_table
from fastnet.profiling.trace_events import trace_events

__all__ = ["Profile"]

_SCHEMA = "fastnet.profile/1"


class Profile:
    """Where the time of steps went.

    Attributes:
        sections: The steps, those that ran the same ops together.
        openings: What opening the network took: finding or working out its ops, and entering it.
        unmeasured: How many steps were not measured, because another one was under way.
        about: The framework, the device, the versions and what a stamp costs; and after
            `fastnet.profile` has run batches itself, whether what they have changed has stayed.
    """

    def __init__(
        self,
        sections: tuple[Section, ...] = (),
        openings: tuple[Row, ...] = (),
        unmeasured: int = 0,
        about: dict[str, Any] | None = None,
    ) -> None:
        self.sections = sections
        self.openings = openings
        self.unmeasured = unmeasured
        self.about: dict[str, Any] = about or {}
        self._timelines: tuple[Timeline, ...] = ()

    def fill(self, network: BaseNetwork, recorder: Recorder) -> None:
        """Take over what was measured.

        Args:
            network: What was measured.
            recorder: What measured it.
        """
        names: set[str] = set()
        sections, timelines = [], []
        for recorded in recorder.sections.values():
            name = _name(recorded, names)
            section = recorded.section(name)
            self.unmeasured += recorded.unmeasured
            if section is None:
                continue
            names.add(name)
            sections.append(section)
            timelines.append(recorded.timeline(name))
        self.sections, self._timelines = tuple(sections), tuple(timelines)
        self.openings = recorder.openings()
        self.about = {
            "framework": network.target_type,
            "device": str(network.device or "as TensorFlow places it"),
            "python": platform.python_version(),
            "versions": _versions(),
            "stamp_seconds": {"kernel": recorder.cost.kernel, "python": recorder.cost.python},
        }

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections and, after them, those of the openings."""
        return tuple(row for one in self.sections for row in one.rows) + self.openings

    def section(self, name: str) -> Section:
        """Find a section.

        Args:
            name: Its name.

        Raises:
            KeyError: If there is none of that name.
        """
        for section in self.sections:
            if section.name == name:
                return section
        there = ", ".join(section.name for section in self.sections) or "none"
        raise KeyError(f"no section '{name}' in this profile; there are: {there}")

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as a dict of plain values; times are in seconds."""
        return {
            "schema": _SCHEMA,
            "about": self.about,
            "unmeasured": self.unmeasured,
            "sections": [section.to_dict() for section in self.sections],
            "openings": [row.to_dict() for row in self.openings],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Make a profile of what `to_dict` gave.

        Args:
            data: The dict.

        Raises:
            ValueError: If it is no such dict, or one of another version.
        """
        found = data.get("schema")
        if found != _SCHEMA:
            raise ValueError(f"This is no profile of the schema {_SCHEMA!r}, but of {found!r}.")
        return cls(
            tuple(map(Section.from_dict, data["sections"])),
            tuple(map(Row.from_dict, data["openings"])),
            data["unmeasured"],
            data["about"],
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the profile as JSON.

        Args:
            path: A file to write it into too, or None.

        Returns:
            The JSON.
        """
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Profile:
        """Make a profile of what `to_json` gave.

        Args:
            source: The JSON, or the path of its file.

        Raises:
            ValueError: If it is no profile, or one of another version.
            FileNotFoundError: If there is no such file.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        return cls.from_dict(json.loads(str(source) if is_text else Path(source).read_text()))

    def to_dataframe(self) -> Any:
        """Return the rows as a pandas DataFrame, one a row.

        Raises:
            ImportError: If pandas is not there.
        """
        pandas = require("pandas", "A profile as a DataFrame", "pandas")
        return pandas.DataFrame(
            [row.to_dict() for row in self.rows], columns=[field.name for field in fields(Row)]
        )

    def to_trace(self, path: str | Path) -> None:
        """Write the first steps as a file of trace events, which Perfetto opens.

        Args:
            path: The file.

        Raises:
            ValueError: If the profile was read from a dict or from JSON, which have no such detail.
        """
        if self.sections and not self._timelines:
            raise ValueError(
                "This profile was read from JSON, which tells nothing of single steps. Write the "
                "trace file where the profile is made."
            )
        events = trace_events(self._timelines, "fastnet")
        Path(path).write_text(json.dumps(events) + "\n")

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw a step of each section as a bar of its parts.

        Args:
            path: A file to save the picture in, or None.

        Returns:
            The figure of matplotlib.

        Raises:
            ImportError: If matplotlib is not there.
        """
        return draw_profile(self.sections, path)

    def compare(self, other: Profile, least: float = LEAST) -> Comparison:
        """Compare this profile with another one: what became slower or faster.

        It goes by the steps that were run while the machine was at full pace, and has a verdict
        where a change is beyond its noise at 95 % and at least as large as asked for. Where both
        have a row "wait for data", it takes part, by its mean, though it is no part of the step.

        Args:
            other: The later one.
            least: The least change worth a verdict, as a part of what there was: 0.05 is 5 %. A
                network that is run again in another process may differ by some per cent by chance.

        Returns:
            The comparison.

        Raises:
            ValueError: If they have no section in common, or `least` is not from 0 to 1.
        """
        # what the pace is measured by is itself faster in another Python
        same = self.about.get("python") == other.about.get("python")
        before, after = _waits_of(self), _waits_of(other)
        waits = {name: (before[name], after[name]) for name in before if name in after}
        return Comparison.of(self.sections, other.sections, least, same, waits)

    def __rich__(self) -> Any:
        return to_rich_table(self._tables(), self._notes())

    def __str__(self) -> str:
        return to_plain(self._tables(), self._notes())

    def _tables(self) -> list[Table]:
        return profile_tables(self.sections, self.openings, self.about.get("update", True))

    def _notes(self) -> list[str]:
        notes = [] if self.sections else ["a profile of no steps"]
        if self.unmeasured:
            notes.append(f"not measured, because another step was under way: {self.unmeasured}")
        return notes

    def __repr__(self) -> str:
        found = ", ".join(f"{one.name}: {one.steps} steps" for one in self.sections)
        return f"<Profile of {found or 'no steps'}>"


def _waits_of(profile: Profile) -> dict[str, Row]:
    """Find what a loader was waited for, by the first section of each mode."""
    found = {row.section: row for row in profile.openings if row.name == WAIT}
    waits: dict[str, Row] = {}
    for section in profile.sections:
        row = found.pop(section.mode, None)
        if row is not None:
            waits[section.name] = replace(row, section=section.name)
    return waits


def _name(recorded: SectionRecorder, taken: Collection[str]) -> str:
    """Name a section by its mode, and by the epoch it began in where others are of that mode."""
    ways = ["eager"] * recorded.eager + ["warming up"] * recorded.warmup
    title = ", ".join([recorded.mode, *ways])
    if title not in taken:
        return title
    title = f"{title}, from epoch {recorded.epoch}"
    names = chain([title], (f"{title} ({number})" for number in count(2)))
    return next(name for name in names if name not in taken)


def _versions() -> dict[str, str]:
    names = ("fastnet", "torch", "tensorflow", "keras", "numpy")
    modules = {name: sys.modules.get(name) for name in names}
    return {name: str(module.__version__) for name, module in modules.items() if module}
