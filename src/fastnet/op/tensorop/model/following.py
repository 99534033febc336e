"""The base class of ops that run after each update of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.backend.model_metadata import require_built
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Forward, Model, State

__all__ = ["FollowsUpdates"]


class FollowsUpdates(HoldsModel):
    """An op that runs after each update of a model, wherever it is in a network.

    It does not run in steps without an update: while gradients are merged, in a warmup, and where
    gradients have overflowed. Derive from it and define `follow`.
    """

    # Updates before this op are deferred like those at the end of a network.
    defer = False

    def __init__(
        self, model: Model, mode: str | Iterable[str] | None, ds_id: str | Iterable[str] | None
    ) -> None:
        super().__init__(mode=mode, ds_id=ds_id)
        require_built(type(self).__name__, model)
        self.model = model

    @property
    def followed_model(self) -> Model:
        """The model whose updates are followed."""
        return self.model

    def follow(self, stepped: Any = True) -> None:
        """Run after an update; `stepped` is whether it took place, a tensor in TensorFlow."""
        raise NotImplementedError(f"{type(self).__name__} must define follow.")

    def kept(self) -> dict[str, Any]:
        """Return the op's state besides its attributes, which a compiled step compares."""
        return {}

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return {self.model}

    def forward(self, data: Any, state: State) -> None:
        """Do nothing: `follow` runs after the update."""

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return `forward`, which has no settings of a network."""
        return self.forward
