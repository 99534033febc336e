"""Inputs that mislead a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.errors import GRADIENT_ADVICE, shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.gradient.taker import GradientTaker
from fastnet.op.tensorop.of_framework import WithFramework
from fastnet.types import Forward, State, Tensor


def _moved(
    functions: Any,
    clean: Tensor,
    gradient: Tensor,
    epsilon: float,
    low: float | None,
    high: float | None,
) -> Tensor:
    """Move inputs a small way along the signs of gradients."""
    moved = functions.add(clean, functions.multiply(functions.sign(gradient), epsilon))
    if not low or not high:
        least, largest = functions.extremes(clean)
        low, high = low or least, high or largest
    return functions.clip_by_value(moved, low, high)


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
        ValueError: If `epsilon` is no number, or `clip_low` and `clip_high` are none or the wrong
            way round; in a network also if `data` or `loss` is not one key, or there is not one
            output.

    Source: "Explaining and Harnessing Adversarial Examples" (Goodfellow, Shlens and Szegedy, 2015).
    """

    _moved = WithFramework(_moved)

    resolved_from = ("epsilon", "clip_low", "clip_high")

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
        for setting, key in (("data", data), ("loss", loss)):
            if not isinstance(key, (str, list, tuple)):
                raise _not_one_key(setting, key)
        super().__init__(inputs=[data, loss], outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_number(epsilon):
            raise ValueError(f"FGSM's epsilon is a number, not {shorten(epsilon)}.")
        for setting, value in (("clip_low", clip_low), ("clip_high", clip_high)):
            if value is not None and not is_number(value):
                raise ValueError(f"FGSM's {setting} is a number or None, not {shorten(value)}.")
        if clip_low and clip_high and clip_low > clip_high:
            raise ValueError(
                f"FGSM's clip_low is not more than its clip_high, but they are {shorten(clip_low)} "
                f"and {shorten(clip_high)}."
            )
        self.out_list = False
        self.epsilon = epsilon
        self.clip_low = clip_low
        self.clip_high = clip_high

    def _anew(self, own: Any) -> FGSM:
        if len(self.inputs) != 2:
            raise ValueError(
                f"FGSM reads two keys, the inputs and their loss, but its inputs are {self.inputs}."
            )
        settings = {name: getattr(self, name) for name in own.resolved_from}
        made: FGSM = own(*self.inputs, list(self.outputs), **settings)
        return made

    def check_keys(self) -> None:
        """Refuse other than two inputs and one output, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        for setting, key in zip(("data", "loss"), self.inputs, strict=False):
            if not isinstance(key, str):
                raise _not_one_key(setting, key)
        if len(self.outputs) != 1:
            raise ValueError(f"FGSM writes one output, but its outputs are {self.outputs}.")

    def make_take(self, retain_graph: bool) -> Forward:
        """Settle what moves the inputs.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the inputs and the loss, and the step's context, and gives the moved inputs.
            It raises a ValueError if the loss does not depend on the inputs, or they were not
            watched.
        """
        differentiate, move = self._gradient, self._move

        def take(data: list[Tensor], state: State) -> Tensor:
            gradient = differentiate(data[1], data[0], False, state.get("tape"), retain_graph)
            return move(data[0], gradient)

        return take

    def _move(self, clean: Tensor, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            raise ValueError(
                f"The loss '{self.inputs[1]}' has no gradient by '{self.inputs[0]}'. "
                f"{GRADIENT_ADVICE}"
            )
        return self._moved(clean, gradient, self.epsilon, self.clip_low, self.clip_high)


def _not_one_key(setting: str, given: object) -> ValueError:
    return ValueError(f"FGSM reads one key as its {setting}, but got {shorten(given)}.")
