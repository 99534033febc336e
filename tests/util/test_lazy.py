"""Packages that load their public names on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastnet.util.lazy import attach

INIT = """
from fastnet.util.lazy import attach
__getattr__, __dir__ = attach(__name__, {"value": "inner"}, submodules=["other"])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "lazy_package_of_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "inner.py").write_text("value = object()")
    (folder / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    return name


def test_a_name_is_imported_on_first_use(package: str) -> None:
    module = __import__(package)
    assert f"{package}.inner" not in sys.modules
    value = module.value
    assert f"{package}.inner" in sys.modules
    assert f"{package}.other" not in sys.modules
    assert module.other is sys.modules[f"{package}.other"]
    assert vars(module)["value"] is value
    for name in list(sys.modules):
        if name.split(".")[0] == package:
            del sys.modules[name]


def test_dir_and_unknown_names() -> None:
    load, names = attach("fastnet.util", {"to_list": "collections"}, submodules=["names"])
    assert names() == ["names", "to_list"]
    with pytest.raises(AttributeError, match=r"'fastnet\.util' has no attribute 'nothing'"):
        load("nothing")


def test_dir_omits_names_whose_library_is_not_installed() -> None:
    _, names = attach(
        "fastnet.util",
        {"to_list": "collections", "lazy": "lazy"},
        submodules=["names"],
        needs={"to_list": "numpy", "names": "no_library_of_this_name"},
    )
    assert names() == ["lazy", "to_list"]


def test_star_import() -> None:
    code = (
        "from fastnet.backend import *; from fastnet.op.numpyop import *; "
        "from fastnet.schedule import *; from fastnet.slicer import *; from fastnet.util import *; "
        "to_tensor, forward_numpyop, EpochScheduler, AxisSlicer, to_list"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
