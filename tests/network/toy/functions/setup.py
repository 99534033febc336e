"""Models made ready by `fastnet.build`."""

from __future__ import annotations

from typing import Any

from fastnet.backend.facts import reserve
from tests.network.toy import Descent, Model


def prepare(model: Model) -> Model:
    return model


def reserve_names(model: Model, source: Any) -> None:
    reserve(model)


def make_optimizer(source: Any, model: Model, name: str, mixed_precision: Any) -> Descent:
    made: Descent = source()
    return made
