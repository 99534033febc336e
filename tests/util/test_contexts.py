"""The context that does nothing."""

from __future__ import annotations

import pytest

from fastnet.util import NonContext


def test_nothing_happens() -> None:
    context = NonContext()
    with context as value:
        assert value is None
    with context:  # again
        pass


def test_errors_pass() -> None:
    with pytest.raises(KeyError), NonContext():
        raise KeyError("x")
