"""FastEstimator as it is and swapped, for tests that run on each side."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

SIDES = ("unswapped", "swapped")


@pytest.fixture(scope="module", params=SIDES)
def fe(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The package; swapped while the second half of a module's tests run."""
    package: ModuleType = request.getfixturevalue("fastestimator")
    for module in ("network", "estimator", "pipeline", "trace.adapt", "trace.io", "op.op"):
        importlib.import_module(f"fastestimator.{module}")
    # each fit collects garbage, which takes long if it looks at all of these modules
    gc.collect()
    gc.freeze()
    if request.param == "unswapped":
        yield package
        return
    from fastnet.integrations.fastestimator import install

    with install():
        yield package
