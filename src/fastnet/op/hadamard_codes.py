"""Hadamard codes for error-correcting output codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray


def resolve_code_length(op: str, n_classes: int, code_length: int | None) -> int:
    """Return the code length, by default the shortest for the classes, after checking both."""
    if not hasattr(n_classes, "__index__") or n_classes < 1:
        raise ValueError(
            f"{op}'s n_classes must be an int of at least 1, not {shorten(n_classes)}."
        )
    shortest = 1 << (n_classes - 1).bit_length()
    length = shortest if code_length is None else code_length
    if length <= 0 or length & (length - 1):
        raise ValueError(f"{op}'s code_length must be a power of 2, not {length}.")
    if length < n_classes:
        raise ValueError(
            f"{op} has {n_classes} classes, but only {length} codes of length {length}. Use a "
            f"code_length of {shortest}."
        )
    return length


def hadamard_codes(length: int) -> NDArray[Any]:
    """Return the codes of a length, shape (length, length), of 1 and -1 in float32.

    Any two codes differ in at least half of the bits. The first column alternates.

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
