"""Programs that must come to the same in every framework."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.frameworks import FRAMEWORKS, Framework

# float32's own rounding, a few dozen operations and optimizer steps over
RELATIVE = 1e-4
ABSOLUTE = 1e-5


def conforms(program: Callable[..., Any]) -> Callable[..., None]:
    """Make a test of a program that is given a framework and returns what came of it.

    The test runs it in one framework, and once more in torch; results must be the same. In torch
    that shows that nothing is left behind by which a second run could differ.
    """

    @functools.wraps(program)
    def test(*of_a_class: Any, fw: Framework, **arguments: Any) -> None:
        actual = program(*of_a_class, fw=fw, **arguments)
        assert actual, "a program must have results"
        assert_same(actual, program(*of_a_class, fw=FRAMEWORKS["torch"], **arguments))

    return test


def assert_same(actual: Any, expected: Any, path: str = "result") -> None:
    """Compare two nests: containers by type, arrays by type, shape and value, the rest by ==."""
    assert type(actual) is type(expected), f"{path}: {actual!r} is not like {expected!r}"
    if isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype, path
        assert actual.shape == expected.shape, path
        np.testing.assert_allclose(actual, expected, RELATIVE, ABSOLUTE, err_msg=path)
    elif isinstance(expected, float):
        np.testing.assert_allclose(actual, expected, RELATIVE, ABSOLUTE, err_msg=path)
    elif isinstance(expected, dict):
        assert set(actual) == set(expected), path
        for key in expected:
            assert_same(actual[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), path
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, f"{path}[{index}]")
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            one, other = getattr(actual, field.name), getattr(expected, field.name)
            assert_same(one, other, f"{path}.{field.name}")
    else:
        assert actual == expected, path
