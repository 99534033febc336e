"""Which framework an op speaks is settled when a network builds it: no step asks again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from fastnet.backend import dispatch
from fastnet.op.op import Op
from tests.conformance.catalogue import ROWS, Row
from tests.conformance.frameworks import FRAMEWORKS

# what a function that tells frameworks apart would have to name
TELLING = {"framework", "framework_of", "hasattr", "isinstance", "sys", "tensorflow", "tf", "torch"}


def names(source: str) -> Iterator[str]:
    """Find what code refers to, without its annotations and docstrings."""
    (function,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(function, ast.FunctionDef)
    for node in (each for line in function.body for each in ast.walk(line)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr.lstrip("_")


def test_names_are_found() -> None:
    source = "    def f(self, x: torch.Tensor):\n        'tf'\n        return self._framework(x)\n"
    assert set(names(source)) == {"framework", "self", "x"}


@pytest.mark.parametrize(
    "cls", dict.fromkeys(row.cls for row in ROWS), ids=lambda cls: cls.__name__
)
def test_forward_does_not_tell_frameworks_apart(cls: type[Op]) -> None:
    for each in cls.__mro__:
        if "forward" in vars(each):
            found = set(names(inspect.getsource(vars(each)["forward"])))
            assert not found & TELLING, each


@pytest.mark.parametrize("name", ["torch", "tf-eager"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_no_step_looks_at_types(name: str, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    fw = FRAMEWORKS[name]
    network, _ = row.network(fw)
    batch = fw.tensors(row.batch_for(fw))
    asked: list[type] = []

    class Watched(dict[type, Any]):
        def __getitem__(self, cls: type) -> Any:
            asked.append(cls)
            return super().__getitem__(cls)

    with fw.opened(network, "train"):
        monkeypatch.setattr(dispatch, "_package_of_type", Watched(dispatch._package_of_type))
        dispatch.backend_of(next(iter(batch.values())))
        assert len(asked) == 1, "asking is seen"
        network.run_step(batch)
    assert len(asked) == 1
