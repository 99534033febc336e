"""The table of frameworks, and what is said of one that lacks something."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fastnet.backend.dispatch import implementation
from fastnet.backend.framework import framework_of
from fastnet.frameworks import (
    FRAMEWORKS,
    Framework,
    MissingPart,
    framework_named,
    part_of,
    register,
)

ADVICE = "CONTRIBUTING.md, 'Add a framework', lists what one has to bring."


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Framework:
    """A framework of nothing but a library and an empty package."""
    library: Any = ModuleType("other_library")
    library.Tensor = type("Tensor", (), {})
    library.nn = ModuleType("other_library.nn")
    library.nn.Module = type("Module", (), {})
    package = ModuleType("other_package")
    for module in (library, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    framework = Framework(
        "other", "other_library", ("Tensor",), "other_package", models=("other_library:nn.Module",)
    )
    monkeypatch.setitem(FRAMEWORKS, "other", framework)
    return framework


def test_what_there_is() -> None:
    assert list(FRAMEWORKS) == ["torch", "tf", "np"]
    assert part_of("np").__name__ == "fastnet.backend.numpy"
    assert part_of("np", "losses.hinge") is part_of("np", "losses").hinge


@pytest.mark.parametrize("name", ["torch", "tf"])
@pytest.mark.parametrize("what", ["network", "model_pass", "update"])
def test_places_lead_somewhere(name: str, what: str) -> None:
    pytest.importorskip(framework_named(name).library)
    found = framework_named(name).load(what)
    # of what ops are run by, a function that chooses a class will do
    assert callable(found) if what != "network" else isinstance(found, type)


def test_values_are_of_the_framework_that_claims_them(other: Framework) -> None:
    library: Any = sys.modules["other_library"]
    assert implementation(library.Tensor()).__name__ == "other_package"
    assert implementation(np.ones(1)).__name__ == "fastnet.backend.numpy"
    assert framework_of(library.nn.Module()) == "other"
    assert framework_of(library.Tensor()) is None


def test_what_was_never_imported_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FRAMEWORKS, "absent", Framework("absent", "absent", ("T",), "absent", models=("absent:M",))
    )
    assert framework_of(object()) is None
    with pytest.raises(ValueError, match="torch, tensorflow, numpy or absent"):
        implementation(object())


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="no framework") as caught:
        framework_named("troch")
    assert str(caught.value) == (
        "There is no framework 'troch'. Did you mean 'torch'? Those that ops and networks can run "
        "in are 'torch', 'tf', 'np'."
    )


def test_a_name_that_is_taken(other: Framework) -> None:
    register(other)
    with pytest.raises(ValueError, match="already") as caught:
        register(dataclasses.replace(other, package="another_package"))
    assert str(caught.value) == (
        "There is a framework 'other' already, whose functions are in other_package. Register this "
        "one by another name."
    )
    assert FRAMEWORKS["other"] is other


@pytest.mark.parametrize("part", ["reduce_mean", "gradients", "gradients.watch"])
def test_a_part_that_is_not_there(other: Framework, part: str) -> None:
    with pytest.raises(MissingPart) as caught:
        part_of("other", part, "Watch")
    assert str(caught.value) == (
        f"Watch needs '{part}' of the framework 'other', but other_package has none. {ADVICE}"
    )


def test_a_class_that_is_not_there(other: Framework) -> None:
    with pytest.raises(MissingPart) as caught:
        other.load("network")
    assert str(caught.value) == f"The framework 'other' has no network. {ADVICE}"


def test_a_part_that_needs_what_is_not_there(
    other: Framework, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "other_package").mkdir()
    (tmp_path / "other_package" / "__init__.py").touch()
    (tmp_path / "other_package" / "control.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        part_of("other", "control")
    sys.modules.pop("other_package")
