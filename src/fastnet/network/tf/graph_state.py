"""What a graph depends on besides its batches, and what of that has changed since."""

from __future__ import annotations

import sys
from typing import Any

from fastnet._resolve import same_items
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.tf.models import all_layers
from fastnet.network.tf.fingerprint import Change, Fingerprint
from fastnet.types import Model, is_op

__all__ = ["GraphState"]

_MOST_NAMES = 4
# of Keras, which layers and losses read when they are called
_SETTINGS = ("floatx", "epsilon", "image_data_format")


class GraphState:
    """What a graph of ops depends on: the ops, the models in it and their optimizers, as they are.

    Args:
        models: The models.
        ops: The ops, in order.
        training: Whether the models' optimizers belong to it.
    """

    def __init__(self, models: list[Model], ops: list[Any], training: bool) -> None:
        self._models = models
        self._ops = ops
        self._training = training
        self._optimizers = tuple(self._optimizers_now())
        self._layers = [
            [(layer, bool(layer.trainable)) for layer in all_layers(model)] for model in models
        ]
        self._settings = _settings_now()
        self._fingerprint = Fingerprint([*models, *self._optimizers, *ops])

    def holds(self) -> bool:
        """Return whether nothing has changed since."""
        return (
            same_items(self._optimizers_now(), self._optimizers)
            and not self._other_settings()
            and self._fingerprint.holds()
        )

    def ran(self, after: GraphState) -> None:
        """Have the states of other graphs go along with what running the ops has changed.

        Args:
            after: How it was after that; before, it was like this.
        """
        self._fingerprint.moves_to(after._fingerprint)

    def difference(self) -> str:
        """Return what has changed since.

        Returns:
            The difference, in words; nothing if there is none.
        """
        sentences = [f"Keras has another `{name}`" for name in self._other_settings()]
        told, switched = set(), set()
        for model, optimizer, current in zip(
            self._models, self._optimizers, self._optimizers_now(), strict=True
        ):
            if current is not optimizer:
                sentences.append(f"{_model(model)} has another optimizer")
                told.add(id(optimizer))
        for model, before in zip(self._models, self._layers, strict=True):
            layers = all_layers(model)
            if not same_items(layers, tuple(layer for layer, _ in before)):
                sentences.append(f"{_model(model)} has other layers")
                told.add(id(model))
                continue
            changed = [
                f"'{layer.name}' {'frozen' if flag else 'thawed'}"
                for layer, flag in before
                if bool(layer.trainable) is not flag
            ]
            if changed:
                sentences.append(f"layers of {_model(model)} were switched: {_listed(changed)}")
                switched.add(id(model))
        found: dict[str, list[str]] = {}
        for change in self._fingerprint.changes():
            root = id(change[0][0])
            follows = root in switched and change[-1][1] in ("trainable", "_trainable")
            if root not in told and not follows:
                subject, name = self._tell(change)
                found.setdefault(subject, []).append(f"`{name}`")
        sentences += [
            f"{subject} has another {_listed(list(dict.fromkeys(names)))}"
            for subject, names in found.items()
        ]
        return " and ".join(sentences[:_MOST_NAMES])

    def _other_settings(self) -> list[str]:
        now = _settings_now()
        return [name for name, value in self._settings.items() if now[name] != value]

    def _tell(self, change: Change) -> tuple[str, str]:
        """Name what has changed: the nearest op, layer, model or optimizer, and the attribute."""
        root = change[0][0]
        subject, start = self._root(root), 0
        for place, (owner, _) in enumerate(change[1:], 1):
            if is_op(owner):
                subject, start = f"{_op(owner)} in {self._root(root)}", place
            elif hasattr(owner, "trainable_weights") and hasattr(owner, "name"):
                subject, start = f"the layer '{owner.name}' of {self._root(root)}", place
        names = [name.lstrip("_") or name for _, name in change[start:]]
        return subject, ".".join(name for name in names if name)

    def _root(self, root: Any) -> str:
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            if root is model:
                return _model(model)
            if root is optimizer:
                return f"the optimizer of {_model(model)}"
        place = next(place for place, op in enumerate(self._ops) if op is root)
        return f"op {place}, {_op(root)},"

    def _optimizers_now(self) -> list[Any]:
        if not self._training:
            return [None] * len(self._models)
        return [get_metadata(model, "current_optimizer") for model in self._models]


def _settings_now() -> dict[str, Any]:
    backend = getattr(sys.modules.get("keras"), "backend", None)
    if backend is None:
        return {}
    return {name: getattr(backend, name)() for name in _SETTINGS}


def _model(model: Model) -> str:
    return f"the model '{name_of(model)}'"


def _op(op: Any) -> str:
    return f"{type(op).__name__} ({', '.join(op.inputs)} -> {', '.join(op.outputs)})"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
