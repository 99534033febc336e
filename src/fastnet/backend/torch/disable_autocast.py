"""Disables autocast where gradients are computed and optimizers step, as PyTorch advises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import is_autocast_enabled, set_autocast_enabled

P = ParamSpec("P")
R = TypeVar("R")


def autocast_is_enabled() -> bool:
    """Return whether autocast is enabled in this thread, for any type of device."""
    for device_type in _device_types():  # noqa: SIM110 - `any` takes twice as long
        if is_autocast_enabled(device_type):
            return True
    return False


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that disables the caller's autocast while the given one runs."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not autocast_is_enabled():
            return function(*args, **kwargs)
        with _autocast_disabled():
            return function(*args, **kwargs)

    return run


@contextmanager
def _autocast_disabled() -> Iterator[None]:
    """Disable autocast for all types of devices, without clearing its cache of cast weights."""
    enabled = list(filter(is_autocast_enabled, _device_types()))
    try:
        for device_type in enabled:
            set_autocast_enabled(device_type, False)
        yield
    finally:
        for device_type in enabled:
            set_autocast_enabled(device_type, True)


@cache
def _device_types() -> tuple[str, ...]:
    """List the types of devices that autocast can be enabled for."""
    accelerator = torch.accelerator.current_accelerator()
    types = {"cpu", "cpu" if accelerator is None else accelerator.type}
    return tuple(filter(torch.amp.is_autocast_available, sorted(types)))
