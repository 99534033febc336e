"""Adversarial examples by the fast gradient sign method."""

from __future__ import annotations

from typing import Any

from fastnet.errors import GRADIENT_ADVICE, shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.gradient.gradient_base import GradientBase
from fastnet.types import Forward, Names, State, Tensor


class FGSM(GradientBase):
    """Fast gradient sign method: ``clip(x + epsilon * sign(d loss / d x), clip_low, clip_high)``.

    See `TensorOp` for `mode` and `ds_id`. Source: "Explaining and Harnessing Adversarial Examples"
    (Goodfellow, Shlens and Szegedy, 2015).

    Args:
        data: Key of the inputs, of any shape, which a `Watch` op must have read before.
        loss: Key of the loss; the elements of a loss that is not a scalar are added up.
        outputs: Key of the adversarial examples, of the inputs' shape.
        epsilon: The size of the change of each element.
        clip_low: The smallest value of the result. None or 0 for the smallest of the inputs.
        clip_high: The largest value of the result. None or 0 for the largest of the inputs.

    Raises:
        ValueError: If `data` or `loss` is not one key, `epsilon` or a limit is not a number, or
            `clip_low` is more than `clip_high`. In a step, if the loss does not depend on the
            inputs.

    >>> import torch
    >>> op = FGSM("x", "loss", "adversarial", epsilon=0.5, clip_low=-9.0, clip_high=9.0)
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> op.forward([x, (x * torch.tensor([1.0, -1.0])).sum()], {"tape": None})
    tensor([1.5000, 1.5000], grad_fn=<ClampBackward1>)
    """

    n_outputs = 1
    resolved_from = ("epsilon", "clip_low", "clip_high")

    def __init__(
        self,
        data: str,
        loss: str,
        outputs: str,
        epsilon: float = 0.01,
        clip_low: float | None = None,
        clip_high: float | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        for setting, key in (("data", data), ("loss", loss)):
            if not isinstance(key, (str, list, tuple)):
                raise _not_one_key(setting, key)
        super().__init__(inputs=[data, loss], outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_number(epsilon):
            raise ValueError(f"FGSM's epsilon must be a number, not {shorten(epsilon)}.")
        for setting, value in (("clip_low", clip_low), ("clip_high", clip_high)):
            if value is not None and not is_number(value):
                raise ValueError(
                    f"FGSM's {setting} must be a number or None, not {shorten(value)}."
                )
        if clip_low and clip_high and clip_low > clip_high:
            raise ValueError(
                f"FGSM's clip_low must not be more than its clip_high, but they are "
                f"{shorten(clip_low)} and {shorten(clip_high)}."
            )
        self.out_list = False
        self.epsilon = epsilon
        self.clip_low = clip_low
        self.clip_high = clip_high

    def _recreate(self, library_class: Any) -> FGSM:
        if len(self.inputs) != 2:
            raise ValueError(
                f"FGSM takes two inputs, the data and the loss, but its inputs are {self.inputs}."
            )
        settings = {name: getattr(self, name) for name in library_class.resolved_from}
        recreated: FGSM = library_class(*self.inputs, list(self.outputs), **settings)
        return recreated

    def check_keys(self) -> None:
        """Check that the data and the loss are one key each, and that there is one output."""
        for setting, key in zip(("data", "loss"), self.inputs, strict=False):
            if not isinstance(key, str):
                raise _not_one_key(setting, key)
        super().check_keys()

    def make_compute(self, retain_graph: bool) -> Forward:
        """Return the function of the data, the loss and the state."""

        def compute(data: list[Tensor], state: State) -> Tensor:
            clean, loss = data
            gradient = self.backend.compute_gradients(
                loss, clean, False, state.get("tape"), retain_graph
            )
            if gradient is None:
                raise ValueError(
                    f"The loss '{self.inputs[1]}' has no gradient with respect to "
                    f"'{self.inputs[0]}'. {GRADIENT_ADVICE}"
                )
            return self._perturb(clean, gradient)

        return compute

    def _perturb(self, clean: Tensor, gradient: Tensor) -> Tensor:
        backend, low, high = self.backend, self.clip_low, self.clip_high
        perturbed = backend.add(clean, backend.multiply(backend.sign(gradient), self.epsilon))
        if not low or not high:
            minimum, maximum = backend.extremes(clean)
            low, high = low or minimum, high or maximum
        return backend.clip_by_value(perturbed, low, high)


def _not_one_key(setting: str, value: object) -> ValueError:
    return ValueError(f"FGSM needs one key as its {setting}, but got {shorten(value)}.")
