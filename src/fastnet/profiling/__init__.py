"""Where the time of steps goes: measured, shown, drawn and compared."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.profiling.compared import ComparedRow
    from fastnet.profiling.comparison import Comparison
    from fastnet.profiling.result import Profile
    from fastnet.profiling.rows import Row, Section
    from fastnet.profiling.session import profile

__all__ = ["ComparedRow", "Comparison", "Profile", "Row", "Section", "profile"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ComparedRow": "compared",
        "Comparison": "comparison",
        "Profile": "result",
        "Row": "rows",
        "Section": "rows",
        "profile": "session",
    },
)
