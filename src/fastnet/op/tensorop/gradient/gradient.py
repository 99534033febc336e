"""Gradients as values."""

from __future__ import annotations

from typing import Any

from fastnet.backend.dispatch import framework_of, get_framework
from fastnet.backend.model_metadata import name_of
from fastnet.errors import GRADIENT_ADVICE, shorten
from fastnet.op.tensorop.gradient.gradient_base import GradientBase
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Forward, Keys, Model, Names, State, Tensor
from fastnet.util import to_list


class GradientOp(HoldsModel, GradientBase):
    """Compute gradients with respect to tensors, or to the trainable weights of a model.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        finals: Key(s) of the tensors to differentiate; the elements of each are added up.
        outputs: Key(s) of the gradients: for each of `finals` a tensor of the shape of its input,
            or a list with one tensor per trainable weight of the model.
        inputs: Key(s) of the tensors to differentiate with respect to, one for each of `finals`. A
            `Watch` op must have read them before.
        model: The model to differentiate with respect to, instead of `inputs`.
        higher_order: Whether the gradients can be differentiated again, as the loss of a gradient
            penalty must be. If not, they are constants: a loss that is made of them trains nothing
            through them.

    Raises:
        AssertionError: If not exactly one of `inputs` and `model` is given, `model` is not a model,
            or the number of outputs or inputs is not that of `finals`.
        ValueError: If `higher_order` is not a bool, or is True for a model that is distributed over
            processes; in a network also if a model is sharded by FSDP2.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> op = GradientOp("y", "dy_dx", inputs="x")
    >>> op.forward([x, x**2], {"tape": None})
    [tensor([2., 4.])]
    >>> op = GradientOp("y", "dy_dx", inputs="x", higher_order=True)
    >>> op.forward([x, x**2], {"tape": None})
    [tensor([2., 4.], grad_fn=<MulBackward0>)]
    """

    resolved_from = ("model", "higher_order")

    def __init__(
        self,
        finals: Keys,
        outputs: Keys,
        inputs: Keys | None = None,
        model: Model | None = None,
        mode: Names = None,
        ds_id: Names = None,
        higher_order: bool = False,
    ) -> None:
        sources, targets = list(to_list(inputs)), list(to_list(finals))
        written = list(to_list(outputs))
        if (model is None) == (not sources):
            raise AssertionError(
                f"GradientOp differentiates with respect to either `inputs` or a `model`, but got "
                f"inputs={sources} and {'no model' if model is None else 'a model'}."
            )
        if model is not None and framework_of(model) is None:
            raise AssertionError(
                f"GradientOp's model must be a torch.nn.Module or a Keras model, not "
                f"{type(model).__name__}."
            )
        if len(targets) != len(written) or (sources and len(sources) != len(targets)):
            raise _wrong_counts(targets, written, sources)
        super().__init__(inputs=sources + targets, outputs=written, mode=mode, ds_id=ds_id)
        if not isinstance(higher_order, bool):
            raise ValueError(
                f"GradientOp's higher_order must be True or False, not {shorten(higher_order)}."
            )
        self.model = model
        self.higher_order = higher_order
        self._count = len(targets)
        framework = None if model is None else framework_of(model)
        # Lists the trainable parameters of the model.
        self._trainable: Any = None
        if framework is not None:
            self._trainable = get_framework(framework).trainable_parameters
        # Returns the function that differentiates with respect to a distributed model, or None.
        self._gradient_function: Any = None
        if framework == "torch":
            from fastnet.backend.torch.parallel_update import gradient_function

            self._gradient_function = gradient_function
            if higher_order and self._gradient_function(model) is not None:
                raise ValueError(
                    f"GradientOp has higher_order=True and the model '{name_of(model)}', which is "
                    "distributed over processes: averages over processes cannot be differentiated. "
                    "Differentiate with respect to `inputs`, or build the model with parallel=None."
                )

    def _recreate(self, library_class: Any) -> GradientOp:
        count = len(self.inputs) - self._count
        sources, finals = self.inputs[:count], self.inputs[count:]
        recreated: GradientOp = library_class(
            finals,
            list(self.outputs),
            sources or None,
            self.model,
            higher_order=self.higher_order,
        )
        return recreated

    def check_keys(self) -> None:
        """Check that there is something to differentiate."""
        if not self._count:
            raise _wrong_counts(self.inputs, self.outputs, [])

    def describe_value(self, key: str, value: Any) -> str | None:
        """Describe a missing gradient, for the error of an op that failed on it."""
        if value is not None:
            return None
        return (
            f"The value of '{key}' is None, as GradientOp found no path from its inputs to its "
            f"finals. {GRADIENT_ADVICE}"
        )

    def make_compute(self, retain_graph: bool) -> Forward:
        """Return the function of the inputs, if any, the finals, and the state."""
        if self.higher_order:
            return self._make_higher_order()
        differentiate, count, model = self.backend.compute_gradients, self._count, self.model

        def compute_one(data: list[Tensor], state: State) -> list[Any]:
            return [differentiate(data[1], data[0], False, state.get("tape"), retain_graph)]

        def compute(data: list[Tensor], state: State) -> list[Any]:
            finals = data if model is not None else data[count:]
            sources = data[:count] if model is None else [self._trainable(model)] * len(finals)
            tape, last = state.get("tape"), len(finals) - 1
            # The finals may share a graph, which only the last one may free.
            return [
                differentiate(final, source, False, tape, retain_graph or index < last)
                for index, (final, source) in enumerate(zip(finals, sources, strict=True))
            ]

        get_function = self._gradient_function
        distributed_gradients = None if get_function is None else get_function(model)
        if distributed_gradients is not None:

            def compute_distributed(data: list[Tensor], state: State) -> list[Any]:
                last = len(data) - 1
                return [
                    distributed_gradients(final, state, retain_graph or index < last)
                    for index, final in enumerate(data)
                ]

            return compute_distributed
        return compute_one if model is None and count == 1 else compute

    def _make_higher_order(self) -> Forward:
        """Return the function that computes gradients with a graph, which is always retained."""
        differentiate, count, model = self.backend.compute_differentiable, self._count, self.model

        def compute(data: list[Tensor], state: State) -> list[Any]:
            finals = data if model is not None else data[count:]
            sources = data[:count] if model is None else [self._trainable(model)] * len(finals)
            return [
                differentiate(final, source, state)
                for final, source in zip(finals, sources, strict=True)
            ]

        return compute


def _wrong_counts(finals: list[str], outputs: list[str], inputs: list[str]) -> AssertionError:
    return AssertionError(
        f"GradientOp takes one input and writes one output for each of its finals, but its finals "
        f"are {finals}, its outputs {outputs} and its inputs {inputs}."
    )
