"""FastEstimator's `build`, implemented with fastnet's."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from typing import Any

import fastnet
from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import set_metadata
from fastnet.backend.precision import Precision
from fastnet.integrations.fastestimator.stand_ins import ROOT
from fastnet.types import Model
from fastnet.util import get_num_gpus, to_list

__all__ = ["build"]

_GOOGLE_DRIVE = "https://drive.google.com"


def build(
    model_fn: Any,
    optimizer_fn: Any,
    weights_path: Any = None,
    model_name: Any = None,
    mixed_precision: Precision = False,
) -> Any:
    """Build models with `fastnet.build`, with the names and summaries that FastEstimator gives.

    Args:
        model_fn: A function that returns a model or a sequence of models.
        optimizer_fn: The optimizer of each model: a name, a function that returns an optimizer, a
            scheduler of these, or None.
        weights_path: The initial weights of each model: a file, a link to a file on Google Drive,
            or None.
        model_name: The name of each model. None to continue the names of FastEstimator's `build`.
        mixed_precision: The compute precision of the models, as for `fastnet.build`.

    Returns:
        The model, or a list of models if `model_fn` returns several.

    Raises:
        AssertionError: If the numbers of models, optimizers, weights and names differ.
        ValueError: If `model_fn` returns something else, an optimizer cannot be created, or a
            weights file cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [_download(path, folder) for path in to_list(weights_path)]
        models = to_list(
            fastnet.build(
                model_fn if get_num_gpus() < 2 else lambda: _to_data_parallel(model_fn()),
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
    trace_model = import_module(f"{ROOT}.util.traceability_util").trace_model
    for index, model in enumerate(models):
        models[index] = trace_model(
            model,
            model_idx=index if len(models) > 1 else -1,
            model_fn=model_fn,
            optimizer_fn=optimizers[index],
            weights_path=weights[index],
        )
        # Summaries refer to functions by id, so the functions must live as long as the summary.
        # They are not attributes of the model itself, because Keras tracks lists and dicts there.
        model._fe_traceability_summary.described = model_fn, optimizers[index]
    return models[0] if len(models) == 1 else models


def _to_data_parallel(models: Model | list[Model]) -> list[Model]:
    """Wrap torch models in `DataParallel`, as FastEstimator does with several GPUs."""
    return [
        import_module("torch").nn.DataParallel(model) if framework_of(model) == "torch" else model
        for model in to_list(models)
    ]


def _make_names(count: int) -> list[str]:
    """Number models together with the models that FastEstimator has built itself."""
    package: Any = import_module(ROOT)
    first = package.fe_build_count
    package.fe_build_count += count
    return [f"model{number}" if number else "model" for number in range(first, first + count)]


def _download(path: str | None, folder: str) -> str | None:
    """Download a weights file if the path is a link to Google Drive."""
    if not isinstance(path, str) or not path.startswith(_GOOGLE_DRIVE):
        return path
    downloaded: str = import_module("gdown").download(path, os.path.join(folder, ""), quiet=False)
    return downloaded
