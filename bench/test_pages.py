"""The pages that show fastnet beside other libraries: their programs run, and come to the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import machine
from tests.docs.programs import programs, run


def test_what_fastnet_is_not(tmp_path: Path) -> None:
    for library in ("torch", "torchmetrics", "ignite"):
        pytest.importorskip(library)
    told = run("\n\n".join(programs("beside")), tmp_path)
    assert told.startswith("accuracy 0.")
    assert "loss " in told


def test_coming_from_pytorch() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {}
    for block in programs("coming")[:3]:
        exec(block, names)
    start, theirs, ours = (list(names[name].parameters()) for name in ("start", "theirs", "ours"))
    for begun, expected, found in zip(start, theirs, ours, strict=True):
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found, begun)


def test_coming_from_keras() -> None:
    pytest.importorskip("tensorflow")
    # no test after this one could ask for it
    machine.use_threads("tf", 1)
    names: dict[str, Any] = {}
    for block in programs("coming")[3:]:
        exec(block, names)
    start, theirs, ours = (names[name].get_weights() for name in ("start", "theirs", "ours"))
    for begun, expected, found in zip(start, theirs, ours, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        assert np.abs(found - begun).max() > 0
