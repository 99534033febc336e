"""The fast tests leave no public name out."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorflow")

pytestmark = pytest.mark.fast

TESTS = Path(__file__).parents[1]
# the packages that users import from, and below them those that they name
PACKAGES = ("fastnet", "fastnet.compat.v1", "fastnet.errors", "fastnet.explain")


def public(name: str) -> Iterator[tuple[str, Any]]:
    """Find what a package names as public, and what the packages among that do."""
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if isinstance(value, ModuleType):
            yield from public(value.__name__)
        else:
            yield f"{name}.{each}", value


def sources() -> set[Path]:
    """Find the files of fast tests, and those of tests that they import from."""
    marked = [path for path in TESTS.rglob("test_*.py") if "mark.fast" in path.read_text("utf-8")]
    found: set[Path] = set()
    while marked:
        path = marked.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                imported = TESTS.parent.joinpath(*str(node.module).split(".")).with_suffix(".py")
                marked.extend([imported] if imported.exists() else [])
    return found


def used(path: Path) -> Iterator[Any]:
    """Find what a file does not only import from fastnet, but uses."""
    tree = ast.parse(path.read_text("utf-8"))
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "fastnet":
                    known[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastnet"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                known[alias.asname or alias.name] = attribute(module, alias.name)
    for node in ast.walk(tree):
        names: list[str] = []
        expression = node
        while isinstance(expression, ast.Attribute):
            names.append(expression.attr)
            expression = expression.value
        if isinstance(expression, ast.Name) and expression.id in known:
            value = known[expression.id]
            for name in reversed(names):
                if not isinstance(value, ModuleType):
                    break
                value = attribute(value, name)
            yield value


def attribute(module: ModuleType, name: str) -> Any:
    return getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")


def test_every_public_name_is_used() -> None:
    found = [value for path in sources() for value in used(path)]
    names = {name: value for package in PACKAGES for name, value in public(package)}
    assert len(names) > 150
    assert not [name for name, value in names.items() if not any(value is each for each in found)]
    assert sum(inspect.isclass(value) for value in names.values()) > 50
