"""Swapping fastnet in, and out again."""

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
    """What `install` has swapped. As a context manager it leaves things as it has found them.

    Args:
        before: What was asked for before, or None if nothing was swapped.
    """

    def __init__(self, before: Setting | None) -> None:
        self._before = before

    @property
    def pending(self) -> bool:
        """Whether the swap waits for FastEstimator to be imported."""
        return _current is not None and not _current.is_made

    @property
    def changes(self) -> Changes:
        """The names in FastEstimator's modules that are fastnet's now, or will be if pending."""
        if _current is None:
            return Changes({}, f"Nothing in {ROOT} is fastnet's.")
        count = f"{len(_current.changes)} names in {ROOT}"
        if self.pending:
            text = (
                f"{count} will be fastnet's as soon as it is imported, and all that mean the same:"
            )
        else:
            text = f"{count} are fastnet's:"
        missing = [f"{name}: not swapped, as {why}" for name, why in _current.missing.items()]
        return Changes(_current.changes, "\n".join([*missing, text]))

    def __str__(self) -> str:
        return str(self.changes)

    def __enter__(self) -> Self:
        """Do nothing: it is swapped already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Swap back to what was there before `install` was called."""
        _switch(self._before)


def install(ops: bool = True, reseed: bool = False, compile: bool | CompileOptions = False) -> Swap:
    """Put fastnet in the place of FastEstimator's Network, and of what it runs.

    It can be called before FastEstimator is imported, which this does not do, and after it. A
    program's own modules are left alone: names that they have imported before stay as they are.

    Args:
        ops: Whether to swap tensor ops, losses, schedulers, slicers and backend functions too.
            Otherwise only what makes networks and models is swapped.
        reseed: Whether networks in TensorFlow draw the same random numbers in each opening, as
            FastEstimator's do, which clear the Keras session whenever they are left. Otherwise
            random numbers go on from opening to opening.
        compile: Whether networks run their steps as compiled programs, or the options for that:
            see `fastnet.Network`. Steps that cannot be compiled run as without it, with the reason
            in `network.traces`.

    Returns:
        What was changed, to print; in a `with` statement it is swapped for the block.

    Raises:
        ModuleNotFoundError: If there is no FastEstimator.
        UnknownVersionError: If it is of a version that fastnet does not know.
        ValueError: If both `reseed` and `compile` are given.

    >>> from fastnet.integrations.fastestimator import install, uninstall
    >>> install(compile=True)  # doctest: +SKIP
    """
    if reseed and compile:
        raise ValueError("install takes either reseed or compile: a compiled step is not reseeded.")
    check_version()
    with _lock:
        before = None if _current is None else _current.setting
        _switch(Setting(bool(ops), bool(reseed), compile))
        return Swap(before)


def uninstall() -> Changes:
    """Put everything back.

    Objects that were made meanwhile stay fastnet's, and go on working.

    Returns:
        What was changed.
    """
    return _switch(None)


def _switch(setting: Setting | None) -> Changes:
    """Swap in as much as is asked for, and no more."""
    global _current
    with _lock:
        restored: Changes = Changes({}, f"Nothing in {ROOT} was fastnet's.")
        if _current is not None and _current.setting != setting:
            names = _current.undo()
            restored = Changes(names, f"{len(names)} names in {ROOT} are its own again:")
            _current = None
        if _current is None and setting is not None:
            exchange = Exchange(setting)
            exchange.start()
            _current = exchange
        return restored
