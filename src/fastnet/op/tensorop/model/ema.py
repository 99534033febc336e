"""The op that averages a model's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastnet.backend.dispatch import model_framework
from fastnet.backend.ema import Decay
from fastnet.backend.model_metadata import name_of
from fastnet.errors import shorten
from fastnet.framework import WeightAverager
from fastnet.op.checks import is_number
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.types import Model


class EMA(FollowsUpdates):
    """Maintains an exponential moving average of a model's weights.

    The average is a model, `averaged`, which a ModelOp can run in evaluation. It starts as a copy
    of the weights after the first update. After each later one, `decay` times the average is added
    to ``1 - decay`` times the weights, as in `torch.optim.swa_utils.AveragedModel` with
    `get_ema_multi_avg_fn`, and in Keras optimizers with `use_ema`. It is saved like other models,
    under the model's name with the suffix "_ema". In a network an UpdateOp must update the model in
    the same modes. See `TensorOp` for `mode` and `ds_id`.

    Args:
        model: A model from `fastnet.build` that is not sharded by FSDP2; a Keras model must be
            built for an input shape.
        decay: The decay rate, from 0 to 1, or a function of the number of updates before this one
            that returns it, such as ``lambda n: min(0.999, (1 + n) / (10 + n))``. The number begins
            at 1, because the first update copies the weights. It is an int in torch. In TensorFlow
            it is a float64 tensor, and the function a part of the graph: use functions of `tf`,
            as in ``tf.minimum((1 + n) / (10 + n), 0.999)``. It must depend on nothing else.
        use_buffers: Whether to average buffers, such as batch norm statistics, instead of copying
            them (in Keras non-trainable weights).

    Attributes:
        averaged: The model with the averages, without an optimizer.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If `decay`, or what it returns, is not from 0 to 1, or the model cannot be
            copied; in a network also if no op updates the model.

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
        decay: float | Callable[[Any], Any] = 0.999,
        use_buffers: bool = False,
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(model, mode, ds_id)
        self.decay = decay
        self.use_buffers = use_buffers
        _check_decay(model, decay)
        framework = model_framework(model)
        self.averaged: Model = framework.copy_for_average(model, f"{name_of(model)}_ema")
        self._applied_settings = self._current_settings()
        self._averager: WeightAverager = framework.WeightAverager(
            model, self.averaged, *self._applied_settings
        )

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changed settings; see `FollowsUpdates`."""
        super().resolve_settings(changed)
        _check_decay(self.model, self.decay)
        settings = self._current_settings()
        if self._applied_settings != settings:
            self._averager.configure(*settings)
            self._applied_settings = settings

    def _current_settings(self) -> tuple[Decay, bool]:
        decay = self.decay if callable(self.decay) else float(self.decay)
        return decay, bool(self.use_buffers)

    def get_fe_models(self) -> set[Model]:
        """Return the model and its average."""
        return {self.model, self.averaged}

    def follow(self, stepped: Any = True) -> None:
        """Update the average; `stepped` is a tensor in TensorFlow."""
        self._averager.move(stepped)
        self.advance()

    def advance(self) -> None:
        """Count an update, and compute the decay of the next one."""
        self._averager.advance()

    @property
    def affects_next_update(self) -> bool:
        """Whether the decay is a function."""
        return callable(self.decay)

    def compared_state(self) -> dict[str, Any]:
        """Return what the next update depends on: whether it is the first one, and the decay."""
        return self._averager.state

    def describe_settings(self) -> list[str]:
        """Describe the op, for `explain`."""
        decay = self.decay
        if callable(decay):
            text = f"of {getattr(decay, '__name__', type(decay).__name__)}"
        else:
            text = f"{decay:g}"
        return [f"averages weights with the decay {text}"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the op besides the weights of `averaged`.

        Returns:
            Under "updates" the number of updates, under "model_name" the model's name.
        """
        return {"updates": self._averager.updates, "model_name": name_of(self.model)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Args:
            state: The state of this op, or of an EMA of a model of this name.

        Raises:
            ValueError: If it is not such a state. The op is unchanged then.
        """
        self._check_state(state, "updates", int)
        self._averager.updates = state["updates"]


def _check_decay(model: Model, decay: Any) -> None:
    if callable(decay):
        return
    if isinstance(decay, bool) or not is_number(decay) or not 0 <= decay <= 1:
        raise ValueError(
            f"EMA of '{name_of(model)}' has decay={shorten(decay)}, but it must be a number "
            "from 0 to 1, or a function that returns one."
        )
