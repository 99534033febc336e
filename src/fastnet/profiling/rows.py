"""What a profile is made of: rows of times, and sections of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Row", "Section", "Stats", "key_title"]

# neighbouring steps are not independent: what a busy machine slows down is a stretch of steps
_STRETCHES = 12


@dataclass(frozen=True)
class Stats:
    """Times of something that happened several times, in seconds.

    Attributes:
        mean: The mean.
        p50: The median.
        p95: What 95 % are below.
        p99: What 99 % are below.
        total: The sum.
        error: The standard error of the mean; None of a single value.
        p50_error: The standard error of the median; None of a single value.
    """

    mean: float
    p50: float
    p95: float
    p99: float
    total: float
    error: float | None
    p50_error: float | None

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Stats:
        """Sum values up.

        Args:
            values: The times, in order, at least one.
        """
        p50, p95, p99 = np.percentile(values, (50, 95, 99))
        return cls(
            mean=float(values.mean()),
            p50=float(p50),
            p95=float(p95),
            p99=float(p99),
            total=float(values.sum()),
            error=_error(values, np.mean),
            p50_error=_error(values, np.median),
        )


def _error(
    values: NDArray[np.float64], average: Callable[[NDArray[np.float64]], np.float64]
) -> float | None:
    """Estimate the standard error of an average, by how much it differs between stretches."""
    stretches = min(_STRETCHES, len(values))
    if stretches < 2:
        return None
    averages = [average(stretch) for stretch in np.array_split(values, stretches)]
    return float(np.std(averages, ddof=1) / np.sqrt(stretches))


def key_title(kind: str, name: str) -> str:
    """Name a part of a step by itself: a key is said to be an input or an output.

    Args:
        kind: Its kind.
        name: Its name.

    >>> key_title("input", "x"), key_title("dispatch", "dispatch")
    ('input x', 'dispatch')
    """
    return f"{kind} {name}" if kind in ("input", "output") else name


@dataclass(frozen=True)
class Row:
    """What one part of a step takes, or something beside the steps. Times are in seconds a step.

    Attributes:
        name: What it is, such as ``"ModelOp(x) -> y_pred"``.
        kind: What sort of thing it is, such as "op", "input" or "dispatch".
        place: The place of an op, a key or a minibatch among others of its kind; None if there is
            just one.
        section: The section that the row is of.
        count: How often it happened.
        mean: The mean over all steps, those in which it did not happen among them.
        p50: The median over all steps.
        p95: What it stays below in 95 % of the steps.
        p99: What it stays below in 99 % of the steps.
        total: The sum over all steps.
        error: The standard error of the mean; None of a single step.
        p50_error: The standard error of the median; None of a single step.
        in_step: Whether it is one of the rows that add up to the step.
        bytes: How much data it moves, for a key; None for anything else.
        device_mean: What it takes on the device, where that was measured.
        device_p50: The median of that.
        device_p95: What that stays below in 95 % of the steps.
        device_p99: What that stays below in 99 % of the steps.
        device_total: The sum of that.
        blocks: The medians of blocks of steps, in order, which a comparison goes by: of those while
            the machine was at full pace, where there were enough. Of "wait for data" the means of
            blocks: a loader may be waited for once in several steps. None if there were few at all.
    """

    name: str
    kind: str
    place: int | None
    section: str
    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    total: float
    error: float | None
    p50_error: float | None
    in_step: bool = True
    bytes: int | None = None
    device_mean: float | None = None
    device_p50: float | None = None
    device_p95: float | None = None
    device_p99: float | None = None
    device_total: float | None = None
    blocks: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        """The name, which says of a key where it goes."""
        return key_title(self.kind, self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain values."""
        return {**asdict(self), "blocks": list(self.blocks)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """Make a row of what `to_dict` gave.

        Args:
            data: The dict.
        """
        return cls(**{**data, "blocks": tuple(data.get("blocks", ()))})


@dataclass(frozen=True)
class Section:
    """The steps of one opening, or of several that ran the same ops.

    Attributes:
        name: A name that no other section of the profile has, such as "train".
        mode: The mode.
        eager: Whether ops ran one by one although a graph could be used.
        steps: How many steps were measured.
        step: What a step takes: what the rows of the step add up to.
        rows: The parts of a step, in order, and what was measured beside them.
        pace: What a fixed piece of work took while the machine was at full pace, in seconds; None
            if it was not measured.
        slowness: How many times as long as at full pace anything may have taken in the steps that a
            comparison goes by; 1 where there were enough of them at full pace.
        trains: Whether the steps updated models.
    """

    name: str
    mode: str
    eager: bool
    steps: int
    step: Row
    rows: tuple[Row, ...]
    pace: float | None = None
    slowness: float = 1.0
    trains: bool = False

    @property
    def parts(self) -> tuple[Row, ...]:
        """The rows that add up to the step."""
        return tuple(row for row in self.rows if row.in_step)

    @property
    def pace_at_worst(self) -> float:
        """What the fixed piece of work took, at worst, while what is compared was measured."""
        return (self.pace or 0.0) * self.slowness

    def share(self, row: Row) -> float:
        """Return how much of the step a row takes.

        Args:
            row: A row of the section.

        Returns:
            The part, 1 being all of it.
        """
        return row.total / self.step.total if self.step.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the section as a dict of plain values."""
        return {
            "name": self.name,
            "mode": self.mode,
            "eager": self.eager,
            "steps": self.steps,
            "step": self.step.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "pace": self.pace,
            "slowness": self.slowness,
            "trains": self.trains,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Section:
        """Make a section of what `to_dict` gave.

        Args:
            data: The dict.
        """
        names = {field.name for field in fields(cls)} - {
            "step",
            "rows",
            "pace",
            "slowness",
            "trains",
        }
        return cls(
            **{name: data[name] for name in names},
            step=Row.from_dict(data["step"]),
            rows=tuple(map(Row.from_dict, data["rows"])),
            pace=data.get("pace"),
            slowness=data.get("slowness", 1.0),
            trains=bool(data.get("trains")),
        )
