"""Warnings point to the program's line, whatever lies between it and what warns."""

from __future__ import annotations

import _thread
import inspect
import threading
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fastnet
from fastnet.util.warned import warn


def between(module: str, called: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function of a module that calls another one."""
    home = vars(types.ModuleType(module))
    home["called"] = called
    exec(compile("def call():\n    called()", f"{module}.py", "exec"), home)
    call: Callable[[], Any] = home["call"]
    return call


@pytest.mark.parametrize(
    "modules",
    [
        [],
        ["fastnet.network.base"],
        ["tensorflow.python.eager", "__autograph_generated_file1", "fastnet.network"],
        ["keras.src", "torch.nn.modules.module", "contextlib", "fastestimator.estimator"],
    ],
)
def test_they_point_here(modules: list[str]) -> None:
    call = between("fastnet.op", partial(warn, "take care"))
    for module in modules:
        call = between(module, call)
    here = inspect.currentframe()
    assert here is not None
    line = here.f_lineno + 2
    with pytest.warns(UserWarning, match=r"^take care$") as caught:
        call()
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line)]


def test_a_function_of_the_program_that_fastnet_calls_is_nearer() -> None:
    inner = between("program", between("fastnet.op", partial(warn, "take care")))
    with pytest.warns(UserWarning, match="take care") as caught:
        between("fastnet.network", inner)()
    assert caught[0].filename == "program.py"


def test_a_thread_that_has_nothing_of_the_program() -> None:
    is_done = threading.Event()
    main = vars(types.ModuleType("fastnet.main"))
    main.update(warn=partial(warn, "take care"), done=is_done.set)
    exec(compile("def main():\n    warn()\n    done()", "main.py", "exec"), main)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _thread.start_new_thread(main["main"], ())
        assert is_done.wait(10)
    assert [(one.filename, one.lineno) for one in caught] == [("main.py", 2)]


def test_filters_count() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="as an error"):
            warn("as an error")


def test_nothing_warns_in_another_way() -> None:
    """A level that is counted is wrong as soon as something else leads there."""
    root = Path(fastnet.__file__).parent
    sources = [path for path in root.rglob("*.py*") if path.suffix in (".py", ".pyx")]
    assert [path.name for path in sources if "warnings.warn" in path.read_text()] == ["warned.py"]
