"""Gradients as values."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from fastnet.backend.framework import framework_of
from fastnet.op.tensorop.gradient.taker import GradientTaker
from fastnet.types import Model, State, Tensor
from fastnet.util import to_list


class GradientOp(GradientTaker):
    """Differentiates values by inputs, or by the weights of a model.

    Args:
        finals: Key(s) of what to differentiate; the elements of each count alike.
        outputs: Key(s) for the gradients: for each of `finals` a tensor of the shape of its
            input, or a list of tensors, one for each trained weight of the model.
        inputs: Key(s) of what to differentiate by, one for each of `finals`. A Watch in front
            makes gradients by them possible.
        model: Instead of `inputs`, a model.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        AssertionError: If there are both inputs and a model, or neither, if `model` is no model, or
            if there are not as many outputs and inputs as finals.
    """

    def __init__(
        self,
        finals: str | Iterable[str],
        outputs: str | Iterable[str],
        inputs: str | Iterable[str] | None = None,
        model: Model | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        sources, targets, written = map(list, map(to_list, (inputs, finals, outputs)))
        if (model is None) == (not sources):
            raise AssertionError(
                f"GradientOp differentiates either by `inputs` or by the weights of a `model`, but "
                f"got inputs={sources} and {'no model' if model is None else 'a model'}."
            )
        if model is not None and framework_of(model) is None:
            raise AssertionError(
                f"GradientOp's model is a torch.nn.Module or a Keras model, not "
                f"{type(model).__name__}."
            )
        if (
            not targets
            or len(targets) != len(written)
            or (sources and len(sources) != len(targets))
        ):
            raise AssertionError(
                f"GradientOp writes one output for each of its finals, by one input each, but its "
                f"finals are {targets}, its outputs {written} and its inputs {sources}."
            )
        super().__init__(inputs=sources + targets, outputs=written, mode=mode, ds_id=ds_id)
        self.model = model
        self._count = len(targets)
        framework = None if model is None else framework_of(model)
        self._trainable: Any = framework and (
            import_module(f"fastnet.backend.{framework}.gradients").trainable
        )

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return set() if self.model is None else {self.model}

    def take(self, data: list[Tensor], state: State, retain_graph: bool) -> list[Any]:
        """Differentiate.

        Args:
            data: The inputs, if there are any, then the finals.
            state: The step's context; in TensorFlow with the tape.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            For each of the finals its gradient, or a list of gradients.
        """
        finals = data[-self._count :]
        if self.model is None:
            sources: list[Any] = data[: self._count]
        else:
            sources = [self._trainable(self.model)] * self._count
        return [
            self.differentiate(final, source, state, retain_graph or place + 1 < self._count)
            for place, (final, source) in enumerate(zip(finals, sources, strict=True))
        ]
