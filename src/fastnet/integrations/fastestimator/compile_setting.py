"""The `compile` argument of the networks that are created while fastnet is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["get_compile", "set_compile"]

_compile: bool | CompileOptions = False


def set_compile(compile: bool | CompileOptions) -> None:
    """Set the `compile` argument of networks created from now on."""
    global _compile
    _compile = compile


def get_compile() -> bool | CompileOptions:
    """Return the `compile` argument of a new network."""
    return _compile
