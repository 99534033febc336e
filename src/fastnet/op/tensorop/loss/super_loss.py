"""SuperLoss: curriculum learning for any loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.copies import shallow_copy
from fastnet.op.tensorop.loss.class_axis import shape_of
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.types import State, Tensor
from fastnet.util import to_number
from fastnet.util.names import MODES

if TYPE_CHECKING:
    import torch


class SuperLoss(LossOp):
    """Down-weight the samples of another loss that are hard, as in curriculum learning.

    ``(loss - threshold) * confidence + regularization * log(confidence) ** 2``, where the
    confidence is the minimizer, ``exp(-W(max(-2 / e, (loss - threshold) / regularization) / 2))``
    with Lambert's W function. Source: "SuperLoss: A Generic Loss for Robust Curriculum Learning"
    (Castells, Weinzaepfel and Revaud, 2020).

    Args:
        loss: A loss with one output. It is copied, and the copy does not average. The inputs, the
            output, the mode and the ds_id are those of the loss.
        threshold: The loss that separates easy from hard samples: a number, such as the logarithm
            of the number of classes, or "exp" for an exponential moving average of the loss.
        regularization: The strength of the regularization, positive.
        average_loss: Whether to return the mean over the batch instead of one loss per sample.
        output_confidence: Key of the confidence of each sample, or None.

    Raises:
        ValueError: If `loss` is not a loss with one output, or a number is out of range; in a step,
            if the loss returns a scalar instead of one loss per sample.

    >>> import torch
    >>> from fastnet.op.tensorop.loss import MeanSquaredError
    >>> op = SuperLoss(MeanSquaredError(("y_pred", "y"), "loss"), threshold=1.0)
    >>> op.forward([torch.zeros(2, 1), torch.ones(2, 1)], {"mode": "train", "warmup": False})
    tensor(0.)
    """

    calls_user_code = True
    resolved_from = ("threshold", "regularization", "average_loss")

    def __init__(
        self,
        loss: LossOp,
        threshold: float | str = "exp",
        regularization: float = 1.0,
        average_loss: bool = True,
        output_confidence: str | None = None,
    ) -> None:
        if not hasattr(loss, "average_loss") or len(loss.outputs) != 1 or loss.out_list:
            raise ValueError(
                f"SuperLoss needs a loss that writes one output, as a single value, but got "
                f"{type(loss).__name__}."
            )
        if is_number(threshold):
            threshold = float(to_number(threshold).item())
        elif threshold != "exp":
            raise ValueError(
                f"SuperLoss's threshold must be a number or 'exp', not {shorten(threshold)}."
            )
        if not is_number(regularization) or regularization <= 0:
            raise ValueError(
                f"SuperLoss's regularization must be positive, not {shorten(regularization)}."
            )
        loss_key = loss.outputs[0]
        super().__init__(
            inputs=loss.inputs,
            outputs=(loss_key, output_confidence) if output_confidence else loss_key,
            mode=loss.mode,
            ds_id=loss.ds_id,
            average_loss=average_loss,
        )
        self.loss = shallow_copy(loss)
        self.loss.average_loss = False
        self.in_list = loss.in_list
        self.threshold = threshold
        self.regularization = regularization
        self._averages: dict[str, Any] = {}

    def check_keys(self) -> None:
        """Check the keys of the loss."""
        if hasattr(self.loss, "check_keys"):
            self.loss.check_keys()

    def inner_ops(self) -> list[Any]:
        """Return the loss in a list."""
        return [self.loss]

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changes of the op or of its loss; see `Op.resolve_settings`."""
        averages = self._averages
        super().resolve_settings(changed)
        # The moving averages are state, not derived from the settings.
        self._averages = averages
        self.loss.average_loss = False

    def _recreate(self, library_class: Any) -> SuperLoss:
        settings = {name: getattr(self, name) for name in library_class.resolved_from}
        confidence = self.outputs[1] if len(self.outputs) > 1 else None
        recreated: SuperLoss = library_class(self.loss, output_confidence=confidence, **settings)
        self._set_io(recreated.inputs, self.outputs, self.mode, self.ds_id)
        return recreated

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Build the loss, and the moving average of each mode; see `TensorOp.build`."""
        super().build(framework, device)
        self.loss.build(framework, device)
        if self.threshold == "exp":
            for mode in MODES:
                self._averages.setdefault(mode, self.backend.MovingAverage())

    def compared_state(self) -> dict[str, Any]:
        """Return the moving averages; see `Op.compared_state`."""
        return {mode: vars(average) for mode, average in self._averages.items()}

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Return the loss, or a list of the loss and the confidence of each sample."""
        losses = self.loss.forward(data, state)
        if shape_of(losses) == ():
            raise ValueError(
                f"SuperLoss needs one loss per sample, but {type(self.loss).__name__} returned a "
                f"scalar. {_advice_for(self.loss)}"
            )
        excess = losses - self._threshold(losses, state)
        result, confidence = self.backend.weigh(excess, self.regularization)
        if self.average_loss:
            result = self.backend.reduce_mean(result, None, False)
        return [result, confidence] if len(self.outputs) == 2 else result

    def _threshold(self, losses: Tensor, state: State) -> Any:
        if self.threshold != "exp":
            return self.threshold
        mode = state["mode"]
        if mode not in self._averages:
            self._averages[mode] = self._backend_of(losses, "MovingAverage").MovingAverage()
        mean = self.backend.reduce_mean(losses, None, False)
        return self._averages[mode].update(mean, may_initialize=not state["warmup"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Returns:
            Under "averages" the moving average of each mode: a float, or None before the first
            step.
        """
        return {"averages": {mode: average.value for mode, average in self._averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. The op must have been built.

        Args:
            state: The state.

        Raises:
            ValueError: If it is not such a state, or the op was not built; the op is then
                unchanged.
        """
        unchecked: Any = state
        averages = unchecked.get("averages") if isinstance(unchecked, dict) else None
        if not isinstance(averages, dict) or not all(map(_is_average, averages.values())):
            raise ValueError(
                f"The state of a SuperLoss must contain 'averages', a dict of finite numbers or "
                f"None, but got {state!r:.200}."
            )
        if averages and self.threshold == "exp" and self._framework is None:
            raise ValueError(
                "This SuperLoss has no moving averages yet. Build the op, or make a network of it, "
                "before its state is loaded."
            )
        for mode, value in averages.items():
            if mode in self._averages:
                self._averages[mode].value = value


def _advice_for(loss: LossOp) -> str:
    name = type(loss).__name__
    if hasattr(loss, "sample_reduction"):
        return f"For {name} set sample_reduction='none'."
    return f"Let {name} average only if its average_loss is True."


def _is_average(value: Any) -> bool:
    return value is None or (is_number(value) and math.isfinite(value))
