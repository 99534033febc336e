"""An update of a torch model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fastnet.backend.torch.gradients import (
    DeferredStep,
    apply_gradients,
    backward,
    drop_gradients,
    optimizer_of,
    step_optimizer,
    trainable,
)
from fastnet.types import State
from fastnet.util import get_num_gpus

if TYPE_CHECKING:
    from fastnet.op.tensorop.model.update import UpdateOp

_NO_GRAPH = "element 0 of tensors does not require grad"
_OVERWRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace"
)


class _Merged(NamedTuple):
    """Gradients that were added up: how many times, and the sums."""

    times: int
    sums: dict[torch.nn.Parameter, torch.Tensor]


class _Settling:
    """What a step has merged, on its way to count."""

    def __init__(self, update: TorchUpdate, merged: _Merged) -> None:
        self._update = update
        self._merged = merged

    def __call__(self) -> None:
        self._update.settle(self._merged)

    def discard(self) -> None:
        self._update.settle(None)


class TorchUpdate:
    """What an UpdateOp does with a torch model.

    Args:
        op: The op.

    Raises:
        ValueError: If `merge_grad` is more than 1 on several GPUs.
    """

    def __init__(self, op: UpdateOp) -> None:
        if op.merge_grad > 1 and get_num_gpus() > 1:
            raise ValueError(
                f"UpdateOp of '{op.model.model_name}' has merge_grad={op.merge_grad}, which is not "
                "supported on several devices. Use merge_grad=1."
            )
        self._op = op
        self._model: torch.nn.Module = op.model
        self._given = op.gradients is not None
        self._merge = op.merge_grad
        self._merged = _Merged(0, {})
        self._unsettled: _Merged | None = None
        self._parameters: tuple[torch.nn.Parameter, ...] = ()
        self._opened: State | None = None

    def __call__(
        self, data: Any, state: State, op: UpdateOp, defer: bool, retain_graph: bool
    ) -> None:
        """Take gradients, and update or put the update off.

        Args:
            data: The loss, or a list of gradients.
            state: The step's context.
            op: The op, or a copy of it, with a `defer` of its own.
            defer: Whether to put the optimizer's step off, whatever the op says.
            retain_graph: Whether a later op takes gradients of the same graph.

        Raises:
            ValueError: If the model has no optimizer in this epoch, or nothing to train.
            RuntimeError: If the gradients cannot be taken.
        """
        if state["warmup"]:
            return
        first = state is not self._opened
        if first:
            self._parameters = tuple(self._model.parameters())
            self._opened = state
        optimizer = optimizer_of(self._model)
        parameters = [p for p in self._parameters if p.requires_grad]
        if not parameters:
            raise ValueError(
                f"Model '{self._op.model.model_name}' is to be updated, but none of its parameters "
                "has requires_grad. Unfreeze some of them, or take the UpdateOp out."
            )
        merged = None
        try:
            if self._merge > 1:
                merged = self._merge_gradients(data, optimizer, parameters, retain_graph)
                if merged.times:
                    self._settle_later(merged, state)
                    return
            elif self._given:
                apply_gradients(parameters, self._checked(data, parameters))
            else:
                backward(self._loss(data, optimizer), parameters, retain_graph)
        except BaseException as error:
            drop_gradients(optimizer)
            self._explain(error)
            raise
        if first and all(p.grad is None for p in parameters):
            self._warn_unconnected()
        deferred = state["deferred"]
        name = self._op.model.model_name
        if defer or op.defer:
            deferred[name] = [DeferredStep(optimizer, name)]
            if merged is not None:
                self._settle_later(merged, state)
            return
        step_optimizer(optimizer, name)
        if deferred:
            # the gradients that an earlier update put off have just been used
            deferred.pop(name, None)
        if merged is not None:
            self.settle(merged)

    def settle(self, merged: _Merged | None) -> None:
        """Make what a step has merged count, or forget it.

        Args:
            merged: What counts from now on, or None to go on with what counted before the step.
        """
        self._unsettled = None
        if merged is not None:
            self._merged = merged

    def merged(self) -> tuple[int, list[Any]]:
        """Give the gradients that were added up since the last update.

        Returns:
            Of how many steps, and the sum for each trainable parameter: an array, or None.
        """
        sums = [self._merged.sums.get(parameter) for parameter in trainable(self._model)]
        return self._merged.times, [None if one is None else _array(one) for one in sums]

    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        """Go on from gradients that were added up before.

        Args:
            times: Of how many steps.
            gradients: What `merged` gave, one for each trainable parameter.
        """
        self._merged = _Merged(
            times,
            {
                parameter: torch.as_tensor(gradient).to(parameter)
                for parameter, gradient in zip(trainable(self._model), gradients, strict=True)
                if gradient is not None
            },
        )

    def _settle_later(self, merged: _Merged, state: State) -> None:
        # what a step that fails has merged must not count, so it counts at the step's end
        self._unsettled = merged
        state["deferred"][f"merge_grad of {id(self)}"] = [_Settling(self, merged)]

    def _loss(self, loss: Any, optimizer: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor):
            raise ValueError(
                f"UpdateOp of '{self._op.model.model_name}' reads a tensor as its loss "
                f"'{self._op.loss_name}', but got {type(loss).__name__}."
            )
        if loss.dim():
            loss = loss.mean()
        scaler = getattr(optimizer, "scaler", None)
        scaled: torch.Tensor = loss if scaler is None else scaler.scale(loss)
        return scaled

    def _merge_gradients(
        self,
        data: Any,
        optimizer: Any,
        parameters: Sequence[torch.nn.Parameter],
        retain_graph: bool,
    ) -> _Merged:
        """Add gradients up; once there are enough, hand their averages to the parameters."""
        if self._given:
            gradients = self._checked(data, parameters)
        else:
            gradients = torch.autograd.grad(
                self._loss(data, optimizer),
                parameters,
                retain_graph=retain_graph,
                allow_unused=True,
            )
        before = self._unsettled or self._merged
        sums = dict(before.sums)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                # a sum of our own, whatever becomes of what was given
                gradient = gradient.detach()
                total = sums.get(parameter)
                sums[parameter] = gradient.clone() if total is None else total + gradient
        if before.times + 1 < self._merge:
            return _Merged(before.times + 1, sums)
        averages = [sums[p] / self._merge if p in sums else None for p in parameters]
        apply_gradients(parameters, averages)
        return _Merged(0, {})

    def _checked(self, gradients: Any, parameters: Sequence[torch.nn.Parameter]) -> Sequence[Any]:
        if not isinstance(gradients, (list, tuple)) or len(gradients) != len(parameters):
            got = (
                f"{len(gradients)} of them"
                if isinstance(gradients, (list, tuple))
                else type(gradients).__name__
            )
            raise ValueError(
                f"UpdateOp of '{self._op.model.model_name}' reads gradients from "
                f"'{self._op.gradients}', a list with one for each of the model's "
                f"{len(parameters)} trainable parameters, but got {got}."
            )
        return gradients

    def _explain(self, error: BaseException) -> None:
        if not isinstance(error, RuntimeError):
            return
        if str(error).startswith(_NO_GRAPH):
            raise RuntimeError(
                f"The loss '{self._op.loss_name}' has no graph to take the gradients of "
                f"'{self._op.model.model_name}' from: nothing that it was made of needs gradients. "
                "Make it from the output of a ModelOp with gradients=True, outside of no_grad."
            ) from error
        if str(error).startswith(_OVERWRITTEN):
            raise RuntimeError(
                f"The gradients of '{self._op.model.model_name}' need variables that an earlier "
                "update in this step has overwritten. Pass defer=True to the UpdateOps of models "
                "that work together with this one."
            ) from error

    def _warn_unconnected(self) -> None:
        warnings.warn(
            f"The loss '{self._op.loss_name}' has no gradients for any parameter of "
            f"'{self._op.model.model_name}': its graph does not reach the model.",
            stacklevel=2,
        )


def _array(tensor: torch.Tensor) -> Any:
    # numpy has no bfloat16
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
