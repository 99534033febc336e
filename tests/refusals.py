"""The text of an expected error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refusal(kind: type[Exception], make: Callable[[], Any]) -> str:
    """Check that a call raises an error of exactly this class, and return its text."""
    with pytest.raises(kind) as caught:
        make()
    assert type(caught.value) is kind
    return str(caught.value)
