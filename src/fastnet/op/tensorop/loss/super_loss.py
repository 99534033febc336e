"""A loss that trusts what is easy more than what is hard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import implementation_of
from fastnet.errors import shorten
from fastnet.op.checks import check_keys, is_number
from fastnet.op.copies import shallow_copy
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor
from fastnet.util import to_number

if TYPE_CHECKING:
    import torch

_MODES = ("train", "eval", "test", "infer")


class SuperLoss(LossOp):
    """Weighs the samples of another loss by how hard they are, as in learning by a curriculum.

    Args:
        loss: The loss, with one output; it is copied, and averages nothing then.
        threshold: The loss that is neither easy nor hard: a number, such as the logarithm of the
            number of classes, or "exp" for a moving average of the loss.
        regularization: How little samples are told apart, more than 0.
        average_loss: Whether to write the mean, rather than a loss for each sample.
        output_confidence: A key for the confidence in each sample, or None.

    Raises:
        ValueError: If `loss` is no loss with one output, or a number is none that is possible.

    Source: "SuperLoss: A Generic Loss for Robust Curriculum Learning" (Castells, Weinzaepfel and
    Revaud, 2020).
    """

    _weigh = OfFramework("super_loss.weigh")
    _mean = OfFramework("reduce_mean")
    _new_average = OfFramework("super_loss.MovingAverage")

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
                f"SuperLoss is around a loss that writes one bare output, not around "
                f"{type(loss).__name__}."
            )
        if is_number(threshold):
            threshold = float(to_number(threshold).item())
        elif threshold != "exp":
            raise ValueError(
                f"SuperLoss's threshold is a number or 'exp', not {shorten(threshold)}."
            )
        if not is_number(regularization) or regularization <= 0:
            raise ValueError(
                f"SuperLoss's regularization is more than 0, not {shorten(regularization)}."
            )
        written = loss.outputs[0]
        super().__init__(
            inputs=loss.inputs,
            outputs=(written, output_confidence) if output_confidence else written,
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
        """Ask the loss whether its keys are fine, when a network is made of the op.

        Raises:
            ValueError: If they are not.
        """
        check_keys([self.loss])

    def inner_ops(self) -> list[Any]:
        """List the loss that is weighed."""
        return [self.loss]

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op or to its loss; moving averages go on.

        Args:
            changed: The names of the settings that changed.

        Raises:
            ValueError: As for `__init__`.
        """
        averages = self._averages
        super().resolve_settings(changed)
        self._averages = averages
        self.loss.average_loss = False

    def _anew(self, own: Any) -> SuperLoss:
        settings = {name: getattr(self, name) for name in own.resolved_from}
        confidence = self.outputs[1] if len(self.outputs) > 1 else None
        made: SuperLoss = own(self.loss, output_confidence=confidence, **settings)
        self._put_names(made.inputs, self.outputs, self.mode, self.ds_id)
        return made

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Get the loss ready for a framework, and the moving averages of each mode.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self.loss.build(framework, device)
        if self.threshold == "exp":
            for mode in _MODES:
                self._averages.setdefault(mode, self._new_average())

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Compute the loss.

        Args:
            data: What the other loss reads.
            state: The step's context.

        Returns:
            The loss, or a list of the loss and the confidences.
        """
        losses = self.loss.forward(data, state)
        excess = losses - self._threshold(losses, state)
        result, confidence = self._weigh(excess, self.regularization)
        if self.average_loss:
            result = self._mean(result, None, False)
        return [result, confidence] if len(self.outputs) == 2 else result

    def _threshold(self, losses: Tensor, state: State) -> Any:
        if self.threshold != "exp":
            return self.threshold
        mode = state["mode"]
        if mode not in self._averages:  # an op that was not built for a framework
            self._averages[mode] = implementation_of(self, losses, "super_loss.MovingAverage")()
        mean = self._mean(losses, None, False)
        return self._averages[mode].update(mean, keep=not state["warmup"])

    def state_dict(self) -> dict[str, Any]:
        """Return what the op remembers from step to step, to save it in a checkpoint.

        Returns:
            Under "averages" the moving average of each mode: a float, or None if it has none yet.
        """
        return {"averages": {mode: one.value for mode, one in self._averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, after the op was built for its framework.

        Args:
            state: What the op, or another one like it, remembered.

        Raises:
            ValueError: If it is none; the op goes on as before then.
        """
        given: Any = state
        averages = given.get("averages") if isinstance(given, dict) else None
        if not isinstance(averages, dict) or not all(map(_is_average, averages.values())):
            raise ValueError(
                f"The state to load is none of a SuperLoss, whose 'averages' are numbers or None: "
                f"{state!r:.200}"
            )
        for mode, value in averages.items():
            if mode in self._averages:
                self._averages[mode].value = value


def _is_average(value: Any) -> bool:
    return value is None or (is_number(value) and math.isfinite(value))
