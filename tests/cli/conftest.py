"""A user's own module, in a folder that the commands are run from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NETWORKS = '''\
"""Networks of ops without models, which run in torch."""

import numpy as np

from fastnet.network.torch import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from beside import FACTOR


def make_network():
    return TorchNetwork(
        [
            LambdaOp(fn=lambda x: x * FACTOR, inputs="x", outputs="y"),
            LambdaOp(fn=lambda y: y + 1, inputs="y", outputs="z", mode="!infer"),
            LambdaOp(fn=lambda x: -x, inputs="x", outputs="nobody_reads_this"),
        ]
    )


def scaled(factor):
    return make_network()


network = make_network()
number = 3
batch = {"x": np.ones((2, 3), "float32"), "name": "a string", "epoch": 3}
batches = [batch, {"x": np.zeros((4, 3), "float32"), "name": "another"}]
no_batches = []
not_batches = [batch, 7]


def endless():
    count = 0
    while True:
        count += 1
        yield {"x": np.full((2, 3), count, "float32")}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder; what commands import from it is forgotten afterwards."""
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from networks import make_network\n")
    (tmp_path / "broken.py").write_text("import a_package_that_is_nowhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("networks", "beside", "package", "broken"):
            del sys.modules[name]
