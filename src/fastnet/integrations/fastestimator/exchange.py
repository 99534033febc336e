"""The swap itself: what is replaced by what, now or as soon as it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet.integrations.fastestimator import patches
from fastnet.integrations.fastestimator.modules import replace
from fastnet.integrations.fastestimator.stand_ins import ROOT, stand_in
from fastnet.integrations.fastestimator.states import STATES
from fastnet.integrations.fastestimator.table import NETWORK, OPS
from fastnet.integrations.fastestimator.waiting import Waiting

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["Exchange", "Setting"]

_HERE = __name__.rpartition(".")[0]


class Setting(NamedTuple):
    """What a program asks of the swap.

    Attributes:
        ops: Whether ops, schedulers, slicers and backend functions are swapped too.
        compile: Whether networks compile their steps, or the options for that.
    """

    ops: bool
    compile: bool | CompileOptions


class Exchange:
    """fastnet in the place of FastEstimator's own.

    Args:
        setting: How much is swapped, and how it runs.

    Attributes:
        setting: The same.
        changes: The names that were changed, with what stands there now; before FastEstimator is
            imported those that will be.
        missing: Modules that could not be imported, and why: what they hold was not swapped.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._table: dict[str, tuple[str, ...]] = {**NETWORK, **(OPS if setting.ops else {})}
        self._pairs: list[tuple[Any, Any]] = []
        self._waiting = Waiting(self._make_if_due)
        self.changes: Mapping[str, str] = {
            f"{ROOT}.{module}.{name}": f"{_own_module(module)}.{name}"
            for module, names in self._table.items()
            for name in names
        }
        self.missing: dict[str, str] = {}

    @property
    def is_made(self) -> bool:
        """Whether anything was replaced yet."""
        return bool(self._pairs)

    def start(self) -> None:
        """Replace everything: at once, or when FastEstimator is imported."""
        patches.set_compile(self.setting.compile)
        self._waiting.start()
        self._make_if_due()

    def undo(self) -> Mapping[str, str]:
        """Put everything back, wherever it is by now.

        Returns:
            The names that were changed back, and what stands there now.
        """
        patches.set_compile(False)
        self._waiting.stop()
        pairs = [(new, old) for old, new in self._pairs]
        self._pairs = []
        return replace(pairs, _describe)

    def _make_if_due(self) -> None:
        if any(f"{ROOT}.{module}" in sys.modules for module in self._table):
            self._waiting.stop()
            self._make()

    def _make(self) -> None:
        # all of them first, so that what is swapped in becomes no base of FastEstimator's classes
        found = {module: self._import(module) for module in self._table}
        self._pairs = [
            (original, _replacement(module, name, original))
            for module, names in self._table.items()
            if found[module] is not None
            for name in names
            for original in [getattr(found[module], name)]
        ]
        for original, new in self._pairs:
            patches.know(original.__name__, original, new)
        self.changes = replace(self._pairs, _describe)

    def _import(self, module: str) -> Any:
        try:
            return import_module(f"{ROOT}.{module}")
        except ImportError as error:
            # it needs what is not installed, so no program can use it either
            self.missing[f"{ROOT}.{module}"] = str(error)
            return None


def _own_module(module: str) -> str:
    return f"fastnet.{'backend' if module.startswith('backend.') else module}"


def _replacement(module: str, name: str, original: Any) -> Any:
    special = _special(module, name)
    if special is not None:
        return special(original)
    if module == "network":
        from fastnet.integrations.fastestimator.networks import network_class

        return network_class(name)
    own = getattr(import_module(_own_module(module)), name)
    return stand_in(own, original, STATES.get(name)) if isinstance(original, type) else own


def _special(module: str, name: str) -> Callable[[Any], Any] | None:
    """Return the function that makes a replacement that is more than fastnet's own."""
    place = {
        "Network": ("networks", "Network"),
        "_collect_models": ("networks", "collect_models"),
        "build": ("building", "build"),
        "get_lr": ("rates", "get_lr"),
        "_fe_compile": ("building", "compile_model"),
        "_build_optimizer": ("building", "build_optimizer"),
        "load_model": ("files", "load_model"),
        "save_model": ("files", "save_model"),
    }.get(name)
    if place is None:
        return None
    found = getattr(import_module(f"{_HERE}.{place[0]}"), place[1])
    return lambda original: found


def _describe(value: Any) -> str:
    kinds = vars(value).get("_stands_for") if isinstance(value, type) else None
    shown = kinds[0] if kinds else value
    return f"{shown.__module__}.{shown.__qualname__}"
