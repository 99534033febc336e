"""docs/migration.md says of FastEstimator what is so, and leaves nothing out."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.docs.migration_page import PAGE, read_page
from tests.integrations.tf_sides import MARKS

pytestmark = MARKS

SECTIONS = read_page(PAGE.read_text(encoding="utf-8"))


def public_names(path: str) -> set[str]:
    module = importlib.import_module(f"fastestimator.{path}" if path else "fastestimator")
    return {name for name in dir(module) if not name.startswith("_")}


@pytest.mark.parametrize("path", sorted(SECTIONS))
def test_public_names(fastestimator: ModuleType, path: str) -> None:
    """The page lists every public name, and says which package has it, in the same file."""
    section, names = SECTIONS[path], public_names(path)
    assert names.isdisjoint(section.added)
    told = {*section.covered, *section.missing, *section.packages}
    if path == "network":  # This module names its imports too.
        assert names >= set(section.covered)
        return
    if not path:
        # FastEstimator names these only after they were imported.
        names -= {"network", "slicer", "types", "cli", "estimator", "pipeline", "test"}
        told -= {"network", "slicer"}
    assert told == names
    package = importlib.import_module(f"fastestimator.{path}" if path else "fastestimator")
    for name in section.covered if path else ():
        file = getattr(package, name).__module__.removeprefix("fastestimator.")
        if path in ("backend", "util"):
            assert importlib.util.find_spec(f"fastnet.{file}") is None, file
        else:
            assert hasattr(importlib.import_module(f"fastnet.{file}"), name), file


# What fastnet takes beyond that, which the page tells of.
ADDED_PARAMETERS = {
    "CrossEntropy": ["axis", "ignore_index", "label_smoothing"],
    "FocalLoss": ["ds_id"],
    "GradientOp": ["higher_order"],
    "Network": ["dynamic", "device", "keep_on_device", "returns", "compile", "open_axes"],
    "TFNetwork": ["dynamic", "compile", "open_axes"],
    "TorchNetwork": ["device", "keep_on_device", "returns", "dynamic", "compile"],
    "build": ["device", "parallel", "options"],
    ".transform": ["progress", "desired_output_keys", "device"],
    "ModelOp": ["eval_layers"],
    "UpdateOp": [
        "clip_norm",
        "clip_value",
        "outputs",
        "rest",
        "weight",
        "skip_nonfinite",
        "model_losses",
    ],
    "mean_squared_error": ["average_loss"],
    "move_tensors_to_device": ["non_blocking"],
    "write_outputs_by_op": ["index"],
}

# For FastEstimator's own reports and RandAugment, which fastnet takes no part in.
LEFT_OUT = {"fe_summary", "set_rua_level"}


def callables(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """List a function, or a class and its public methods."""
    yield thing.__name__, thing
    for name in dir(thing) if inspect.isclass(thing) else ():
        if not name.startswith("_") and name not in LEFT_OUT and callable(getattr(thing, name)):
            yield name, getattr(thing, name)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, str]]:
    """List names, kinds and defaults, these as they print: some are not equal to themselves."""
    listed = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, repr(each.default)) for each in listed]


@pytest.mark.parametrize("path", [path for path in sorted(SECTIONS) if SECTIONS[path].covered])
def test_signatures_are_the_same(fastestimator: ModuleType, path: str) -> None:
    theirs = importlib.import_module(f"fastestimator.{path}" if path else "fastestimator")
    ours = importlib.import_module(f"fastnet.{path}" if path else "fastnet")
    for covered in SECTIONS[path].covered:
        thing = getattr(ours, covered)
        for name, function in callables(getattr(theirs, covered)):
            expected = parameters(function)
            actual = parameters(thing if name == covered else getattr(thing, name))
            where = f"{path}.{covered}.{name}"
            assert actual[: len(expected)] == expected, where
            added = [each for each, *_ in actual[len(expected) :]]
            key = name if name == covered else f".{name}"
            assert added == ADDED_PARAMETERS.get(key, []), where
