"""Rows and sections of a profile."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_KINDS = (
    "slice",  # The slicers slice the batch.
    "tape",  # TensorFlow's gradient tape is entered and left.
    "autocast",  # torch's autocast is entered and left.
    "grad_mode",  # Gradients are disabled, and enabled again.
    "input",  # A value of the batch is converted and moved to the device.
    "dispatch",  # The kernel reads and writes slots around ops.
    "op",  # An op runs.
    "trace",  # A graph is traced, or a program is compiled.
    "graph",  # A graph or a compiled program runs.
    "deferred",  # Deferred updates run.
    "merge",  # The batch is copied into the result.
    "output",  # A returned value is detached.
    "release",  # The remaining values are dropped.
    "wait",  # The step waits for copies from the device.
    "unslice",  # The slicers unslice the results of minibatches.
    "conversion",  # Results become arrays for postprocessing, and tensors again.
    "postprocessing",  # A postprocessing op runs.
    "rest",  # All other work of the step.
    "measuring",  # The profile's own work, which is not part of the step.
)
"""The kinds of rows that time stamps belong to, in the order of the table.

All but "measuring" add up to a step. The other kinds are "step", "minibatch", "module",
"communication" and "entry".
"""


@dataclass(frozen=True)
class Row:
    """The time of one part of a step, or of something between steps.

    Times are seconds per step; those of `Profile.entries` are seconds per occurrence.

    Attributes:
        name: The part, such as ``"ModelOp(x) -> y_pred"``.
        kind: The kind of part, such as "op", "input" or "dispatch".
        index: The index of an op, a key or a minibatch among others of its kind; None if there is
            only one.
        section: The name of the section; for rows of `Profile.entries` the mode.
        count: The number of times that it ran.
        mean: The mean over all steps, including those in which it did not run.
        p25: The first quartile over all steps.
        p50: The median.
        p75: The third quartile.
        p95: The 95th percentile.
        p99: The 99th percentile.
        total: The sum over all steps.
        in_step: Whether it is one of the rows that add up to the step.
        bytes: The bytes of a key's value; None for other rows.
        device_mean: The mean time on the device, where it was measured.
        device_p99: The 99th percentile of the time on the device.
    """

    name: str
    kind: str
    index: int | None
    section: str
    count: int
    mean: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    total: float
    in_step: bool = True
    bytes: int | None = None
    device_mean: float | None = None
    device_p99: float | None = None

    @classmethod
    def of(
        cls,
        times: NDArray[np.float64],
        *,
        name: str,
        kind: str,
        index: int | None,
        section: str,
        count: int,
        **optional: Any,
    ) -> Row:
        """Return the row of a part that took these times, at least one."""
        p25, p50, p75, p95, p99 = map(float, np.percentile(times, (25, 50, 75, 95, 99)))
        mean, total = float(times.mean()), float(times.sum())
        return cls(
            name, kind, index, section, count, mean, p25, p50, p75, p95, p99, total, **optional
        )

    @property
    def title(self) -> str:
        """The name; for a key, with its kind, such as "input x"."""
        return f"{self.kind} {self.name}" if self.kind in ("input", "output") else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """Return the row from the dict of `to_dict`."""
        return cls(**data)


@dataclass(frozen=True)
class Section:
    """The measured steps that ran the same ops in the same mode.

    Attributes:
        name: A name unique in the profile, such as "train".
        mode: The mode.
        eager: Whether ops ran eagerly although a graph could be used.
        steps: The number of measured steps.
        step: The time of a step, which the rows of its parts add up to.
        rows: The parts of a step in order, and rows that are not parts of it, such as those of
            minibatches and modules.
        trains: Whether the steps updated models.
    """

    name: str
    mode: str
    eager: bool
    steps: int
    step: Row
    rows: tuple[Row, ...]
    trains: bool = False

    @property
    def parts(self) -> tuple[Row, ...]:
        """The rows that add up to the step."""
        return tuple(row for row in self.rows if row.in_step)

    def share(self, row: Row) -> float:
        """Return the fraction of the step that a row takes."""
        return row.total / self.step.total if self.step.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the section as a dict of plain values."""
        rows = [row.to_dict() for row in self.rows]
        return {**vars(self), "step": self.step.to_dict(), "rows": rows}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Section:
        """Return the section from the dict of `to_dict`."""
        rows = tuple(map(Row.from_dict, data["rows"]))
        return cls(**{**data, "step": Row.from_dict(data["step"]), "rows": rows})
