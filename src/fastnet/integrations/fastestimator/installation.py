"""`install`, which replaces FastEstimator's networks with fastnet's, and `uninstall`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from types import TracebackType
from typing import TYPE_CHECKING

from fastnet.integrations.fastestimator.patch import LOCK, Patch, Settings
from fastnet.integrations.fastestimator.stand_ins import ROOT

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastnet.network.compile_options import CompileOptions

__all__ = ["Changes", "Installation", "UnknownVersionError", "install", "uninstall"]

_VERSIONS = ("1.7.0",)

_current: Patch | None = None


class UnknownVersionError(RuntimeError):
    """Raised if fastnet does not support the installed version of FastEstimator."""


class Changes(Mapping[str, str]):
    """A mapping of replaced names to their replacements, which prints one per line.

    Args:
        changes: The full names, such as ``fastestimator.network.build``, and their replacements.
        summary: The text above the names when the mapping is printed.

    >>> print(Changes({"a.b": "c.d"}, "1 name was changed"))
    1 name was changed
      a.b -> c.d
    """

    def __init__(self, changes: Mapping[str, str], summary: str) -> None:
        self._changes = dict(sorted(changes.items()))
        self.summary = summary

    def __getitem__(self, name: str) -> str:
        return self._changes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def __str__(self) -> str:
        lines = [f"  {name} -> {replacement}" for name, replacement in self._changes.items()]
        return "\n".join([self.summary, *lines])


class Installation:
    """The names that `install` replaces. As a context manager it restores the previous state.

    Args:
        previous: The arguments of the previous `install`, or None if nothing was replaced.
    """

    def __init__(self, previous: Settings | None) -> None:
        self._previous = previous

    @property
    def pending(self) -> bool:
        """Whether names will be replaced only after FastEstimator is imported."""
        return _current is not None and not _current.is_active

    @property
    def changes(self) -> Changes:
        """The replaced names in FastEstimator's modules, or if pending, those to be replaced."""
        if _current is None:
            return Changes({}, f"Nothing in {ROOT} is fastnet's.")
        count = f"{len(_current.changes)} names in {ROOT}"
        if self.pending:
            text = (
                f"{count}, and all other names of the same objects, will be fastnet's after "
                f"{ROOT} is imported:"
            )
        else:
            text = f"{count} are fastnet's:"
        missing = [
            f"{name}: not replaced, because of: {reason}"
            for name, reason in _current.missing.items()
        ]
        return Changes(_current.changes, "\n".join([*missing, text]))

    def __str__(self) -> str:
        return str(self.changes)

    def __enter__(self) -> Self:
        """Do nothing, because `install` has replaced the names already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Restore the state before `install` was called."""
        _switch(self._previous)


def install(ops: bool = True, compile: bool | CompileOptions = False) -> Installation:
    """Replace FastEstimator's networks, models and ops with fastnet's.

    It can be called before or after FastEstimator is imported, and does not import it. Names that
    other modules imported from FastEstimator before the call stay as they are.

    Args:
        ops: Whether to replace tensor ops, losses, schedulers, slicers and backend functions too.
            Otherwise only networks and `build` are replaced.
        compile: Whether networks compile their steps, or the options for that (see
            `fastnet.Network`). A step that cannot be compiled runs as without `compile`, with the
            reason in `network.traces`.

    Returns:
        The replaced names, which can be printed. In a `with` statement, they are replaced during
        the block.

    Raises:
        ModuleNotFoundError: If FastEstimator is not installed.
        UnknownVersionError: If fastnet does not support its version.

    >>> from fastnet.integrations.fastestimator import install, uninstall
    >>> install(compile=True)  # doctest: +SKIP
    """
    _check_version()
    with LOCK:
        previous = None if _current is None else _current.settings
        try:
            _switch(Settings(bool(ops), compile))
        except BaseException:
            _switch(previous)
            raise
        return Installation(previous)


def uninstall() -> Changes:
    """Restore all names in FastEstimator's modules.

    Objects that were created in the meantime stay fastnet's and keep working.

    Returns:
        The restored names.
    """
    return _switch(None)


def _switch(settings: Settings | None) -> Changes:
    """Restore all names, and then replace those of `settings`, unless they are replaced already."""
    global _current
    with LOCK:
        restored: Changes = Changes({}, f"Nothing in {ROOT} was fastnet's.")
        if _current is not None and _current.settings != settings:
            names = _current.undo()
            restored = Changes(names, f"{len(names)} names in {ROOT} are restored:")
            _current = None
        if _current is None and settings is not None:
            patch = Patch(settings)
            patch.apply()
            _current = patch
        return restored


def _check_version() -> None:
    """Check the version of FastEstimator, which is imported only if it has no metadata."""
    version = _find_version()
    if version not in _VERSIONS:
        raise UnknownVersionError(
            f"fastnet supports FastEstimator {' and '.join(_VERSIONS)}, but {version} is "
            "installed. Install a supported version, or import what you need from fastnet itself: "
            "it has the same names."
        )


def _find_version() -> str:
    package = sys.modules.get("fastestimator")
    if package is None:
        try:
            return metadata.version("fastestimator")
        except metadata.PackageNotFoundError:
            if importlib.util.find_spec("fastestimator") is None:
                raise ModuleNotFoundError(
                    "FastEstimator is not installed, so fastnet cannot replace it. Install it with "
                    f"`pip install fastestimator=={_VERSIONS[-1]}`, or import what you need from "
                    "fastnet itself: it has the same names.",
                    name="fastestimator",
                ) from None
            # A source tree on the path has no metadata.
            package = import_module("fastestimator")
    return str(getattr(package, "__version__", "an unknown version"))
