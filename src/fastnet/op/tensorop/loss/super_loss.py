"""A loss that trusts what is easy more than what is hard."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import implementation, module_for
from fastnet.op.checks import is_number
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.types import State, Tensor
from fastnet.util import to_number
from fastnet.util.copies import twin

if TYPE_CHECKING:
    import torch

# slightly more than -2 / e, where the Lambert function ends
_LEAST = -1.9999998 / math.e
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

    calls_user_code = True

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
            raise ValueError(f"SuperLoss's threshold is a number or 'exp', not {threshold!r}.")
        if not is_number(regularization) or regularization <= 0:
            raise ValueError(f"SuperLoss's regularization is more than 0, not {regularization!r}.")
        written = loss.outputs[0]
        super().__init__(
            inputs=loss.inputs,
            outputs=(written, output_confidence) if output_confidence else written,
            mode=loss.mode,
            ds_id=loss.ds_id,
            average_loss=average_loss,
        )
        self.loss = twin(loss)
        self.loss.average_loss = False
        self.in_list = loss.in_list
        self.threshold = threshold
        self.regularization = regularization
        self._averages: dict[str, Any] = {}
        self._functions: Any = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Get the loss ready for a framework, and the moving averages of each mode.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        self.loss.build(framework, device)
        self._functions = import_module(f"fastnet.backend.{framework}")
        if self.threshold == "exp":
            averages = import_module(f"fastnet.backend.{framework}.averages")
            self._averages = {mode: averages.MovingAverage() for mode in _MODES}

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Compute the loss.

        Args:
            data: What the other loss reads.
            state: The step's context.

        Returns:
            The loss, or a list of the loss and the confidences.
        """
        losses = self.loss.forward(data, state)
        functions = self._functions or implementation(losses)
        excess = losses - self._threshold(losses, state, functions)
        regularization = self.regularization
        beta = excess if regularization == 1 else excess / regularization
        confidence_log = -functions.lambertw(0.5 * functions.clip_by_value(beta, _LEAST, None))
        confidence = functions.exp(confidence_log)
        squared = confidence_log**2
        if regularization != 1:
            squared = regularization * squared
        result = excess * confidence + squared
        if self.average_loss:
            result = functions.reduce_mean(result, None, False)
        return [result, confidence] if len(self.outputs) == 2 else result

    def _threshold(self, losses: Tensor, state: State, functions: Any) -> Any:
        if self.threshold != "exp":
            return self.threshold
        mode = state["mode"]
        if mode not in self._averages:  # an op that was not built for a framework
            averages = module_for(self, losses, "averages")
            self._averages[mode] = averages.MovingAverage()
        mean = functions.reduce_mean(losses, None, False)
        return self._averages[mode].update(mean, keep=not state["warmup"])

    def state_dict(self) -> dict[str, Any]:
        """Give what the op remembers from step to step, to save it in a checkpoint.

        Returns:
            Under "averages" the moving average of each mode: a float, or None if it has none yet.
        """
        return {"averages": {mode: one.value for mode, one in self._averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, after the op was built for its framework.

        Args:
            state: What the op, or another one like it, remembered.
        """
        for mode, value in state["averages"].items():
            if mode in self._averages:
                self._averages[mode].value = value
