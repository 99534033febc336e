"""Fixtures that keep the settings of PyTorch: a conftest that names them activates them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: models this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """Whatever a test does with networks, torch's settings are as they were."""
    yield
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
