"""What is taken into use is given back, whatever comes in between."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastnet._guard import call_within, enter, leave


class Interrupt(BaseException):
    """What a user's Ctrl-C raises."""


class Entered:
    """The attributes of a network that taking it into use goes by."""

    __enter__ = enter
    __exit__ = leave

    def __init__(self, opens: BaseException | None = None, exits: BaseException | None = None):
        self._lock = threading.Lock()
        self._configured = threading.local()
        self._opening: Any = None
        self.opens = opens
        self.exits = exits
        self.log: list[str] = []

    def _in_use(self) -> ValueError:
        return ValueError("in use")

    def configure(self) -> Opening:
        opening = self._configured.opening = Opening(self)
        return opening

    def _open(self, opening: Opening) -> None:
        self.log.append("opened")
        if self.opens is not None:
            raise self.opens

    def is_as_before(self) -> bool:
        return not self._lock.locked() and self._opening is None


class Opening:
    """An opening, which is its own runner."""

    def __init__(self, network: Entered) -> None:
        self.network = network
        self.runner = self

    def close(self) -> None:
        assert self.network._opening is None
        assert self.network._lock.locked()
        self.network.log.append("left")
        if self.network.exits is not None:
            raise self.network.exits


class TestEnter:
    def test_opens_what_was_configured_and_gives_it_back(self) -> None:
        network = Entered()
        opening = network.configure()
        with network as entered:
            assert entered is network
            assert network._opening is opening
            assert network._lock.locked()
            with pytest.raises(ValueError, match="in use"):
                network.__enter__()
            assert network._opening is opening
        assert network.log == ["opened", "left"]
        assert network.is_as_before()

    def test_a_configuration_is_for_one_time(self) -> None:
        network = Entered()
        network.configure()
        with network:
            pass
        with network:
            assert network._opening is None
            assert network._lock.locked()
        assert network.log == ["opened", "left"]
        assert network.is_as_before()

    @pytest.mark.parametrize("error", [Interrupt(), OSError("open")])
    def test_an_opening_that_raises(self, error: BaseException) -> None:
        network = Entered(opens=error)
        network.configure()
        with pytest.raises(type(error)):
            network.__enter__()
        assert network.log == ["opened", "left"]
        assert network.is_as_before()

    @pytest.mark.parametrize("error", [Interrupt(), OSError("exit")])
    def test_leaving_that_raises(self, error: BaseException) -> None:
        network = Entered(exits=error)
        network.configure()
        with pytest.raises(type(error)), network:
            pass
        assert network.is_as_before()

    def test_leaving_what_was_not_entered(self) -> None:
        network = Entered()
        network.__exit__()
        assert network.log == []
        assert network.is_as_before()


class TestCallWithin:
    def test_the_lock_is_held_for_just_the_call(self) -> None:
        lock = threading.Lock()
        assert call_within(lock, lambda *args: (lock.locked(), args), 1, 2) == (True, (1, 2))
        assert not lock.locked()

    def test_it_is_released_whatever_the_call_raises(self) -> None:
        lock = threading.Lock()

        def fail() -> None:
            raise Interrupt

        with pytest.raises(Interrupt):
            call_within(lock, fail)
        assert not lock.locked()
