"""Gradients as values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.backend.framework import framework_of
from fastnet.frameworks import part_if_any, part_of
from fastnet.op.tensorop.gradient.taker import GradientTaker
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Forward, Model, State, Tensor
from fastnet.util import to_list


class GradientOp(HoldsModel, GradientTaker):
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

    resolved_from = ("model",)

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
        if len(targets) != len(written) or (sources and len(sources) != len(targets)):
            raise _wrong_counts(targets, written, sources)
        super().__init__(inputs=sources + targets, outputs=written, mode=mode, ds_id=ds_id)
        self.model = model
        self._count = len(targets)
        framework = None if model is None else framework_of(model)
        self._trainable: Any = framework and (
            part_of(framework, "gradients.trainable", "GradientOp")
        )
        # of models that are spread over processes
        self._taker_of: Any = framework and part_if_any(framework, "spread_taking.taker_of")

    def _anew(self, own: Any) -> GradientOp:
        count = len(self.inputs) - self._count
        sources, finals = self.inputs[:count], self.inputs[count:]
        made: GradientOp = own(finals, list(self.outputs), sources or None, self.model)
        return made

    def check_keys(self) -> None:
        """Refuse no finals, when a network is made of the op.

        Raises:
            AssertionError: If those are what it has.
        """
        if not self._count:
            raise _wrong_counts(self.inputs, self.outputs, [])

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return set() if self.model is None else {self.model}

    def make_take(self, retain_graph: bool) -> Forward:
        """Settle what differentiates.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the inputs, if there are any, then the finals, and the step's context, and
            gives for each of the finals its gradient, or a list of gradients.
        """
        differentiate, count, model = self._gradient, self._count, self.model

        def take_one(data: list[Tensor], state: State) -> list[Any]:
            return [differentiate(data[1], data[0], False, state.get("tape"), retain_graph)]

        def take(data: list[Tensor], state: State) -> list[Any]:
            finals = data if model is not None else data[count:]
            sources = data[:count] if model is None else [self._trainable(model)] * len(finals)
            tape, gradients = state.get("tape"), list[Any]()
            for final, source in zip(finals, sources, strict=True):
                retain = retain_graph or len(gradients) + 1 < len(finals)
                gradients.append(differentiate(final, source, False, tape, retain))
            return gradients

        spread = self._taker_of(model) if self._taker_of else None
        if spread is not None:

            def take_spread(data: list[Tensor], state: State) -> list[Any]:
                last = len(data) - 1
                return [
                    spread(final, state, retain_graph or place < last)
                    for place, final in enumerate(data)
                ]

            return take_spread
        return take_one if model is None and count == 1 else take


def _wrong_counts(finals: list[str], outputs: list[str], inputs: list[str]) -> AssertionError:
    return AssertionError(
        f"GradientOp writes one output for each of its finals, by one input each, but its finals "
        f"are {finals}, its outputs {outputs} and its inputs {inputs}."
    )
