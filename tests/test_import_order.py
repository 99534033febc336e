"""Modules import one way: downwards in the order that CONTRIBUTING.md gives, and in no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# the kernel's modules are compiled: what they import is for Cython to say
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
KERNEL = {f"fastnet.{path.stem}" for path in (SOURCE / "fastnet").glob("*.pyx")}
# not in the order: the package itself, and how it is started
APART = {"fastnet", *(name for name in MODULES if name.endswith(".__main__"))}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(node: ast.AST) -> Iterator[str]:
    """Go through the modules that code imports when it runs, at once or in a function."""
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            continue
        if isinstance(child, ast.ImportFrom) and child.module is not None:
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in MODULES or full in KERNEL else child.module
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from imports(child)


def imported_by(name: str) -> set[str]:
    found = set(imports(ast.parse(MODULES[name].read_text(encoding="utf-8"))))
    return {one for one in found if one in MODULES or one in KERNEL} - {name}


def order() -> list[set[str]]:
    """Read the order in CONTRIBUTING.md: the first may import all others."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    sentence = re.search(r"downwards in this order: (.*?)\. ", text)
    assert sentence is not None
    return [
        {*re.findall(r"`(\w+)`", step), *({"the kernel"} if "the kernel" in step else ())}
        for step in sentence[1].split(", then ")
    ]


def part_of(module: str) -> str:
    return "the kernel" if module in KERNEL else module.split(".")[1]


ORDER = order()
PLACES = {part: place for place, parts in enumerate(ORDER) for part in parts}


def test_every_part_has_its_place() -> None:
    assert len(ORDER) > 5
    assert {part_of(module) for module in {*MODULES, *KERNEL} - APART} == PLACES.keys()


@pytest.mark.parametrize("module", sorted(MODULES.keys() - APART))
def test_imports_go_downwards(module: str) -> None:
    own = PLACES[part_of(module)]
    upwards = {one for one in imported_by(module) - APART if PLACES[part_of(one)] < own}
    assert not upwards


def test_there_is_no_circle() -> None:
    graph = {module: imported_by(module) for module in MODULES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
