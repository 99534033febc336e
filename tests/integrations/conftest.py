"""FastEstimator 1.7.0 and fastnet in one process, to run the same programs in both.

`make test-fe` sets up an environment that has both; anywhere else these tests are skipped.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.integrations.sides import Sides

HERE = Path(__file__).parent


# What FastEstimator, and what it brings along, is warned of: its age, mostly.
WARNINGS = (
    "ignore:jax.xla_computation is deprecated",
    "ignore:pkg_resources is deprecated",
    "ignore:Using a non-tuple sequence for multidimensional indexing",
)
# Its environment has a Keras that its Python is newer than.
KERAS_WARNING = "ignore:non-integer arguments to randrange"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            call = getattr(item, "callspec", None)
            if call is not None and call.params.get("fw") == "tf":
                item.add_marker(pytest.mark.tf)
            if item.get_closest_marker("tf"):
                item.add_marker(pytest.mark.filterwarnings(KERAS_WARNING))


@pytest.fixture(scope="session")
def fastestimator() -> ModuleType:
    """FastEstimator, all of it imported when the first test asks for it."""
    module = importlib.import_module("fastestimator")
    # The package offers it only after it was imported; this imports TensorFlow too.
    importlib.import_module("fastestimator.network")
    with _torchvision():
        importlib.import_module("fastestimator.op.tensorop.normalize")
    let_samplers_be_initialised()
    # Every build of FastEstimator's collects garbage: half a second if it looks at TensorFlow too,
    # which the first one imports.
    module.build(lambda: torch.nn.Linear(1, 1), "sgd")
    gc.collect()
    gc.freeze()
    return module


@pytest.fixture(scope="session")
def fastnet() -> ModuleType:
    import fastnet

    return fastnet


@pytest.fixture(scope="session")
def sides(fastestimator: ModuleType, fastnet: ModuleType) -> Sides:
    """Both packages, to run programs in."""
    from tests.integrations.sides import Sides

    return Sides(fastestimator, fastnet)


@pytest.fixture(scope="session", params=["torch", "tf"])
def fw(request: pytest.FixtureRequest) -> ModuleType:
    """The framework of a program that is written for both: `sides` or `tf_sides`."""
    name = {"torch": "sides", "tf": "tf_sides"}[request.param]
    return importlib.import_module(f"tests.integrations.{name}")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums that do not depend on how work is shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Normalize:
    """The only class of torchvision that FastEstimator uses."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        self.mean, self.std = mean, std

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        mean, std = (
            one.to(tensor.dtype).reshape(-1, 1, 1) if one.dim() else one.to(tensor.dtype)
            for one in (self.mean, self.std)
        )
        return (tensor - mean) / std


@contextmanager
def _torchvision() -> Iterator[None]:
    """Let FastEstimator import torchvision, which it does not list among its requirements."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    package, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
    transforms.Normalize = _Normalize  # type: ignore[attr-defined]
    package.transforms = transforms  # type: ignore[attr-defined]
    names = {"torchvision": package, "torchvision.transforms": transforms}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def let_samplers_be_initialised() -> None:
    """Let FastEstimator's pipeline hand a dataset to torch's Sampler, which no longer takes one."""
    from torch.utils.data import Sampler

    if "__init__" in vars(Sampler):
        return  # an older torch

    def initialise(self: Any, data_source: Any = None) -> None:
        object.__init__(self)

    Sampler.__init__ = initialise  # type: ignore[method-assign]
