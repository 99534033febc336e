"""Models made ready for a network: with optimizers, weights and names."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

from fastnet.backend.facts import put_fact
from fastnet.backend.framework import framework_of
from fastnet.backend.precision import Precision, keras_precision, read_precision
from fastnet.frameworks import part_of
from fastnet.schedule.schedule import map_scheduler
from fastnet.types import Model, SchedulerLike, is_scheduler
from fastnet.util import to_list
from fastnet.util.warnings import warn

__all__ = ["build", "make_models"]

ModelSource = Callable[[], Model | Sequence[Model]] | Model | Sequence[Model]
OptimizerSource = str | Callable[..., Any] | SchedulerLike[Any] | None

_names = itertools.count()


class _ModelLike(Protocol):
    """A model of torch, which a type checker tells from a function that makes one."""

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """List its modules."""


_M = TypeVar("_M", bound=_ModelLike)


@overload
def build(
    model_fn: type[_M],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> _M: ...


@overload
def build(
    model_fn: _M,
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> _M: ...


@overload
def build(
    model_fn: Sequence[_M] | Callable[[], Sequence[_M]],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> list[_M]: ...


@overload
def build(
    model_fn: Callable[[], _M],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> _M: ...


@overload
def build(
    model_fn: Any,
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> Any: ...


def build(
    model_fn: ModelSource,
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
    device: Any = None,
    parallel: Literal["auto", "ddp", "fsdp", "dp"] | None = "auto",
    **options: Any,
) -> Any:
    """Make models, and give them what a network needs of them.

    What is known of a model is written to attributes of it. A name that the model uses itself, be
    it for an attribute, a layer, a parameter, a property or a method, stays the model's own: what
    fastnet has to say under it is kept beside the model. A Keras model that was compiled gets the
    new optimizer in the place of Keras's, if there is one.

    Args:
        model_fn: A function without arguments, or a class, that makes one model or a list or tuple
            of models; or a model, or a list or tuple of models, made before. What Keras decides
            while a model is made, its precision and the devices that it is spread over, takes a
            function.
        optimizer_fn: For each model: the name of an optimizer, which is that of its class in
            `torch.optim` or `keras.optimizers` in small letters or as it stands there ("adam",
            "adamw", "sgd", ...), with the defaults of that class (but 0.01 as the rate of "sgd"); a
            function that takes the model's parameters (for torch) or nothing (for Keras) and
            returns an optimizer; a scheduler of these; or None for no optimizer.
        weights_path: For each model: a file of weights to start from, or None.
        model_name: For each model: its name. None to have names made: "model", "model1", ...
        mixed_precision: What ops on the models compute in where it is safe: False for float32;
            "float16" ("fp16", "fp16-mixed", "mixed_float16"), with the loss scaled in training;
            "bfloat16" ("bf16", "bf16-mixed", "mixed_bfloat16"); or True for bfloat16 with torch on
            a CPU, and else float16.
        device: Where models go at once (torch only): a `torch.device`, its name, an index among the
            devices of the best kind, or None to let the network move them. With an engine None
            stands for what `fastnet.util.get_device` chooses, under torchrun the device of the
            process.
        parallel: What spreads models over processes (torch only): "ddp" for
            DistributedDataParallel, "fsdp" to shard them with `fully_shard` (FSDP2), None for
            models that stay by themselves, "dp" for DataParallel over the GPUs of one process.
            "auto" is "ddp" in a process group of several processes, for models that have something
            to train, and else None. A model that was wrapped or sharded before keeps its engine.
        options: Passed on to the engine. To DistributedDataParallel: `bucket_cap_mb`,
            `broadcast_buffers`, `device_mesh`, `find_unused_parameters`,
            `gradient_as_bucket_view`, `process_group`, `static_graph`. To `fully_shard`:
            `device_mesh`, `ignored_params`, `mp_policy`, `offload_policy`,
            `reshard_after_forward`, `shard_placement_fn`; `find_unused_parameters`, for parameters
            that have no gradient on some ranks; and `blocks`, the classes of the modules that are
            sharded by themselves, or a function that says it of a module.

    Returns:
        The model, or a list of the models if `model_fn` makes several. Each has the attributes
        `model_name`, `optimizer` (a scheduler if one was given), `current_optimizer`,
        `mixed_precision` (False, True, "float16" or "bfloat16") and `fe_compiled`.

    Raises:
        AssertionError: If there are not as many optimizers, weights and names as models.
        ValueError: If something that `model_fn` makes is no model, an optimizer cannot be made, or
            a weights file cannot be used; if there is no such precision; or if a Keras model was
            made before, but for another precision or for one of several devices; or if there is no
            such device or engine, no process group for it, or another one on the model. What is no
            optimizer of the model is a `WrongOptimizerError`, which is an AssertionError, too.
        TypeError: If `model_fn` is neither a function nor a model, nor a sequence of models, or if
            the engine has no such option.

    >>> import torch
    >>> model = build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd", model_name="line")
    >>> model.model_name, type(model.current_optimizer).__name__
    ('line', 'SGD')
    """
    mixed_precision = read_precision(mixed_precision)
    if mixed_precision and sys.platform == "darwin":
        warn("Mixed precision is not supported on macOS, so it is switched off.")
        mixed_precision = False
    models, frameworks = make_models(model_fn, mixed_precision)
    sources = to_list(optimizer_fn) or [None] * len(models)
    paths = to_list(weights_path) or [None] * len(models)
    names = to_list(model_name) or [_make_name() for _ in models]
    if not len(models) == len(sources) == len(paths) == len(names):
        raise AssertionError(
            f"model_fn makes {len(models)} models, but there are {len(sources)} optimizers, "
            f"{len(paths)} weights paths and {len(names)} names. Give one of each for each model."
        )
    placement = device, parallel, options
    built = [
        _compile(*each, mixed_precision, placement)
        for each in zip(models, frameworks, sources, paths, names, strict=True)
    ]
    return built[0] if len(built) == 1 else built


def make_models(model_fn: Any, mixed_precision: Precision) -> tuple[list[Any], list[str]]:
    """Make models, under the precision policy that they are to have.

    Args:
        model_fn: Makes one model, or a sequence of models.
        mixed_precision: What they compute in where it is safe, as `read_precision` gives it.

    Returns:
        The models, and the framework of each.

    Raises:
        ValueError: If there is none, or something that is no model.
    """
    given = _given_models(model_fn)
    if given is not None:
        frameworks = [_framework(model) for model in given]
        if "tf" in frameworks:
            part_of("tf", "setup").require_as_made(given, mixed_precision)
        return given, frameworks
    governed: list[str] = []

    def make() -> list[Any]:
        with keras_precision(mixed_precision) as packages:
            governed[:] = packages
            # a list of our own: the function may hand out its
            models = list(to_list(model_fn()))
        if not models:
            raise ValueError(
                "model_fn returned no model. Let it return a model, or a list of models."
            )
        return models

    models = make()
    frameworks = [_framework(model) for model in models]
    if "tf" in frameworks:
        setup = part_of("tf", "setup")
        if mixed_precision and setup.keras_names(models) - set(governed):
            # model_fn itself imported Keras, which no policy could be set for before
            setup.restart_names(models)
            models = make()
        models = setup.mirror(make, models)
    return models, frameworks


def _require_default(framework: str, name: str, placement: tuple[Any, Any, dict[str, Any]]) -> None:
    device, parallel, options = placement
    given = [key for key, value in (("device", device), *options.items()) if value is not None]
    # over the devices of one process each framework has a way of its own
    given += [] if parallel in ("auto", "dp", None) else ["parallel"]
    if given:
        settings = (
            " To give an optimizer settings pass a function, such as "
            "`optimizer_fn=lambda: keras.optimizers.Adam(1e-3)`."
        )
        raise TypeError(
            f"build got {given}, but model '{name}' is of {framework}: devices, engines and their "
            "options are for torch. Leave them out; Keras models are spread by the strategy that "
            f"they are made under.{settings if set(given) - {'device', 'parallel'} else ''}"
        )


def _given_models(model_fn: Any) -> list[Any] | None:
    """List the models that `build` was given; None for what makes them.

    A model can be called too, which would run it, so that it is looked at first.
    """
    if framework_of(model_fn) is not None:
        return [model_fn]
    if isinstance(model_fn, (list, tuple)):
        for place, one in enumerate(model_fn):
            if framework_of(one) is None:
                raise TypeError(
                    f"model_fn is a {type(model_fn).__name__} whose item {place} is {_told(one)}, "
                    "which is no model. Pass a list of models, or one function that returns all "
                    "of them."
                )
        if not model_fn:
            raise TypeError(
                f"model_fn is an empty {type(model_fn).__name__}. Pass a model, a list of models, "
                "or a function that makes them."
            )
        return list(model_fn)
    if not callable(model_fn):
        raise TypeError(
            f"model_fn is {_told(model_fn)}. Pass a function without arguments that makes the "
            "model, or a torch.nn.Module or Keras model that was made before, or a list of these."
        )
    return None


def _told(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"


def _make_name() -> str:
    number = next(_names)
    return f"model{number}" if number else "model"


def _framework(model: Any) -> str:
    framework = framework_of(model)
    if framework is None:
        raise ValueError(
            f"model_fn made {type(model).__name__}, which is no model of a known framework. Let it "
            "return a torch.nn.Module or a Keras model, or a sequence of them."
        )
    return framework


def _compile(
    model: Any,
    framework: str,
    source: OptimizerSource,
    path: str | None,
    name: str,
    mixed_precision: Precision,
    placement: tuple[Any, Any, dict[str, Any]],
) -> Any:
    """Put on one model its optimizer, weights and name."""
    setup = part_of(framework, "setup", "build")
    if hasattr(setup, "spread"):
        how = setup.Spread(*placement)
        if path:
            # each process reads the whole of it, before it may keep only a part
            setup.load_weights(model, path)
            path = None
        model = setup.spread(model, how, name)
        setup.reserve_names(model, source)
        setup.note(model, how)
    else:
        _require_default(framework, name, placement)
        model = setup.prepare(model)
        setup.reserve_names(model, source)
    put_fact(model, "mixed_precision", mixed_precision)

    def make(one: Any) -> Any:
        return setup.make_optimizer(one, model, name, mixed_precision)

    if path:
        # before the optimizer, which may take a look at the weights
        setup.load_weights(model, path)
    if is_scheduler(source):
        optimizer: Any = map_scheduler(source, make)
        current = optimizer.get_current_value(1)
    else:
        optimizer = current = None if source is None else make(source)
    put_fact(model, "optimizer", optimizer)
    put_fact(model, "current_optimizer", current)
    put_fact(model, "model_name", name)
    put_fact(model, "fe_compiled", True)
    if framework == "tf":
        part_of("tf", "copying").let_pickle(model)
    return model
