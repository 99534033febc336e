"""docs/migration.md says of fastnet what is so."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.migration_page import PAGE, read_page

pytest.importorskip("torch")

TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = read_page(TEXT)

# FastEstimator has no such package
WITHOUT_A_MODULE = {"op.numpyop.multivariate"}
MIRRORED = sorted(SECTIONS.keys() - WITHOUT_A_MODULE)

# What fastnet's top has beside FastEstimator's: a network's classes, the profiler, and packages.
ON_TOP = {
    *("BaseNetwork", "TFNetwork", "TorchNetwork", "profile", "save_checkpoint", "load_checkpoint"),
    *("network", "op", "profiling", "slicer", "steps", "types"),
}


def module_of(path: str) -> object:
    return importlib.import_module(f"fastnet.{path}" if path else "fastnet")


def test_there_is_a_section_for_each_module() -> None:
    assert set(MIRRORED) >= {
        *("", "network", "op", "schedule", "slicer", "backend", "util"),
        *("op.tensorop", "op.numpyop", "op.numpyop.meta", "op.numpyop.univariate"),
        *(f"op.tensorop.{name}" for name in ("model", "gradient", "loss", "meta", "augmentation")),
    }


@pytest.mark.parametrize("path", MIRRORED)
def test_a_section_has_what_its_module_has(path: str) -> None:
    module, section = module_of(path), SECTIONS[path]
    there = [*section.covered, *section.added, *section.packages]
    for name in {*there} - {"TFNetwork"}:  # which needs TensorFlow
        assert getattr(module, name) is not None, name
    public = set(module.__all__)  # type: ignore[attr-defined]
    assert public.isdisjoint(section.missing)
    assert public - {*there} <= (ON_TOP if not path else set())
    # Each name is listed once.
    assert len({*there, *section.missing}) == len(there) + len(section.missing)


def test_paths_that_the_page_names() -> None:
    (paragraph,) = re.findall(r"^Import from packages.*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    there, *absent = re.findall(r"`fastestimator\.([\w.]+)`", paragraph)
    assert module_of(there)
    assert absent == ["backend._to_tensor", "util.base_util"]
    for path in absent:
        with pytest.raises(ModuleNotFoundError, match=re.escape(f"fastnet.{path}")):
            module_of(path)


def test_packages_have_sections() -> None:
    for path, section in SECTIONS.items():
        for package in section.packages:
            assert (f"{path}.{package}" if path else package) in SECTIONS


def test_the_older_api_is_there() -> None:
    from fastnet.compat import v1

    (table,) = re.findall(r"\| covered at `fastnet\.compat\.v1` \|.*?\n\n", TEXT, re.DOTALL)
    names = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert len(names) == 19
    network = v1.TorchNetwork([])
    for name in names:
        if name != "TFNetwork":
            assert hasattr(v1, name) or hasattr(network, name), name
