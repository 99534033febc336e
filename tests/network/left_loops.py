"""Ways to end a loop over steps, for both frameworks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import fastnet

WAYS: dict[str, Callable[[Any, Iterable[Any]], Iterable[Any]]] = {
    "steps": lambda network, data: fastnet.steps(network, data, "train"),
    "iter_transform": lambda network, data: network.iter_transform(data, "train"),
    "a pipeline": lambda network, data: network.iter_transform(Pipeline(data), "train"),
}

EPOCHS = ["exhausted", "islice"]
"""The ends of a loop that end the epoch."""

OTHERS = ["break", "error", "interrupt", "closed in a handler"]
"""The ends of a loop that leave the epoch early."""


class Pipeline:
    """A dataset as `transform` takes it: called, and then entered for a loader."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data

    def __call__(self, **context: Any) -> Pipeline:
        return self

    def __enter__(self) -> Iterable[Any]:
        return self.data

    def __exit__(self, *error: Any) -> None:
        pass


def run_two(network: Any, data: list[Any], way: str, end: str) -> None:
    """Run the first two batches of several, and end the loop in one of `EPOCHS` or `OTHERS`."""
    loop = WAYS[way]
    if end == "exhausted":
        assert len(list(loop(network, data[:2]))) == 2
    elif end == "islice":
        assert len(list(loop(network, itertools.islice(data, 2)))) == 2
    elif end == "break":
        for number, _ in enumerate(loop(network, data)):
            if number == 1:
                break
    elif end == "closed in a handler":
        results: Any = iter(loop(network, data))
        next(results), next(results)
        with pytest.raises(ZeroDivisionError):
            _fail_and_close(results)
    else:
        kind = {"error": ZeroDivisionError, "interrupt": KeyboardInterrupt}[end]
        with pytest.raises(kind):
            _fail_in_body(loop(network, data), kind)


def _fail_in_body(results: Iterable[Any], kind: type[BaseException]) -> None:
    for number, _ in enumerate(results):
        if number == 1:
            raise kind


def _fail_and_close(results: Any) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        results.close()
        raise
