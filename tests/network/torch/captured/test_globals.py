"""What ops read of modules is never an old value, in whatever way they come by the module."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.torch.captured import settings
from tests.network.torch.captured.steps import QUICK


def _imported(x: torch.Tensor) -> Any:
    import tests.network.torch.captured.settings

    return x * tests.network.torch.captured.settings.scale


def _imported_of_it(x: torch.Tensor) -> Any:
    from tests.network.torch.captured.settings import scale

    return x * scale


def _relative(x: torch.Tensor) -> Any:
    from . import settings as own

    return x * own.table["scale"]


def _relative_of_it(x: torch.Tensor) -> Any:
    from .settings import scale

    return x * scale


def _given(module: Any) -> Any:
    return module.scale


def _steps(fn: Callable[[torch.Tensor], Any], change: Callable[[], None]) -> Iterator[TorchNetwork]:
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    x = torch.tensor([1.0, -1.0])
    with network("infer", 1):
        for place in range(8):
            if place == 4:
                before = fn(x)
                change()
                assert not torch.equal(fn(x), before)
            assert torch.equal(network.run_step({"x": x})["y"], fn(x)), place
    yield network


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    ("fn", "is_captured"),
    [
        (lambda x: x * settings.scale, True),
        (lambda x: x * getattr(settings, "scale"), True),  # noqa: B009
        (lambda x: x * vars(settings)["scale"], True),
        (lambda x: x * _given(settings), True),
        (_imported, True),
        (_imported_of_it, True),
        (_relative, True),
        (_relative_of_it, True),
        (lambda x: x * importlib.import_module(settings.__name__).scale, False),
        (lambda x: x * sys.modules["tests.network.torch.captured.settings"].scale, False),
    ],
)
def test_modules_of_a_programs_own(
    fn: Callable[[torch.Tensor], Any], is_captured: bool, monkeypatch: Any
) -> None:
    def change() -> None:
        monkeypatch.setattr(settings, "scale", 3.0)
        monkeypatch.setitem(settings.table, "scale", 3.0)

    for network in _steps(fn, change):
        assert [one.fallback is None for one in network.traces] == [True] * 2 or not is_captured


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    ("fn", "module", "name"),
    [
        (lambda x: torch.relu(x), torch, "relu"),
        (torch.nn.Sigmoid(), torch, "sigmoid"),
        (lambda x: functional.gelu(x), functional, "gelu"),
        (lambda x: x * math.pi, math, "pi"),
    ],
)
def test_modules_of_libraries(
    fn: Callable[[torch.Tensor], Any], module: Any, name: str, monkeypatch: Any
) -> None:
    other = 3.0 if name == "pi" else lambda x: x * 3
    for network in _steps(fn, lambda: monkeypatch.setattr(module, name, other)):
        assert network.traces[0].fallback is None


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_function_around_one_of_torchs_is_not_called_twice(monkeypatch: Any) -> None:
    inner, factor = functional.relu, [2.0]

    @functools.wraps(inner)
    def relu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return inner(x) * factor[0]

    monkeypatch.setattr(functional, "relu", relu)
    for network in _steps(lambda x: functional.relu(x), lambda: factor.__setitem__(0, 3.0)):
        assert "relu was replaced" in str(network.traces[0].fallback)


class _Finder:
    """Looks on at what is imported, and finds nothing."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        assert name not in sys.modules


def test_what_looks_on_at_imports_is_none_of_the_ops(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "meta_path", [_Finder(), *sys.meta_path])

    class Importing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            # there is no such module, as there are none of the packages that torch asks for
            assert find_spec("torch.not_there_at_all") is None
            return x * 2

    network = TorchNetwork([LambdaOp(Importing(), "x", "y")], compile=QUICK)
    with network("infer", 1):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
    assert [one.fallback for one in network.traces] == [None]


PROGRAM = """
import torch
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.torch.captured.steps import QUICK

scale = 2.0
network = TorchNetwork([LambdaOp(lambda x: x * scale, "x", "y")], compile=QUICK)
found = []
with network("infer", 1):
    for place in range(6):
        scale = 3.0 if place > 2 else 2.0
        found.append(float(network.run_step({"x": torch.ones(1)})["y"]))


def told(x):
    print("told")
    return x * 2


telling = TorchNetwork([LambdaOp(told, "x", "y")], compile=QUICK)
with telling("infer", 1):
    for _ in range(4):
        telling.run_step({"x": torch.ones(1)})
"""


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_program_that_runs_while_it_is_imported(
    monkeypatch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trains_when_imported.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    program = importlib.import_module("trains_when_imported")
    monkeypatch.delitem(sys.modules, "trains_when_imported")
    assert program.found == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    assert [one.fallback for one in program.network.traces] == [None, None]
    assert "calls print" in str(program.telling.traces[0].fallback)
    assert capsys.readouterr().out.count("told") == 4


def test_packages_that_are_imported_are_not_gone_through(monkeypatch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "counting_package.py").write_text("import itertools\nnumbers = itertools.count()\n")
    monkeypatch.syspath_prepend(folder)
    program = """
def scaled(x):
    import counting_package

    return x * getattr(x, "no_such_attribute", 2.0)
"""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, "program.py", "exec"), names)
    network = TorchNetwork([LambdaOp(names["scaled"], "x", "y")], compile=QUICK)
    with network("infer", 1):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": torch.ones(2)})["y"], torch.full((2,), 2.0))
    monkeypatch.delitem(sys.modules, "counting_package")
    assert [one.fallback for one in network.traces] == [None]
