"""Warnings are attributed to the user's code, whatever calls lie in between."""

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
from fastnet.util.warnings import warn


def between(module: str, called: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that is defined in a module and calls another function."""
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
def test_the_line_that_called_a_library(modules: list[str]) -> None:
    call = between("fastnet.op", partial(warn, "take care"))
    for module in modules:
        call = between(module, call)
    here = inspect.currentframe()
    assert here is not None
    line = here.f_lineno + 2
    with pytest.warns(UserWarning, match=r"^take care$") as caught:
        call()
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line)]


def test_the_innermost_frame_of_the_user() -> None:
    inner = between("program", between("fastnet.op", partial(warn, "take care")))
    with pytest.warns(UserWarning, match="take care") as caught:
        between("fastnet.network", inner)()
    assert caught[0].filename == "program.py"


def test_a_thread_without_user_code() -> None:
    is_done = threading.Event()
    main = vars(types.ModuleType("fastnet.main"))
    main.update(warn=partial(warn, "take care"), done=is_done.set)
    exec(compile("def main():\n    warn()\n    done()", "main.py", "exec"), main)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _thread.start_new_thread(main["main"], ())
        assert is_done.wait(10)
    assert [(one.filename, one.lineno) for one in caught] == [("main.py", 2)]


def test_no_other_module_issues_warnings() -> None:
    """A fixed `stacklevel` is wrong as soon as the code is called in another way."""
    root = Path(fastnet.__file__).parent
    sources = [path for path in root.rglob("*.py*") if path.suffix in (".py", ".pyx")]
    assert [path.name for path in sources if "warnings.warn" in path.read_text()] == ["warnings.py"]
