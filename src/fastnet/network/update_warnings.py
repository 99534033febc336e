"""Warnings of logits, and of updates that are missing, incomplete, or outside of training.

The warning of a loss that does not reach a model needs gradients: `_check_reached` in
`backend/torch/update.py` gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from fastnet.backend.dispatch import get_framework
from fastnet.backend.model_metadata import (
    every_optimizer_of,
    get_metadata,
    known_models,
    name_of,
)
from fastnet.errors import describe_op
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.untrained import find_untrained
from fastnet.op.meta_op import MetaOp
from fastnet.op.op import with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.loss.cross_entropy import CrossEntropy
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.model.model import ModelOp
from fastnet.schedule import get_current_items
from fastnet.types import Model
from fastnet.util.warnings import is_library, warn

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork

# Models that an op of any network updates in training, in any epoch and for any dataset.
_updated: WeakSet[Model] = WeakSet()
# Probabilities in half precision may leave 0 to 1 by this much.
_ROUNDING = 1e-2
# Optimizers whose parameters were compared with those of their models.
_compared: WeakSet[Any] = WeakSet()


def note_updates(ops: Iterable[Any]) -> None:
    """Remember the models that ops, and scheduled ops, update in training."""
    for op in with_inner_ops(get_current_items(ops)):
        if _may_update(op) and (not op.mode or "train" in op.mode):
            _updated.update(as_tensor_op(op).get_fe_models())


def warn_of_missing_updates(network: BaseNetwork, plan: ExecutionPlan) -> None:
    """Warn, once each, of models that losses depend on, and that nothing updates."""
    warned: set[int] = network._warned
    for model in _models_of_losses(network, plan):
        if id(model) not in warned and _lacks_update(network, model):
            warned.add(id(model))
            warn(
                f"Model '{name_of(model)}' has an optimizer and the losses of this network "
                "depend on it, but no op updates it in mode 'train'. Add an "
                'UpdateOp(model, "loss"), or build the model with optimizer_fn=None.'
            )


def warn_of_untrained_modules(network: BaseNetwork) -> None:
    """Warn, once, of modules and layers in ops with parameters that no optimizer updates."""
    if id(network) not in network._warned:
        network._warned.add(id(network))
        for text in find_untrained(network.ops, network._trainable_in, only_certain=True):
            warn(text)


def warn_of_updates_in(mode: str, network: BaseNetwork, plan: ExecutionPlan) -> None:
    """Warn, once each, of ops that update models in a mode that is not "train"."""
    warned: set[int] = network._warned
    for index, op in enumerate(plan.ops):
        if _is_update(op) and id(op) not in warned:
            warned.add(id(op))
            names = ", ".join(repr(name_of(model)) for model in as_tensor_op(op).get_fe_models())
            warn(
                f"{describe_op(op, index)} updates {names} in mode {mode!r}, too. Leave out its "
                'mode, which is "train" by default.'
            )


def warn_of_logits(network: BaseNetwork, plan: ExecutionPlan) -> None:
    """Warn, once each, of cross-entropies of probabilities that are given a linear layer's output.

    A model of another form than a sequence of layers is not looked into.
    """
    if not any(type(op) is CrossEntropy and not op.from_logits for op in plan.ops):
        return
    ends_linearly = get_framework(network.target_type).ends_linearly
    writers: dict[str, Any] = {}
    for index, (op, flow) in enumerate(zip(plan.ops, plan.kernel.flow, strict=True)):
        inputs, outputs, *_ = flow
        if type(op) is CrossEntropy and not op.from_logits and id(op) not in network._warned:
            model = writers.get(inputs[0])
            if model is not None and ends_linearly(model):
                network._warned.add(id(op))
                warn(
                    f"{describe_op(op, index)} expects probabilities, but '{inputs[0]}' is the "
                    f"output of a linear layer of model '{name_of(model)}'. Pass "
                    "from_logits=True, or end the model with a softmax or sigmoid."
                )
        is_model = type(op) is ModelOp and len(outputs) == 1
        writers.update(dict.fromkeys(outputs, op.model if is_model else None))


def losses_of_probabilities(network: BaseNetwork, plan: ExecutionPlan) -> dict[str, str]:
    """Describe, by their keys, the cross-entropies of probabilities that are not checked yet."""
    return {
        op.inputs[0]: describe_op(op, index)
        for index, op in enumerate(plan.ops)
        if type(op) is CrossEntropy and not op.from_logits and id(op) not in network._warned
    }


def warn_of_values(network: BaseNetwork, plan: ExecutionPlan, result: Mapping[str, Any]) -> None:
    """Warn, once each, of cross-entropies of probabilities that are given other values."""
    value_range = get_framework(network.target_type).value_range
    for key, described in losses_of_probabilities(network, plan).items():
        extremes = value_range(result[key]) if key in result else None
        if extremes is None:
            continue
        network._warned.update(
            id(op) for op in plan.ops if type(op) is CrossEntropy and op.inputs[0] == key
        )
        minimum, maximum = extremes
        if minimum < -_ROUNDING or maximum > 1 + _ROUNDING:
            warn(
                f"{described} expects probabilities, but '{key}' has values from {minimum:.3g} to "
                f"{maximum:.3g}. Pass from_logits=True, or end the model with a softmax or sigmoid."
            )


def warn_of_partial_optimizers(plan: ExecutionPlan) -> None:
    """Warn, once each, of torch optimizers that update only some parameters of their model."""
    for model in plan.models:
        optimizer = get_metadata(model, "current_optimizer")
        if optimizer is None or optimizer in _compared:
            continue
        # Keras's optimizers raise an error for a variable that they were not built for.
        if not hasattr(optimizer, "param_groups"):
            continue
        if not any(model in as_tensor_op(op).get_fe_models() for op in plan.ops if _is_update(op)):
            continue
        _compared.add(optimizer)
        optimized = {id(parameter) for parameter in _optimized_parameters(model)}
        optimized_anywhere = {
            id(parameter)
            for known_model in known_models()
            for parameter in _optimized_parameters(known_model)
        }
        trainable = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        missing = [name for name, parameter in trainable if id(parameter) not in optimized_anywhere]
        if missing and any(id(parameter) in optimized for _, parameter in trainable):
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            warn(
                f"The optimizer of model '{name_of(model)}' updates only some of its trainable "
                f"parameters, and not: {shown}. Pass them to the optimizer, or freeze them "
                "(requires_grad = False)."
            )


def _optimized_parameters(model: Model) -> Iterator[Any]:
    """Yield the parameters of all torch optimizers of a model."""
    for optimizer in every_optimizer_of(model):
        for group in getattr(optimizer, "param_groups", ()):
            yield from group["params"]


def _is_update(op: Any) -> bool:
    return as_tensor_op(op).updates_models


def _may_update(op: Any) -> bool:
    """Return whether an op may update its models: updates do, and ops of the program might."""
    is_custom = not is_library(type(op).__module__)
    return not isinstance(op, MetaOp) and (is_custom or _is_update(op))


def _lacks_update(network: BaseNetwork, model: Model) -> bool:
    """Return whether a model has an optimizer for trainable parameters, and is never updated."""
    optimizers = every_optimizer_of(model)
    if not optimizers or not any(network._trainable_in(model)):
        return False
    # One optimizer may belong to several models, or hold the parameters of others.
    updated_models = [known_model for known_model in known_models() if known_model in _updated]
    optimized = {
        id(parameter)
        for updated_model in updated_models
        for parameter in _optimized_parameters(updated_model)
    }
    if optimized.issuperset(id(parameter) for _, parameter in network._trainable_in(model)):
        return False
    updated_ids = {
        id(item)
        for updated_model in updated_models
        for item in (updated_model, *every_optimizer_of(updated_model))
    }
    return updated_ids.isdisjoint(map(id, (model, *optimizers)))


def _models_of_losses(network: BaseNetwork, plan: ExecutionPlan) -> list[Model]:
    """List the models that losses depend on, of updates in any mode and of loss ops."""
    needed: set[str] = network.get_loss_keys()
    models: dict[int, Model] = {}
    for op, (inputs, outputs, *_) in reversed([*zip(plan.ops, plan.kernel.flow, strict=True)]):
        if _is_update(op):
            needed.update(op.get_fe_loss_keys())
        elif isinstance(op, LossOp) or not needed.isdisjoint(outputs):
            needed.difference_update(outputs)
            if type(op) is not ModelOp or op.gradients:
                needed.update(inputs)
            for inner in with_inner_ops([op]):
                if type(inner) is ModelOp and inner.trainable:
                    models[id(inner.model)] = inner.model
    return list(models.values())
