"""What is traced with models, besides their weights: their optimizers, and what is frozen."""

from __future__ import annotations

from collections.abc import Hashable

from fastnet.backend.tf.models import all_layers
from fastnet.types import Model

__all__ = ["ModelStates"]


class ModelStates:
    """What a graph depends on, of the models in it, besides their weights.

    Args:
        models: The models.
        training: Whether their optimizers belong to it.

    Attributes:
        optimizers: The optimizer of each model; None where it does not matter.
        key: Equal for states that one graph does for, as long as their optimizers are kept.
    """

    def __init__(self, models: list[Model], training: bool) -> None:
        self._models = models
        self._training = training
        self.optimizers = tuple(
            getattr(model, "current_optimizer", None) if training else None for model in models
        )
        self._trainable = tuple(
            tuple([bool(layer.trainable) for layer in all_layers(model)]) for model in models
        )
        self.key: Hashable = (tuple(map(id, self.optimizers)), self._trainable)

    def now(self) -> ModelStates:
        """Look at the models again.

        Returns:
            How they are now.
        """
        return ModelStates(self._models, self._training)

    def difference(self, before: ModelStates) -> str:
        """Say what has changed.

        Args:
            before: How it was.

        Returns:
            The difference, in words; nothing if there is none.
        """
        changes = []
        for place, model in enumerate(self._models):
            name = getattr(model, "model_name", type(model).__name__)
            if self.optimizers[place] is not before.optimizers[place]:
                changes.append(f"the model '{name}' has another optimizer")
            now, then = self._trainable[place], before._trainable[place]
            if len(now) != len(then):
                changes.append(f"the model '{name}' has other layers")
            elif now != then:
                switched = [
                    f"'{layer.name}' {'thawed' if flag else 'frozen'}"
                    for layer, flag, old in zip(all_layers(model), now, then, strict=True)
                    if flag is not old
                ]
                shown = ", ".join(switched[:4]) + (", ..." if len(switched) > 4 else "")
                changes.append(f"layers of the model '{name}' were switched: {shown}")
        return " and ".join(changes)
