"""The pages that show fastnet beside other libraries: their programs run, and come to the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import machine
from tests.docs.programs import programs, run


def test_what_fastnet_is_not(tmp_path: Path) -> None:
    for library in ("torch", "torchmetrics", "ignite", "tensorboard"):
        pytest.importorskip(library)
    told = run("\n\n".join(programs("beside")), tmp_path)
    assert told.startswith("accuracy 0.")
    assert "loss " in told
    assert list((tmp_path / "runs").iterdir())


def shared() -> tuple[list[str], dict[str, str], list[str]]:
    """Read what the pairs in PyTorch share, each library's block, and those in TensorFlow."""
    first, ours, *others, keras, ours_in_keras = programs("coming")
    names = ("torch", "lightning_fabric", "accelerate")
    return [first, ours], dict(zip(names, others, strict=True)), [keras, ours_in_keras]


@pytest.mark.parametrize("library", ["torch", "lightning_fabric", "accelerate"])
def test_coming_from(library: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip(library)
    before, blocks, _ = shared()
    names: dict[str, Any] = {}
    for block in (*before, blocks[library]):
        assert library in block or block in before
        exec(block, names)
    start, theirs, ours = (list(names[name].parameters()) for name in ("start", "theirs", "ours"))
    for begun, expected, found in zip(start, theirs, ours, strict=True):
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found, begun)


def test_coming_from_keras() -> None:
    pytest.importorskip("tensorflow")
    # no test after this one could ask for it
    machine.use_one_thread("tf")
    names: dict[str, Any] = {}
    for block in shared()[2]:
        exec(block, names)
    start, theirs, ours = (names[name].get_weights() for name in ("start", "theirs", "ours"))
    for begun, expected, found in zip(start, theirs, ours, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        assert np.abs(found - begun).max() > 0
