"""Warnings that point to the line of the program that they are about."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = ["warn"]

# those that stand between a program and what warns: fastnet, and what calls it back
_BETWEEN = frozenset(
    ("fastnet", "fastestimator", "torch", "tensorflow", "keras", "tf_keras", "contextlib")
)


def warn(text: str) -> None:
    """Warn the program, at the innermost line that is its own.

    That is the first frame outside of fastnet, of the frameworks and of FastEstimator, whichever
    way led here: a step, a loop over steps, an op that a framework traces.

    Args:
        text: What to say.
    """
    outermost = frame = sys._getframe(1)
    inside: FrameType | None = frame
    while inside is not None and _is_between(inside):
        outermost, inside = inside, inside.f_back
    at = outermost if inside is None else inside
    warnings.warn_explicit(
        text,
        UserWarning,
        at.f_code.co_filename,
        at.f_lineno,
        module=at.f_globals.get("__name__", "<unknown>"),
        registry=at.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_between(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    # what AutoGraph writes is a module of its own
    return name.partition(".")[0] in _BETWEEN or name.startswith("__autograph_generated")
