"""Replaces FastEstimator's networks with fastnet's, and restores them."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from fastnet.integrations.fastestimator.changes import Changes
from fastnet.integrations.fastestimator.exchange import Exchange, Setting
from fastnet.integrations.fastestimator.stand_ins import ROOT
from fastnet.integrations.fastestimator.versions import check_version

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastnet.network.compile_options import CompileOptions

__all__ = ["Swap", "install", "uninstall"]

_lock = threading.RLock()
_current: Exchange | None = None


class Swap:
    """The names that `install` replaces. As a context manager it restores the previous state.

    Args:
        before: The arguments of the previous `install`, or None if nothing was replaced.
    """

    def __init__(self, before: Setting | None) -> None:
        self._before = before

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
        trace: TracebackType | None = None,
    ) -> None:
        """Restore the state before `install` was called."""
        _switch(self._before)


def install(ops: bool = True, compile: bool | CompileOptions = False) -> Swap:
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
    check_version()
    with _lock:
        before = None if _current is None else _current.setting
        _switch(Setting(bool(ops), compile))
        return Swap(before)


def uninstall() -> Changes:
    """Restore all names in FastEstimator's modules.

    Objects that were created in the meantime stay fastnet's and keep working.

    Returns:
        The restored names.
    """
    return _switch(None)


def _switch(setting: Setting | None) -> Changes:
    """Restore all names, and then replace those of `setting`, unless they are replaced already."""
    global _current
    with _lock:
        restored: Changes = Changes({}, f"Nothing in {ROOT} was fastnet's.")
        if _current is not None and _current.setting != setting:
            names = _current.undo()
            restored = Changes(names, f"{len(names)} names in {ROOT} are restored:")
            _current = None
        if _current is None and setting is not None:
            exchange = Exchange(setting)
            exchange.start()
            _current = exchange
        return restored
