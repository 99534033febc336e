"""What a profiler in C tells of, and what it passes over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

from fastnet._calls import Calls


def plain() -> int:
    return len(())


def noisy() -> int:
    return len(()) + abs(-1)


@contextmanager
def watching(
    see: Callable[[FrameType, Any, bool], bool], quiet: Any = None, always: Any = ()
) -> Iterator[None]:
    def is_quiet(code: CodeType) -> bool:
        return code is quiet

    calls = Calls(see, is_quiet, list(always))
    calls.watch()
    try:
        yield
    finally:
        sys.setprofile(None)


class Seeing:
    """Remembers what it was told."""

    def __init__(self, enough: bool) -> None:
        self.enough = enough
        self.told: list[tuple[Any, str]] = []

    def __call__(self, frame: FrameType, called: Any, by_c: bool) -> bool:
        assert by_c is not isinstance(called, CodeType)
        self.told.append((called, frame.f_code.co_name))
        return self.enough

    def of(self, *subjects: Any) -> list[tuple[Any, str]]:
        return [one for one in self.told if one[0] in subjects]


def test_all_calls_are_told_that_may_matter() -> None:
    seeing = Seeing(False)
    with watching(seeing):
        plain()
        plain()
    assert seeing.of(plain.__code__, len) == [(plain.__code__, "plain"), (len, "plain")] * 2


def test_what_was_looked_at_enough_is_told_once() -> None:
    seeing = Seeing(True)
    with watching(seeing):
        plain()
        noisy()
        plain()
    assert seeing.of(plain.__code__, noisy.__code__, len, abs) == [
        (plain.__code__, "plain"),
        (len, "plain"),
        (noisy.__code__, "noisy"),
        (abs, "noisy"),
    ]


def test_of_quiet_code_only_some_functions_are_told() -> None:
    seeing = Seeing(False)
    with watching(seeing, noisy.__code__, [abs]):
        noisy()
        plain()
    assert seeing.of(len, abs) == [(abs, "noisy"), (len, "plain")]


def test_codes_that_are_equal_are_told_apart() -> None:
    sources = "def one(): return 1", "def one(): return 1"
    spaces: list[dict[str, Any]] = [{}, {}]
    for source, space in zip(sources, spaces, strict=True):
        exec(compile(source, "<program>", "exec"), space)
    codes = [space["one"].__code__ for space in spaces]
    assert codes[0] == codes[1]
    seeing = Seeing(True)
    with watching(seeing):
        for space in spaces:
            space["one"]()
    assert [id(called) for called, _ in seeing.of(*codes)] == list(map(id, codes))


def test_an_error_ends_it_before_the_call() -> None:
    def refuse(frame: FrameType, called: Any, by_c: bool) -> bool:
        if called is abs:
            raise ValueError("abs")
        return False

    ran = []
    with pytest.raises(ValueError, match="abs"), watching(refuse):
        ran.append(noisy())
    assert ran == []

    def refuse_all(frame: FrameType, called: Any, by_c: bool) -> bool:
        raise ValueError("all")

    with pytest.raises(ValueError, match="all"), watching(refuse_all):
        plain()


def test_it_is_the_profiler_of_its_thread() -> None:
    seeing = Seeing(False)
    with watching(seeing):
        assert isinstance(sys.getprofile(), Calls)
    assert sys.getprofile() is None
