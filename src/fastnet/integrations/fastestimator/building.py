"""FastEstimator's build, made of fastnet's."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from typing import Any

import fastnet
from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import get_metadata, name_of, set_metadata
from fastnet.backend.precision import Precision, read_precision
from fastnet.integrations.fastestimator.patches import patched
from fastnet.integrations.fastestimator.stand_ins import ROOT
from fastnet.network.build import make_models
from fastnet.schedule.schedule import map_scheduler
from fastnet.types import is_scheduler
from fastnet.util import get_num_gpus, to_list

__all__ = ["build", "build_optimizer", "compile_model"]

# what FastEstimator's build calls that changes how a model is made
_HELPERS = ("_build_optimizer", "_fe_compile", "get_num_gpus", "load_model")
_DRIVE = "https://drive.google.com"


def build(
    model_fn: Any,
    optimizer_fn: Any,
    weights_path: Any = None,
    model_name: Any = None,
    mixed_precision: Precision = False,
) -> Any:
    """Make models with `fastnet.build`, named and described as FastEstimator does.

    Args:
        model_fn: Makes one model, or a sequence of models.
        optimizer_fn: For each model: the name of an optimizer, what makes one, a scheduler of
            these, or None.
        weights_path: For each model: a file of weights to start from, a link to one in Google
            Drive, or None.
        model_name: For each model: its name. None to have names made, which go on where those of
            FastEstimator's own `build` have stopped.
        mixed_precision: What ops on the models compute in where it is safe, as for `fastnet.build`.

    Returns:
        The model, or a list of the models if `model_fn` makes several.

    Raises:
        AssertionError: If there are not as many optimizers, weights and names as models.
        ValueError: If something that `model_fn` makes is no model, an optimizer cannot be made, or
            a weights file cannot be used.
    """
    if any(map(patched, _HELPERS)):
        models = _build_with_patches(
            model_fn, optimizer_fn, weights_path, model_name, mixed_precision
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            paths = [_fetched(path, folder) for path in to_list(weights_path)]
            models = to_list(
                fastnet.build(
                    model_fn if get_num_gpus() < 2 else lambda: _spread(model_fn()),
                    optimizer_fn,
                    paths or None,
                    model_name,
                    mixed_precision,
                    parallel=None,
                )
            )
        if not model_name:
            for model, name in zip(models, _make_names(len(models)), strict=True):
                set_metadata(model, "model_name", name)
    optimizers = to_list(optimizer_fn) or [None] * len(models)
    weights = to_list(weights_path) or [None] * len(models)
    traced = patched("trace_model")
    trace_model = traced or import_module(f"{ROOT}.util.traceability_util").trace_model
    for place, model in enumerate(models):
        models[place] = trace_model(
            model,
            model_idx=place if len(models) > 1 else -1,
            model_fn=model_fn,
            optimizer_fn=optimizers[place],
            weights_path=weights[place],
        )
        if traced is None:
            # Descriptions go by the ids of what they describe, so that must live as long as they
            # do. Keras, which looks into lists and dicts that a model is given, does not see it.
            model._fe_traceability_summary.described = model_fn, optimizers[place]
    return models[0] if len(models) == 1 else models


def _spread(models: Any) -> list[Any]:
    """Spread torch models over the GPUs of the process, as FastEstimator does."""
    return [
        import_module("torch").nn.DataParallel(one) if framework_of(one) == "torch" else one
        for one in to_list(models)
    ]


def compile_model(
    model: Any, optimizer_fn: Any, weight: str | None, name: str, mixed_precision: Precision
) -> Any:
    """Put on a model what a network needs of it.

    Args:
        model: The model.
        optimizer_fn: The name of an optimizer, what makes one, a scheduler of these, or None.
        weight: A file of weights to start from, or None.
        name: The model's name.
        mixed_precision: What ops on it compute in where it is safe, as for `fastnet.build`.

    Returns:
        The model.

    Raises:
        ValueError: If it is no model, the optimizer cannot be made, or the weights cannot be used.
    """
    load, make = patched("load_model"), patched("_build_optimizer")
    count = patched("get_num_gpus") or get_num_gpus
    if count() > 1:
        (model,) = _spread(model)
    with tempfile.TemporaryDirectory() as folder:
        path = _fetched(weight, folder)
        built = fastnet.build(
            lambda: model,
            None if make else optimizer_fn,
            None if load else path,
            name,
            mixed_precision,
            parallel=None,
        )
        if make:
            _give_optimizer(built, optimizer_fn, make)
        if load and path:
            load(built, path)
    return built


def build_optimizer(
    optimizer_fn: Any, model: Any, framework: str, mixed_precision: Precision
) -> Any:
    """Make a model's optimizer.

    Args:
        optimizer_fn: The name of one, or what makes one, or None.
        model: The model.
        framework: "torch" or "tf".
        mixed_precision: What the model computes in. For float16 its loss is scaled.

    Returns:
        The optimizer, or None.

    Raises:
        ValueError: If there is no optimizer of this name, or the function fails.
        AssertionError: If the function returns something else.
    """
    if optimizer_fn is None:
        return None
    setup = import_module(f"fastnet.backend.{framework}.setup")
    name = name_of(model)
    return setup.make_optimizer(optimizer_fn, model, name, mixed_precision)


def _build_with_patches(
    model_fn: Any, optimizer_fn: Any, weights_path: Any, model_name: Any, mixed_precision: Precision
) -> list[Any]:
    """Make models one by one, with what a program has put in the place of FastEstimator's."""
    mixed_precision = read_precision(mixed_precision)
    models = make_models(model_fn, mixed_precision)
    count = len(models)
    settings = (
        to_list(optimizer_fn) or [None] * count,
        to_list(weights_path) or [None] * count,
        to_list(model_name) or _make_names(count),
    )
    if any(len(one) != count for one in settings):
        raise AssertionError(
            f"model_fn makes {count} models, but there are {len(settings[0])} optimizers, "
            f"{len(settings[1])} weights paths and {len(settings[2])} names. Give one of each for "
            "each model."
        )
    fe_compile = patched("_fe_compile") or compile_model
    return [
        fe_compile(model, source, path, name, mixed_precision)
        for model, source, path, name in zip(models, *settings, strict=True)
    ]


def _give_optimizer(model: Any, source: Any, make: Any) -> None:
    def make_one(one: Any) -> Any:
        return make(one, model, framework_of(model), get_metadata(model, "mixed_precision"))

    optimizer = map_scheduler(source, make_one) if is_scheduler(source) else make_one(source)
    set_metadata(model, "optimizer", optimizer)
    current = optimizer.get_current_value(1) if is_scheduler(source) else optimizer
    set_metadata(model, "current_optimizer", current)


def _make_names(count: int) -> list[str]:
    """Count models on, together with those that FastEstimator has built itself."""
    package: Any = import_module(ROOT)
    first = package.fe_build_count
    package.fe_build_count += count
    return [f"model{number}" if number else "model" for number in range(first, first + count)]


def _fetched(path: str | None, folder: str) -> str | None:
    """Download a file of weights, if it is a link to one."""
    if not isinstance(path, str) or not path.startswith(_DRIVE):
        return path
    name: str = import_module(f"{ROOT}.network").gdown.download(
        path, os.path.join(folder, ""), quiet=False
    )
    return name
