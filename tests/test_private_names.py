"""Private names, of frameworks and of fastnet's own classes, are read only where they may be."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")

SOURCE = Path(__file__).parents[1] / "src" / "fastnet"
FILES = ("torch/_internals.py", "tf/_internals.py", "tf/_keras_internals.py")
ROOMS = {SOURCE / "backend" / file for file in FILES}
LIBRARIES = ("torch", "tensorflow", "keras", "tf_keras")
# parts of these libraries that are nobody else's
INSIDES = ("__internal__", "keras.src", ".src.", "tensorflow.python", "torch._")
ASKING = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "__setattr__"}
TABLES = {"get", "pop", "setdefault"}

# protocols of Python and FastEstimator, and attributes that fastnet sets through `vars`
ALLOWED = {"_fe_traceability_summary", "_getframe", "_last_resolved", "_replace", "_stands_for"}
NETWORK = SOURCE / "network"
# where the private members of networks are defined, which the modules beside them may read
NETWORKS = {
    NETWORK / file for file in ("base.py", "copying.py", "tf/network.py", "torch/network.py")
}
# what a pickle of FastEstimator may name
PICKLED = SOURCE / "integrations" / "fastestimator" / "model_files.py"


def is_private(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def reads_a_table(node: ast.expr) -> bool:
    """Return whether an expression is the table of an object's attributes."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars"
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def texts_of(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    """Go through texts that are no docstrings."""
    statements = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in statements:
            yield node


def private_names_in(source: str) -> list[tuple[int, str]]:
    """List the private names that a module asks other objects for, with their lines."""
    nodes = list(ast.walk(ast.parse(source)))
    found: list[tuple[int, str]] = []
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if (is_private(node.attr) and not is_own(node.value)) or node.attr == "__internal__":
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, one.name) for one in node.names if is_inside(one.name)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{one.name}" for one in node.names]
            found += [(node.lineno, name) for name in names if is_inside(name)]
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            table = isinstance(node.func, ast.Attribute) and reads_a_table(node.func.value)
            asks = called in ASKING or (called in TABLES and table)
            if asks and node.args and not is_own(node.args[0]):
                found += [(node.lineno, one) for one in map(literal, node.args) if one]
        elif isinstance(node, ast.Subscript) and reads_a_table(node.value) and literal(node.slice):
            found.append((node.lineno, literal(node.slice)))
    found += [
        (text.lineno, text.value)
        for text in texts_of(nodes)
        if any(inside in f"{text.value}." for inside in INSIDES)
    ]
    return found


def literal(node: ast.expr) -> str:
    """Return a private name that is written as a text; else nothing."""
    name = getattr(node, "value", None)
    return name if isinstance(node, ast.Constant) and is_private(name) else ""


def is_inside(name: str) -> bool:
    """Return whether what is imported is a private part of a library."""
    package, *parts = name.split(".")
    return package in LIBRARIES and (
        any(map(is_private, parts)) or any(inside in f"{name}." for inside in INSIDES)
    )


def own_names(paths: Iterable[Path]) -> set[str]:
    """Return the names that the classes in modules give to their members."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if is_own(node.value) else set()
            for one in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(one, ast.FunctionDef):
                    names.add(one.name)
                elif isinstance(one, (ast.Assign, ast.AnnAssign)):
                    names |= {part.id for part in ast.walk(one) if isinstance(part, ast.Name)}
    return names


def library_names() -> set[str]:
    """Return the names that models, optimizers and tensors of the libraries have."""
    layer, keras = torch.nn.Linear(1, 1), tf.keras
    of_torch = [layer, layer.weight, torch.optim.SGD(layer.parameters())]
    of_tensorflow = [keras.Sequential(), keras.layers.Dense(1), keras.optimizers.SGD()]
    objects = [*of_torch, *of_tensorflow, tf.Variable(0.0), tf.constant(0.0)]
    return {name for one in objects for name in dir(one)}


def test_private_names_are_in_one_place() -> None:
    """All other private names are fastnet's own, and of no library."""
    modules = sorted(set(SOURCE.rglob("*.py")) - ROOMS - {PICKLED})
    allowed = ALLOWED | own_names(set(SOURCE.rglob("*.py")) - ROOMS) - library_names()
    found = [(path, *one) for path in modules for one in private_names_in(path.read_text())]
    assert [one for one in found if one[-1] not in allowed] == []
    assert not allowed & {"_modules", "_parameters"}


@pytest.mark.parametrize(
    "path",
    sorted(set(SOURCE.rglob("*.py")) - ROOMS - {PICKLED}),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_private_members_are_read_in_their_module(path: Path) -> None:
    """No module reads private members of another's objects, but for networks in their package."""
    of_networks = own_names(NETWORKS) if NETWORK in path.parents else set()
    allowed = ALLOWED | own_names([path]) | of_networks
    found = [one for one in private_names_in(path.read_text()) if one[-1] not in allowed]
    assert found == []


def test_what_the_scan_finds() -> None:
    for line in (
        "torch._C._set_grad_enabled(False)",
        "from torch.autograd import _profiler_enabled",
        "import tensorflow.python.eager.context",
        "tf.__internal__.EagerTensor",
        "hasattr(model, '_flatten_layers')",
        "vars(module)['_modules']",
        "module.__dict__.get('_buffers')",
        "import_module(f'{name}.src.utils.naming')",
    ):
        assert private_names_in(line), line
    assert not private_names_in("self._x, x.__class__, getattr(self, '_x')")
    assert not private_names_in("'''torch._C is private'''")
