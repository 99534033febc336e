"""What a program, mostly a test of it, has put under names of FastEstimator's network module.

FastEstimator's functions find what they call under these names at each call, so that
``unittest.mock.patch("fastestimator.network.load_model")`` changes what `build` does. What stands
in for them calls other functions; so it asks here, when a model or a network is made and when
`transform` takes a batch, never in a step.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastnet.integrations.fastestimator.stand_ins import ROOT

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["HONOURED", "get_compile", "know", "patched", "set_compile"]

_IMPORTED = {
    "get_device": "util.util",
    "get_num_gpus": "util.util",
    "load_model": "backend._load_model",
    "to_tensor": "backend._to_tensor",
    "trace_model": "util.traceability_util",
}
_DEFINED = ("TFNetwork", "TorchNetwork", "_build_optimizer", "_fe_compile")

HONOURED = (*_IMPORTED, *_DEFINED)
"""The names that are asked for."""

# what FastEstimator has under the names that it defines there, and the swap
_known: dict[str, list[Any]] = {name: [] for name in _DEFINED}


def know(name: str, *values: Any) -> None:
    """Return what is no patch.

    Args:
        name: A name in FastEstimator's network module.
        values: What FastEstimator, or the swap, has there.
    """
    if name in _known:
        _known[name] += [one for one in values if not _is_among(one, _known[name])]


def patched(name: str) -> Any:
    """Find out what a program has put under a name.

    Args:
        name: One of `HONOURED`.

    Returns:
        It, or None if what is there is FastEstimator's or the swap's.
    """
    found = getattr(import_module(f"{ROOT}.network"), name)
    if name in _known:
        known = _known[name]
    else:
        known = [getattr(import_module(f"{ROOT}.{_IMPORTED[name]}"), name)]
    return None if _is_among(found, known) else found


def _is_among(one: Any, others: list[Any]) -> bool:
    return any(one is other for other in others)


_compile: bool | CompileOptions = False


def set_compile(compile: bool | CompileOptions) -> None:
    """Set how networks made from now on compile their steps."""
    global _compile
    _compile = compile


def get_compile() -> bool | CompileOptions:
    """Return how networks compile their steps."""
    return _compile
