"""The supported versions of FastEstimator."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module, metadata

__all__ = ["KNOWN", "UnknownVersionError", "check_version"]

KNOWN = ("1.7.0",)


class UnknownVersionError(RuntimeError):
    """Raised if fastnet does not support the installed version of FastEstimator."""


def check_version() -> str:
    """Return the version of FastEstimator, which is imported only if it has no metadata.

    Raises:
        ModuleNotFoundError: If FastEstimator is not installed.
        UnknownVersionError: If fastnet does not support the version.
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
            # A source tree on the path has no metadata.
            package = import_module("fastestimator")
    return str(getattr(package, "__version__", "an unknown version"))
