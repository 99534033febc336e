"""The result of a profile, and its forms."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Collection
from itertools import chain, count
from pathlib import Path
from typing import Any

from fastnet.errors import shorten
from fastnet.network import BaseNetwork
from fastnet.profiling.comparison import Comparison
from fastnet.profiling.plot import draw
from fastnet.profiling.recording import Recorder, SectionRecorder
from fastnet.profiling.rows import Row, Section
from fastnet.profiling.stamps import Timeline
from fastnet.profiling.table import format_tables, profile_tables
from fastnet.profiling.trace_events import trace_events

_SCHEMA = "fastnet.profile/4"


class Profile:
    """The times of a network's steps: the result of `fastnet.profile`.

    `print` shows it as a table.

    Attributes:
        sections: The measured steps: a section for all that ran the same ops in the same mode.
        entries: Rows of entering the network, of waiting for data, and of traces in skipped steps.
        unmeasured: The number of steps not measured, as another step was running.
        about: The framework, device, versions, the cost of a time stamp, and for batches run by
            `fastnet.profile` whether their updates were kept.
    """

    def __init__(
        self,
        sections: tuple[Section, ...] = (),
        entries: tuple[Row, ...] = (),
        unmeasured: int = 0,
        about: dict[str, Any] | None = None,
    ) -> None:
        self.sections = sections
        self.entries = entries
        self.unmeasured = unmeasured
        self.about: dict[str, Any] = about or {}
        self._timelines: tuple[Timeline, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections, then those of `entries`."""
        return tuple(row for section in self.sections for row in section.rows) + self.entries

    def section(self, name: str) -> Section:
        """Return the section of a name.

        Raises:
            KeyError: If there is none.
        """
        for section in self.sections:
            if section.name == name:
                return section
        names = ", ".join(section.name for section in self.sections) or "none"
        raise KeyError(f"no section '{name}' in this profile; there are: {names}")

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as a dict of plain values; times are in seconds."""
        return {
            "schema": _SCHEMA,
            "about": self.about,
            "unmeasured": self.unmeasured,
            "sections": [section.to_dict() for section in self.sections],
            "entries": [row.to_dict() for row in self.entries],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Return the profile from the dict of `to_dict`.

        Raises:
            ValueError: If it is no such dict, or one of another version.
        """
        schema = data.get("schema") if hasattr(data, "get") else None
        if schema != _SCHEMA:
            actual = "no schema" if schema is None else f"the schema {schema!r}"
            raise ValueError(f"A profile has the schema {_SCHEMA!r}, but this has {actual}.")
        try:
            return cls(
                tuple(map(Section.from_dict, data["sections"])),
                tuple(map(Row.from_dict, data["entries"])),
                data["unmeasured"],
                data["about"],
            )
        except (LookupError, TypeError) as error:
            raise ValueError(f"A part of this profile is missing or invalid: {error!r}") from error

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the profile as JSON.

        Args:
            path: A file to write it to as well, or None.
        """
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Profile:
        """Return the profile that `to_json` wrote.

        Args:
            source: The JSON, or the path of its file.

        Raises:
            ValueError: If it is not a profile, or one of another version.
            FileNotFoundError: If there is no such file.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        return cls.from_dict(json.loads(str(source) if is_text else Path(source).read_text()))

    def to_trace(self, path: str | Path) -> None:
        """Write the first steps as a trace event file, for Perfetto or chrome://tracing.

        Args:
            path: The file.

        Raises:
            ValueError: If the profile was read from JSON, which has no single steps.
        """
        if self.sections and not self._timelines:
            raise ValueError(
                "This profile was read from JSON, which has no single steps. Write the trace file "
                "where the profile is made."
            )
        events = trace_events(self._timelines, "fastnet")
        Path(path).write_text(json.dumps(events) + "\n")

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw a step of each section as a bar of its parts, with matplotlib.

        Args:
            path: A file to save the picture in, or None.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If the profile has no steps.
        """
        return draw(self.sections, path)

    def compare(self, other: Profile) -> Comparison:
        """Show this profile and a later one side by side.

        Args:
            other: The later profile.

        Returns:
            The comparison: the rows of both, and the ratio of their medians.

        Raises:
            TypeError: If `other` is not a profile.
            ValueError: If they have no section in common.
        """
        if not isinstance(other, Profile):
            raise TypeError(
                f"compare takes a Profile, not {shorten(other)}. Read a file by Profile.from_json."
            )
        return Comparison(self.sections, other.sections)

    def __str__(self) -> str:
        notes = [] if self.sections else ["a profile of no steps"]
        if self.unmeasured:
            notes.append(f"not measured, as another step was running: {self.unmeasured}")
        update = self.about.get("update", True)
        return format_tables(profile_tables(self.sections, self.entries, update), notes)

    def __repr__(self) -> str:
        sections = ", ".join(f"{section.name}: {section.steps} steps" for section in self.sections)
        return f"<Profile of {sections or 'no steps'}>"


def fill(profile: Profile, network: BaseNetwork, recorder: Recorder) -> None:
    """Fill a profile with what was recorded of a network."""
    names: set[str] = set()
    sections, timelines = [], []
    for recorded in recorder.sections.values():
        name = _section_name(recorded, names)
        section = recorded.section(name)
        profile.unmeasured += recorded.unmeasured
        if section is None:
            continue
        names.add(name)
        sections.append(section)
        timelines.append(recorded.timeline(name))
    profile.sections, profile._timelines = tuple(sections), tuple(timelines)
    profile.entries = recorder.entries()
    packages = ("fastnet", "torch", "tensorflow", "keras", "numpy")
    modules = {name: sys.modules.get(name) for name in packages}
    profile.about = {
        "framework": network.target_type,
        "device": str(network.device or "as TensorFlow places it"),
        "python": platform.python_version(),
        "versions": {name: str(module.__version__) for name, module in modules.items() if module},
        "stamp_seconds": vars(recorder.cost),
    }


def _section_name(recorded: SectionRecorder, taken: Collection[str]) -> str:
    """Return a name by the mode, and by the first epoch where other sections have the mode."""
    title = recorded.mode
    if recorded.eager:
        title += ", eager"
    if recorded.warmup:
        title += ", warming up"
    if title not in taken:
        return title
    title = f"{title}, from epoch {recorded.epoch}"
    names = chain([title], (f"{title} ({number})" for number in count(2)))
    return next(name for name in names if name not in taken)
