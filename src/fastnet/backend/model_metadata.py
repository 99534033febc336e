"""The metadata of a model, such as its optimizers: on the model, or on its `MetadataStore`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from fastnet.backend.dispatch import framework_of, get_framework
from fastnet.errors import WrongOptimizerError, shorten
from fastnet.types import Model, is_scheduler

_SET_BY_BUILD = ("current_optimizer", "fe_compiled", "mixed_precision", "model_name", "optimizer")
NAMES = (*_SET_BY_BUILD, "fe_alone", "fe_device", "fe_input_spec", "loss_name")
# The store of a model is an attribute of the model, so that it is copied with the model.
_STORE_ATTRIBUTE = "_fastnet_metadata"

# The optimizer that was last made the `current_optimizer` of each model.
_current_optimizers: WeakKeyDictionary[Model, ref[Any] | None] = WeakKeyDictionary()


class OptimizerKind(NamedTuple):
    """An attribute that all optimizers of a framework have, and an example of an optimizer_fn."""

    attribute: str
    example: str


OPTIMIZER_KINDS = {
    "torch": OptimizerKind("param_groups", "lambda params: torch.optim.AdamW(params, lr=1e-3)"),
    "tf": OptimizerKind("apply_gradients", "lambda: tf.keras.optimizers.AdamW(1e-3)"),
}


class MetadataStore:
    """Stores metadata of a model under names that the model itself uses for something else."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.taken = taken


def reserve(model: Model, is_free: Callable[[str], bool] = lambda name: False) -> None:
    """Find the names that a model itself uses, except those that `is_free` permits to overwrite.

    A model that was built before stays as it is, so `holder_of` never changes.
    """
    if _store_of(model) is not None or all(name in model.__dict__ for name in _SET_BY_BUILD):
        return
    taken = frozenset(name for name in NAMES if _uses(model, name) and not is_free(name))
    # Written to __dict__, because a model's own `__setattr__` might register it.
    model.__dict__[_STORE_ATTRIBUTE] = MetadataStore(taken)


def holder_of(model: Model, name: str) -> Any:
    """Return the object with an attribute of a model's metadata: the model or its store."""
    store = _store_of(model)
    return model if store is None or name not in store.taken else store


def taken_names(model: Model) -> frozenset[str]:
    """Return the names of metadata that a model itself uses for something else."""
    store = _store_of(model)
    return frozenset() if store is None else store.taken


def get_metadata(model: Model, name: str, default: Any = None) -> Any:
    """Return an attribute of a model's metadata."""
    return getattr(holder_of(model, name), name, default)


def set_metadata(model: Model, name: str, value: Any) -> None:
    """Set an attribute of a model's metadata."""
    setattr(holder_of(model, name), name, value)


def name_of(model: Model) -> str:
    """Return the name that `build` gave to a model, or the name of its class."""
    return str(get_metadata(model, "model_name", type(model).__name__))


def is_built(model: Model) -> bool:
    """Return whether a model comes from `build`, fastnet's or FastEstimator's."""
    return bool(get_metadata(model, "fe_compiled", False))


def require_built(title: str, model: Model) -> None:
    """Raise an AssertionError for a model that does not come from `build`."""
    if not is_built(model):
        raise AssertionError(
            f"{title} takes a model from fastnet.build, but this {type(model).__name__} was not "
            "built. Pass it to fastnet.build first."
        )


def optimizers_of(model: Model) -> list[Any]:
    """List the optimizers of a model, each once, in the order of its scheduler."""
    source = get_metadata(model, "optimizer")
    optimizers: dict[int, Any] = {}
    for optimizer in source.get_all_values() if is_scheduler(source) else [source]:
        if optimizer is not None:
            optimizers.setdefault(id(optimizer), optimizer)
    return list(optimizers.values())


def every_optimizer_of(model: Model) -> list[Any]:
    """List the optimizers of a model, and the current one if it was assigned by the user."""
    current = get_metadata(model, "current_optimizer")
    optimizers = optimizers_of(model)
    if current is None or any(optimizer is current for optimizer in optimizers):
        return optimizers
    return [*optimizers, current]


def optimizer_of(model: Model) -> Any:
    """Return the current optimizer of a model that was built, which must have one."""
    holder = holder_of(model, "current_optimizer")
    if not hasattr(holder, "current_optimizer"):
        raise AssertionError(
            f"{type(model).__name__} has no current_optimizer. Make the model with fastnet.build."
        )
    if holder.current_optimizer is None:
        raise ValueError(
            f"Model '{name_of(model)}' has no optimizer in this epoch, but an update or access to "
            "the learning rate needs one. Pass an optimizer_fn to fastnet.build (a scheduler's "
            "None means none), or run no UpdateOp of the model."
        )
    return holder.current_optimizer


