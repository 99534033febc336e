"""What the machine computes on, on machines that are pretended."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fastnet.util import get_device, get_num_devices, get_num_gpus
from fastnet.util.devices import has_accelerator, read_device, stream_waiter
from tests.network.programs import raising

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
    """Pretend a machine, by how many devices of a kind it has."""

    def pretend(mps: int = 0, cuda: int = 0, xpu: int = 0) -> None:
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps > 0)
        for kind, count in (("cuda", cuda), ("xpu", xpu)):
            module = getattr(torch, kind)
            monkeypatch.setattr(module, "is_available", lambda count=count: count > 0)
            monkeypatch.setattr(module, "device_count", lambda count=count: count)
            monkeypatch.setattr(module, "current_device", lambda: 0)

    return pretend


@pytest.mark.parametrize(
    ("mps", "cuda", "device", "gpus", "devices"),
    [
        (False, 0, "cpu", 0, 1),
        (False, 1, "cuda:0", 1, 1),
        (False, 4, "cuda:0", 4, 4),
        (True, 0, "mps", 1, 1),
    ],
)
def test_machine(machine: Any, mps: bool, cuda: int, device: str, gpus: int, devices: int) -> None:
    machine(mps=mps, cuda=cuda)
    assert get_device() == torch.device(device)
    assert get_num_gpus() == gpus
    assert get_num_devices() == devices


@pytest.mark.parametrize("kind", ["mps", "cuda", "xpu"])
def test_something_but_the_cpu(machine: Any, kind: str) -> None:
    machine(**{kind: 1})
    assert has_accelerator()


def test_nothing_but_the_cpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert not has_accelerator()


def test_a_device_of_a_package_of_its_own(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    accelerator = SimpleNamespace(is_available=lambda: True)
    monkeypatch.setattr(torch, "accelerator", accelerator, raising=False)
    assert has_accelerator()


def test_the_last_choice_before_the_cpu(machine: Any) -> None:
    machine(xpu=2)
    assert get_device() == torch.device("xpu:0")


class TestWhoDecides:
    @pytest.mark.parametrize("kind", ["cuda", "xpu"])
    def test_the_process_of_torchrun(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        machine(**{kind: 4})
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert get_device() == read_device(None) == torch.device(kind, 2)
        # without a number it is the process's own too
        assert read_device(kind) == torch.device(kind, 2)
        assert read_device(f"{kind}:1") == torch.device(kind, 1)

    def test_a_process_without_a_device(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(cuda=2)
        monkeypatch.setenv("LOCAL_RANK", "2")
        with raising(
            ValueError,
            "This process has LOCAL_RANK=2, but the machine has 2 cuda devices. Start at most 2 "
            "processes on it, or set FASTNET_DEVICE=cpu.",
        ):
            get_device()
        monkeypatch.setenv("FASTNET_DEVICE", "cpu")
        assert get_device() == torch.device("cpu")

    def test_the_environment_goes_before_the_program(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(cuda=2)
        monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda", 0))
        assert get_device() == torch.device("cuda", 0)
        monkeypatch.setenv("FASTNET_DEVICE", "cuda:1")
        assert get_device() == torch.device("cuda", 1)

    def test_the_default_device_of_torch(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(cuda=4)
        monkeypatch.setenv("LOCAL_RANK", "3")
        monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda", 1))
        assert get_device() == torch.device("cuda", 1)
        monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda"))
        assert get_device() == torch.device("cuda", 3)


class TestReading:
    @pytest.mark.parametrize("given", [1, "cuda:1", torch.device("cuda", 1)])
    def test_forms(self, machine: Any, given: Any) -> None:
        machine(cuda=2)
        assert read_device(given) == torch.device("cuda", 1)

    def test_an_index_is_of_the_best(self, machine: Any) -> None:
        machine(xpu=2)
        assert read_device(1) == torch.device("xpu", 1)

    @pytest.mark.parametrize("given", [2, "cuda:2", torch.device("cuda", 2)])
    def test_one_that_is_not_there(self, machine: Any, given: Any) -> None:
        machine(cuda=2)
        with raising(
            ValueError,
            f"device={given!r}, but this machine has no such device: it has 2 cuda, 1 cpu. Pass "
            "one of these, or None to have one chosen.",
        ):
            read_device(given)

    @pytest.mark.parametrize("given", ["cuda", "mps", "xpu:0", 1])
    def test_on_a_machine_without(self, machine: Any, given: Any) -> None:
        machine()
        with pytest.raises(ValueError, match=r"no such device: it has 1 cpu\. Pass one of"):
            read_device(given)

    def test_one_that_the_environment_names_wrong(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine()
        monkeypatch.setenv("FASTNET_DEVICE", "cuda")
        with raising(
            ValueError,
            "FASTNET_DEVICE=cuda, but this machine has no such device: it has 1 cpu. Pass one of "
            "these, or None to have one chosen.",
        ):
            get_device()

    def test_no_name(self) -> None:
        with pytest.raises(ValueError, match=r"^device='gpu' is no device of torch: .+ Names are"):
            read_device("gpu")

    @pytest.mark.parametrize("given", [True, 1.0, ["cuda"], b"cuda"])
    def test_no_device(self, given: Any) -> None:
        with raising(
            TypeError,
            f"device={given!r} is of type {type(given).__name__}. Pass a torch.device, a name such "
            "as 'cuda:1', an index, or None.",
        ):
            read_device(given)


class TestWaiting:
    def test_for_the_stream_that_is_current(
        self, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(cuda=2)
        log: list[Any] = []

        def current_stream(device: Any) -> Any:
            log.append(device)
            return SimpleNamespace(synchronize=lambda: log.append("wait"))

        wait = stream_waiter(torch.device("cuda", 1))
        monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        assert wait is not None
        wait()
        assert log == [torch.device("cuda", 1), "wait"]

    @pytest.mark.parametrize("kind", ["cpu", "mps", "xpu", "meta"])
    def test_for_nothing_where_copies_are_not_queued(self, kind: str) -> None:
        assert stream_waiter(torch.device(kind)) is None
