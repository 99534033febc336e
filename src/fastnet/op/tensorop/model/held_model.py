"""The base class of ops that hold a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import name_of
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Model

if TYPE_CHECKING:
    import torch


class HoldsModel(TensorOp):
    """An op that holds a model, or None, in its attribute `model`."""

    model: Model

    def _repr_parts(self) -> list[str]:
        parts = super()._repr_parts()
        model = getattr(self, "model", None)
        if model is not None:
            parts.append(repr(name_of(model)))
        return parts

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return set() if self.model is None else {self.model}

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Check the framework of the model, and prepare the op; see `TensorOp.build`."""
        model_framework = None if self.model is None else framework_of(self.model)
        if model_framework not in (None, framework):
            raise ValueError(
                f"{self.library_class().__name__} of '{name_of(self.model)}' holds a model of "
                f"framework {model_framework!r}, but its network runs on {framework!r}. Use models "
                "of one framework in a network."
            )
        super().build(framework, device)
