"""Warnings that are attributed to the user's code."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# Code of these packages, and code that AutoGraph generates, is not the user's.
_LIBRARIES = frozenset(
    ("fastnet", "fastestimator", "torch", "tensorflow", "keras", "tf_keras", "contextlib")
)
_GENERATED = "__autograph_generated"


def warn(text: str) -> None:
    """Issue a UserWarning for the innermost frame that runs the user's code."""
    outermost = sys._getframe(1)
    frame: FrameType | None = outermost
    while frame is not None and _is_library(frame):
        outermost, frame = frame, frame.f_back
    user_frame = outermost if frame is None else frame
    warnings.warn_explicit(
        text,
        UserWarning,
        user_frame.f_code.co_filename,
        user_frame.f_lineno,
        module=user_frame.f_globals.get("__name__", "<unknown>"),
        registry=user_frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_library(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return is_library(name) or name.startswith(_GENERATED)


def is_library(module: str) -> bool:
    """Return whether a module belongs to fastnet or a framework rather than the user's program."""
    return module.partition(".")[0] in _LIBRARIES
