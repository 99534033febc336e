"""Hadamard codes: bits that tell classes apart, whatever a few of them say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hadamard_codes", "require_code_length"]


def require_code_length(op: str, n_classes: int, code_length: int | None) -> int:
    """Settle how long the codes of some classes are.

    Args:
        op: The name of the op's class, for error texts.
        n_classes: How many classes there are.
        code_length: The length that was asked for, or None for the least that is enough.

    Returns:
        The length.

    Raises:
        ValueError: If there is no class, the length is no power of 2, or there are more classes
            than codes.
    """
    if not hasattr(n_classes, "__index__") or n_classes < 1:
        raise ValueError(f"{op}'s n_classes is an int of at least 1, not {shown(n_classes)}.")
    length = 1 << (n_classes - 1).bit_length() if code_length is None else code_length
    if length <= 0 or length & (length - 1):
        raise ValueError(f"{op}'s code_length is a power of 2, not {length}.")
    if length < n_classes:
        raise ValueError(
            f"{op} has {n_classes} classes, but only {length} codes of length {length}. Use a "
            f"code_length of {1 << (n_classes - 1).bit_length()}."
        )
    return length


def hadamard_codes(length: int) -> NDArray[Any]:
    """Make codes that differ from each other in half of their positions or more.

    Args:
        length: Their length, a power of 2.

    Returns:
        As many codes, shape (length, length), of 1 and -1 in float32; the first column alternates.

    >>> hadamard_codes(2)
    array([[-1.,  1.],
           [ 1., -1.]], dtype=float32)
    """
    import numpy as np

    codes = np.ones((1, 1), dtype="float32")
    while len(codes) < length:
        codes = np.block([[codes, codes], [codes, -codes]])
    codes[::2, 0] = -1
    return codes
