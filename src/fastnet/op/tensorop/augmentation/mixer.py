"""What ops share that mix the samples of a batch with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from fastnet.backend.dispatch import implementation_of
from fastnet.errors import shown
from fastnet.op.checks import is_number
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Tensor

if TYPE_CHECKING:
    import torch


class Mixer(TensorOp):
    """An op that mixes each sample with the one before it. Derive from it, and define `forward`.

    Args:
        inputs: Two keys: samples and labels.
        outputs: Two keys: the mixed samples and the mixed labels.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        alpha: Both parameters of the beta distribution that shares are drawn from, more than 0.

    Attributes:
        beta: What to draw shares from instead, by its `sample`; None for the beta distribution.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.
    """

    function_name: ClassVar[str]
    """The function of the framework's `mixing` that `function_for` finds."""

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        name = type(self).__name__
        if not is_number(alpha) or not alpha > 0:
            raise AssertionError(f"{name}'s alpha is more than 0, not {shown(alpha)}.")
        if len(self.inputs) != 2 or len(self.outputs) != 2:
            raise AssertionError(
                f"{name} reads and writes two keys, samples and labels, but its inputs are "
                f"{self.inputs} and its outputs {self.outputs}."
            )
        self.alpha = alpha
        self.beta: Any = None
        self._mix: Callable[..., tuple[Tensor, Tensor]] | None = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's function.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        mixing = import_module(f"fastnet.backend.{framework}.mixing")
        self._mix = getattr(mixing, self.function_name)

    def function_for(self, samples: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
        """Find the function, for an op that was not built for a framework.

        Args:
            samples: The samples.

        Returns:
            What mixes them.
        """
        mixing = implementation_of(self, samples, "mixing")
        found: Callable[..., tuple[Tensor, Tensor]] = getattr(mixing, self.function_name)
        return found
