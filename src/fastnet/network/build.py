"""Models made ready for a network: with optimizers, weights and names."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fastnet.backend.framework import framework_of
from fastnet.backend.precision import Precision, keras_precision, read_precision
from fastnet.schedule.schedule import map_scheduler
from fastnet.types import Model, SchedulerLike, is_scheduler
from fastnet.util import to_list

__all__ = ["build", "make_models"]

OptimizerSource = str | Callable[..., Any] | SchedulerLike[Any] | None

_names = itertools.count()


def build(
    model_fn: Callable[[], Model | Sequence[Model]],
    optimizer_fn: OptimizerSource | Sequence[OptimizerSource],
    weights_path: str | list[str | None] | None = None,
    model_name: str | list[str] | None = None,
    mixed_precision: Precision = False,
) -> Any:
    """Make models, and give them what a network needs of them.

    Args:
        model_fn: Makes one model, or a sequence of models.
        optimizer_fn: For each model: the name of an optimizer ("adadelta", "adagrad", "adam",
            "adamax", "rmsprop" or "sgd"), a function that takes the model's parameters (for
            torch) or nothing (for Keras) and returns an optimizer, a scheduler of these, or None
            for no optimizer.
        weights_path: For each model: a file of weights to start from, or None.
        model_name: For each model: its name. None to have names made: "model", "model1", ...
        mixed_precision: What ops on the models compute in where it is safe: False for float32;
            "float16" ("fp16", "fp16-mixed", "mixed_float16"), with the loss scaled in training;
            "bfloat16" ("bf16", "bf16-mixed", "mixed_bfloat16"); or True for bfloat16 with torch on
            a CPU, and else float16.

    Returns:
        The model, or a list of the models if `model_fn` makes several. Each has the attributes
        `model_name`, `optimizer` (a scheduler if one was given), `current_optimizer`,
        `mixed_precision` (False, True, "float16" or "bfloat16") and `fe_compiled`.

    Raises:
        AssertionError: If there are not as many optimizers, weights and names as models.
        ValueError: If something that `model_fn` makes is no model, an optimizer cannot be made, or
            a weights file cannot be used, or there is no such precision. What is no optimizer of
            the model is a `WrongOptimizerError`, which is an AssertionError, too.

    >>> import torch
    >>> model = build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd", model_name="line")
    >>> model.model_name, type(model.current_optimizer).__name__
    ('line', 'SGD')
    """
    mixed_precision = read_precision(mixed_precision)
    if mixed_precision and sys.platform == "darwin":
        warnings.warn(
            "Mixed precision is not supported on macOS, so it is switched off.", stacklevel=2
        )
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
    built = [
        _compile(model, framework, source, path, name, mixed_precision)
        for model, framework, source, path, name in zip(
            models, frameworks, sources, paths, names, strict=True
        )
    ]
    return built[0] if len(built) == 1 else built


def make_models(
    model_fn: Callable[[], Any], mixed_precision: Precision
) -> tuple[list[Any], list[str]]:
    """Make models, under the precision policy that they are to have.

    Args:
        model_fn: Makes one model, or a sequence of models.
        mixed_precision: What they compute in where it is safe, as `read_precision` gives it.

    Returns:
        The models, and the framework of each.

    Raises:
        ValueError: If there is none, or something that is no model.
    """
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
        setup = import_module("fastnet.backend.tf.setup")
        if mixed_precision and setup.keras_names(models) - set(governed):
            # model_fn itself imported Keras, which no policy could be set for before
            setup.restart_names(models)
            models = make()
        models = setup.mirror(make, models)
    return models, frameworks


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
) -> Any:
    """Give one model its optimizer, weights and name."""
    setup = import_module(f"fastnet.backend.{framework}.setup")
    model = setup.prepare(model)
    model.mixed_precision = mixed_precision

    def make(one: Any) -> Any:
        return setup.make_optimizer(one, model, name, mixed_precision)

    if path:
        # before the optimizer, which may take a look at the weights
        setup.load_weights(model, path)
    if is_scheduler(source):
        model.optimizer = map_scheduler(source, make)
        model.current_optimizer = model.optimizer.get_current_value(1)
    else:
        model.optimizer = model.current_optimizer = None if source is None else make(source)
    model.model_name = name
    model.fe_compiled = True
    return model
