"""The versions of FastEstimator that the swap knows."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module, metadata

__all__ = ["KNOWN", "UnknownVersionError", "check_version"]

KNOWN = ("1.7.0",)


class UnknownVersionError(RuntimeError):
    """The FastEstimator that is installed is none that fastnet can be swapped into."""


def check_version() -> str:
    """Find out which FastEstimator there is, without importing it if that can be helped.

    Returns:
        Its version.

    Raises:
        ModuleNotFoundError: If there is none.
        UnknownVersionError: If its version is not known.
    """
    version = _find_version()
    if version not in KNOWN:
        raise UnknownVersionError(
            f"fastnet supports FastEstimator {' and '.join(KNOWN)}, but {version} is installed. "
            "Install a supported version, or import what you need from fastnet itself: it has the "
            "same names."
        )
    return version


def _find_version() -> str:
    package = sys.modules.get("fastestimator")
    if package is None:
        try:
            return metadata.version("fastestimator")
        except metadata.PackageNotFoundError:
            if importlib.util.find_spec("fastestimator") is None:
                raise ModuleNotFoundError(
                    "FastEstimator is not installed, so fastnet cannot replace it. Install it with "
                    f"`pip install fastestimator=={KNOWN[-1]}`, or import what you need from "
                    "fastnet itself: it has the same names.",
                    name="fastestimator",
                ) from None
            # a source tree on the path, which only says so itself
            package = import_module("fastestimator")
    return str(getattr(package, "__version__", "of no version"))
