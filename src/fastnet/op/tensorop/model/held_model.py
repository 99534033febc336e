"""What ops that hold a model ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import is_built, name_of
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Model

if TYPE_CHECKING:
    import torch

__all__ = ["HoldsModel", "require_built", "require_framework"]


def require_built(op: str, model: Model) -> None:
    """Refuse a model that `build` has not made ready.

    Args:
        op: The name of the op's class.
        model: The model.

    Raises:
        AssertionError: If it was not built.
    """
    if not is_built(model):
        raise AssertionError(
            f"{op} takes a model that fastnet.build has made ready, but this "
            f"{type(model).__name__} is not. Pass it through fastnet.build first."
        )


def require_framework(op: str, model: Model, framework: str) -> None:
    """Refuse a model that a network of a framework cannot run.

    Args:
        op: The name of the op's class.
        model: The model.
        framework: The network's framework.

    Raises:
        ValueError: If the model is of another.
    """
    own = framework_of(model)
    if own != framework:
        name = name_of(model)
        raise ValueError(
            f"{op} of '{name}' holds a model of framework {own!r}, but its network runs on "
            f"{framework!r}. Put models of one framework into a network."
        )


class HoldsModel(TensorOp):
    """An op that holds a model, as its attribute `model`; None for none."""

    model: Any

    def _told(self) -> list[str]:
        model = getattr(self, "model", None)
        return [*super()._told(), *([] if model is None else [repr(name_of(model))])]

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Get ready for a framework.

        Args:
            framework: "torch" or "tf"; a model speaks one of them only.
            device: The device that ops run on (torch only).

        Raises:
            ValueError: If the model is of another framework.
        """
        if self.model is not None:
            require_framework(self.library_class().__name__, self.model, framework)
        super().build(framework, device)
