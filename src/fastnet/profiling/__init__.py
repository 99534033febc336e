"""Measure where the time of steps goes."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.profiling.comparison import ComparedRow, Comparison
    from fastnet.profiling.profiler import profile
    from fastnet.profiling.result import Profile
    from fastnet.profiling.rows import Row, Section

__all__ = ["ComparedRow", "Comparison", "Profile", "Row", "Section", "profile"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "ComparedRow": "comparison",
            "Comparison": "comparison",
            "Profile": "result",
            "Row": "rows",
            "Section": "rows",
            "profile": "profiler",
        },
    )
