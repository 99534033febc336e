"""FastEstimator's build, made of fastnet's."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from typing import Any

import fastnet
from fastnet.backend.facts import name_of, put_fact
from fastnet.integrations.fastestimator.stand_ins import ROOT
from fastnet.util import to_list

__all__ = ["build", "build_optimizer", "compile_model"]

_DRIVE = "https://drive.google.com"


def build(
    model_fn: Any,
    optimizer_fn: Any,
    weights_path: Any = None,
    model_name: Any = None,
    mixed_precision: bool = False,
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
        mixed_precision: Whether ops on the models compute in half precision where it is safe.

    Returns:
        The model, or a list of the models if `model_fn` makes several.

    Raises:
        AssertionError: If there are not as many optimizers, weights and names as models.
        ValueError: If something that `model_fn` makes is no model, an optimizer cannot be made, or
            a weights file cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [_fetched(path, folder) for path in to_list(weights_path)]
        built = fastnet.build(model_fn, optimizer_fn, paths or None, model_name, mixed_precision)
    models = to_list(built)
    if not model_name:
        for model, name in zip(models, _make_names(len(models)), strict=True):
            put_fact(model, "model_name", name)
    optimizers = to_list(optimizer_fn) or [None] * len(models)
    weights = to_list(weights_path) or [None] * len(models)
    trace_model = import_module(f"{ROOT}.util.traceability_util").trace_model
    for place, model in enumerate(models):
        trace_model(
            model,
            model_idx=place if len(models) > 1 else -1,
            model_fn=model_fn,
            optimizer_fn=optimizers[place],
            weights_path=weights[place],
        )
        # Descriptions go by the ids of what they describe, so that must live as long as they do.
        # Keras, which looks into lists and dicts that a model is given, does not see it here.
        model._fe_traceability_summary.described = model_fn, optimizers[place]
    return built


def compile_model(
    model: Any, optimizer_fn: Any, weight: str | None, name: str, mixed_precision: bool
) -> Any:
    """Give a model what a network needs of it.

    Args:
        model: The model.
        optimizer_fn: The name of an optimizer, what makes one, a scheduler of these, or None.
        weight: A file of weights to start from, or None.
        name: The model's name.
        mixed_precision: Whether ops on it compute in half precision where it is safe.

    Returns:
        The model.

    Raises:
        ValueError: If it is no model, the optimizer cannot be made, or the weights cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        return fastnet.build(
            lambda: model, optimizer_fn, _fetched(weight, folder), name, mixed_precision
        )


def build_optimizer(optimizer_fn: Any, model: Any, framework: str, mixed_precision: bool) -> Any:
    """Make a model's optimizer.

    Args:
        optimizer_fn: The name of one, or what makes one, or None.
        model: The model.
        framework: "torch" or "tf".
        mixed_precision: Whether its loss is to be scaled.

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
    name: str = import_module("gdown").download(path, os.path.join(folder, ""), quiet=False)
    return name
