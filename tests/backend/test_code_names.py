"""The names that a code object reads."""

from __future__ import annotations

from typing import Any

import pytest

from fastnet.backend.code_names import names_in


def test_each_kind_of_name() -> None:
    def outer(value: Any) -> Any:
        import os.path
        from collections import deque

        def inner() -> Any:
            return pytest.approx(value.inner_attribute), "a_string", "no name"

        return os.path, deque, inner, value.outer_attribute

    names = names_in(outer.__code__)
    assert names.read == {"pytest"}
    assert {"approx", "inner_attribute", "outer_attribute", "deque"} <= names.attributes
    assert names.imports == {"os.path", "collections"}
    assert "a_string" in names.strings
    assert "no name" not in names.strings


def _by_getattr(value: Any, name: str) -> Any:
    return getattr(value, name)


def _by_vars(value: Any, name: str) -> Any:
    return vars(value)[name]


def _by_table(value: Any, name: str) -> Any:
    return value.__dict__[name]


def _plain(value: Any, name: str) -> Any:
    return value.name


@pytest.mark.parametrize(
    ("function", "looks_up"),
    [(_by_getattr, True), (_by_vars, True), (_by_table, True), (_plain, False)],
)
def test_attributes_that_are_not_named(function: Any, looks_up: bool) -> None:
    assert names_in(function.__code__).looks_up is looks_up
