"""Fixtures and settings for every test."""

from __future__ import annotations

import gc
from collections import Counter

import hypothesis
import pytest

from tests.own_process import pytest_runtest_makereport, pytest_runtest_protocol
from tests.reference import Kernel, load

__all__ = ["kernel", "kernels", "pytest_runtest_makereport", "pytest_runtest_protocol"]

# Compiled code has no deadline that a busy machine could not miss.
hypothesis.settings.register_profile("fastnet", deadline=None, max_examples=200)
hypothesis.settings.load_profile("fastnet")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share files out, let none be left with a long one at the end."""
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], item.path))


@pytest.fixture(scope="module", autouse=True)
def garbage_of_others() -> None:
    """Spare the garbage collector, which many tests call, what modules before have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", params=["compiled", "reference"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """The kernel to test: each test that asks for it runs on the compiled one and on the oracle."""
    return load(request.param)


@pytest.fixture(scope="session")
def kernels() -> tuple[Kernel, Kernel]:
    """The compiled kernel and the oracle, for tests that compare them."""
    return load("compiled"), load("reference")
