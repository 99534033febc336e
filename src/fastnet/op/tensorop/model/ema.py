"""The op that averages a model's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.backend.dispatch import backend_module, framework_of
from fastnet.backend.model_metadata import name_of
from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.held_model import require_built
from fastnet.types import Model

__all__ = ["EMA"]


class EMA(FollowsUpdates):
    """Keeps an exponential moving average of a model's weights, as of after each update of it.

    The average is a model of its own, `averaged`, for a ModelOp to run in evaluation. The first
    update is copied to it, and of each later one it takes the part ``1 - decay``: as
    `torch.optim.swa_utils.AveragedModel` does with `get_ema_multi_avg_fn`, and optimizers of Keras
    3 with `use_ema`. It is saved in checkpoints and weights files as other models are, and named
    after the model: "model_ema". In a network an UpdateOp must update the model in the same modes.

    Args:
        model: A model from `fastnet.build`; not one that FSDP2 has sharded, and a Keras model that
            knows the shape of its inputs.
        decay: The part of the average that stays in an update, between 0 and 1.
        use_buffers: Whether to average buffers (Keras: weights that are not trained), such as the
            statistics of batch norms, too. They are copied in each update otherwise.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Attributes:
        averaged: The model with the averages, without an optimizer.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If `decay` is no number between 0 and 1, or the model cannot be copied; in a
            network also if no op updates the model.

    >>> import torch, fastnet
    >>> from fastnet.op.tensorop.model import ModelOp
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), "sgd", model_name="line")
    >>> ema = EMA(model, decay=0.99)
    >>> [ModelOp(model, "x", "y", mode="train"), ModelOp(ema.averaged, "x", "y", mode="!train")]
    [ModelOp(x -> y, 'line', mode=train), ModelOp(x -> y, 'line_ema', mode=!train)]
    """

    resolved_from = ("model", "decay", "use_buffers")
    alike_on_ranks = ("decay", "use_buffers")

    def __init__(
        self,
        model: Model,
        decay: float = 0.999,
        use_buffers: bool = False,
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        require_built("EMA", model)
        super().__init__(model, mode, ds_id)
        self.decay = decay
        self.use_buffers = use_buffers
        _check_decay(model, decay)
        ema = backend_module(str(framework_of(model)), "ema")
        self.averaged: Model = ema.copy_for_average(model, f"{name_of(model)}_ema")
        self._mover: Any = ema.WeightAverager(model, self.averaged, float(decay), bool(use_buffers))
        self._of = model

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, and go by it.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            ValueError: As for `__init__`, and if the model is another one.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        if self.model is not self._of:
            raise ValueError(
                f"EMA averages model '{name_of(self._of)}', which it was made for, and not "
                f"'{name_of(self.model)}'. Make another EMA for that."
            )
        _check_decay(self.model, self.decay)
        ema = backend_module(str(framework_of(self.model)), "ema")
        settings = float(self.decay), bool(self.use_buffers)
        if self._mover.settings != settings:
            former = self._mover.has_begun
            self._mover = ema.WeightAverager(self.model, self.averaged, *settings)
            self._mover.has_begun = former

    def get_fe_models(self) -> set[Model]:
        """Return the model, and the one with its averages."""
        return {self.model, self.averaged}

    def follow(self, stepped: Any = True) -> None:
        """Take an update of the model in.

        Args:
            stepped: Whether there was one; a tensor in TensorFlow.
        """
        self._mover.move(stepped)

    def kept(self) -> dict[str, Any]:
        """Return what the averaging goes by, such as whether it has begun."""
        kept: dict[str, Any] = vars(self._mover)
        return kept

    def told_settings(self) -> list[str]:
        """Say what the op does, for `explain`."""
        return [f"averages weights with the decay {self.decay:g}"]

    def state_dict(self) -> dict[str, Any]:
        """Return what the op remembers besides the weights of `averaged`.

        Returns:
            Under "has_begun" whether there was an update.
        """
        return {"has_begun": bool(self._mover.has_begun)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: What the op, or another one like it, remembered.

        Raises:
            ValueError: If it is none. The op goes on as before then.
        """
        given: Any = state
        if not isinstance(given, dict) or not isinstance(given.get("has_begun"), bool):
            raise ValueError(
                "The state to load is none of an EMA: it has no 'has_begun'. Load it into the EMA "
                "of the model that it was saved from."
            )
        self._mover.has_begun = state["has_begun"]


def _check_decay(model: Model, decay: Any) -> None:
    if isinstance(decay, bool) or not is_number(decay) or not 0 <= decay <= 1:
        raise ValueError(
            f"EMA of '{name_of(model)}' has decay={shorten(decay)}; it is a number between 0 and 1."
        )
