"""The reference has every public name: those that the tests of imports list, and all others."""

from __future__ import annotations

import importlib

import pytest

from website import reference

PAGES = {page.module: page for page in reference.pages()}


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.module)
def test_every_exported_name_is_on_the_page(page: reference.Page) -> None:
    if page.module in ("fastnet", "fastnet.network"):  # which export what is installed
        pytest.importorskip("torch")
        pytest.importorskip("tensorflow")
    exported = set(importlib.import_module(page.module).__all__)
    packages = {package.rpartition(".")[2] for package in page.packages}
    assert {*page.own, *page.elsewhere, *packages} == exported
    text = page.markdown()
    for name in page.own:
        assert f"::: {page.module}.{name}\n" in text or f'id="{page.module}.{name}"' in text
    for name in page.elsewhere:
        assert f'id="{page.module}.{name}"' in text


def test_no_name_is_documented_twice() -> None:
    defined = [reference.defined(page.module, name) for page in PAGES.values() for name in page.own]
    assert len(set(defined)) == len(defined)


def test_modules_that_the_package_exports_have_pages() -> None:
    missing = set(PAGES["fastnet"].packages) - PAGES.keys()
    # which exports nothing but packages
    assert missing == {"fastnet.op"}


def test_functions_that_their_module_is_named_after() -> None:
    assert reference.defined("fastnet", "build") == ("fastnet.network.build", "build")
    assert reference.defined("fastnet", "profile")[1] == "profile"
    assert "::: fastnet.network.build.build\n" in PAGES["fastnet"].markdown()


def test_a_module_without_a_list_of_names() -> None:
    with pytest.raises(ValueError, match=r"fastnet\.op\.tensorop\.loss\.hinge has no __all__"):
        reference.exported("fastnet.op.tensorop.loss.hinge")
