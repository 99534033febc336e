"""The frameworks that each program of the conformance tests runs in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.frameworks import Framework


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose what runs with each Keras: all but what is a test of torch alone."""
    for item in items:
        if item.path.is_relative_to(HERE):
            call = getattr(item, "callspec", None)
            if call is None or call.params.get("fw") not in ("torch", "torch-compiled"):
                item.add_marker(pytest.mark.tf)


@pytest.fixture(params=["torch", "tf-static", "tf-eager"])
def fw(request: pytest.FixtureRequest) -> Framework:
    """The framework that a program runs in, and how."""
    if request.param.startswith("tf"):
        pytest.importorskip("tensorflow")
    # late, because it imports both
    from tests.conformance.frameworks import FRAMEWORKS

    return FRAMEWORKS[request.param]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: models this small only lose by more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
