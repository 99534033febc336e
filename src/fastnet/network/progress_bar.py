"""The bar that loops over steps show, if they are asked for one."""

from __future__ import annotations

from typing import Any

__all__ = ["bar_class"]


def bar_class(asker: str) -> type[Any]:
    """Import what shows a bar.

    Args:
        asker: What was asked for it, for the error's text.

    Returns:
        The class, `tqdm.tqdm`.

    Raises:
        ModuleNotFoundError: If it is not installed; it says how to install it.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{asker} with progress=True needs tqdm, which is not installed. Install it by "
            "`pip install tqdm`, or with `pip install fastnet[torch]` or `fastnet[tf]`; or leave "
            "progress out.",
            name="tqdm",
        ) from error
    bar: type[Any] = tqdm
    return bar