def note_optimizer(model: Model) -> None:
    """Remember the current optimizer of a model, to notice later if the user assigns another."""
    current = get_metadata(model, "current_optimizer")
    # An optimizer may refer to its model, which must not be kept alive.
    _current_optimizers[model] = None if current is None else ref(current)


def note_new_models(models: Iterable[Model]) -> None:
    """Remember the current optimizers of models that are new to fastnet."""
    for model in models:
        if model not in _current_optimizers:
            note_optimizer(model)


def known_models() -> list[Model]:
    """List the models that `build` or a network has seen and that still exist."""
    return list(_current_optimizers)


def other_owner(model: Model, is_owner: Callable[[Model], bool]) -> Model | None:
    """Return a model other than `model` to which an optimizer belongs, or None."""
    other_models = (known for known in known_models() if known is not model)
    return next(filter(is_owner, other_models), None)


def foreign_optimizer(
    optimizer: Any, model: Model, name: str, owner: Model | None
) -> WrongOptimizerError:
    """Return the error for an optimizer that updates no parameter of a model called `name`."""
    example = OPTIMIZER_KINDS[str(framework_of(model))].example
    parameters = "other parameters"
    if owner is not None:
        parameters = f"the parameters of model '{name_of(owner)}'"
    return WrongOptimizerError(
        f"Model '{name}' has the optimizer {type(optimizer).__name__} of {parameters}, which would "
        f"never train '{name}'. Make the optimizer of the model's own parameters, in fastnet.build "
        f"by an optimizer_fn such as `{example}`."
    )


def wrong_optimizer(optimizer: Any, model: Model, name: str) -> WrongOptimizerError:
    """Return the error for an object that is not an optimizer of a model's framework."""
    kind = type(optimizer)
    example = OPTIMIZER_KINDS[str(framework_of(model))].example
    return WrongOptimizerError(
        f"The optimizer of model '{name}' is {shorten(optimizer)} of type {kind.__module__}."
        f"{kind.__qualname__}, which is not an optimizer of the model's framework. Make one, as in "
        f"`{example}`."
    )


def check_optimizer(model: Model, optimizer: Any) -> None:
    """Raise a WrongOptimizerError for an assigned object that is no optimizer of the model."""
    noted = _current_optimizers.get(model)
    if optimizer is None or (noted is not None and optimizer is noted()):
        return
    framework = str(framework_of(model))
    if not hasattr(optimizer, OPTIMIZER_KINDS[framework].attribute):
        raise WrongOptimizerError(
            f"The optimizer of model '{name_of(model)}' was set to {shorten(optimizer)} of type "
            f"{type(optimizer).__name__}, which is not an optimizer. Set an optimizer, or call "
            "fastnet.build(model, optimizer_fn) again, which also takes names and functions."
        )
    get_framework(framework).check_owner(optimizer, model, name_of(model))


def choose_optimizer(model: Model, epoch: int) -> Any:
    """Set the model's `current_optimizer` for an epoch, and return it.

    Users may assign `optimizer`, or `current_optimizer` where no scheduler chooses it.
    """
    # An optimizer, a scheduler of optimizers, or None.
    source, current = get_metadata(model, "optimizer"), get_metadata(model, "current_optimizer")
    noted = _current_optimizers.get(model)
    previous = None if noted is None else noted()
    was_assigned = model in _current_optimizers and current is not previous
    chosen = source
    if hasattr(source, "get_current_value"):
        chosen = source.get_current_value(epoch)
        if was_assigned and all(current is not value for value in source.get_all_values()):
            raise ValueError(
                f"The current_optimizer of model '{name_of(model)}' was set to "
                f"{type(current).__name__}, but a scheduler ({type(source).__name__}) chooses "
                "its optimizer in each epoch. Set model.optimizer instead."
            )
    elif was_assigned and current is not source:
        if source is not None and source is not previous:
            raise ValueError(
                f"Both optimizer and current_optimizer of model '{name_of(model)}' were set, to "
                "different optimizers. Set model.optimizer only."
            )
        set_metadata(model, "optimizer", current)
        chosen = current
    check_optimizer(model, chosen)
    set_metadata(model, "current_optimizer", chosen)
    note_optimizer(model)
    return chosen


def _store_of(model: Model) -> MetadataStore | None:
    # With getattr, because a wrapper that forwards attributes has the metadata of its model.
    store = getattr(model, _STORE_ATTRIBUTE, None)
    return store if isinstance(store, MetadataStore) else None


def _uses(model: Model, name: str) -> bool:
    # getattr_static finds a property that raises, and hasattr the parameters and submodules of a
    # torch module, which its __getattr__ looks up.
    missing = object()
    return inspect.getattr_static(model, name, missing) is not missing or hasattr(model, name)
