"""Schedulers of a user's own, and the error that one of them raises."""

from __future__ import annotations

from typing import Any

from fastnet.schedule import Scheduler


class Trouble(Exception):
    """An error of a user's own."""


class MoodyScheduler(Scheduler[Any]):
    """Raises in epoch 13."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get_current_value(self, epoch: int) -> Any:
        if epoch == 13:
            raise Trouble("as told")
        return self.value

    def get_all_values(self) -> list[Any]:
        return [self.value]


class Doubling(Scheduler[Any]):
    """A scheduler of a user's own, by a rule."""

    def get_current_value(self, epoch: int) -> Any:
        return "sgd" if epoch < 3 else None

    def get_all_values(self) -> list[Any]:
        return ["sgd", None]
