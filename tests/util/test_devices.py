"""Selection of devices, on simulated machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fastnet.util import get_device, get_num_devices, get_num_gpus
from fastnet.util.devices import has_accelerator, resolve_device

pytestmark = pytest.mark.fast

CACHED = (get_num_devices, get_num_gpus, has_accelerator)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FASTNET_DEVICE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simulate a machine with a number of devices of each type."""

    def simulate(**counts: int) -> None:
        for name in ("mps", "cuda", "xpu"):
            module = getattr(torch, name)
            count = counts.get(name, 0)
            monkeypatch.setattr(module, "device_count", lambda count=count: count)
            if name != "mps":
                monkeypatch.setattr(module, "current_device", lambda: 0)

    return simulate


@pytest.mark.parametrize(
    ("counts", "device", "gpus", "devices"),
    [
        ({}, "cpu", 0, 1),
        ({"cuda": 1}, "cuda:0", 1, 1),
        ({"cuda": 4}, "cuda:0", 4, 4),
        ({"mps": 1}, "mps", 1, 1),
        ({"xpu": 2}, "xpu:0", 0, 1),
    ],
)
def test_machines(
    machine: Any, counts: dict[str, int], device: str, gpus: int, devices: int
) -> None:
    machine(**counts)
    assert get_device() == torch.device(device)
    assert get_num_gpus() == gpus
    assert get_num_devices() == devices


class TestDefault:
    @pytest.mark.parametrize("kind", ["cuda", "xpu"])
    def test_local_rank(self, machine: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        machine(**{kind: 4})
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert get_device() == resolve_device(None) == torch.device(kind, 2)
        assert resolve_device(kind) == torch.device(kind, 2)
        assert resolve_device(f"{kind}:1") == torch.device(kind, 1)

    def test_more_processes_than_devices(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(cuda=2)
        monkeypatch.setenv("LOCAL_RANK", "2")
        with pytest.raises(ValueError, match=r"LOCAL_RANK=2.*2 cuda devices.*FASTNET_DEVICE=cpu"):
            get_device()
        monkeypatch.setenv("FASTNET_DEVICE", "cpu")
        assert get_device() == torch.device("cpu")

    def test_torch_and_the_environment(self, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        machine(cuda=4)
        monkeypatch.setenv("LOCAL_RANK", "3")
        monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda", 1))
        assert get_device() == torch.device("cuda", 1)
        monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda"))
        assert get_device() == torch.device("cuda", 3)
        monkeypatch.setenv("FASTNET_DEVICE", "cuda:2")
        assert get_device() == torch.device("cuda", 2)

    def test_an_unavailable_device_in_the_environment(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine()
        monkeypatch.setenv("FASTNET_DEVICE", "cuda")
        with pytest.raises(ValueError, match=r"^FASTNET_DEVICE=cuda, .* it has 1 cpu"):
            get_device()


class TestResolveDevice:
    def test_types_that_torch_cannot_count(self) -> None:
        assert resolve_device("meta") == torch.device("meta")

    @pytest.mark.parametrize("given", [2, "cuda:2", torch.device("cuda", 2), "mps", "xpu:0"])
    def test_unavailable_devices(self, machine: Any, given: Any) -> None:
        machine(cuda=2)
        with pytest.raises(ValueError, match=r"it has 2 cuda, 1 cpu.*None") as caught:
            resolve_device(given)
        assert f"device={given!r}" in str(caught.value)

    @pytest.mark.parametrize(
        ("given", "error"),
        [("gpu", ValueError), (True, TypeError), (1.0, TypeError), (["cuda"], TypeError)],
    )
    def test_other_values(self, given: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="'cuda:1'") as caught:
            resolve_device(given)
        assert f"device={given!r}" in str(caught.value)
