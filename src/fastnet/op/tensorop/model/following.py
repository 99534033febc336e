"""What ops share that do something after each update of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.op.tensorop.model.held_model import HoldsModel, require_built
from fastnet.types import Forward, Model, State

__all__ = ["FollowsUpdates"]


class FollowsUpdates(HoldsModel):
    """An op that does something after each update of a model, wherever in a network it stands.

    A step in which the model's optimizer takes no step is none: one that only merges gradients, a
    warmup, or one whose gradients have overflown. Derive from it, and define `follow`.

    Args:
        model: The model.
        mode: Mode(s) to run in.
        ds_id: Dataset id(s) to run on.

    Raises:
        AssertionError: If the model was not built.
    """

    # so that updates that stand before it wait for each other's gradients as they do at the end
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
        """Do what is to be done after an update.

        Args:
            stepped: Whether there was one; a tensor in TensorFlow.
        """
        raise NotImplementedError(f"{type(self).__name__} must define follow.")

    def kept(self) -> dict[str, Any]:
        """Return what the op goes by besides its attributes, for a compiled step to compare."""
        return {}

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return {self.model}

    def forward(self, data: Any, state: State) -> None:
        """Do nothing: it is done after the update.

        Args:
            data: Not used.
            state: The step's context, not used.
        """

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return the forward, which knows no settings of a network.

        Args:
            defer: Not used.
            retain_graph: Not used.
        """
        return self.forward
