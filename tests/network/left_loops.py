"""Loops over the steps of an opening that end in one way or another, in any framework."""

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
"""What can be looped over."""

EPOCHS = ["exhausted", "islice"]
"""The ends of loops that are an epoch's end."""

OTHERS = ["break", "error", "interrupt", "closed in a handler"]
"""The ends of loops that are none."""


class Pipeline:
    """What is called, and entered, to give a loader."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data

    def __call__(self, **opening: Any) -> Pipeline:
        return self

    def __enter__(self) -> Iterable[Any]:
        return self.data

    def __exit__(self, *error: Any) -> None:
        pass


def run_two(network: Any, data: list[Any], way: str, end: str) -> None:
    """Run the first two of more batches, and end the loop.

    Args:
        network: The network.
        data: The batches.
        way: One of `WAYS`.
        end: One of `EPOCHS` or `OTHERS`.
    """
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
