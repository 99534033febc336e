"""What the machine computes on, on machines that are pretended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from fastnet.util import get_device, get_num_devices, get_num_gpus

CACHED = (get_device, get_num_devices, get_num_gpus)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


@pytest.mark.parametrize(
    ("mps", "cuda", "device", "gpus", "devices"),
    [
        (False, 0, "cpu", 0, 1),
        (False, 1, "cuda:0", 1, 1),
        (False, 4, "cuda:0", 4, 4),
        (True, 0, "mps", 1, 1),
    ],
)
def test_machine(
    monkeypatch: pytest.MonkeyPatch, mps: bool, cuda: int, device: str, gpus: int, devices: int
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    assert get_device() == torch.device(device)
    assert get_num_gpus() == gpus
    assert get_num_devices() == devices


def test_the_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = get_device()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: 1 / 0)
    assert get_device() is first
