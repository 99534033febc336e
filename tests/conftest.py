"""Fixtures and settings for every test."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

with contextlib.suppress(ImportError):
    import triton  # noqa: F401  # The process crashes if TensorFlow is imported before triton.

import hypothesis
import pytest

from tests import own_process
from tests.reference import Kernel, load

# A busy machine could miss any deadline, and draw slowly.
hypothesis.settings.register_profile(
    "fastnet",
    deadline=None,
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fastnet")


# Files whose names do not say so skip their tests of TensorFlow.
OF_TENSORFLOW = ["*/tf/*", "*/test_tf_*.py", "*/test_tf.py"]
collect_ignore_glob = [] if find_spec("tensorflow") else OF_TENSORFLOW

# The files that keep a core busy for longest: from minutes to a third of one.
LONGEST = (
    "network/torch/compiled/test_random.py",
    "network/tf/test_workers.py",
    "docs/test_programs.py",
    "examples/test_distributed.py",
    "network/torch/compiled/test_inductor.py",
    "network/tf/compiled/test_training.py",
    "network/torch/compiled/test_sizes.py",
    "differential/test_tf_programs.py",
    "network/tf/test_changes.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share files out, let none be left with a long one at the end."""
    own_process.gather(items)
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    first = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    # one that has moved would begin at the end
    assert all(path.is_file() for path in first)

    def place(item: pytest.Item) -> tuple[int, bool, int, Path]:
        path = item.path
        return first.get(path, len(first)), path not in slow, -sizes[path], path

    items.sort(key=place)


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
