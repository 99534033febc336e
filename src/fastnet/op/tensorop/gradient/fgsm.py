"""Inputs that mislead a model."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet import backend
from fastnet.op.tensorop.gradient.taker import ADVICE, GradientTaker
from fastnet.types import State, Tensor


class FGSM(GradientTaker):
    """Moves inputs a small way to where a loss grows: the fast gradient sign method.

    Args:
        data: The key of the inputs, which a Watch has made ready.
        loss: The key of the loss; its elements count alike.
        outputs: The key for the moved inputs, of their shape.
        epsilon: How far each element is moved.
        clip_low: The least value of the result. None, or 0, for the least of the inputs.
        clip_high: The largest value of the result. None, or 0, for the largest of the inputs.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If there is not one output.

    Source: "Explaining and Harnessing Adversarial Examples" (Goodfellow, Shlens and Szegedy, 2015).
    """

    def __init__(
        self,
        data: str,
        loss: str,
        outputs: str,
        epsilon: float = 0.01,
        clip_low: float | None = None,
        clip_high: float | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=[data, loss], outputs=outputs, mode=mode, ds_id=ds_id)
        if len(self.outputs) != 1:
            raise ValueError(f"FGSM writes one output, but its outputs are {self.outputs}.")
        self.out_list = False
        self.epsilon = epsilon
        self.clip_low = clip_low
        self.clip_high = clip_high

    def take(self, data: list[Tensor], state: State, retain_graph: bool) -> Tensor:
        """Move the inputs.

        Args:
            data: The inputs, and the loss.
            state: The step's context; in TensorFlow with the tape.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            The moved inputs.

        Raises:
            ValueError: If the loss does not depend on the inputs, or they were not watched.
        """
        clean, loss = data
        gradient = self.differentiate(loss, clean, state, retain_graph)
        if gradient is None:
            raise ValueError(
                f"The loss '{self.inputs[1]}' has no gradient by '{self.inputs[0]}'. {ADVICE}"
            )
        return backend.clip_by_value(
            clean + self.epsilon * backend.sign(gradient),
            min_value=self.clip_low or backend.reduce_min(clean),
            max_value=self.clip_high or backend.reduce_max(clean),
        )
