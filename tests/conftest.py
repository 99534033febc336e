"""Fixtures and settings for every test."""

from __future__ import annotations

import gc

import hypothesis
import pytest

from tests.reference import Kernel, load

# Compiled code has no deadline that a busy machine could not miss.
hypothesis.settings.register_profile("fastnet", deadline=None, max_examples=200)
hypothesis.settings.load_profile("fastnet")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what test modules have imported: many tests call it."""
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
