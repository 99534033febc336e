"""Errors that must be the same in every framework, and what must be left after them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from fastnet.network import BaseNetwork
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import Framework


@contextmanager
def refusing(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Expect an error of exactly this type whose text and notes have all the parts."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    text = "\n".join(words_of(caught.value))
    assert not [part for part in parts if part not in text], text


def words_of(error: BaseException) -> list[str]:
    """List an error's text and its notes, but for those on where in a file it was raised."""
    words = [str(error), *getattr(error, "__notes__", [])]
    if sys.version_info < (3, 11):
        # notes have no place of their own there, and follow the text
        words = str(error).split("\n")
    return [line for line in words if not line.startswith("In the source: ")]


def notes_of(fw: Framework, *notes: str) -> list[str]:
    """Add a part of the note that errors get while ops are traced into a graph."""
    return [*notes, "eager=True"] if fw.name == "tf-static" else list(notes)


def check_free(network: BaseNetwork) -> None:
    """Check that a network can be entered, and shows nothing of an earlier context."""
    with pytest.raises(ValueError, match="is not open"):
        network.run_step({})
    assert not network.ctx_state
    assert not network.ctx_ops
    assert not network.ctx_outputs


def check_failing_step(
    fw: Framework,
    network: BaseNetwork,
    bad: Mapping[str, Any],
    good: Mapping[str, Any],
    expected: Mapping[str, Any],
    kind: type[BaseException],
    *parts: str,
) -> None:
    """Check that a batch fails, and that a good one gives the expected results before and after."""

    def check_good(result: Mapping[str, Any]) -> None:
        assert_same({key: result[key] for key in expected}, dict(expected))

    given = fw.tensors(bad)
    kept = dict(given)
    for _ in range(2):
        with fw.opened(network):
            for _ in range(2):
                with refusing(kind, *parts):
                    network.run_step(given)
                check_good(fw.arrays(network.run_step(fw.tensors(good))))
            assert not network.ctx_state["deferred"]
        check_free(network)
        with refusing(kind, *parts):
            fw.step(network, bad)
        check_free(network)
    check_good(fw.step(network, good))
    assert list(given) == list(kept)
    assert all(given[key] is value for key, value in kept.items())
