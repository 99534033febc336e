"""What counts as a whole number."""

from __future__ import annotations

import operator

import numpy as np

__all__ = ["whole_number"]


def whole_number(value: object) -> int | None:
    """Read a whole number, by its type.

    Args:
        value: An int, Python's or numpy's, or anything else that stands for one.

    Returns:
        The int; None for anything else. A truth value is no number.

    >>> import numpy as np
    >>> whole_number(np.int64(3)), whole_number(3.0), whole_number(True)
    (3, None, None)
    """
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
