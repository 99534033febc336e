"""`build`: creates models and attaches optimizers, weights and names."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

from fastnet.backend.dispatch import framework_of, get_framework
from fastnet.backend.model_metadata import note_optimizer, set_metadata
from fastnet.backend.precision import Precision, keras_precision, read_precision
from fastnet.backend.weights import load_model
from fastnet.errors import shorten
from fastnet.schedule.schedule import map_scheduler
from fastnet.types import Model, SchedulerLike, is_scheduler
from fastnet.util import to_list
from fastnet.util.warnings import warn

OptimizerSource = str | Callable[..., Any] | SchedulerLike[Any] | None
Parallel = Literal["auto", "ddp", "fsdp"] | None

_names = itertools.count()


class _TorchModel(Protocol):
    """An existing torch model. The class of a model does not match: its `eval` takes `self`."""

    def eval(self) -> Any: ...


_T = TypeVar("_T")
_M = TypeVar("_M", bound=_TorchModel)


@overload
def build(
    model_fn: _M,
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Parallel = "auto",
    **options: Any,
) -> _M: ...


@overload
def build(
    model_fn: Sequence[_T] | Callable[[], Sequence[_T]],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Parallel = "auto",
    **options: Any,
) -> list[_T]: ...


@overload
def build(
    model_fn: Callable[[], _T],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Parallel = "auto",
    **options: Any,
) -> _T: ...


def build(
    model_fn: Any,
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Parallel = "auto",
    **options: Any,
) -> Any:
    """Build models for a network: create them and attach their optimizers, weights and names.

    The attributes listed under Returns are set on each model. If a model already uses one of these
    names, its own value stays, and fastnet keeps the information beside the model. The optimizer of
    a compiled Keras model is replaced; with `optimizer_fn=None` it stays, for Keras's `fit`, but
    fastnet does not use it.

    Args:
        model_fn: A function without arguments, or a class, that creates one or several models; or
            one or several existing models, in a list or tuple. With Keras, mixed precision and
            several devices need a function, as Keras applies both at creation.
        optimizer_fn: The optimizer of each model: the lower-case or exact class name of an
            optimizer in `torch.optim` or `keras.optimizers` ("adam", "sgd", ...), created with its
            default settings (but "sgd" with a rate of 0.01); a function that takes the model's
            parameters (torch) or nothing (Keras) and returns an optimizer; a scheduler of these; or
            None for no optimizer.
        weights_path: The weights file to load into each model, or None.
        model_name: The name of each model. None for "model", "model1", ...
        mixed_precision: The compute precision of the models: False for float32; "float16", with
            loss scaling in training; "bfloat16"; or True for bfloat16 in torch on a CPU, else
            float16. Lightning's and Keras's names, such as "fp16-mixed", are also accepted. With
            False, a Keras model that was made under a mixed policy keeps its precision.
        device: The device to move the models to (torch only): a `torch.device`, its name, or the
            index of a device of the best kind. None lets the network move them, or, for distributed
            models, chooses `fastnet.util.get_device()`.
        parallel: How models are distributed (torch only): "ddp" for DistributedDataParallel, "fsdp"
            for `fully_shard` (FSDP2), None for no wrapper. "auto" is "ddp" in a group of several
            processes for models with trainable parameters, else None. A model that is already
            wrapped or sharded is left as it is.
        options: Options of `DistributedDataParallel` or `fully_shard`. "fsdp" also takes `blocks`,
            the classes of the modules to shard separately.

    Returns:
        The model, or a list of models if `model_fn` gives several. Each has the attributes
        `model_name`, `optimizer` (a scheduler if one was given), `current_optimizer`,
        `mixed_precision` (False, True, "float16" or "bfloat16") and `fe_compiled`.

    Raises:
        AssertionError: If the numbers of models, optimizers, weights and names differ, or if
            `optimizer_fn` gives no optimizer of the model (`WrongOptimizerError`).
        ValueError: If `model_fn` gives no model, or an optimizer, weights file, precision, device
            or wrapper cannot be used.
        TypeError: If `model_fn` is neither a function nor models, or the wrapper has no such
            option.

    >>> import torch
    >>> model = build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd", model_name="line")
    >>> model.model_name, type(model.current_optimizer).__name__
    ('line', 'SGD')
    """
    mixed_precision = read_precision(mixed_precision)
    if mixed_precision and sys.platform == "darwin":
        warn("Mixed precision is not supported on macOS, so it is switched off.")
        mixed_precision = False
    models = make_models(model_fn, mixed_precision)
    sources = to_list(optimizer_fn) or [None] * len(models)
    paths = to_list(weights_path) or [None] * len(models)
    names = to_list(model_name) or [f"model{next(_names) or ''}" for _ in models]
    if not len(models) == len(sources) == len(paths) == len(names):
        raise AssertionError(
            f"model_fn makes {len(models)} models, but there are {len(sources)} optimizers, "
            f"{len(paths)} weights paths and {len(names)} names. Give one of each for each model."
        )
    placement = device, parallel, options
    models = [
        _prepare_model(model, source, path, name, mixed_precision, placement)
        for model, source, path, name in zip(models, sources, paths, names, strict=True)
    ]
    return models[0] if len(models) == 1 else models


def make_models(model_fn: Any, mixed_precision: Precision) -> list[Any]:
    """Return the models, created with the given precision."""
    # Models are callable, so look for existing ones before calling `model_fn`.
    existing = list(to_list(model_fn))
    frameworks = list(map(framework_of, existing))
    if existing and None not in frameworks:
        if "tf" in frameworks:
            from fastnet.backend.tf.setup import require_as_made

            require_as_made(existing, mixed_precision)
        return existing
    if not callable(model_fn):
        raise TypeError(
            f"model_fn is {shorten(model_fn)}. Pass a function without arguments that makes the "
            "model, an existing torch.nn.Module or Keras model, or a list of these models."
        )
    packages: set[str] = set()

    def make() -> list[Any]:
        with keras_precision(mixed_precision) as keras_packages:
            packages.update(keras_packages)
            return list(to_list(_call_model_fn(model_fn)))

    models = make()
    for model in models or [None]:
        if framework_of(model) is None:
            raise ValueError(
                f"model_fn made {type(model).__name__}, which is no model of a known framework. "
                "Let it return a torch.nn.Module or a Keras model, or a sequence of them."
            )
    if "tf" in map(framework_of, models):
        from fastnet.backend.tf import setup

        if mixed_precision and setup.keras_names(models) - packages:
            # model_fn imported Keras itself, so the precision policy was not set before.
            setup.restart_names(models)
            models = make()
        models = setup.mirror(make, models)
        if not mixed_precision:
            setup.warn_of_policy(models)
    return models


def _call_model_fn(model_fn: Callable[..., Any]) -> Any:
    """Return what `model_fn` makes; an error names the fix if it needs arguments."""
    try:
        return model_fn()
    except TypeError as error:
        try:
            inspect.signature(model_fn).bind()
        except ValueError:  # a callable without a signature
            raise error from None
        except TypeError:
            name = getattr(model_fn, "__name__", type(model_fn).__name__)
            raise TypeError(
                f"model_fn is called without arguments, but {name} needs some: {error}. Pass a "
                f"function that gives them: `lambda: {name}(...)`."
            ) from error
        raise


def _prepare_model(
    model: Model,
    source: OptimizerSource,
    path: str | None,
    name: str,
    mixed_precision: Precision,
    placement: tuple[Any, Parallel, dict[str, Any]],
) -> Any:
    """Attach the optimizer, weights and name to one model, and place it on its device."""
    framework = str(framework_of(model))
    if framework == "torch":
        from fastnet.backend.torch.parallelize import Placement, parallelize
        from fastnet.backend.torch.setup import require_values

        if path:
            # Every process reads the whole file before it keeps only its shard.
            load_model(model, path)
        device, parallel, _ = placement
        if device is None and parallel != "fsdp":
            require_values(model, name)
        model = parallelize(model, Placement(*placement), name)
    else:
        device, parallel, options = placement
        torch_arguments = {"device": device, "parallel": parallel, **options}
        unused = [key for key, value in torch_arguments.items() if value not in (None, "auto")]
        if unused:
            raise TypeError(
                f"build got {unused}, but model '{name}' is of {framework}, and these are for "
                "torch. Leave them out, and give settings of an optimizer in a function, such as "
                "`optimizer_fn=lambda: keras.optimizers.Adam(1e-3)`."
            )
        from fastnet.backend.tf.setup import precision_of, prepare

        model = prepare(model, source)
        mixed_precision = precision_of(model, mixed_precision)
        if path:
            load_model(model, path)
    set_metadata(model, "mixed_precision", mixed_precision)

    def make(source: Any) -> Any:
        return get_framework(framework).make_optimizer(source, model, name, mixed_precision)

    if is_scheduler(source):
        optimizer: Any = map_scheduler(source, make)
        current = optimizer.get_current_value(1)
    else:
        optimizer = current = None if source is None else make(source)
    set_metadata(model, "optimizer", optimizer)
    set_metadata(model, "current_optimizer", current)
    note_optimizer(model)
    set_metadata(model, "model_name", name)
    set_metadata(model, "fe_compiled", True)
    if framework == "tf":
        from fastnet.backend.tf.copying import register_pickling

        register_pickling(model)
    return model
