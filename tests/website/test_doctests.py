"""Doctests in docstrings, as blocks of code."""

from __future__ import annotations

import pytest

pytest.importorskip("griffe")

from website.doctests import fenced


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.", "One."),
        ("One.\n\n>>> 1 + 1\n2\n", "One.\n\n```pycon\n>>> 1 + 1\n2\n```"),
        (
            ">>> 1\n1\n\nMore.\n\n>>> 2\n2",
            "```pycon\n>>> 1\n1\n```\n\nMore.\n\n```pycon\n>>> 2\n2\n```",
        ),
        ("Example:\n    >>> 1\n    1", "Example:\n    ```pycon\n    >>> 1\n    1\n    ```"),
    ],
)
def test_fenced(text: str, expected: str) -> None:
    assert fenced(text) == expected
